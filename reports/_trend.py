"""Collect the values that the template of a trend page shows: for each series its drawing, its changes and its runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import Chart
from ._ticks import Axis, axis

_WIDTH, _HEIGHT = 760.0, 250.0
_LEFT, _TOP, _BOTTOM = 34.0, 22.0, _HEIGHT - 30
_MOST_DOTS = 150  # the most dots; more would merge into a band
_MOST_TICKS = 6
_MINUTE, _DAY = "%Y-%m-%d %H:%M", "%Y-%m-%d"


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """A step of a series as texts; `before` and `after` are the levels on both sides of it.

    `judged` is a class of the style sheet, `at` the time of the first run after the step, and `differences` lists
    what changed in the environment."""

    at: str
    effect: str
    judged: str
    before: str
    after: str
    differences: str


@dataclass(frozen=True, slots=True)
class DriftLine:
    """A drift of a series as texts, from the run at `at` to the run at `until`; `judged` is a class of the style sheet.

    `before` and `after` are the values at both ends, and `rate` is the speed of the drift."""

    at: str
    until: str
    effect: str
    judged: str
    before: str
    after: str
    rate: str


@dataclass(frozen=True, slots=True)
class NewestEvent:
    """The newest step or drift of a series as text, or the state of a series without one.

    `judged` is a class of the style sheet: `good`, `bad` or `quiet`."""

    text: str
    judged: str


@dataclass(frozen=True, slots=True)
class TrendRunLine:
    """A run of a series as texts; `at` is its start in UTC, `state` its labels, and `file` the name of its run file."""

    at: str
    median: str
    interval: str
    replicates: int
    state: str
    file: str


@dataclass(frozen=True, slots=True)
class TrendBlock:
    """The section of a trend; `verdict` says what changed, or why no change is reported.

    `lead` describes the series, `newest` is its last value, and `count` the number of its runs."""

    case: str
    verdict: str
    lead: str
    newest: str
    count: int
    chart: Chart
    changes: tuple[ChangeLine, ...]
    drifts: tuple[DriftLine, ...]
    newest_event: NewestEvent
    runs: tuple[TrendRunLine, ...]


@dataclass(frozen=True, slots=True)
class TrendPage:
    """The content of the page."""

    title: str
    blocks: tuple[TrendBlock, ...]


def trend_page(trends: Sequence[gb.Trend]) -> TrendPage:
    """Return the content of a page of trends; each trend must have at least one run."""
    blocks = tuple(_block(trend) for trend in trends)
    only = blocks[0].case if len(blocks) == 1 else f"{len(blocks)} series"
    return TrendPage(f"History of {only}", blocks)


def _block(trend: gb.Trend) -> TrendBlock:
    """Return the section of a trend: its drawing, steps, drifts and runs as texts, the newest run first."""
    line = trend.line
    return TrendBlock(
        line.case,
        trend.verdict_text,
        line.text,
        gb.units.quantity(trend.values[-1], line.unit),
        len(trend.moments),
        _chart(trend),
        _change_lines(trend),
        _drift_lines(trend),
        _newest_event(trend),
        _run_lines(trend),
    )


def _change_lines(trend: gb.Trend) -> tuple[ChangeLine, ...]:
    """Return each step as texts."""
    unit = trend.line.unit
    return tuple(
        ChangeLine(
            _time_of(trend, change.index),
            change.effect_text,
            "bad" if change.is_worse else "good",
            gb.units.quantity(change.before, unit),
            gb.units.quantity(change.after, unit),
            ", ".join(change.differences),
        )
        for change in trend.changes
    )


def _drift_lines(trend: gb.Trend) -> tuple[DriftLine, ...]:
    """Return each drift of a trend as texts; its times are the times of its first and its last run."""
    unit = trend.line.unit
    return tuple(
        DriftLine(
            _time_of(trend, drift.start),
            _time_of(trend, drift.end - 1),
            drift.effect_text,
            "bad" if drift.is_worse else "good",
            gb.units.quantity(drift.before, unit),
            gb.units.quantity(drift.after, unit),
            drift.rate_text,
        )
        for drift in trend.drifts
    )


def _newest_event(trend: gb.Trend) -> NewestEvent:
    """Return the newest step or drift of a trend as text, or the state of the trend if it has neither."""
    event = trend.newest_event
    if event is None:
        return NewestEvent(trend.state, "quiet")
    since = _time_of(trend, event.start)
    return NewestEvent(f"{event.effect_text} from {since}", "bad" if event.is_worse else "good")


def _run_lines(trend: gb.Trend) -> tuple[TrendRunLine, ...]:
    """Return each run as texts, the newest first: time, median, 95 % interval, replicates, labels, file."""
    unit = trend.line.unit
    return tuple(
        TrendRunLine(
            _date(moment.source.at, _MINUTE),
            gb.units.quantity(interval.centre, unit),
            gb.units.interval(interval.low, interval.high, unit, interval.centre),
            moment.replicates,
            ", ".join(moment.labels),
            PurePath(moment.source.path).name,
        )
        for moment in reversed(trend.moments)
        for interval in [moment.interval]
    )


def _time_of(trend: gb.Trend, index: int) -> str:
    """Return the time of a run as text, in UTC, to a minute."""
    return _date(trend.moments[index].source.at, _MINUTE)


def _date(at: float, form: str) -> str:
    """Return a Unix time in seconds as text, in UTC; `form` is a format of `strftime`."""
    return datetime.fromtimestamp(at, UTC).strftime(form)


def _chart(trend: gb.Trend) -> Chart:
    """Return the drawing of a series over its runs: medians, 95 % intervals, steps, and levels if it has changed."""
    line, moments = trend.line, trend.moments
    ends = [end for moment in moments for end in (moment.interval.low, moment.interval.high)]
    up = axis(ends, line.unit, _BOTTOM, _TOP, zero=False)
    across = _runs_axis(trend, _WIDTH - svg.left_of(up))
    parts = [_frame(across, up)]
    parts += [svg.line(across.place(x), _TOP, across.place(x), _BOTTOM, "change") for x in _step_places(trend)]
    parts += _intervals(trend, across, up)
    parts += [svg.polyline([(across.place(x), up.place(y)) for x, y in enumerate(trend.values)], "line c0")]
    ends_of_levels = [(level.start, level.end, level.first, level.last) for level in trend.levels]
    parts += [_level(*ends, across, up) for ends in ends_of_levels if trend.state == "changed"]
    parts += _dots(trend, across, up)
    span = f"{len(moments)} runs from {_time_of(trend, 0)} to {_time_of(trend, -1)}"
    newest = gb.units.quantity(trend.values[-1], line.unit)
    note = "one point per run, in order of time (UTC): the median and, where large enough to see, its 95 % interval"
    description = f"{line.case}: {span}, newest {newest}; {_counts(trend)}"
    return Chart(f"newest {newest}", note, svg.picture(description, _HEIGHT, *parts, width=_WIDTH))


def _frame(across: Axis, up: Axis) -> Markup:
    """Draw the grid and the axes of a trend, with the values at the right, where a narrow screen begins."""
    end = across.end + 10
    parts = [svg.line(_LEFT - 10, up.place(value), end, up.place(value), "grid") for value, _ in up.ticks]
    parts += [svg.text(end + 6, up.place(value) + 4, label) for value, label in up.ticks]
    parts += [svg.line(_LEFT - 10, up.start, end, up.start, "axis"), svg.text(end + 6, 11.0, up.unit, "start", "name")]
    for value, label in across.ticks:
        x = across.place(value)
        anchor, shift = ("start", 12 - x) if x < _LEFT + 8 else ("middle", 0.0)  # the first date is not cut off
        parts += [svg.line(x, up.start, x, up.start + 4, "axis"), svg.text(x + shift, up.start + 17, label, anchor)]
    return svg.join(parts)


def _runs_axis(trend: gb.Trend, right: float) -> Axis:
    """Return the x axis, on which the runs have equal distances, up to the x `right`; at most seven dates are ticks."""
    moments = trend.moments
    last = len(moments) - 1
    stride = max(-(-last // _MOST_TICKS), 1)
    one_day = _date(moments[0].source.at, _DAY) == _date(moments[-1].source.at, _DAY)
    places = range(0, last + 1, stride)
    ticks = tuple((float(place), _date(moments[place].source.at, "%H:%M" if one_day else _DAY)) for place in places)
    return Axis(0.0, max(float(last), 1.0), _LEFT, right - 10, False, ticks, "")


def _step_places(trend: gb.Trend) -> list[float]:
    """Return the place of each step on the axis of runs, half way between two runs."""
    return [change.index - 0.5 for change in trend.changes]


def _intervals(trend: gb.Trend, across: Axis, up: Axis) -> Iterator[Markup]:
    """Yield a line over each run's 95 % interval that is taller than 5 drawing units; none for more than 150 runs."""
    for x, moment in enumerate(trend.moments if len(trend.moments) <= _MOST_DOTS else ()):
        low, high = up.place(moment.interval.low), up.place(moment.interval.high)
        if low - high > 5:
            yield svg.line(across.place(x), low, across.place(x), high, "spread")


def _level(start: int, end: int, first: float, last: float, across: Axis, up: Axis) -> Markup:
    """Draw a level, or a drift from the value `first` to `last`, over the runs from `start` up to but without `end`."""
    return svg.line(across.place(start - 0.4), up.place(first), across.place(end - 0.6), up.place(last), "level")


def _counts(trend: gb.Trend) -> str:
    """Return the numbers of steps and drifts as text: `1 step, 0 drifts`."""
    numbers = ((len(trend.changes), "step"), (len(trend.drifts), "drift"))
    return ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in numbers)


def _dots(trend: gb.Trend, across: Axis, up: Axis) -> Iterator[Markup]:
    """Yield a dot for each run; of more than 150 runs, only for the first run after each step."""
    marked = {change.index: "bad" if change.is_worse else "good" for change in trend.changes}
    for x, moment in enumerate(trend.moments):
        if x in marked or len(trend.moments) <= _MOST_DOTS:
            tooltip = f"{_time_of(trend, x)}: {gb.units.quantity(moment.value, trend.line.unit)}"
            radius, judged = (4.2, f"mark {marked[x]}") if x in marked else (2.6, "c0")
            yield svg.dot(across.place(x), up.place(moment.value), radius, judged, tooltip)
