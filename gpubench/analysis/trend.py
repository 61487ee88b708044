"""Follow the figures of one series from run to run, and find their steps and drifts. Pure functions of values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from gpubench import stats
from gpubench.analysis.fingerprint import Fingerprint, fingerprint
from gpubench.analysis.quantities import judged_unit, slowest_series
from gpubench.analysis.summary import Summary
from gpubench.base import units
from gpubench.model import Better, Run, Tier
from gpubench.stats.stretches import LEAST_RUNS, Slope, Stretch, slope, stretches

_HOST = "host"  # stands among the versions that may differ between two runs
MOST_JUDGED = 400  # the most runs that are searched for changes: the time grows with the square of their number
_RUNS_OF_RATE = 10  # the rate of a drift is its change over this number of runs
_SURE = 30  # runs before a step, in which a state that lasts 10 runs would have shown in 95 % of series
_SAME = 0.25  # of the height of a step: an earlier level that is as close to the new one is the same level
_JUMP = 3.0  # times the noise between runs: a smaller jump at the begin or end of a drift is no step

State = Literal["changed", "two states", "no change", "too few runs"]


@dataclass(frozen=True, slots=True)
class Line:
    """A series that is comparable over time: of one version of a case, on devices of one fingerprint.

    `case` is the id of the case and `series` the label of the series; `devices` are ids."""

    case: str
    version: int
    tier: Tier
    series: str
    unit: str
    better: Better
    devices: tuple[str, ...]
    fingerprint: Fingerprint

    @property
    def text(self) -> str:
        """The description of the line: `hot, tier quick, on cuda:0: NVIDIA H200, 132 compute units, …`."""
        version = f", version {self.version} of the case" if self.version > 1 else ""
        return f"{self.series}, tier {self.tier}{version}, on {', '.join(self.devices)}: {self.fingerprint.text}"


@dataclass(frozen=True, slots=True)
class Entry:
    """The figures of one result for a line: the median with its 95 % interval in SI units, noise, number of samples.

    `headline` says that the series is the headline of its result; `noise` is a fraction (`stats.noise`)."""

    line: Line
    headline: bool
    replicate: int
    interval: stats.Interval
    noise: float
    samples: int
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunSource:
    """The run of some figures: its unique `key`, its file, its start (s since 1970), its host and its versions."""

    key: str
    path: str
    at: float
    host: str = ""
    versions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """One replicate of a line in the run `source`; the other fields are as in `Entry`."""

    source: RunSource
    replicate: int
    interval: stats.Interval
    noise: float
    samples: int
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """One run of a line: the median of its replicates' medians in SI units, and the number of replicates.

    The interval spans the medians of the replicates; with a single replicate it is its confidence interval."""

    source: RunSource
    interval: stats.Interval
    replicates: int
    labels: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """The run's median, in SI units."""
        return self.interval.centre


class Shift:
    """The common part of a step and a drift: the values before and after, and the better direction."""

    __slots__ = ()
    before: float
    after: float
    better: Better

    @property
    def effect(self) -> float:
        """The change as a fraction of the value before; 0.05 is 5 % more."""
        return _relative(self.after, self.before)

    @property
    def is_worse(self) -> bool:
        """Whether it is a change for the worse."""
        return (self.after > self.before) == (self.better == "less")


@dataclass(frozen=True, slots=True)
class Change(Shift):
    """A step before the moment `index`, with the heights of the levels on either side and the versions that changed.

    `note` says if an earlier level came back, or if the runs before are too few to exclude a second state."""

    RECORD: ClassVar[str] = "index before after better differences effect worse=is_worse note"
    index: int
    before: float
    after: float
    better: Better
    differences: tuple[str, ...]
    note: str = ""

    @property
    def start(self) -> int:
        """The first moment after the step, as `Drift.start` is the first of a drift."""
        return self.index

    @property
    def effect_text(self) -> str:
        """`3.1 % less (worse)`."""
        return f"{_more_or_less(self.effect)} ({_worse_or_better(self.is_worse)})"

    @property
    def noted_text(self) -> str:
        """The effect with the note if there is one: `3.1 % less (worse), a level seen before`."""
        return f"{self.effect_text}, {self.note}" if self.note else self.effect_text

    @property
    def text(self) -> str:
        """`3.1 % less (worse); cublas 13.1 → 13.2`: the effect, and the versions that changed too."""
        return "; ".join([self.effect_text, *([", ".join(self.differences)] if self.differences else [])])


@dataclass(frozen=True, slots=True)
class Drift(Shift):
    """A slow rise or fall over the moments from `start` to before `end`.

    `before` and `after` are the values of the fitted line at the first and the last of these moments."""

    RECORD: ClassVar[str] = "start end before after rate=rate_ends better effect worse=is_worse"
    start: int
    end: int
    before: float
    after: float
    rate: stats.Interval
    better: Better

    @property
    def effect_text(self) -> str:
        """`drift, 2.0 % less over 60 runs (worse)`."""
        direction = _worse_or_better(self.is_worse)
        return f"drift, {_more_or_less(self.effect)} over {self.end - self.start} runs ({direction})"

    @property
    def noted_text(self) -> str:
        """The effect, to which a drift has no note."""
        return self.effect_text

    @property
    def rate_ends(self) -> dict[str, float]:
        """The rate and the ends of its interval, as `asdict` names them in records of earlier versions."""
        return {"low": self.rate.low, "centre": self.rate.centre, "high": self.rate.high}

    @property
    def rate_text(self) -> str:
        """The change over 10 runs: `0.34 % less every 10 runs, 95 % interval 0.28 % – 0.39 %`."""
        low, high = sorted((abs(self.rate.low), abs(self.rate.high)))
        interval = f"{units.percent(low, 2)} – {units.percent(high, 2)}"
        side = "more" if self.rate.centre > 0 else "less"
        size = units.percent(abs(self.rate.centre), 2)
        return f"{size} {side} every {_RUNS_OF_RATE} runs, 95 % interval {interval}"

    @property
    def text(self) -> str:
        """The effect over all of its runs, then the rate with its interval."""
        return f"{self.effect_text}; {self.rate_text}"


@dataclass(frozen=True, slots=True)
class TwoStates:
    """The moments from `start` to before `end` alternate between two heights; `switches` begin the later visits."""

    start: int
    end: int
    low: float
    high: float
    switches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrendLevel:
    """The straight line of the values from `start` to before `end`, by its heights `first` and `last` at both ends."""

    start: int
    end: int
    first: float
    last: float
    is_drift: bool = False


@dataclass(frozen=True, slots=True)
class Trend:
    """A line over time, oldest run first, with the levels and drifts of its last 400 moments."""

    line: Line
    moments: tuple[Moment, ...]
    levels: tuple[TrendLevel, ...]
    changes: tuple[Change, ...]
    drifts: tuple[Drift, ...]
    states: tuple[TwoStates, ...] = ()

    @classmethod
    def of(cls, line: Line, points: Sequence[TrendPoint]) -> Trend:
        """Return the trend of a line's points, which must be in order of time; points of one run are its replicates.

        Only the last 400 runs are searched for steps and drifts."""
        moments = tuple(_moment(list(group)) for _, group in itertools.groupby(points, lambda point: point.source))
        first, values = max(len(moments) - MOST_JUDGED, 0), [moment.value for moment in moments]
        parts = stretches(values[first:])
        slopes = {first + part.start: slope(values[first:][part.start : part.end]) for part in parts if part.is_drift}
        switches = {first + place for part in parts for place in part.switches}
        starts = sorted({*switches, *(first + part.start for part in parts)})
        levels = tuple(
            _level(values, start, end, slopes.get(start)) for start, end in itertools.pairwise([*starts, len(values)])
        )
        drifts = tuple(_drift(level, slopes[level.start], line) for level in levels if level.is_drift)
        states = tuple(_two_states(values, first, part) for part in parts if part.switches)
        return cls(line, moments, levels, tuple(_steps_between(line, moments, levels, switches)), drifts, states)

    @property
    def values(self) -> tuple[float, ...]:
        """The medians of the runs."""
        return tuple(moment.value for moment in self.moments)

    @property
    def state(self) -> State:
        """Whether there is a change, and if not, whether there are two states or too few runs to show a change."""
        if len(self.moments) < LEAST_RUNS:
            return "too few runs"
        return "changed" if self.changes or self.drifts else "two states" if self.states else "no change"

    @property
    def newest_event(self) -> Change | Drift | None:
        """The step or the drift that began last."""
        events: list[Change | Drift] = [*self.changes, *self.drifts]
        return max(events, key=lambda event: event.start, default=None)

    @property
    def verdict_text(self) -> str:
        """`changed once in 20 runs; newest: 9.1 % less (worse)`, or the text of the state if nothing changed.

        `two states, 3800 GB/s and 4000 GB/s: 7 switches in 60 runs, the last 12 at 3800 GB/s` follows for each."""
        texts = [self._states_text(states) for states in self.states]
        if event := self.newest_event:
            count = len(self.changes) + len(self.drifts)
            often = "once" if count == 1 else f"{count} times"
            texts.insert(0, f"changed {often} in {len(self.moments)} runs; newest: {event.noted_text}")
        return "; ".join(texts) or self.state_text

    def _states_text(self, states: TwoStates) -> str:
        low, high = (units.quantity(height, self.line.unit) for height in (states.low, states.high))
        last = states.switches[-1]
        newest = low if stats.median(self.values[last : states.end]) < (states.low + states.high) / 2 else high
        counts = f"{len(states.switches)} switches in {states.end - states.start} runs"
        return f"two states, {low} and {high}: {counts}, the last {states.end - last} at {newest}"

    @property
    def newest_step(self) -> float | None:
        """The newest value against the median of the earlier ones, as a fraction; None for a single run."""
        return _relative(self.values[-1], stats.median(self.values[:-1])) if len(self.moments) > 1 else None

    @property
    def newest_comparison(self) -> str:
        """The newest value: `newest 50.0 % less than the median of the 4 runs before`; empty for a single run."""
        if self.newest_step is None:
            return ""
        before = f"median of the {len(self.moments) - 1} runs" if len(self.moments) > 2 else "run"
        if self.newest_step == 0:
            return f"newest equals the {before} before"
        return f"newest {_more_or_less(self.newest_step)} than the {before} before"

    @property
    def state_text(self) -> str:
        """The state without a change, `no change in 20 runs` or that they are too few, with `newest_comparison`."""
        count = len(self.moments)
        state = f"no change in {count} runs"
        if self.state == "too few runs":
            state = f"too few runs to tell a change: {count} of at least {LEAST_RUNS}"
        return "; ".join(part for part in (state, self.newest_comparison) if part)


def _relative(value: float, reference: float) -> float:
    """Return the difference from the reference as a fraction of its size; for a reference of 0, infinite or 0."""
    return (value - reference) / abs(reference) if reference else math.copysign(math.inf, value) if value else 0.0


def _more_or_less(fraction: float) -> str:
    """Return a fraction as `3.1 % less`, with two decimals below 0.1 %."""
    size = units.percent(abs(fraction), 1 if abs(fraction) >= 0.001 else 2)
    return f"{size} {'more' if fraction > 0 else 'less'}"


def _worse_or_better(is_worse: bool) -> str:
    return "worse" if is_worse else "better"


def entries(run: Run) -> Iterator[Entry]:
    """Yield an entry for each series of each result whose status is ok; the first one of a result is its headline.

    An entry has the median, interval and noise of its series."""
    summary = Summary(run)
    for result in summary.run.results:
        if result.status != "ok":
            continue
        device_fingerprint = fingerprint(run.manifest.facts, result.devices)
        for index, series in enumerate(slowest_series(result)):
            figure = summary.figure(result, series)
            line = Line(
                result.case.id,
                result.case.version,
                run.manifest.settings.tier,
                series.label,
                judged_unit(series),
                figure.better,
                result.devices,
                device_fingerprint,
            )
            if math.isfinite(figure.interval.centre):
                yield Entry(
                    line, index == 0, result.replicate, figure.interval, figure.noise, figure.samples, result.labels
                )


def _moment(points: Sequence[TrendPoint]) -> Moment:
    """Return the moment of one run from the points of its replicates, at least one, with the labels of all points."""
    labels = tuple(dict.fromkeys(label for point in points for label in point.labels))
    medians = [point.interval.centre for point in points]
    several = stats.Interval(min(medians), stats.median(medians), max(medians))
    return Moment(points[0].source, several if len(points) > 1 else points[0].interval, len(points), labels)


def _level(values: Sequence[float], start: int, end: int, drift_slope: Slope | None) -> TrendLevel:
    """Return the level of the values from `start` to before `end`: their median, or for a drift its Theil-Sen line."""
    if drift_slope is None:
        centre = stats.median(values[start:end])
        return TrendLevel(start, end, centre, centre)
    step = drift_slope.interval.centre
    first = stats.median([value - step * index for index, value in enumerate(values[start:end])])
    return TrendLevel(start, end, first, first + step * (end - start - 1), is_drift=True)


def _two_states(values: Sequence[float], first: int, part: Stretch) -> TwoStates:
    """Return the two states of a stretch of the values from `first` on: the medians of every other visit."""
    bounds = [first + place for place in (part.start, *part.switches, part.end)]
    visits = [values[start:end] for start, end in itertools.pairwise(bounds)]
    low, high = sorted(stats.median([*itertools.chain(*visits[side::2])]) for side in (0, 1))
    return TwoStates(bounds[0], bounds[-1], low, high, tuple(bounds[1:-1]))


def _drift(level: TrendLevel, drift_slope: Slope, line: Line) -> Drift:
    """Return the drift along a level; its rate is the slope over 10 runs as a fraction of the level's first value."""
    low, centre, high = (
        _RUNS_OF_RATE * end / abs(level.first) if level.first else math.inf
        for end in (drift_slope.interval.low, drift_slope.interval.centre, drift_slope.interval.high)
    )
    rate = stats.Interval(low, centre, high)
    return Drift(level.start, level.end, level.first, level.last, rate, line.better)


def _steps_between(
    line: Line, moments: Sequence[Moment], levels: Sequence[TrendLevel], switches: set[int]
) -> Iterator[Change]:
    noise = _noise_between_runs(moments, levels)
    for index, (before, after) in enumerate(itertools.pairwise(levels)):
        joins_a_drift, height = before.is_drift or after.is_drift, abs(after.first - before.last)
        if after.start not in switches and (not joins_a_drift or height > _JUMP * noise):
            differences = _differences(moments[after.start - 1], moments[after.start])
            note = "" if joins_a_drift or differences or after.start >= _SURE else "perhaps a second state"
            if any(abs(level.last - after.first) <= _SAME * height for level in levels[:index] if not level.is_drift):
                note = "a level seen before"
            yield Change(after.start, before.last, after.first, line.better, differences, note)


def _noise_between_runs(moments: Sequence[Moment], levels: Sequence[TrendLevel]) -> float:
    """Return the standard deviation of the runs around their levels, as 1.4826 · the median distance from the level."""
    distances = []
    for level in levels:
        step = (level.last - level.first) / max(level.end - level.start - 1, 1)
        distances += [
            abs(moments[level.start + index].value - level.first - step * index)
            for index in range(level.end - level.start)
        ]
    return 1.4826 * stats.median(distances)


def _differences(before: Moment, after: Moment) -> tuple[str, ...]:
    """Return each version or host that differs between two runs: `cublas 13.1 → 13.2`; `none` for an unknown one."""
    old = {**dict(before.source.versions), _HOST: before.source.host}
    new = {**dict(after.source.versions), _HOST: after.source.host}
    return tuple(
        f"{name} {old.get(name) or 'none'} → {new.get(name) or 'none'}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )
