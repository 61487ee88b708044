"""Runs side by side: what differs in the environment, then every case that they share, the worst first.

A pure function of readings; the verdicts are those of the gate (docs/gate.md). Unlike a gate it weighs what other
machines, drivers and settings measured too, since that is what it was asked for, and says first what they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpubench.base import units
from gpubench.base.errors import UsageError
from gpubench.judging.answer import COMPARE, Answer, decided, next_steps, reasons, tally
from gpubench.judging.evidence import Evidence, Reading
from gpubench.judging.judge import DECIDED, Finding, Judgement, badness, judge, settled
from gpubench.judging.noise import percent
from gpubench.judging.words import change, plural, signed
from gpubench.model import Device, Manifest, Verdict

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NAMED = 3  # of the cases that only one side has


@dataclass(frozen=True, slots=True)
class Difference:
    """Something of the environment that is not the same in all runs: its value in each, empty where it is not known."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Geomean:
    """The geometric mean of how many times as good a suite's figures are: 1.02 is 2 % better, whatever the unit.

    `decided` is how many of the cases are slower, faster or the same. `direction` is 1 where the mean and all decided
    changes are for the better, -1 where they are for the worse, and else 0: an undecided mean is neither.
    """

    suite: str
    ratio: float
    cases: int
    decided: int = 0
    direction: int = 0

    @property
    def words(self) -> str:
        """`2.0 % better`; of undecided changes, or of some in both directions, `+2.0 %`, where more is better."""
        if not self.direction:
            return signed(self.ratio - 1)
        return f"{percent(abs(self.ratio - 1))} {'better' if self.direction > 0 else 'worse'}"

    @property
    def counts(self) -> str:
        """`1 of 12 cases decided`."""
        return f"{self.decided} of {plural(self.cases)} decided"


@dataclass(frozen=True, slots=True)
class Against:
    """One run compared with the first: its findings, the worst first, and the geometric mean of each suite."""

    name: str
    judgement: Judgement
    geomeans: tuple[Geomean, ...]

    @property
    def tally(self) -> str:
        """`1 slower, 2 faster, 90 same`."""
        return tally(replace(self.judgement, missing=()))


@dataclass(frozen=True, slots=True)
class Column:
    """What a run is called, of which devices it is and when it began."""

    name: str
    devices: tuple[str, ...]
    started: str
    results: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The runs, what differs in what they were measured with, and each of the others against the first."""

    columns: tuple[Column, ...]
    differences: tuple[Difference, ...]
    against: tuple[Against, ...]


def letter(index: int) -> str:
    """What a run is called in a table: A, B, C and so on."""
    return _LETTERS[index] if index < len(_LETTERS) else f"run {index + 1}"


def only_one(comparison: Comparison, against: Against) -> list[str]:
    """In words, the cases that only one side has a figure of."""
    first = comparison.columns[0].name
    found = ((against.judgement.missing, first), (against.judgement.new, against.name))
    return [_only([case.id for case in cases], name) for cases, name in found if cases]


def _only(ids: Sequence[str], name: str) -> str:
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return f"only {name} has a figure of {', '.join(ids[:_NAMED])}{more}"


def compare(readings: Sequence[Reading], threshold: Callable[[str], float]) -> Comparison:
    """Hold every reading against the first, case by case; their `source` is what they are called.

    `threshold` gives the smallest change of a case, by its id, that matters, as a fraction. Raises UsageError where
    the first has no case in common with any other.
    """
    first, *others = readings
    against = tuple(_against(first, other, threshold) for other in others)
    if not any(found.judgement.findings for found in against):
        raise UsageError(f"no case in common: {'; '.join(map(_holds, readings))}")
    columns = tuple(map(_column, readings))
    return Comparison(columns, tuple(differences([reading.manifest for reading in readings])), against)


def _against(first: Reading, other: Reading, threshold: Callable[[str], float]) -> Against:
    found = settled(judge(Evidence([[first]]), Evidence([[other]]), threshold, allow_mismatch=True))
    ordered = tuple(sorted(found.findings, key=_order))
    return Against(other.source, replace(found, findings=ordered), tuple(_geomeans(ordered)))


def _order(finding: Finding) -> tuple[int, float, str]:
    """The worst first; what was not weighed by how its medians differ."""
    place, _, case = badness(finding)
    worse = -math.log(found) if (found := ratio(finding)) > 0 else 0.0
    return place, -worse, case


def ratio(finding: Finding) -> float:
    """How many times as good a figure is as before, more being better; NaN where nothing can be said."""
    grown = 1 + change(finding)
    if not grown > 0 or not math.isfinite(grown):
        return math.nan
    return grown if finding.better == "more" else 1 / grown


def answer(against: Against, name: str) -> Answer:
    """Return what a comparison found, why, and what to do next; `name` is the run's letter."""
    judgement = replace(against.judgement, missing=())  # a comparison names what only one side has by itself
    counts = judgement.counts()
    changes = [f"{counts[each]} {each}" for each in (Verdict.SLOWER, Verdict.FASTER) if each in counts]
    words = ", ".join(changes) or ("nothing is slower or faster" if judgement.decided else "inconclusive")
    verdict = f"{name} against A: {words}; {decided(judgement)}"
    return Answer(COMPARE, 0, verdict, reasons(judgement), next_steps(judgement, COMPARE))


def _geomeans(findings: Sequence[Finding]) -> Iterator[Geomean]:
    suites: dict[str, list[Finding]] = {}
    for finding in findings:
        if ratio(finding) > 0:
            suites.setdefault(finding.case.suite, []).append(finding)
    for suite, found in suites.items():
        verdicts = [each.verdict for each in found]
        mean = math.exp(sum(math.log(ratio(each)) for each in found) / len(found))
        yield Geomean(suite, mean, len(found), sum(each in DECIDED for each in verdicts), _direction(mean, verdicts))


def _direction(mean: float, verdicts: Sequence[Verdict]) -> int:
    """Return which way a suite went, if the cases that are decided went the way of the mean and no other; else 0."""
    ways = {Verdict.SLOWER, Verdict.FASTER}.intersection(verdicts)
    if ways == {Verdict.FASTER} and mean > 1:
        return 1
    return -1 if ways == {Verdict.SLOWER} and mean < 1 else 0


def _holds(reading: Reading) -> str:
    suites = sorted({case_id.partition("/")[0] for case_id, _ in reading.gathered.results})
    return f"{reading.source} has {', '.join(suites) or 'no results'}"


def _column(reading: Reading) -> Column:
    manifest = reading.manifest
    used = {device for _, devices in reading.gathered.results for device in devices}
    names = dict.fromkeys(device.name for device in manifest.facts.devices if device.id in used)
    return Column(reading.source, tuple(names), manifest.started, sum(map(len, reading.gathered.results.values())))


def differences(manifests: Sequence[Manifest]) -> Iterator[Difference]:
    """What is not the same everywhere, the devices first."""
    each = [dict(_environment(manifest)) for manifest in manifests]
    for name in dict.fromkeys(name for found in each for name in found):
        values = tuple(found.get(name, "") for found in each)
        if len(set(values)) > 1:
            yield Difference(name, values)


def _environment(manifest: Manifest) -> Iterator[tuple[str, str]]:
    facts, settings = manifest.facts, manifest.settings
    measured = [device for device in facts.devices if device.id in settings.devices] or list(facts.devices)
    for number, device in enumerate(measured, 1):
        label = f"device {number}: " if len(measured) > 1 else ""
        yield from ((f"{label}{name}", value) for name, value in _device(device))
    yield from facts.versions
    yield from facts.host
    yield "tier", settings.tier
    yield "replicates", str(settings.replicates)
    yield "seed", str(settings.seed)


def _device(device: Device) -> Iterator[tuple[str, str]]:
    yield "model", device.name
    yield "architecture", device.arch
    yield "units", str(device.units) if device.units else ""
    yield "memory", units.round_size(device.memory_bytes) if device.memory_bytes else ""
    yield "last-level cache", units.round_size(device.cache_bytes) if device.cache_bytes else ""
    yield "board", device.uuid
    yield from device.details
