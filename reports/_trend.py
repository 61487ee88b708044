"""Collect the values that the template of a trend page shows: for each series its drawing, its changes and its runs."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import Chart
from ._svg import Axis, axis

_WIDTH, _HEIGHT = 760.0, 250.0
_LEFT, _TOP, _BOTTOM = 34.0, 22.0, _HEIGHT - 30
_MOST_DOTS = 150  # the most dots; more would merge into a band
_MOST_TICKS = 6
_MINUTE, _DAY = "%Y-%m-%d %H:%M", "%Y-%m-%d"


def trend_page(trends: Sequence[gb.Trend]) -> dict[str, Any]:
    """Return the values of a page of trends and the functions that write them; each trend must have a run."""
    only = trends[0].line.case if len(trends) == 1 else f"{len(trends)} series"
    return {
        "title": f"History of {only}",
        "blocks": [(trend, _chart(trend), _newest_event(trend)) for trend in trends],
        "time": _time_of,
        "quantity": gb.units.quantity,
        "interval": lambda ends, unit: gb.units.interval(ends.low, ends.high, unit, ends.centre),
        "file": lambda path: PurePath(path).name,
    }


def _newest_event(trend: gb.Trend) -> tuple[str, str]:
    """Return the newest step or drift of a trend as text, or its state, with a class of the style sheet."""
    event = trend.newest_event
    if event is None:
        return trend.state, "quiet"
    return f"{event.effect_text} from {_time_of(trend, event.start)}", "bad" if event.is_worse else "good"


def _time_of(trend: gb.Trend, index: int) -> str:
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
    steps = [across.place(change.index - 0.5) for change in trend.changes]  # half way between two runs
    parts += [svg.line(x, _TOP, x, _BOTTOM, "change") for x in steps]
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
