"""Draw the cases of a run over time: a lane for each suite or phase, a box for each case, a cross for a failure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import Chart
from ._ticks import Axis

TOP, LANE = 22.0, 20.0
_APART, _NARROW = 0.5, 1.0  # drawing units: the least visible gap, and the width of a box that is drawn alone
_PALE_APART = 2.0  # drawing units: the least gap between the windows behind a line

_Span = tuple[gb.Result, float, float]  # a case, its start and its end in seconds


@dataclass(slots=True)
class _Group:
    """Cases that are drawn as one, from `left` to `right` in drawing units; `seconds` is how long they took."""

    left: float
    right: float
    seconds: float
    results: list[gb.Result]


def _lane_of(result: gb.Result) -> str:
    return next(iter(gb.result_lanes([result])))


def untimed_of(results: Sequence[gb.Result]) -> list[tuple[gb.Result, float]]:
    """Return the failed results that have no time window, each with an estimate of its end in seconds of the run.

    The estimate is the end of the result before it plus its own duration. `results` are in the order measured."""
    untimed, last_end = [], 0.0
    for result in results:
        if result.window[1] > result.window[0]:
            last_end = result.window[1]
        elif result.status == "failed":
            last_end += result.elapsed_s
            untimed.append((result, last_end))
    return untimed


def lanes(
    results: Sequence[gb.Result], untimed: Sequence[tuple[gb.Result, float]], begin: float, across: Axis
) -> Chart:
    """Return the chart of when each case ran, with a cross for each failure.

    `results` have a time window; `untimed` are failures without one, with their ends."""
    timed = gb.result_lanes(results)
    names = list(dict.fromkeys([*timed, *(_lane_of(result) for result, _ in untimed)]))
    bottom = TOP + LANE * len(names)
    parts = [time_axis(across, bottom)]
    parts += [
        svg.text(across.start - 6, TOP + LANE * row + 14, svg.shorten(name, 12), "end")
        for row, name in enumerate(names)
    ]
    crosses = [*untimed, *((result, result.window[1]) for result in results if result.status == "failed")]
    ended = [(result, at, at) for result, at in crosses]
    for row, name in enumerate(names):
        parts += [_box(group, row) for group in _group_close(timed.get(name, ()), begin, across)]
        failures = [span for span in ended if _lane_of(span[0]) == name]
        parts += [_cross(group, row) for group in _group_close(failures, begin, across)]
    failed = len(untimed) + sum(result.status == "failed" for result in results)
    note = "when each case ran" + (f"; crosses: {failed} failed" if failed else "")
    description = f"When each case ran: {', '.join(names)}" + (f"; {failed} failed" if failed else "")
    return Chart("cases", note, svg.picture(description, bottom + 24, *parts))


def _group_close(
    spans: Iterable[_Span], begin: float, across: Axis, widest: float = _NARROW, apart: float = _APART
) -> list[_Group]:
    """Return `spans` as shapes in drawing units, where cases that are too close to be seen apart are one shape."""
    groups: list[_Group] = []
    for result, start, end in sorted(spans, key=lambda span: span[1]):
        left, right = across.place(start - begin), across.place(end - begin)
        last = groups[-1] if groups else None
        if last and left < last.right + apart and right < last.left + widest:
            last.right = max(right, last.right)
            last.seconds += end - start
            last.results.append(result)
        else:
            groups.append(_Group(left, right, end - start, [result]))
    return groups


def _tooltip(results: Sequence[gb.Result], ending: str) -> str:
    """Return the id of the first case, the number of the others, and `ending`: `gemm/square[n=64] and 3 more: 2 s`."""
    more = f" and {len(results) - 1} more" if len(results) > 1 else ""
    return f"{results[0].case.id}{more}{ending}"


def _cross(group: _Group, row: int) -> Markup:
    """Draw a cross in lane `row`, counted from 0, where the cases of the group failed; its tooltip gives the reason."""
    first, x, y = group.results[0], group.left, TOP + LANE * row + 10
    tooltip = _tooltip(group.results, f" failed: {first.reason or first.cause}")
    cross = f"M{svg.number(x - 4)} {svg.number(y - 4)}l8 8m0 -8l-8 8"
    return svg.element("path", *svg.title(tooltip), d=cross, class_="failure")


def _box(group: _Group, row: int) -> Markup:
    """Draw a box in lane `row`, counted from 0, over the time in which the cases of the group ran."""
    return svg.element(
        "rect",
        *svg.title(_tooltip(group.results, f": {gb.units.duration(group.seconds)}")),
        x=group.left,
        y=TOP + LANE * row + 4,
        width=max(group.right - group.left - 0.4, 0.6),
        height=LANE - 7,
        class_=svg.colour(row),
    )


def windows(results: Iterable[gb.Result], begin: float, across: Axis, top: float, bottom: float) -> Markup:
    """Draw the time windows of `results` as one pale shape from `top` to `bottom`, to lie behind a line.

    `begin` is the time in seconds at which the axis starts; the markup is empty without results."""
    spans = [(result, *result.window) for result in results]
    height = svg.number(bottom - top)
    path = "".join(
        f"M{svg.number(group.left)} {svg.number(top)}h{svg.number(max(group.right - group.left, 0.3))}"
        f"v{height}H{svg.number(group.left)}z"
        for group in _group_close(spans, begin, across, math.inf, _PALE_APART)
    )
    return svg.element("path", d=path, class_="band") if path else Markup("")


def time_axis(across: Axis, bottom: float) -> Markup:
    """Draw the axis of seconds under a drawing."""
    parts = [svg.line(across.start, bottom, across.end, bottom, "axis")]
    parts += [svg.text(across.place(value), bottom + 16, f"{label} s", "middle") for value, label in across.ticks]
    return svg.join(parts)
