"""What runs say of each case, process by process: the two sides that a comparison or a gate weighs.

A *process* is one replicate's word on a case: the median of its headline series. A *sitting* is what was
measured together: its processes share a state of the machine that those of another do not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gpubench.analysis.counters import CounterTable
from gpubench.analysis.disturbances import other_work
from gpubench.analysis.quantities import headline, judged_better, judged_median, judged_unit
from gpubench.model import Better, Case, Manifest, Measure, Remark, Result, Run, Samples, Status

Key = tuple[str, tuple[str, ...]]  # a case's id and its device set
_CLOCKS = (Measure.CORE_CLOCK, Measure.MEMORY_CLOCK)


@dataclass(frozen=True, slots=True)
class Kind:
    """How a figure was taken. Two with `differences` are not comparable; `limit` names the peak that bounds it."""

    version: int
    series: str
    unit: str
    better: Better
    limit: str = ""

    def differences(self, other: Kind) -> tuple[str, ...]:
        """What differs, in words."""
        names = {"version": "case version", "series": "series", "unit": "unit", "better": "the better direction"}
        return tuple(
            f"{words} was {getattr(self, name)}, is {getattr(other, name)}"
            for name, words in names.items()
            if getattr(self, name) != getattr(other, name)
        )


class Process(NamedTuple):
    """One replicate of a case: `value` is its median in SI units, NaN unless it is ok.

    `clock_hz` is the clock that the worker read after the samples, NaN if it read none. `neighbours` are the labels and
    the reasons for discards which say that other work disturbed the samples. A tuple, because hundreds of thousands
    come from the processes that read files.
    """

    status: Status
    value: float
    kind: Kind | None
    reason: str = ""
    labels: tuple[str, ...] = ()
    window: tuple[float, float] = (0.0, 0.0)
    clock_hz: float = math.nan
    neighbours: tuple[str, ...] = ()


@dataclass(slots=True)
class Gathering:
    """The records of one run file, reduced as they come to what a gate weighs.

    `clocks` are the samples that hold a device's clock: what a slow-down is looked into with.
    """

    results: dict[Key, list[tuple[Case, Process]]] = field(default_factory=dict)
    clocks: list[Samples] = field(default_factory=list)
    _clock_names: frozenset[str] = frozenset()
    _kinds: dict[tuple[int, str, str, Better, str], Kind] = field(default_factory=dict)

    def take(self, record: Manifest | Result | Samples | Remark) -> None:
        """Take one record in; the manifest comes first, as in a file, and says which counters are clocks."""
        if isinstance(record, Manifest):
            clocks = (counter.name for counter in record.counters if counter.measures in _CLOCKS)
            self._clock_names = frozenset(clocks)
        elif isinstance(record, Result):
            key = (record.case.id, record.devices)
            self.results.setdefault(key, []).append((record.case, self._process(record)))
        elif isinstance(record, Samples) and any(name in self._clock_names for name, _ in record.columns):
            self.clocks.append(record)

    def _process(self, result: Result) -> Process:
        series = headline(result)
        if series is None or result.status != "ok":
            return Process(result.status, math.nan, None, result.reason or result.cause, result.labels)
        known = (result.case.version, series.label, judged_unit(series), judged_better(series), series.limit)
        if known not in self._kinds:
            self._kinds[known] = Kind(*known)
        return Process(
            "ok",
            judged_median(series),
            self._kinds[known],
            labels=result.labels,
            window=result.window,
            clock_hz=series.clock_hz or math.nan,
            neighbours=other_work(result),
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """One run file as far as a gate weighs it; `source` is its name for people."""

    manifest: Manifest
    gathered: Gathering
    source: str = ""
    complete: bool = True
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: Run, source: str = "") -> Reading:
        """The reading of a whole run."""
        gathered = Gathering()
        gathered.take(run.manifest)
        for result in run.results:
            gathered.take(result)
        for samples in run.samples:
            gathered.take(samples)
        return cls(run.manifest, gathered, source, run.complete, run.warnings)


@dataclass(frozen=True)
class Side:
    """One case on one device set as all its processes have it.

    `readings` and `sittings` say of each process which run file and which sitting it is from.
    """

    case: Case
    devices: tuple[str, ...]
    processes: tuple[Process, ...]
    readings: tuple[int, ...]
    sittings: tuple[int, ...]

    @cached_property
    def ok(self) -> tuple[int, ...]:
        """The indices of the processes that are ok."""
        return tuple(index for index, process in enumerate(self.processes) if process.status == "ok")

    @cached_property
    def values(self) -> tuple[float, ...]:
        """The medians of the processes that are ok, in SI units, in the order measured."""
        return tuple(self.processes[index].value for index in self.ok)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """How the processes that are ok were taken, each way once."""
        return tuple(dict.fromkeys(kind for index in self.ok if (kind := self.processes[index].kind)))

    @cached_property
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
        for index, value in zip(self.ok, self.logs, strict=False):
            grouped.setdefault(self.sittings[index], []).append(value)
        return tuple(sum(values) / len(values) for values in grouped.values())

    def only(self, readings: Collection[int]) -> Side:
        """The processes of these readings alone."""
        kept = [index for index, reading in enumerate(self.readings) if reading in readings]
        columns = (self.processes, self.readings, self.sittings)
        processes, sources, sittings = (tuple(column[index] for index in kept) for column in columns)
        return Side(self.case, self.devices, processes, sources, sittings)  # type: ignore[arg-type]

    @property
    def is_measured(self) -> bool:
        """Whether there is more to say of it than that it was skipped."""
        return any(process.status != "skipped" for process in self.processes)

    @property
    def usual_labels(self) -> frozenset[str]:
        """The labels that more than half of the ok processes have."""
        labels = Counter(label for index in self.ok for label in self.processes[index].labels)
        return frozenset(label for label, count in labels.items() if 2 * count > len(self.ok))

    @property
    def watched_clocks(self) -> tuple[float, ...]:
        """The clock that each ok process read after its samples, Hz; NaN where it read none."""
        return tuple(self.processes[index].clock_hz for index in self.ok)

    @property
    def neighbours(self) -> tuple[tuple[str, ...], ...]:
        """What says that other work disturbed them, of each ok process that was disturbed."""
        return tuple(found for index in self.ok if (found := self.processes[index].neighbours))

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

    @property
    def has_failed(self) -> bool:
        """Whether any process failed: a wrong answer, a crash, a hang."""
        return any(process.status == "failed" for side in self.sides.values() for process in side.processes)

    def and_again(self, more: Sequence[Reading]) -> Evidence:
        """The union with what was measured again in the last sitting."""
        return Evidence((*self.sittings[:-1], (*self.sittings[-1], *more)))

    def clocks(self, side: Side, measure: Measure = Measure.CORE_CLOCK) -> tuple[float, ...]:
        """The median of a clock's counters in the window of each ok process, Hz; NaN where no counter was read."""
        return tuple(self._clock(side, index, measure) for index in side.ok)

    def _clock(self, side: Side, index: int, measure: Measure) -> float:
        source, process = side.readings[index], side.processes[index]
        if source not in self._tables:
            reading = self.readings[source]
            self._tables[source] = CounterTable(reading.manifest.counters, reading.gathered.clocks)
        values = [
            value
            for device in side.devices
            for track in self._tables[source].of(device, measure)
            for value in track.during(*process.window).values
        ]
        return float(np.median(values)) if values else math.nan


def _sides(sittings: Iterable[Sequence[Reading]]) -> dict[Key, Side]:
    found: dict[Key, tuple[Case, list[Process], list[int], list[int]]] = {}
    numbered = ((place, reading) for place, sitting in enumerate(sittings) for reading in sitting)
    for source, (place, reading) in enumerate(numbered):
        for key, results in reading.gathered.results.items():
            _, processes, sources, places = found.setdefault(key, (results[0][0], [], [], []))
            processes += [process for _, process in results]
            sources += [source] * len(results)
            places += [place] * len(results)
    return {
        key: Side(case, key[1], tuple(processes), tuple(sources), tuple(places))
        for key, (case, processes, sources, places) in found.items()
    }


def paired(before: Evidence, after: Evidence) -> list[tuple[Side | None, Side | None]]:
    """The sides that belong together: by case and device set, or by case alone where each side has it on one set.

    `cuda:0` of one machine is compared with `cuda:1` of another where there is nothing else to compare it with.
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
