"""The shape of a collector: a source of counters, and a watch between samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
