"""Define counters: the quantities that they measure, their samples over time, and remarks on missing counters."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from annotated_types import Interval

from gpubench.model.limits import MOST_BITS, Many, Moment, Moments, Readings, Seconds, Text, Word
from gpubench.model.schema import Strict

CounterKind = Literal["gauge", "cumulative", "window", "event"]


class Measure(StrEnum):
    """The quantity that a counter measures: a closed vocabulary, by which all code but a list of counters selects them.

    Shares are in per cent. Traffic is in bytes as a rising sum, or in bytes per second over a window."""

    CORE_CLOCK = "core clock"
    MEMORY_CLOCK = "memory clock"
    BOARD_POWER = "board power"
    ENERGY = "energy"
    TEMPERATURE = "temperature"
    MEMORY_TEMPERATURE = "memory temperature"
    MEMORY_USED = "memory used"
    MEMORY_AVAILABLE = "memory available"
    BUSY = "busy share"  # share of the time in which the device had work
    SM_ACTIVITY = "SM activity"
    TENSOR_ACTIVITY = "tensor activity"
    FP64_ACTIVITY = "fp64 activity"
    FP32_ACTIVITY = "fp32 activity"
    FP16_ACTIVITY = "fp16 activity"
    DRAM_SHARE = "DRAM share"  # share of 2 × memory clock × bus width
    DRAM_READ = "DRAM bytes read"
    DRAM_WRITTEN = "DRAM bytes written"
    PCIE_SENT = "PCIe bytes sent"
    PCIE_RECEIVED = "PCIe bytes received"
    NVLINK_SENT = "NVLink bytes sent"
    NVLINK_RECEIVED = "NVLink bytes received"
    THROTTLE_REASONS = "throttle reasons"
    CPU_TIME = "processor time"  # processor time of the whole host
    PROGRAM_CPU_TIME = "processor time of the program"
    PROGRAM_MEMORY = "memory of the program"
    LOAD = "load"
    OTHER = "other"  # shown and stored only; no conclusion is drawn from it


class EventClass(StrEnum):
    """The meaning of a bit of an event counter for the reader of a figure."""

    IDLE = "idle"
    USER = "user's choice"  # the user has set the clocks, so the device does not throttle
    POWER_CAP = "power cap"
    THERMAL = "thermal"
    HARDWARE_SLOWDOWN = "hardware slowdown"
    OTHER = "other"


_SLOWING = (EventClass.POWER_CAP, EventClass.THERMAL, EventClass.HARDWARE_SLOWDOWN, EventClass.OTHER)


@dataclass(frozen=True, slots=True)
class EventBit(Strict):
    """One bit of an event counter: its mask, its name, and its class."""

    mask: Annotated[int, Interval(ge=1, lt=MOST_BITS)]
    name: Word
    kind: EventClass

    @property
    def slows(self) -> bool:
        """Whether the device works below its ability while this bit is set; an unknown bit counts as slowing."""
        return self.kind in _SLOWING


@dataclass(frozen=True, slots=True)
class Counter(Strict):
    """A counter: its unit, kind, reading period, the command that shows the same number, and the quantity it measures.

    A `gauge` is a value at a moment, `cumulative` a sum since some start, `window` a mean over the period before the
    reading, and `event` a mask of bits. `source` is the command. `bits` name the bits of an event counter. Only
    `measures` decides how the counter is used, never its name."""

    name: Word
    unit: Word
    kind: CounterKind
    period_s: Seconds
    source: Text
    measures: Measure = Measure.OTHER
    bits: Many[EventBit] = ()

    def events(self, value: int) -> tuple[EventBit, ...]:
        """Return the bits that are set in `value`, the lowest first.

        An undeclared one has a name as `bit 9` and class OTHER."""
        bit_of = {bit.mask: bit for bit in self.bits}
        masks = (1 << place for place in range(value.bit_length()) if value >> place & 1)
        return tuple(
            bit_of.get(mask, EventBit(mask, f"bit {mask.bit_length() - 1}", EventClass.OTHER)) for mask in masks
        )


@dataclass(frozen=True, slots=True)
class Samples(Strict):
    """A chunk of one device's counters: columns of values over shared moments `at` (s since `started_at`).

    A value that could not be read is None, never a special number. `busy_s` is the time that reading these rows took,
    and `late_s` the longest delay of a reading after it was due."""

    collector: Word
    device: Word
    at: Moments
    columns: Many[tuple[Word, Readings]]
    busy_s: Seconds = 0.0
    late_s: Seconds = 0.0


SAMPLER = "the sampler"  # the source of remarks on the end of the sampling process


@dataclass(frozen=True, slots=True)
class Remark(Strict):
    """A remark on the counters of a run from a `source`, a collector or the sampler; `device` may be empty.

    `state` is `absent` (these counters do not exist on this machine, which is normal), `lost` (they stopped during the
    run) or `event` (a driver reports one). Readers of a run see the remarks `lost` and `event`."""

    at: Moment  # s since `started_at`
    state: Literal["absent", "lost", "event"]
    source: Word
    device: Word
    words: Text

    @property
    def text(self) -> str:
        """The remark as a text: `counters of nvml on cuda:0: the device is lost`."""
        where = f" on {self.device}" if self.device else ""
        return f"counters of {self.source}{where}: {self.words}"
