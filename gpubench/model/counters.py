"""Counters: what they measure, their samples over time, and remarks on what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Interval

from gpubench.model.limits import MOST_BITS, Many, Moment, Moments, Readings, Seconds, Text, Word
from gpubench.model.schema import STRICT

CounterKind = Literal["gauge", "cumulative", "window", "event"]


class Measure(StrEnum):
    """What a counter measures: a closed vocabulary, by which everything but a list of counters asks for it.

    Shares are in per cent. Traffic is bytes as a sum that rises, or bytes a second over a window.
    """

    CORE_CLOCK = "core clock"
    MEMORY_CLOCK = "memory clock"
    BOARD_POWER = "board power"
    ENERGY = "energy"
    TEMPERATURE = "temperature"
    MEMORY_TEMPERATURE = "memory temperature"
    MEMORY_USED = "memory used"
    MEMORY_AVAILABLE = "memory available"
    BUSY = "busy share"  # of the time in which the device had work
    SM_ACTIVITY = "SM activity"
    TENSOR_ACTIVITY = "tensor activity"
    FP64_ACTIVITY = "fp64 activity"
    FP32_ACTIVITY = "fp32 activity"
    FP16_ACTIVITY = "fp16 activity"
    DRAM_SHARE = "DRAM share"  # of 2 × memory clock × bus width
    DRAM_READ = "DRAM bytes read"
    DRAM_WRITTEN = "DRAM bytes written"
    PCIE_SENT = "PCIe bytes sent"
    PCIE_RECEIVED = "PCIe bytes received"
    NVLINK_SENT = "NVLink bytes sent"
    NVLINK_RECEIVED = "NVLink bytes received"
    THROTTLE_REASONS = "throttle reasons"
    CPU_TIME = "processor time"  # of the whole host
    PROGRAM_CPU_TIME = "processor time of the program"
    PROGRAM_MEMORY = "memory of the program"
    LOAD = "load"
    OTHER = "other"  # is shown and kept, and nothing is concluded from it


class EventClass(StrEnum):
    """What a bit of an event counter means for whoever reads a figure."""

    IDLE = "idle"
    USER = "user's choice"  # clocks that somebody set: nothing is held back
    POWER_CAP = "power cap"
    THERMAL = "thermal"
    HARDWARE_SLOWDOWN = "hardware slowdown"
    OTHER = "other"


_SLOWING = (EventClass.POWER_CAP, EventClass.THERMAL, EventClass.HARDWARE_SLOWDOWN, EventClass.OTHER)


@dataclass(frozen=True, slots=True)
class EventBit:
    """One bit of an event counter: its mask, its name, and its class."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    mask: Annotated[int, Interval(ge=1, lt=MOST_BITS)]
    name: Word
    kind: EventClass

    @property
    def slows(self) -> bool:
        """Return whether a device does less than it could while this bit is set; a bit that nobody knows may."""
        return self.kind in _SLOWING


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter's meaning: unit, kind, period of reading, the command showing the same number, what it measures.

    `bits` name the bits of an event counter. `measures` decides what the counter is used for, its name nothing.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: Word
    unit: Word
    kind: CounterKind
    period_s: Seconds
    source: Text
    measures: Measure = Measure.OTHER
    bits: Many[EventBit] = ()

    def events(self, value: int) -> tuple[EventBit, ...]:
        """Return the set bits of a value, the lowest first; one that is not declared is `bit 9`, of class OTHER."""
        known = {bit.mask: bit for bit in self.bits}
        masks = (1 << place for place in range(value.bit_length()) if value >> place & 1)
        return tuple(
            known.get(mask, EventBit(mask, f"bit {mask.bit_length() - 1}", EventClass.OTHER)) for mask in masks
        )


@dataclass(frozen=True, slots=True)
class Samples:
    """A chunk of one device's counters: columns of values over a shared `at` (s since `started_at`).

    A value that could not be read is None, never a sentinel number. `busy_s` is what reading these rows took,
    `late_s` the most that one of them was read after it was due.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    collector: Word
    device: Word
    at: Moments
    columns: Many[tuple[Word, Readings]]
    busy_s: Seconds = 0.0
    late_s: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Remark:
    """What is to be known of the counters of a run, in words: counters that are not there, or were lost on the way.

    `absent` is what this machine does not have and need not have; of what was `lost`, and of an `event` that a
    driver reports, a reader has to be told. `source` is a collector or the sampler, `device` empty where it is about
    none.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    at: Moment  # s since `started_at`
    state: Literal["absent", "lost", "event"]
    source: Word
    device: Word
    words: Text

    @property
    def text(self) -> str:
        """`counters of nvml on cuda:0: the device is lost`."""
        where = f" on {self.device}" if self.device else ""
        return f"counters of {self.source}{where}: {self.words}"
