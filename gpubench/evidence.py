"""What runs say of each case, process by process: the two sides that a comparison or a gate weighs.

A *process* is one replicate's word on a case: the median of its headline series. A *sitting* is what was
measured together: its processes share a state of the machine that those of another do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpubench.counters import CounterTable
from gpubench.model import Better, Case, Manifest, Result, Run, Samples, Status
from gpubench.summary import headline, judged_better, judged_median, judged_unit

Key = tuple[str, tuple[str, ...]]  # a case's id and its device set
_CLOCK = ".clock.sm"  # the counter of the clock that a kernel's cycles are counted in


@dataclass(frozen=True, slots=True)
class Kind:
    """How a figure was taken. Two that differ are not comparable."""

    version: int
    series: str
    unit: str
    better: Better

    def differences(self, other: Kind) -> tuple[str, ...]:
        """What differs, in words."""
        names = {"version": "case version", "series": "series", "unit": "unit", "better": "the better direction"}
        return tuple(
            f"{words} was {getattr(self, name)}, is {getattr(other, name)}"
            for name, words in names.items()
            if getattr(self, name) != getattr(other, name)
        )


@dataclass(frozen=True, slots=True)
class Process:
    """One replicate of a case: `value` is its median in SI units, NaN unless it is ok."""

    status: Status
    value: float
    kind: Kind | None
    reading: int  # which of the readings it is from
    reason: str = ""
    labels: tuple[str, ...] = ()
    window: tuple[float, float] = (0.0, 0.0)


@dataclass(slots=True)
class Reading:
    """One run file, reduced to what a gate weighs; `take` its records in order.

    `clocks` are the samples that hold a device's clock: what a slow-down is looked into with.
    """

    manifest: Manifest
    source: str = ""
    complete: bool = True
    warnings: tuple[str, ...] = ()
    results: dict[Key, list[tuple[Case, Process]]] = field(default_factory=dict)
    clocks: list[Samples] = field(default_factory=list)
    _kinds: dict[Kind, Kind] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run, source: str = "") -> Reading:
        """The reading of a whole run."""
        found = cls(run.manifest, source, run.complete, run.warnings)
        for result in run.results:
            found.take(result)
        for samples in run.samples:
            found.take(samples)
        return found

    def take(self, record: Result | Samples) -> None:
        """Take one record in."""
        if isinstance(record, Result):
            key = (record.case.id, record.devices)
            self.results.setdefault(key, []).append((record.case, self._process(record)))
        elif any(name.endswith(_CLOCK) for name, _ in record.columns):
            self.clocks.append(record)

    def _process(self, result: Result) -> Process:
        series = headline(result)
        if series is None or result.status != "ok":
            return Process(result.status, math.nan, None, 0, result.reason or result.cause, result.labels)
        kind = Kind(result.case.version, series.name, judged_unit(series), judged_better(series))
        kind = self._kinds.setdefault(kind, kind)
        return Process("ok", judged_median(series), kind, 0, "", result.labels, result.window)


@dataclass(frozen=True, slots=True)
class Side:
    """One case on one device set as all its processes have it, `sittings` telling those together apart."""

    case: Case
    devices: tuple[str, ...]
    processes: tuple[Process, ...]
    sittings: tuple[int, ...]

    @property
    def ok(self) -> tuple[Process, ...]:
        """The processes that are ok."""
        return tuple(process for process in self.processes if process.status == "ok")

    @property
    def values(self) -> tuple[float, ...]:
        """The medians of the processes that are ok, in SI units, in the order measured."""
        return tuple(process.value for process in self.processes if process.status == "ok")

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """How the processes that are ok were taken, each way once."""
        return tuple(dict.fromkeys(process.kind for process in self.processes if process.kind is not None))

    @property
    def logs(self) -> tuple[float, ...]:
        """Logarithms of the medians, so turned that more is worse; empty where one has no logarithm."""
        values, kinds = self.values, self.kinds
        if not kinds or not all(0 < value < math.inf for value in values):
            return ()
        sign = -1.0 if kinds[0].better == "more" else 1.0
        return tuple(sign * math.log(value) for value in values)

    @property
    def centres(self) -> tuple[float, ...]:
        """The mean of `logs` of each sitting that has any."""
        grouped: dict[int, list[float]] = {}
        ok = (sitting for sitting, process in zip(self.sittings, self.processes, strict=True) if process.status == "ok")
        for sitting, value in zip(ok, self.logs, strict=False):
            grouped.setdefault(sitting, []).append(value)
        return tuple(sum(values) / len(values) for values in grouped.values())

    @property
    def readings(self) -> frozenset[int]:
        """The readings that its processes are from."""
        return frozenset(process.reading for process in self.processes)

    @property
    def is_measured(self) -> bool:
        """Whether there is more to say of it than that it was skipped."""
        return any(process.status != "skipped" for process in self.processes)

    @property
    def usual_labels(self) -> frozenset[str]:
        """The labels that more than half of the ok processes have."""
        ok = self.ok
        labels = {label for process in ok for label in process.labels}
        return frozenset(label for label in labels if 2 * sum(label in process.labels for process in ok) > len(ok))

    @property
    def trouble(self) -> str:
        """What became of the processes that are not ok, in words: `2 of 5 invalid: …`; nothing where all are ok."""
        bad = [process for process in self.processes if process.status != "ok"]
        if not bad:
            return ""
        statuses = ", ".join(dict.fromkeys(process.status for process in bad))
        reason = next((f": {process.reason}" for process in bad if process.reason), "")
        share = "" if len(bad) == len(self.processes) else f"{len(bad)} of {len(self.processes)} "
        return f"{share}{statuses}{reason}"


class Evidence:
    """All that several runs say, by case: `sittings` are the readings that were taken together."""

    def __init__(self, sittings: Sequence[Sequence[Reading]]) -> None:
        self.sittings = tuple(tuple(sitting) for sitting in sittings)
        self.readings = tuple(reading for sitting in self.sittings for reading in sitting)
        self.sides = _sides(self.sittings)
        self._tables: dict[int, CounterTable] = {}

    def and_again(self, more: Sequence[Reading]) -> Evidence:
        """The union with what was measured again in the last sitting."""
        return Evidence((*self.sittings[:-1], (*self.sittings[-1], *more)))

    def clocks(self, side: Side) -> tuple[float, ...]:
        """The median clock of each ok process while the case was measured, Hz; NaN where none was read."""
        return tuple(self._clock(process, side.devices) for process in side.ok)

    def _clock(self, process: Process, devices: tuple[str, ...]) -> float:
        if process.reading not in self._tables:
            reading = self.readings[process.reading]
            run = Run(reading.manifest, samples=tuple(reading.clocks))
            self._tables[process.reading] = CounterTable(run)
        values = [
            value
            for track in self._tables[process.reading].tracks
            if track.device in devices and track.counter.name.endswith(_CLOCK)
            for value in track.during(*process.window).values
        ]
        return float(np.median(values)) if values else math.nan


def _sides(sittings: Iterable[Sequence[Reading]]) -> dict[Key, Side]:
    cases: dict[Key, Case] = {}
    processes: dict[Key, list[Process]] = {}
    places: dict[Key, list[int]] = {}
    count = 0
    for place, sitting in enumerate(sittings):
        for reading in sitting:
            for key, results in reading.results.items():
                cases.setdefault(key, results[0][0])
                numbered = [_numbered(process, count) for _, process in results]
                processes.setdefault(key, []).extend(numbered)
                places.setdefault(key, []).extend([place] * len(numbered))
            count += 1
    return {key: Side(case, key[1], tuple(processes[key]), tuple(places[key])) for key, case in cases.items()}


def _numbered(process: Process, reading: int) -> Process:
    if process.reading == reading:
        return process
    return Process(process.status, process.value, process.kind, reading, process.reason, process.labels, process.window)


def paired(before: Evidence, after: Evidence) -> list[tuple[Side | None, Side | None]]:
    """The sides that belong together: by case and device set, or by case alone where each side has it on one set.

    `cuda:0` of one machine is held against `cuda:1` of another where there is nothing else to hold it against.
    """
    old, new = _by_case(before), _by_case(after)
    found: list[tuple[Side | None, Side | None]] = []
    for case_id in dict.fromkeys([*old, *new]):
        first, second = old.get(case_id, {}), new.get(case_id, {})
        if len(first) == len(second) == 1:
            found.append((next(iter(first.values())), next(iter(second.values()))))
        else:
            found += [(first.get(devices), second.get(devices)) for devices in dict.fromkeys([*first, *second])]
    return found


def _by_case(evidence: Evidence) -> dict[str, dict[tuple[str, ...], Side]]:
    found: dict[str, dict[tuple[str, ...], Side]] = {}
    for (case_id, devices), side in evidence.sides.items():
        found.setdefault(case_id, {})[devices] = side
    return found
