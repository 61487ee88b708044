"""Collect the results of runs by case and process, as the two sides that a comparison or a gate compares.

A *process* is one replicate of a case: the median of its headline series. A *session* holds the run files that were
measured together; its processes share a state of the machine that the processes of another session do not share."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gpubench.analysis.counters import CounterTable
from gpubench.analysis.quantities import headline, judged_better, judged_median, judged_unit, other_work
from gpubench.model import Better, Case, Manifest, Measure, Remark, Result, Run, Samples, Status

Key = tuple[str, tuple[str, ...]]  # a case's id and its device set
_SESSION_GAP = timedelta(hours=1)  # between the starts of two runs; after it the machine may be in another state
_CLOCKS = (Measure.CORE_CLOCK, Measure.MEMORY_CLOCK)


@dataclass(frozen=True, slots=True)
class Kind:
    """The method of a figure; two figures whose kinds have `differences` are not comparable.

    `version` is the case's, `series` the label of the headline series, and `limit` the peak that bounds the figure,
    such as `dram`; empty if none does."""

    version: int
    series: str
    unit: str
    better: Better
    limit: str = ""

    def differences(self, other: Kind) -> tuple[str, ...]:
        """Return a phrase for each of version, series, unit and better direction in which `other` differs.

        Example: `unit was s, is B/s`; the second value is the value of `other`."""
        names = {"version": "case version", "series": "series", "unit": "unit", "better": "the better direction"}
        return tuple(
            f"{label} was {getattr(self, name)}, is {getattr(other, name)}"
            for name, label in names.items()
            if getattr(self, name) != getattr(other, name)
        )


class Process(NamedTuple):
    """One replicate of a case: `value` is its median in SI units, or NaN if its status is not ok.

    `kind` is None if there is no value, and `reason` then says why."""

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
    """The records of one run file, reduced to the parts that a gate needs while they are read.

    `results` has, by case id and device set, each result as its case and its process, in the order of the file."""

    results: dict[Key, list[tuple[Case, Process]]] = field(default_factory=dict)
    clocks: list[Samples] = field(default_factory=list)
    _clock_names: frozenset[str] = frozenset()
    _kinds: dict[tuple[int, str, str, Better, str], Kind] = field(default_factory=dict)

    def add(self, record: Manifest | Result | Samples | Remark) -> None:
        """Add one record; the manifest must come first, as in a file, because it declares which counters are clocks.

        Remarks, and samples without a clock, are ignored."""
        if isinstance(record, Manifest):
            clocks = (counter.name for counter in record.counters if counter.measures in _CLOCKS)
            self._clock_names = frozenset(clocks)
        elif isinstance(record, Result):
            key = (record.case.id, record.devices)
            self.results.setdefault(key, []).append((record.case, self._process(record)))
        elif isinstance(record, Samples) and any(name in self._clock_names for name, _ in record.columns):
            self.clocks.append(record)

    def _process(self, result: Result) -> Process:
        """Return `result` as one process; without a valid figure its value is NaN and its kind None."""
        series = headline(result)
        if series is None and result.status == "ok":
            reason = "a dry run measures nothing" if "dry-run" in result.labels else "nothing was timed"
            return Process("invalid", math.nan, None, reason, result.labels)
        if series is None or result.status != "ok":
            return Process(result.status, math.nan, None, result.reason or result.cause, result.labels)
        method = (result.case.version, series.label, judged_unit(series), judged_better(series), series.limit)
        if method not in self._kinds:
            self._kinds[method] = Kind(*method)
        return Process(
            "ok",
            judged_median(series),
            self._kinds[method],
            labels=result.labels,
            window=result.window,
            clock_hz=series.clock_hz or math.nan,
            neighbours=other_work(result),
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """The parts of one run file that a gate needs: the manifest, the figure of each result, and the clocks.

    `source` is the file's name for people. `complete` is False for a run that ended early."""

    manifest: Manifest
    gathered: Gathering
    source: str = ""
    complete: bool = True
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: Run, source: str = "") -> Reading:
        """Return the reading of a run in memory: its manifest, the figure of each result, and the clocks.

        `source` is the name of the run in messages."""
        gathered = Gathering()
        gathered.add(run.manifest)
        for result in run.results:
            gathered.add(result)
        for samples in run.samples:
            gathered.add(samples)
        return cls(run.manifest, gathered, source, run.complete, run.warnings)


@dataclass(frozen=True)
class Side:
    """One case on one device set, with all its processes on this side.

    `readings` and `sessions` give for each process the index of its run file and of its session."""

    case: Case
    devices: tuple[str, ...]
    processes: tuple[Process, ...]
    readings: tuple[int, ...]
    sessions: tuple[int, ...]

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
        """The methods of the ok processes, each method once."""
        return tuple(dict.fromkeys(kind for index in self.ok if (kind := self.processes[index].kind)))

    @cached_property
    def logs(self) -> tuple[float, ...]:
        """The logarithms of the medians, signed so that more is worse; empty if a median has no logarithm."""
        values, kinds = self.values, self.kinds
        if not kinds or not all(0 < value < math.inf for value in values):
            return ()
        sign = -1.0 if kinds[0].better == "more" else 1.0
        return tuple(sign * math.log(value) for value in values)

    @cached_property
    def centres(self) -> tuple[float, ...]:
        """The mean of `logs` for each session with an ok process, in the order of the sessions; empty if `logs` is."""
        grouped: dict[int, list[float]] = {}
        for index, value in zip(self.ok, self.logs, strict=False):
            grouped.setdefault(self.sessions[index], []).append(value)
        return tuple(sum(values) / len(values) for values in grouped.values())

    def only(self, readings: Collection[int]) -> Side:
        """Return the side with only the processes of some run files.

        `readings` are the indices of these run files, as in the field `readings`."""
        return self._at([index for index, reading in enumerate(self.readings) if reading in readings])

    def without(self, processes: Collection[tuple[int, int]]) -> Side:
        """Return the side without the processes with these `numbers`."""
        return self._at([index for index, number in enumerate(self.numbers) if number not in processes])

    def _at(self, selected: Sequence[int]) -> Side:
        columns = (self.processes, self.readings, self.sessions)
        processes, sources, sessions = (tuple(column[index] for index in selected) for column in columns)
        return Side(self.case, self.devices, processes, sources, sessions)  # type: ignore[arg-type]

    def joined(self, more: Side) -> Side:
        """Return the side with the processes of `more` behind its own."""
        columns = zip(*((side.processes, side.readings, side.sessions) for side in (self, more)), strict=True)
        return Side(self.case, self.devices, *(first + second for first, second in columns))

    @property
    def numbers(self) -> list[tuple[int, int]]:
        """For each process its run file and its place among the processes of this case in that file, from 0."""
        seen = Counter[int]()
        places = []
        for reading in self.readings:
            places.append((reading, seen[reading]))
            seen[reading] += 1
        return places

    @property
    def is_measured(self) -> bool:
        """Whether at least one process was not skipped."""
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
        """For each ok process that other work disturbed, the labels and reasons that show the disturbance."""
        return tuple(disturbances for index in self.ok if (disturbances := self.processes[index].neighbours))

    @property
    def problem(self) -> str:
        """The statuses of the processes that are not ok, each once, with the first reason: `2 of 5 invalid: …`.

        The text is empty if all processes are ok. The numbers are left out if no process is ok."""
        bad = [process for process in self.processes if process.status != "ok"]
        if not bad:
            return ""
        statuses = ", ".join(dict.fromkeys(process.status for process in bad))
        reason = next((f": {process.reason}" for process in bad if process.reason), "")
        share = "" if len(bad) == len(self.processes) else f"{len(bad)} of {len(self.processes)} "
        return f"{share}{statuses}{reason}"


def by_session(readings: Iterable[Reading]) -> list[list[Reading]]:
    """Return readings grouped by session: one machine, the same cards, and starts at most an hour apart.

    The order of the files does not matter; sessions are in the order of their first file."""
    machines: dict[tuple[str, ...], list[Reading]] = {}
    for reading in readings:
        facts = reading.manifest.facts
        machine = (
            *(value for name, value in facts.host if name == "hostname"),
            *(device.uuid for device in facts.devices),
        )
        machines.setdefault(machine, []).append(reading)
    sessions: list[list[Reading]] = []
    for group in machines.values():
        last = None
        for reading in sorted(group, key=lambda reading: reading.manifest.started):
            started = datetime.fromisoformat(reading.manifest.started)
            if last is None or started - last > _SESSION_GAP:
                sessions.append([])
            sessions[-1].append(reading)
            last = started
    return sorted(sessions, key=lambda session: session[0].manifest.started)


class Evidence:
    """The results of several runs by case.

    `sessions` groups the readings that were measured together. `readings` are all readings in this order. `sides` has,
    by case id and device set, the processes of all readings."""

    def __init__(self, sessions: Sequence[Sequence[Reading]]) -> None:
        self.sessions = tuple(tuple(session) for session in sessions)
        self.readings = tuple(reading for session in self.sessions for reading in session)
        self.sides = _sides(self.sessions)
        self.tables: dict[int, CounterTable] = {}

    @property
    def has_failed(self) -> bool:
        """Whether any process failed: a wrong answer, a crash, a hang."""
        return any(process.status == "failed" for side in self.sides.values() for process in side.processes)

    @property
    def has_figures(self) -> bool:
        """Whether any process measured a figure: a dry run, or a run whose cases were all skipped, has none."""
        return any(side.ok for side in self.sides.values())

    def with_repeats(self, more: Sequence[Reading]) -> Evidence:
        """Return new evidence in which the readings of a repeated measurement are added to the last session."""
        evidence = copy.copy(self)
        evidence.sessions = (*self.sessions[:-1], (*self.sessions[-1], *more))
        evidence.readings = (*self.readings, *more)
        added = _sides([more], len(self.sessions) - 1, len(self.readings))
        # the other sides stay, with what was computed of them
        repeated = {key: self.sides[key].joined(side) if key in self.sides else side for key, side in added.items()}
        evidence.sides = self.sides | repeated
        evidence.tables = dict(self.tables)
        return evidence

    def without(self, processes: Collection[tuple[int, int]]) -> Evidence:
        """Return the evidence without these processes of all cases, given as `Side.numbers`."""
        evidence = Evidence(self.sessions)
        evidence.sides = {key: side.without(processes) for key, side in self.sides.items()}
        return evidence

    def clocks(self, side: Side, measure: Measure = Measure.CORE_CLOCK) -> tuple[float, ...]:
        """Return for each ok process of `side` the median that a clock had in the window of the process, in Hz.

        `measure` says which clock. The value is NaN if no counter of the clock was read in the window."""
        return tuple(self._clock(side, index, measure) for index in side.ok)

    def _clock(self, side: Side, index: int, measure: Measure) -> float:
        """Return the median that a clock had in the window of one process, in Hz; NaN if no counter was read in it."""
        source, process = side.readings[index], side.processes[index]
        if source not in self.tables:
            reading = self.readings[source]
            self.tables[source] = CounterTable(reading.manifest.counters, reading.gathered.clocks)
        values = [
            value
            for device in side.devices
            for track in self.tables[source].of(device, measure)
            for value in track.during(*process.window).values
        ]
        return float(np.median(values)) if values else math.nan


def in_turn(before: Evidence, after: Evidence) -> bool:
    """Return whether both sides were measured in turn, so that they share a session: each began before the other ended.

    The moments are the starts of the run files."""
    first, second = ([reading.manifest.started for reading in side.readings] for side in (before, after))
    return bool(first and second) and min(first) < max(second) and min(second) < max(first)


def _sides(sessions: Iterable[Sequence[Reading]], first_session: int = 0, first_reading: int = 0) -> dict[Key, Side]:
    """Return the side of each case and device set; sessions and readings are numbered from these numbers on."""
    columns: dict[Key, tuple[Case, list[Process], list[int], list[int]]] = {}
    numbered = ((number, reading) for number, session in enumerate(sessions, first_session) for reading in session)
    for source, (session_number, reading) in enumerate(numbered, first_reading):
        for key, results in reading.gathered.results.items():
            _, processes, sources, session_numbers = columns.setdefault(key, (results[0][0], [], [], []))
            processes += [process for _, process in results]
            sources += [source] * len(results)
            session_numbers += [session_number] * len(results)
    return {
        key: Side(case, key[1], tuple(processes), tuple(sources), tuple(session_numbers))
        for key, (case, processes, sources, session_numbers) in columns.items()
    }


def paired(before: Evidence, after: Evidence) -> list[tuple[Side | None, Side | None]]:
    """Return the sides of each case in `before` and in `after`, where None stands for a missing one.

    Sides belong together if their case and their device set are equal."""
    old, new = _by_case(before), _by_case(after)
    pairs: list[tuple[Side | None, Side | None]] = []
    for case_id in dict.fromkeys([*old, *new]):
        first, second = old.get(case_id, {}), new.get(case_id, {})
        if len(first) == len(second) == 1:
            pairs.append((next(iter(first.values())), next(iter(second.values()))))
        else:
            pairs += [(first.get(devices), second.get(devices)) for devices in dict.fromkeys([*first, *second])]
    return pairs


def _by_case(evidence: Evidence) -> dict[str, dict[tuple[str, ...], Side]]:
    """Return the sides of `evidence` by case id and then by device set."""
    sides: dict[str, dict[tuple[str, ...], Side]] = {}
    for (case_id, devices), side in evidence.sides.items():
        sides.setdefault(case_id, {})[devices] = side
    return sides
