"""Define the interface of a collector: a source of counters, and a watch between samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from gpubench.model.counters import Counter
from gpubench.model.facts import Device


@dataclass(frozen=True, slots=True)
class Condition:
    """The state of the machine during the sample that was just taken (docs/method.md).

    `discard` are slugs of disturbances: `hw-slowdown`, `thermal`, `power-brake`, `low-clock`, `foreign-process`; on the
    host `steal`. `labels` describe a state in which the sample is valid: `power-capped`, `shared-device`; on the host
    `loaded`, `migrated` (to another NUMA node). `clock_hz` is the clock of the device's compute units after the sample;
    None if the watch does not read it."""

    discard: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    clock_hz: float | None = None


class Watch(Protocol):
    """Reads the state of one device between samples, in the worker, within microseconds."""

    def begin(self) -> None:
        """Record the initial state when the timing of a case starts."""

    def look(self) -> Condition:
        """Return the condition since the previous call."""


class CounterSource(Protocol):
    """An open source of counters: it has no thread, no clock and no averaging.

    Counters of one device and one period are read together, and each such group in its own thread, so two groups may be
    read at the same time. A source whose counters are unavailable at the moment raises errors.Unavailable, whose
    text is kept in the run file."""

    def read(self, device: Device, names: Sequence[str]) -> Mapping[str, float | None]:
        """Return the values of the counters `names` of one device now, by name; None for a counter that gave no value.

        The values are in the units of the counters. Raises errors.Unavailable if the source is unavailable now."""

    def close(self) -> None: ...


@runtime_checkable
class ReportsUnsupported(Protocol):
    """A source that also names the counters that a device does not have, which are then not read."""

    def unsupported(self, device: Device) -> Mapping[str, str]:
        """Return the counters that this device does not support, each name with the reason. They are not read there."""


@runtime_checkable
class ReportsMessages(Protocol):
    """A source that also reports events as texts, such as errors in a driver's log. It is called after each reading."""

    def messages(self, device: Device) -> Sequence[str]:
        """Return the events since the previous call as texts; each is written to the run file."""


class Collector(Protocol):
    """A source of counters, opened in the sampling process. Only these three methods are required."""

    @property
    def counters(self) -> Sequence[Counter]:
        """Return the counters, each with the quantity that it measures; their names are unique among all collectors."""

    def accepts(self, device: Device) -> bool:
        """Return whether this collector reads that device."""

    def open(self, devices: Sequence[Device]) -> CounterSource:
        """Open the source for these devices, all of which the collector accepts.

        Raises errors.Unavailable, or errors.OptionalUnavailable for a source that most machines do not have."""


@runtime_checkable
class ReportsSettings(Protocol):
    """A collector that also reads the settings of a device."""

    def describe(self, device: Device) -> Mapping[str, str]:
        """Return settings that a gate compares (power limit, ECC, MIG mode) by name.

        Raises errors.Unavailable if that fails."""


@runtime_checkable
class ReportsVersions(Protocol):
    """A collector that also names the versions of the software that it reads through."""

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the driver and library. Raises errors.Unavailable if that fails."""


@runtime_checkable
class OpensWatch(Protocol):
    """A collector that can also watch a device between two samples of a case."""

    def watch(self, device: Device) -> Watch:
        """Open a watch on one device, in the worker. Raises errors.Unavailable if that fails."""


class HealthSign(StrEnum):
    """The meaning of a health reading: a closed list, because `measuring.health` has a rule for each sign.

    Signs that end in `_MOST`, and `BUSY`, only help to judge another sign. The others are numbers of errors, or 1 for a
    bad state and 0 for a good one."""

    LOST = "lost"  # 1: the driver does not reach the device any more
    RECOVERY = "recovery"  # 1: the driver asks for a reset or a restart
    ECC_UNCORRECTED = "ecc.uncorrected"  # errors since the driver was loaded
    ECC_UNCORRECTED_LIFETIME = "ecc.uncorrected.lifetime"
    REMAP_PENDING = "remap.pending"  # 1: a row of memory waits to be replaced by a spare one
    REMAP_FAILURE = "remap.failure"  # 1: a row could not be replaced
    ROWS_REMAPPED = "rows.remapped"  # rows that were replaced after uncorrected errors
    PAGES_PENDING = "pages.pending"  # pages of memory that wait to be retired
    PAGES_RETIRED = "pages.retired"  # pages of memory that were retired after uncorrected errors
    INFOROM = "inforom"  # 1: the checksum of the configuration that the board stores is wrong
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
    """One number about a device's health.

    `value` is None if the number is unavailable; `note` then gives the reason. Otherwise it may add details, such as
    the ids of processes. `command` is a shell command that shows or repairs the state. gpubench prints it and never
    runs it."""

    sign: HealthSign
    value: float | None
    note: str = ""
    command: str = ""


class HealthSource(Protocol):
    """Reads the health of devices. It runs in its own process, which is ended if a call does not return."""

    def read(self, device: Device) -> Sequence[HealthReading]:
        """Return all readings of one device now. Raises errors.Unavailable if that fails."""

    def close(self) -> None: ...


@runtime_checkable
class ChecksHealth(Protocol):
    """A collector that can also read whether a device is healthy."""

    def health(self, devices: Sequence[Device]) -> HealthSource:
        """Open a source for these devices, which is read before and after a run.

        Raises errors.Unavailable if that fails."""


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that uses a device: its process id, and the bytes of the device's memory that it uses.

    `memory_bytes` is None if the driver does not report it, as in some containers."""

    pid: int
    memory_bytes: float | None = None


class ProcessSource(Protocol):
    """Lists the processes on devices. It runs in its own process, which may crash or hang without harm."""

    def read(self, device: Device) -> Sequence[DeviceProcess]:
        """Return the processes that use one device now. Raises errors.Unavailable if that fails."""

    def close(self) -> None: ...


@runtime_checkable
class ListsProcesses(Protocol):
    """A collector that can also list the processes on a device."""

    def processes(self, devices: Sequence[Device]) -> ProcessSource:
        """Open a source for these devices, which the collector accepts. Raises errors.Unavailable if that fails."""
