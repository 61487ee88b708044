"""Chart data → a figure: its drawing, its legend, and a sentence that says the same in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gpubench.api.report import Curve, Figure, Point, Summary, Table, View, by_unit, units, view_lines, view_points

from . import _svg as svg
from ._ticks import Axis, at_values, axis
from ._views import (
    Pair,
    common_words,
    frontier,
    group_of,
    pairs,
    spec_line,
    varying,
)
from ._words import interval_words

_RIGHT, TOP = svg.WIDTH - 22, 22.0
HEIGHT = 290.0
BOTTOM = HEIGHT - 42
SAID = 300  # points of a chart that say what they are where they are pointed at; the words of more would fill the page


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn view: `legend` pairs a colour class with a label; `note` says what all of it shares.

    `tables` hold what was derived of it; `full` asks for the page's whole width, which wide tables need.
    """

    title: str
    note: str
    drawing: Markup
    legend: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    full: bool = False
    zoom: int | None = None  # which of the zoomable charts it becomes where there is a script


def curve(summary: Summary, suite: str, view: View) -> list[Chart]:
    """A line for each value of `by`, over a numeric axis, with 95 % intervals where they can be seen.

    Nothing where only one place of the axis was measured: that is no curve.
    """
    return [chart for found in by_unit(view_points(summary, suite, view, view.series)) for chart in _curve(found, view)]


def _curve(found: Sequence[Point], view: View) -> list[Chart]:
    drawn = view_lines(found, view)
    if len({x for line in drawn for x, _ in line.points}) < 2:
        return []
    shown = [point for line in drawn for _, point in line.points]
    peak = spec_line(shown)
    up = _up_axis(shown, peak, log=view.log_y)
    across = x_axis([x for line in drawn for x, _ in line.points], view, svg.left_of(up))
    parts = [svg.frame(across, up, units.axis_label(view.x), view.series), peak_line(peak, drawn, across, up)]
    said = len(shown) <= SAID
    parts += [line_of(line, svg.colour(index), across, up, said=said) for index, line in enumerate(drawn)]
    words = f"{view.title}: {_range_words(shown)} over {units.axis_label(view.x)}; {', '.join(x.label for x in drawn)}"
    legend = legend_of([line.label for line in drawn])
    return [Chart(view.title, common_words(shown, view), svg.picture(words, HEIGHT, *parts), legend)]


def x_axis(values: Sequence[float], view: View, left: float, *, log: bool = False) -> Axis:
    """The axis of a view's x: sizes in binary units, other places at the values where there is room."""
    is_size = view.x.endswith("_bytes")
    plain = axis(values, "B" if is_size else "", left, _RIGHT, log=log or view.log_x, zero=False)
    return plain if is_size else at_values(plain, values)


def _up_axis(shown: Sequence[Point], peak: tuple[str, float] | None, *, log: bool) -> Axis:
    ends = [end for point in shown for end in (point.figure.interval.low, point.figure.interval.high)]
    return axis([*ends, *([peak[1]] if peak else [])], shown[0].figure.unit, BOTTOM, TOP, log=log, room=1.15)


def peak_line(peak: tuple[str, float] | None, lines: Sequence[Curve], across: Axis, up: Axis) -> Markup:
    """The specified peak as a dashed line with its name where no curve is; nothing where there is none."""
    if peak is None:
        return Markup("")
    y, width = up.place(peak[1]), svg.LETTER * len(peak[0])
    drawn = [(across.place(x), up.place(point.value)) for line in lines for x, point in line.points]
    spots = [(anchor, y + shift) for anchor in ("end", "start") for shift in (13.0, -5.0) if y + shift > TOP - 8]
    anchor, at = min(spots, key=lambda spot: _crowd(drawn, across, width, *spot))
    x = across.end if anchor == "end" else across.start + 4
    return svg.line(across.start, y, across.end, y, "peak") + svg.text(x, at, peak[0], anchor, "label")


def _crowd(drawn: Sequence[tuple[float, float]], across: Axis, width: float, anchor: str, y: float) -> int:
    """How many points lie under a text at one end of the plot, or so near that their line may."""
    left = across.end - width if anchor == "end" else across.start
    return sum(left - 20 <= x <= left + width + 20 and y - 16 <= at <= y + 8 for x, at in drawn)


def line_of(line: Curve, colour: str, across: Axis, up: Axis, *, said: bool = True) -> Markup:
    """A curve with its points, each with its interval where that can be seen, and what it is unless not `said`."""
    places = [(across.place(x), up.place(point.value)) for x, point in line.points]
    parts = [svg.polyline(places, f"line {colour}")] if len(places) > 1 else []
    for (x, y), (_, point) in zip(places, line.points, strict=True):
        low, high = up.place(point.figure.interval.low), up.place(point.figure.interval.high)
        parts += [svg.line(x, low, x, high, f"line {colour}")] if low - high > 7 else []
        parts += [svg.dot(x, y, 2.6, colour, point_words(point) if said else "")]
    return svg.join(parts)


def point_words(point: Point) -> str:
    """A point in words: its case, its median, its interval, its share of a peak."""
    figure = point.figure
    count = figure.processes if figure.processes > 1 else figure.samples
    interval = f" ({figure.interval_name} {interval_words(figure, count)})" if figure.samples > 1 else ""
    return f"{point.case.id}: {figure.text}{interval}{_share(figure)}"


def _share(figure: Figure) -> str:
    return f", {figure.share_text}" if figure.share is not None and figure.basis == "spec" else ""


def _range_words(shown: Sequence[Point]) -> str:
    low = min(shown, key=lambda point: point.value).figure.text
    high = max(shown, key=lambda point: point.value).figure.text
    return low if low == high else f"{low} to {high}"


@dataclass(frozen=True, slots=True)
class _Rows:
    """How bars stand: few have their label above them, many have it at their left to take less room."""

    height: float
    left: float
    most: int  # characters of a label


_ABOVE, _BESIDE = _Rows(34.0, 8.0, 68), _Rows(19.0, 170.0, 26)
_FEW = 14
_MOST_BARS = 40  # that anybody looks at one by one; of more the best and the worst


def bars(summary: Summary, suite: str, view: View) -> list[Chart]:
    """One bar a case, coloured by `by`; dots on a logarithmic scale, where a length means nothing."""
    return [_bars(shown, view) for shown in by_unit(view_points(summary, suite, view, view.series))]


def _ends(found: Sequence[Point]) -> Sequence[Point]:
    """Of too many points the best and the worst, in their order."""
    if len(found) <= _MOST_BARS:
        return found
    ranked = sorted(range(len(found)), key=lambda index: found[index].value)
    kept = sorted([*ranked[: _MOST_BARS // 2], *ranked[-_MOST_BARS // 2 :]])
    return [found[index] for index in kept]


def _bars(found: Sequence[Point], view: View) -> Chart:
    shown = _ends(found)
    rows = _ABOVE if len(shown) <= _FEW else _BESIDE
    peak, label, group = spec_line(shown), varying(shown), group_of(view)
    groups = list(dict.fromkeys(map(group, shown)))
    bottom = 6 + rows.height * len(shown)
    values = [point.figure.interval.high for point in shown] + ([peak[1]] if peak else [])
    log = view.log_x or view.log_y
    across = axis(values, shown[0].figure.unit, rows.left, svg.WIDTH - 78, log=log, room=1.25)
    parts = _bar_frame(across, bottom, peak)
    for row, point in enumerate(shown):
        parts.append(
            _bar(point, label(point), 6 + rows.height * row, across, svg.colour(groups.index(group(point))), rows)
        )
    words = f"{view.title}: " + "; ".join(f"{label(point)} {point.figure.text}" for point in shown)
    left_out = (
        f"the {_MOST_BARS // 2} least and the {_MOST_BARS // 2} greatest of {len(found)}" if shown != found else ""
    )
    dashed = f"dashed line: {peak[0]}" if peak else ""
    note = ", ".join(part for part in (left_out, common_words(shown, view), dashed) if part)
    return Chart(view.title, note, svg.picture(words, bottom + 24, *parts), legend_of(groups))


def _bar_frame(across: Axis, bottom: float, peak: tuple[str, float] | None) -> list[Markup]:
    parts = [svg.line(across.place(value), 4.0, across.place(value), bottom, "grid") for value, _ in across.ticks]
    parts += [svg.text(across.place(value), bottom + 15, label, "middle") for value, label in across.ticks]
    parts += [svg.text(svg.WIDTH - 2, bottom + 15, across.unit, "end", "name")]
    return parts + ([svg.line(across.place(peak[1]), 4.0, across.place(peak[1]), bottom, "peak")] if peak else [])


def _bar(point: Point, label: str, top: float, across: Axis, colour: str, rows: _Rows) -> Markup:
    y, end = top + rows.height - 12, across.place(point.value)
    low, high = across.place(point.figure.interval.low), across.place(point.figure.interval.high)
    whisker = svg.line(low, y, high, y, "whisker") if high - low > (9 if across.log else 3) else Markup("")
    value = svg.text(max(end, high) + 6, y + 4, point.figure.text, "start", "value")
    words = svg.shorten(label, rows.most)
    name = (
        svg.text(across.start, top + 12, words, "start", "label")
        if rows is _ABOVE
        else svg.text(across.start - 6, y + 4, words, "end")
    )
    return name + _length(point, across, y, colour) + whisker + value


def _length(point: Point, across: Axis, y: float, colour: str) -> Markup:
    """A bar from the axis's start to the point, or a dot at it where the axis has no zero."""
    end = across.place(point.value)
    if across.log:
        return svg.dot(end, y, 4.0, colour, point_words(point))
    width = max(end - across.start, 1.0)
    return svg.element(
        "rect", *svg.title(point_words(point)), x=across.start, y=y - 5, width=width, height=10.0, class_=colour
    )


def legend_of(labels: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Colours and labels in order; nothing where there is only one."""
    return tuple((svg.colour(index), label or "other") for index, label in enumerate(labels)) if len(labels) > 1 else ()


def pareto(summary: Summary, suite: str, view: View) -> list[Chart]:
    """One series against another, a point a case; the line joins those that no other beats both ways."""
    across_points, up_points = view_points(summary, suite, view, view.x), view_points(summary, suite, view, view.y)
    found = pairs(across_points, up_points, view)
    if not found:
        return []
    up = _pareto_axis([pair.up for pair in found], BOTTOM, TOP, log=view.log_y)
    across = _pareto_axis([pair.across for pair in found], svg.left_of(up), _RIGHT, log=view.log_x)
    groups = list(dict.fromkeys(pair.group for pair in found))
    best = frontier(found)
    label = varying(across_points)
    parts = [svg.frame(across, up, view.x or "headline", view.y or "headline")]
    parts += [svg.polyline([_place(pair, across, up) for pair in best], "frontier")] if len(best) > 1 else []
    colours = {group: svg.colour(index) for index, group in enumerate(groups)}
    parts += [_pair(pair, colours[pair.group], across, up, said=len(found) <= SAID) for pair in found]
    parts += _names([(pair, label(pair.across)) for pair in best], across, up, f"{view.y or 'headline'}, {up.unit}")
    words = f"{view.title}: {len(found)} cases; not beaten both ways: {', '.join(label(pair.across) for pair in best)}"
    shared = common_words([pair.across for pair in found], view)
    note = ", ".join(part for part in (shared, "the line joins what no other beats both ways") if part)
    return [Chart(view.title, note, svg.picture(words, HEIGHT, *parts), legend_of(groups))]


def _pareto_axis(shown: Sequence[Point], start: float, end: float, *, log: bool) -> Axis:
    values = [point.value for point in shown]
    zero = min(values) < 0.6 * max(values)
    return axis(values, shown[0].figure.unit, start, end, log=log, zero=zero, room=1.2)


def _place(pair: Pair, across: Axis, up: Axis) -> tuple[float, float]:
    return across.place(pair.across.value), up.place(pair.up.value)


def _pair(pair: Pair, colour: str, across: Axis, up: Axis, *, said: bool) -> Markup:
    words = f"{pair.across.case.id}: {pair.across.figure.text} at {pair.up.figure.text}" if said else ""
    return svg.dot(*_place(pair, across, up), 4.0, colour, words)


def _names(named: Sequence[tuple[Pair, str]], across: Axis, up: Axis, axis_name: str) -> list[Markup]:
    """Labels beside the frontier's points, those left out that would lie on another or on the axis's name."""
    taken = [(0.0, 6.8 * len(axis_name), 16.0)]
    parts = []
    for pair, words in named:
        x, y = _place(pair, across, up)
        width = 6.2 * len(words)
        flipped = x + 7 + width > svg.WIDTH
        left, places = (x - 7 - width, (y + 16,)) if flipped else (x + 7, (y - 5, y + 14))
        for at in places:
            if left > across.start and _is_free(left, left + width, at, taken):
                taken.append((left, left + width, at))
                parts.append(svg.text(left, at, words, "start", "value"))
                break
    return parts


def _is_free(left: float, right: float, y: float, taken: Sequence[tuple[float, float, float]]) -> bool:
    return all(abs(y - at) > 12 or left > end or right < start for start, end, at in taken)
