"""The shape of a collector: a source of counters, and a watch between samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from gpubench.model.counters import Counter
from gpubench.model.facts import Device


@dataclass(frozen=True, slots=True)
class Condition:
    """What the machine's state says of the sample that was just taken (docs/method.md).

    `discard` are slugs of disturbances: `hw-slowdown`, `thermal`, `power-brake`, `low-clock`,
    `foreign-process`; on the host `steal`. `labels` describe a state in which the sample is good:
    `power-capped`, `shared-device`; on the host `loaded`, `migrated` (to another NUMA node). `clock_hz` is the clock of
    the device's compute units after the sample; None if the watch does not read it.
    """

    discard: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    clock_hz: float | None = None


class Watch(Protocol):
    """Looks at one device between samples, in the worker, in microseconds."""

    def begin(self) -> None:
        """Take the baseline at the start of a case's timing."""

    def look(self) -> Condition:
        """What has held since the last look."""


class CounterSource(Protocol):
    """An open source of counters: no thread, no clock, no averaging.

    Counters of one device and one period are read together, each such group from a thread of its own: two groups
    may be read at once. What is not there now raises errors.Missing, whose words are kept in the run file.
    """

    def read(self, device: Device, names: Sequence[str]) -> Mapping[str, float | None]:
        """Read these counters of one device now; None for one that did not answer."""

    def close(self) -> None: ...


@runtime_checkable
class Explained(Protocol):
    """A source that also says which counters a device does not have; they are then not read."""

    def lacking(self, device: Device) -> Mapping[str, str]:
        """Each counter that this device does not have, and why in words."""


@runtime_checkable
class Telling(Protocol):
    """A source that meets what is to be told in words: errors that a driver reports. Asked after each reading."""

    def told(self, device: Device) -> Sequence[str]:
        """What came up since this was last asked; each goes into the run file."""


class Collector(Protocol):
    """A source of counters, opened in the sampling process. These three are all that it must have."""

    @property
    def counters(self) -> Sequence[Counter]:
        """The counters, each with what it measures; names are unique among all collectors."""

    def accepts(self, device: Device) -> bool:
        """Return whether this collector reads that device."""

    def open(self, devices: Sequence[Device]) -> CounterSource:
        """Open the source for these devices; raises errors.Missing, of what no machine need have errors.Lacking."""


@runtime_checkable
class Describing(Protocol):
    """A collector that also knows the settings of a device."""

    def describe(self, device: Device) -> Mapping[str, str]:
        """Return settings that a gate compares: power limit, ECC, MIG mode; raises errors.Missing."""


@runtime_checkable
class Versioned(Protocol):
    """A collector that also says what it reads through."""

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the driver and library; raises errors.Missing."""


@runtime_checkable
class Watching(Protocol):
    """A collector that can also look at a device between two samples of a case."""

    def watch(self, device: Device) -> Watch:
        """Open a watch on one device, in the worker; raises errors.Missing."""


class HealthSign(StrEnum):
    """What a reading of a device's health means: a closed list, because `measuring.health` has a rule for each sign.

    A sign that ends in `_MOST` and `BUSY` help to judge another one. The others are counts of errors, or 1 for a bad
    state and 0 for a good one.
    """

    LOST = "lost"  # 1: the driver does not reach the device any more
    RECOVERY = "recovery"  # 1: the driver asks for a reset or a restart
    ECC_UNCORRECTED = "ecc.uncorrected"  # errors since the driver was loaded
    ECC_UNCORRECTED_LIFETIME = "ecc.uncorrected.lifetime"
    REMAP_PENDING = "remap.pending"  # 1: a row of memory waits to be replaced by a spare one
    REMAP_FAILURE = "remap.failure"  # 1: a row could not be replaced
    ROWS_REMAPPED = "rows.remapped"  # rows that were replaced after uncorrected errors
    PAGES_PENDING = "pages.pending"  # pages of memory that wait to be retired
    PAGES_RETIRED = "pages.retired"  # pages of memory that were retired after uncorrected errors
    HARDWARE_EVENTS = "events.hardware"  # errors in the driver's log that the vendor attributes to hardware or driver
    PROGRAM_EVENTS = "events.program"  # errors in the driver's log that the vendor attributes to programs
    HARDWARE_SLOWDOWN = "slowdown.hardware"  # 1: a signal of the board lowers the clocks
    HARDWARE_THERMAL = "slowdown.thermal"  # 1: the temperature lowers the clocks
    POWER_BRAKE = "slowdown.brake"  # 1: the power supply lowers the clocks
    PROCESSES = "processes"  # programs that compute on the device
    BUSY = "busy"  # 1: the device works
    PCIE_WIDTH = "pcie.width"  # lanes
    PCIE_WIDTH_MOST = "pcie.width.most"  # lanes that device and slot have
    PCIE_GENERATION = "pcie.generation"
    PCIE_GENERATION_MOST = "pcie.generation.most"
    PCIE_REPLAYS = "pcie.replays"
    LINKS_DOWN = "links.down"  # links to other devices that are down, where at least one link is up
    LINK_REPLAYS = "links.replays"
    LINK_RECOVERIES = "links.recoveries"
    LINK_CRC_ERRORS = "links.crc"


@dataclass(frozen=True, slots=True)
class HealthReading:
    """One raw number about a device's health.

    `value` is None where the number is unavailable; `words` then give the reason. Otherwise they may add details, such
    as the numbers of processes. `command` is a shell command that shows or mends the state. gpubench prints it and
    never runs it.
    """

    sign: HealthSign
    value: float | None
    words: str = ""
    command: str = ""


class HealthSource(Protocol):
    """Reads the health of devices. It runs in a process of its own, which is ended where a call does not come back."""

    def read(self, device: Device) -> Sequence[HealthReading]:
        """Return all readings of one device now; raises errors.Missing."""

    def close(self) -> None: ...


@runtime_checkable
class Examining(Protocol):
    """A collector that can also tell whether a device is healthy."""

    def health(self, devices: Sequence[Device]) -> HealthSource:
        """Open a source for these devices; it is read before and after a run; raises errors.Missing."""


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that uses a device: its number, and its bytes of the device's memory.

    `memory_bytes` is None where the driver does not tell it, as in some containers.
    """

    pid: int
    memory_bytes: float | None = None


class ProcessSource(Protocol):
    """Lists the processes on devices. It runs in a process of its own, which may crash or hang without harm."""

    def read(self, device: Device) -> Sequence[DeviceProcess]:
        """Return the processes that use one device now; raises errors.Missing."""

    def close(self) -> None: ...


@runtime_checkable
class Listing(Protocol):
    """A collector that can also list the processes on a device."""

    def processes(self, devices: Sequence[Device]) -> ProcessSource:
        """Open a source for these devices, all of which the collector accepts; raises errors.Missing."""
