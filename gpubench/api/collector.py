"""The names with which a collector is written."""

from gpubench.base import installation
from gpubench.base.errors import DeviceError, OptionalUnavailable, Unavailable
from gpubench.model import Counter, CounterKind, Device, EventBit, EventClass, Measure
from gpubench.plugins.collector import (
    Collector,
    Condition,
    CounterSource,
    DeviceProcess,
    HealthReading,
    HealthSign,
    HealthSource,
    ProcessSource,
    Watch,
)

__all__ = [
    "Collector",
    "Condition",
    "Counter",
    "CounterKind",
    "CounterSource",
    "Device",
    "DeviceError",
    "DeviceProcess",
    "EventBit",
    "EventClass",
    "HealthReading",
    "HealthSign",
    "HealthSource",
    "Measure",
    "OptionalUnavailable",
    "ProcessSource",
    "Unavailable",
    "Watch",
    "installation",
]
