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
from gpubench.judging.evidence import Evidence, Reading
from gpubench.judging.judge import Finding, Judgement, badness, explanation, interval, judge, settled, signed
from gpubench.judging.noise import percent
from gpubench.model import Device, Manifest

_NONE = "–"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_AS_GOOD = 5e-5  # no digit of a percentage shows less
_NAMED = 3  # of the cases that only one side has


@dataclass(frozen=True, slots=True)
class Difference:
    """Something of the environment that is not the same in all runs: its value in each, empty where it is not known."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Geomean:
    """The geometric mean of how many times as good a suite's figures are: 1.02 is 2 % better, whatever the unit."""

    suite: str
    ratio: float
    cases: int


@dataclass(frozen=True, slots=True)
class Against:
    """One run held against the first: its findings, the worst first, and the geometric mean of each suite."""

    name: str
    judgement: Judgement
    geomeans: tuple[Geomean, ...]

    @property
    def tally(self) -> str:
        """`1 slower, 2 faster, 90 same`."""
        counts = self.judgement.counts().items()
        return ", ".join(f"{count} {verdict}" for verdict, count in counts) or "nothing to weigh"


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
    return Comparison(columns, tuple(_differences([reading.manifest for reading in readings])), against)


def _against(first: Reading, other: Reading, threshold: Callable[[str], float]) -> Against:
    found = settled(judge(Evidence([[first]]), Evidence([[other]]), threshold, allow_mismatch=True))
    ordered = tuple(sorted(found.findings, key=_order))
    return Against(other.source, replace(found, findings=ordered), tuple(_geomeans(ordered)))


def _order(finding: Finding) -> tuple[int, float, str]:
    """The worst first; what was not weighed by how its medians differ."""
    place, _, case = badness(finding)
    worse = -math.log(found) if (found := ratio(finding)) > 0 else 0.0
    return place, -worse, case


def change(finding: Finding) -> float:
    """How much a figure changed, as a fraction: by its effect, or else by the medians; NaN where there is none."""
    if finding.effect:
        return finding.change
    before, after = finding.before.median, finding.after.median
    return after / before - 1 if math.isfinite(after) and math.isfinite(before) and before else math.nan


def ratio(finding: Finding) -> float:
    """How many times as good a figure is as before, more being better; NaN where nothing can be said."""
    grown = 1 + change(finding)
    if not grown > 0 or not math.isfinite(grown):
        return math.nan
    return grown if finding.better == "more" else 1 / grown


@dataclass(frozen=True, slots=True)
class Words:
    """A finding in words; a dash where there is nothing to say."""

    before: str
    after: str
    change: str
    interval: str
    why: str


def words(finding: Finding) -> Words:
    """Both figures, the change with its interval, and the reason of the verdict where it is not plain."""
    found = change(finding)
    low, high = interval(finding) if finding.effect else ("", "")
    return Words(
        _figure(finding.before.median, finding.unit),
        _figure(finding.after.median, finding.unit),
        signed(found) if math.isfinite(found) else _NONE,
        f"{low} to {high}" if finding.effect else _NONE,
        explanation(finding),
    )


def _figure(median: float, unit: str) -> str:
    return units.quantity(median, unit) if math.isfinite(median) else _NONE


def times_words(ratio: float) -> str:
    """A ratio of how good figures are: `2.0 % better`."""
    if abs(ratio - 1) < _AS_GOOD:
        return "as good"
    return f"{percent(abs(ratio - 1))} {'better' if ratio >= 1 else 'worse'}"


def _geomeans(findings: Sequence[Finding]) -> Iterator[Geomean]:
    logs: dict[str, list[float]] = {}
    for finding in findings:
        found = ratio(finding)
        if found > 0 and finding.cause != "method":
            logs.setdefault(finding.case.suite, []).append(math.log(found))
    for suite, values in logs.items():
        yield Geomean(suite, math.exp(sum(values) / len(values)), len(values))


def _holds(reading: Reading) -> str:
    suites = sorted({case_id.partition("/")[0] for case_id, _ in reading.gathered.results})
    return f"{reading.source} has {', '.join(suites) or 'no results'}"


def _column(reading: Reading) -> Column:
    manifest = reading.manifest
    used = {device for _, devices in reading.gathered.results for device in devices}
    names = dict.fromkeys(device.name for device in manifest.facts.devices if device.id in used)
    return Column(reading.source, tuple(names), manifest.started, sum(map(len, reading.gathered.results.values())))


def _differences(manifests: Sequence[Manifest]) -> Iterator[Difference]:
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
