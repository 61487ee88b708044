"""What a collector is written with."""

from gpubench import DISTRIBUTION
from gpubench.base.errors import DeviceError, Lacking, Missing
from gpubench.model import Counter, Device
from gpubench.plugins.collector import Collector, Condition, CounterSource, Watch

__all__ = [
    "DISTRIBUTION",
    "Collector",
    "Condition",
    "Counter",
    "CounterSource",
    "Device",
    "DeviceError",
    "Lacking",
    "Missing",
    "Watch",
]
