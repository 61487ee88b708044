"""Trends: the figures of one series, run after run, and where they changed. Pure functions of values."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from gpubench import stats
from gpubench.analysis.fingerprint import Fingerprint, fingerprint
from gpubench.analysis.quantities import judged_unit, speaking
from gpubench.analysis.summary import Summary
from gpubench.base import units
from gpubench.model import Better, Run, Tier
from gpubench.stats.changepoints import change_points

_HOST = "host"  # stands among the versions that may differ between two runs
MOST_JUDGED = 400  # runs: the time that change points take grows with the square


@dataclass(frozen=True, slots=True)
class Line:
    """What is comparable over time: one series of one version of a case on devices of one fingerprint."""

    case: str
    version: int
    tier: Tier
    series: str
    unit: str
    better: Better
    devices: tuple[str, ...]
    fingerprint: Fingerprint

    @property
    def words(self) -> str:
        """What its figures are of: `hot, tier quick, on cuda:0: NVIDIA H200, 132 units, …`."""
        version = f", version {self.version} of the case" if self.version > 1 else ""
        return f"{self.series}, tier {self.tier}{version}, on {', '.join(self.devices)}: {self.fingerprint.words}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One result's figures of a line: the median with its interval in SI units, its noise and count."""

    line: Line
    headline: bool
    replicate: int
    interval: stats.Interval
    noise: float
    samples: int
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """The run that figures are of: a `key` of its own, its file, when it started (s since 1970), where, with what."""

    key: str
    path: str
    at: float
    host: str = ""
    versions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Point:
    """One replicate of a line in one run."""

    source: Source
    replicate: int
    interval: stats.Interval
    noise: float
    samples: int
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """One run of a line: the median of its replicates' medians; low and high are theirs, of one its interval's."""

    source: Source
    interval: stats.Interval
    replicates: int
    labels: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """The run's median, in SI units."""
        return self.interval.centre


@dataclass(frozen=True, slots=True)
class Change:
    """From the moment at `index` on the line is another: medians before and after, and what else changed there."""

    index: int
    before: float
    after: float
    better: Better
    p: float
    differences: tuple[str, ...]

    @property
    def effect(self) -> float:
        """The change as a fraction of what was before; 0.05 is 5 % more."""
        return self.after / self.before - 1 if self.before else math.inf

    @property
    def is_worse(self) -> bool:
        """Whether it is a change for the worse."""
        return (self.after > self.before) == (self.better == "less")

    @property
    def effect_words(self) -> str:
        """`3.1 % less (worse)`."""
        size = units.percent(abs(self.effect), 1 if abs(self.effect) >= 0.001 else 2)
        return f"{size} {'more' if self.after > self.before else 'less'} ({'worse' if self.is_worse else 'better'})"

    @property
    def words(self) -> str:
        """`3.1 % less (worse); cublas 13.1 → 13.2`: the effect, and what else changed at that run."""
        return "; ".join([self.effect_words, *([", ".join(self.differences)] if self.differences else [])])


@dataclass(frozen=True, slots=True)
class Trend:
    """A line over time, oldest first, and its changes."""

    line: Line
    moments: tuple[Moment, ...]
    changes: tuple[Change, ...]

    @classmethod
    def of(cls, line: Line, points: Sequence[Point]) -> Trend:
        """The trend of a line's points, which stand in order of time; changes are looked for in the last 400 runs."""
        moments = tuple(_moment(list(group)) for _, group in itertools.groupby(points, lambda point: point.source))
        return cls(line, moments, tuple(_changes(line, moments)))

    @property
    def levels(self) -> tuple[tuple[int, int, float], ...]:
        """The stretches between changes: the first moment, the one behind the last, their median."""
        first = max(len(self.moments) - MOST_JUDGED, 0)
        ends = [first, *(change.index for change in self.changes), len(self.moments)]
        return tuple((start, end, stats.median(self.values[start:end])) for start, end in itertools.pairwise(ends))

    @property
    def values(self) -> tuple[float, ...]:
        """The medians of the runs."""
        return tuple(moment.value for moment in self.moments)


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(trend: Trend, width: int) -> tuple[str, str]:
    """The values as a row of bars, the least and the greatest filling its height, and below it a `^` at each change.

    Where there are more runs than characters, a bar is the median of neighbours.
    """
    values = trend.values
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)]
    shown = [stats.median(values[start:end]) for start, end in itertools.pairwise(edges)]
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    bars = "".join(_BARS[round((value - low) * scale) if scale else len(_BARS) // 2] for value in shown)
    marks = {bisect.bisect_right(edges, change.index) - 1 for change in trend.changes}
    return bars, "".join("^" if place in marks else " " for place in range(count)).rstrip()


def nameless(trend: Trend) -> Trend:
    """The trend without what says where it was measured: hosts, and the folders of the run files."""
    moments = tuple(
        replace(moment, source=replace(moment.source, host="", path=PurePath(moment.source.path).name))
        for moment in trend.moments
    )
    changes = tuple(replace(change, differences=tuple(map(_hostless, change.differences))) for change in trend.changes)
    return replace(trend, moments=moments, changes=changes)


def _hostless(difference: str) -> str:
    return "another host" if difference.startswith(f"{_HOST} ") else difference


def entries(run: Run) -> Iterator[Entry]:
    """The figures of every series of every result that is ok, headline first."""
    summary = Summary(run)
    for result in run.results:
        if result.status != "ok":
            continue
        kind = fingerprint(run.manifest.facts, result.devices)
        for index, series in enumerate(speaking(result)):
            found = summary.figure(result, series)
            line = Line(
                result.case.id,
                result.case.version,
                run.manifest.settings.tier,
                series.label,
                judged_unit(series),
                found.better,
                result.devices,
                kind,
            )
            if math.isfinite(found.interval.centre):
                yield Entry(
                    line, index == 0, result.replicate, found.interval, found.noise, found.samples, result.labels
                )


def _moment(points: Sequence[Point]) -> Moment:
    labels = tuple(dict.fromkeys(label for point in points for label in point.labels))
    medians = [point.interval.centre for point in points]
    several = stats.Interval(min(medians), stats.median(medians), max(medians))
    return Moment(points[0].source, several if len(points) > 1 else points[0].interval, len(points), labels)


def _changes(line: Line, moments: Sequence[Moment]) -> Iterator[Change]:
    first = max(len(moments) - MOST_JUDGED, 0)
    values = [moment.value for moment in moments]
    points = change_points(values[first:])
    ends = [first, *(first + point.index for point in points), len(values)]
    for number, point in enumerate(points):
        start, index, end = ends[number : number + 3]
        before, after = stats.median(values[start:index]), stats.median(values[index:end])
        yield Change(index, before, after, line.better, point.p, _differences(moments[index - 1], moments[index]))


def _differences(before: Moment, after: Moment) -> tuple[str, ...]:
    """What is known to be different between two runs: `cublas 13.1 → 13.2`."""
    old = {**dict(before.source.versions), _HOST: before.source.host}
    new = {**dict(after.source.versions), _HOST: after.source.host}
    return tuple(
        f"{name} {old.get(name) or 'none'} → {new.get(name) or 'none'}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )
