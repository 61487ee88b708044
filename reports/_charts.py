"""Draw curves, bars and Pareto charts as SVG, each with a legend and a description for screen readers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._svg import Axis, at_values, axis
from ._texts import interval_text, share_of_basis

Value = str | int | float  # of an axis
_SAME_PEAK = 1.001  # peaks within this ratio count as equal
_MODES = ("hot", "each", "cold", "graph", "rotated", "host", "self")  # how a timing was taken, not its quantity


@dataclass(frozen=True, slots=True)
class Grid:
    """A matrix: its rows and columns in the order of their axes, and the measured points.

    `cells` maps a row and a column to their point."""

    label: str
    rows: tuple[Value, ...]
    columns: tuple[Value, ...]
    cells: dict[tuple[Value, Value], gb.Point]


@dataclass(frozen=True, slots=True)
class Pair:
    """A case on a Pareto chart: the points of its two series, and in `group` its label on the axes `by`."""

    group: str
    across: gb.Point
    up: gb.Point


def grids(points: Sequence[gb.Point], view: gb.View) -> list[Grid]:
    """Return the grids of a matrix view: one for each case name, device set and value of `view.by`.

    Points without a value on `view.x` or `view.y` are left out."""
    name = gb.labeller(points, view)
    grouped: dict[str, dict[tuple[Value, Value], gb.Point]] = {}
    for point in points:
        params = dict(point.case.params)
        if view.x in params and view.y in params:
            grouped.setdefault(name(point), {})[params[view.y], params[view.x]] = point
    return [
        Grid(label, _sorted_values(row for row, _ in cells), _sorted_values(column for _, column in cells), cells)
        for label, cells in grouped.items()
    ]


def _sorted_values(values: Iterable[Value]) -> tuple[Value, ...]:
    unique = list(dict.fromkeys(values))
    numbers = [value for value in unique if not isinstance(value, str)]
    return tuple(sorted(numbers)) if len(numbers) == len(unique) else tuple(unique)


def pairs(across: Sequence[gb.Point], up: Sequence[gb.Point], view: gb.View) -> list[Pair]:
    """Return the cases that are in both `across` and `up`, the points of the two series of a Pareto view.

    A case with other units than the first case is left out."""
    name = gb.labeller(across, view)
    up_points = {(point.case.id, point.devices): point for point in up}
    common = [
        Pair(name(point), point, up_points[point.case.id, point.devices])
        for point in across
        if (point.case.id, point.devices) in up_points
    ]
    return [pair for pair in common if _pair_units(pair) == _pair_units(common[0])]


def _pair_units(pair: Pair) -> tuple[str, str]:
    return pair.across.figure.unit, pair.up.figure.unit


def frontier(candidates: Sequence[Pair]) -> list[Pair]:
    """Return the Pareto frontier of `candidates`, in the order of the x axis.

    It has the pairs for which no other pair is at least as good in both series and better in one."""
    best_pairs: list[Pair] = []
    for pair in sorted(candidates, key=lambda pair: (-_merit(pair.across), -_merit(pair.up))):
        best = best_pairs[-1] if best_pairs else None
        if best is None or _merit(pair.up) > _merit(best.up) or _merits(pair) == _merits(best):
            best_pairs.append(pair)
    return sorted(best_pairs, key=lambda pair: pair.across.value)


def _merits(pair: Pair) -> tuple[float, float]:
    """Return the merits of a pair's points, as returned by `_merit`."""
    return _merit(pair.across), _merit(pair.up)


def _merit(point: gb.Point) -> float:
    return point.value if point.figure.better == "more" else -point.value


def group_of(view: gb.View) -> Callable[[gb.Point], str]:
    """Return a function from a point to the text by which its bar is coloured: its values on the axes `view.by`."""
    return lambda point: " · ".join(
        gb.units.axis_value_text(axis, value) for axis, value in point.case.params if axis in view.by
    )


def varying(points: Sequence[gb.Point]) -> Callable[[gb.Point], str]:
    """Return a function that labels a point by the case name, parameters and devices in which `points` differ.

    If they do not differ, the label is the name of the case."""
    values: dict[str, set[Value]] = {}
    for point in points:
        for name, value in point.case.params:
            values.setdefault(name, set()).add(value)
    names = len({point.case.name for point in points}) > 1
    devices = len({point.devices for point in points}) > 1

    def label(point: gb.Point) -> str:
        parts = [point.case.name] if names else []
        parts += [gb.units.axis_value_text(axis, value) for axis, value in point.case.params if len(values[axis]) > 1]
        parts += ["+".join(point.devices)] if devices else []
        return " · ".join(parts) or point.case.name

    return label


def common_text(points: Sequence[gb.Point], view: gb.View) -> str:
    """Return the parameters that all points share, for the subtitle of a chart: `size 1GiB, dtype float32`.

    The name of the case stands before them if the view has several cases and all points are of one."""
    if not points:
        return ""
    first = points[0].case
    alone = len(view.cases) > 1 and all(point.case.name == first.name for point in points)
    shared = [pair for pair in first.params if all(pair in point.case.params for point in points)]
    labels = [f"{gb.units.axis_label(axis)} {gb.units.axis_text(axis, value)}" for axis, value in shared]
    return ", ".join([first.name, *labels] if alone else labels)


def data_sheet_peak(point: gb.Point) -> float | None:
    """Return the data sheet's peak with which a point is compared, in SI units; None if it is unknown."""
    share = point.figure.share_of("spec")
    return point.value / share.fraction if share and share.fraction > 0 and point.value > 0 else None


def peak_of_all(points: Sequence[gb.Point]) -> tuple[str, float] | None:
    """Return the name and the SI value of the data sheet's peak that all points share; None if they do not share one.

    Peaks that differ by at most 0.1 % count as equal."""
    limit, peaks = points[0].figure.limit, []
    for point in points:
        peak = data_sheet_peak(point)
        if peak is None or point.figure.limit != limit:
            return None
        peaks.append(peak)
    return (f"peak (data sheet), {limit}", max(peaks)) if max(peaks) <= _SAME_PEAK * min(peaks) else None


def quantity_name(points: Sequence[gb.Point]) -> str:
    """Return the name of the quantity of `points`, at least one: a stage or an observed value; empty for a timing."""
    figure = points[0].figure
    return figure.stage or (figure.name if figure.name not in _MODES else "")


_RIGHT, TOP = svg.WIDTH - 26, 24.0
HEIGHT = 290.0
BOTTOM = HEIGHT - 42
FEWEST_POINTS = 3  # the fewest points of a chart: fewer are read faster in the table
MOST_TOOLTIPS = 300  # the most points of a chart with tooltips: more tooltips would fill the page


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn view.

    `legend` pairs a colour class of the style sheet with a label."""

    title: str
    note: str
    drawing: Markup
    legend: tuple[tuple[str, str], ...] = ()
    tables: tuple[gb.Table, ...] = ()
    full: bool = False
    beside: bool = False
    zoom: int | None = None  # the index of the chart's numbers, from which the script draws a zoomable chart

    @property
    def flips(self) -> bool:
        """Whether the first table, which is wide and low, stands turned beside the drawing."""
        return self.full and not self.beside and len(self.tables[0].heads) >= 7 and len(self.tables[0].rows) <= 4


def curve(summary: gb.Summary, suite: str, view: gb.View) -> list[Chart]:
    """Return a line chart for each unit of the view's points, with a line for each value of the axes `view.by`.

    The axis `view.x` goes across. A unit whose points have fewer than three distinct x has no chart."""
    groups = gb.by_unit(gb.view_points(summary, suite, view, view.series))
    return [chart for points in groups for chart in _curve(points, view)]


def _curve(points: Sequence[gb.Point], view: gb.View) -> list[Chart]:
    """Return the line chart of `points` in a list, which is empty if they have fewer than three distinct x."""
    drawn = sorted(gb.view_lines(points, view), key=lambda line: len(line.points) < FEWEST_POINTS)
    if len({x for line in drawn for x, _ in line.points}) < FEWEST_POINTS:
        return []
    visible = [point for line in drawn for _, point in line.points]
    peak = peak_of_all(visible)
    up = _up_axis(visible, peak, log=view.log_y)
    across = x_axis([x for line in drawn for x, _ in line.points], view, svg.left_of(up))
    parts = [
        svg.frame(across, up, gb.units.axis_label(view.x), quantity_name(visible)),
        peak_line(peak, drawn, across, up),
    ]
    has_tooltips = len(visible) <= MOST_TOOLTIPS
    colours = [
        svg.colour(index) + (" dots" if len(line.points) < FEWEST_POINTS else "") for index, line in enumerate(drawn)
    ]
    parts += [
        line_of(line, colour, across, up, has_tooltips=has_tooltips)
        for line, colour in zip(drawn, colours, strict=True)
    ]
    labels = [line.label for line in drawn]
    description = f"{view.title}: {_range_text(visible)} over {gb.units.axis_label(view.x)}; {', '.join(labels)}"
    drawing = svg.picture(description, HEIGHT, *parts)
    return [Chart(view.title, common_text(visible, view), drawing, legend_of(labels, colours))]


def x_axis(values: Sequence[float], view: gb.View, left: float, *, log: bool = False) -> Axis:
    """Return the x axis for `values` of `view.x`, from `left` to the right end of the plot in drawing units.

    Sizes (an axis whose name ends in `_bytes`) have binary ticks."""
    is_size = view.x.endswith("_bytes")
    plain = axis(values, "B" if is_size else "", left, _RIGHT, log=log or view.log_x, zero=False)
    return plain if is_size else at_values(plain, values)


def _up_axis(points: Sequence[gb.Point], peak: tuple[str, float] | None, *, log: bool) -> Axis:
    """Return the y axis of points of one unit; it holds all 95 % intervals and the value of `peak`."""
    ends = [end for point in points for end in (point.figure.interval.low, point.figure.interval.high)]
    values, like = [*ends, *([peak[1]] if peak else [])], _typical(points)
    return axis(values, points[0].figure.unit, BOTTOM, TOP, log=log, room=1.15, like=like)


def _typical(points: Sequence[gb.Point]) -> float:
    """Return the median of the points; their axis has its prefix."""
    return gb.stats.median([point.value for point in points])


def peak_line(peak: tuple[str, float] | None, lines: Sequence[gb.Curve], across: Axis, up: Axis) -> Markup:
    """Draw the data sheet's peak as a dashed line with its name; return empty markup if `peak` is None.

    `peak` is a name and a value in SI units."""
    if peak is None:
        return Markup("")
    y, width = up.place(peak[1]), svg.LETTER * len(peak[0])
    drawn = [place for line in lines for place in _places(line, across, up)]
    spots = [(anchor, y + shift) for anchor in ("end", "start") for shift in (13.0, -5.0) if y + shift > TOP - 8]
    anchor, at = min(spots, key=lambda spot: _points_near(drawn, across, width, *spot))
    x = across.end if anchor == "end" else across.start + 4
    return svg.line(across.start, y, across.end, y, "peak") + svg.text(x, at, peak[0], anchor, "label")


def _points_near(drawn: Sequence[tuple[float, float]], across: Axis, width: float, anchor: str, y: float) -> int:
    left = across.end - width if anchor == "end" else across.start
    return sum(left - 20 <= x <= left + width + 20 and y - 16 <= at <= y + 8 for x, at in drawn)


def _places(line: gb.Curve, across: Axis, up: Axis) -> list[tuple[float, float]]:
    values = [point.value for _, point in line.points]
    return list(zip(across.places([x for x, _ in line.points]), up.places(values), strict=True))


def line_of(line: gb.Curve, colour: str, across: Axis, up: Axis, *, has_tooltips: bool = True) -> Markup:
    """Draw the points of a curve, a line through three or more, and each 95 % interval above 7 drawing units.

    `colour` is a class of the style sheet. With `has_tooltips`, the text of a point is shown under the pointer."""
    places = _places(line, across, up)
    parts = [svg.polyline(places, f"line {colour}")] if len(places) >= FEWEST_POINTS else []
    if not has_tooltips and len(places) > svg.WIDTH:
        return svg.join(parts)  # dots as close as the pixels are a line
    for (x, y), (_, point) in zip(places, line.points, strict=True):
        low, high = up.place(point.figure.interval.low), up.place(point.figure.interval.high)
        parts += [svg.line(x, low, x, high, f"line {colour}")] if low - high > 7 else []
        parts += [svg.dot(x, y, 2.6, colour, point_text(point) if has_tooltips else "")]
    return svg.join(parts)


def point_text(point: gb.Point) -> str:
    """Return the tooltip of a point: case id, median, 95 % interval, and share of the data sheet's peak.

    The interval is left out for a single sample, and the share if no data sheet states the peak."""
    figure = point.figure
    count = figure.processes if figure.processes > 1 else figure.samples
    interval = f" ({figure.interval_name} {interval_text(figure, count)})" if figure.samples > 1 else ""
    share = figure.share_of("spec")
    return f"{point.case.id}: {figure.text}{interval}" + (f", {share_of_basis(share)}" if share else "")


def _range_text(points: Sequence[gb.Point]) -> str:
    """Return the lowest and the highest median as text: `3901 GB/s to 4213 GB/s`."""
    values = [point.value for point in points]
    low, high = (points[values.index(end)].figure.text for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


@dataclass(frozen=True, slots=True)
class _Rows:
    """The layout of the rows of a bar chart: the height of a row and the left end of its bar, in drawing units.

    Up to 14 bars have their labels above them; more bars have them at the left, which takes less room."""

    height: float
    left: float
    most: int  # the most characters of a label


_ABOVE = _Rows(34.0, 8.0, int((svg.WIDTH - 16) / svg.LETTER))
_BESIDE = _Rows(19.0, 184.0, int(176 / svg.LETTER))
_FEW = 14
_SHORT = 1e-5  # seconds: a call below this does not reach the full rate, so its bar says how long it takes
_MOST_BARS = 40  # the most bars: of more cases, only the lowest and the highest are drawn
_FARTHEST_PEAK = 2.5  # the largest mark over the highest value: a mark farther away would leave no room for the bars


def bars(summary: gb.Summary, suite: str, view: gb.View) -> list[Chart]:
    """Return a bar chart for each unit of the view's points that has at least three points.

    The axes `view.by` give the colours."""
    groups = gb.by_unit(gb.view_points(summary, suite, view, view.series))
    return [bar_chart(points, view) for points in groups if len(points) >= FEWEST_POINTS]


def _extremes(points: Sequence[gb.Point]) -> Sequence[gb.Point]:
    """Return `points` unchanged if there are at most 40, else the 20 lowest and the 20 highest, in the order given."""
    if len(points) <= _MOST_BARS:
        return points
    ranked = sorted(range(len(points)), key=lambda index: points[index].value)
    extremes = sorted([*ranked[: _MOST_BARS // 2], *ranked[-_MOST_BARS // 2 :]])
    return [points[index] for index in extremes]


def bar_chart(points: Sequence[gb.Point], view: gb.View) -> Chart:
    """Return the bar chart of `points`, which share a unit, with the 95 % interval of each and the data sheet's peak.

    Of more than 40 points, only the 20 lowest and the 20 highest are drawn."""
    drawn = _extremes(points)
    rows = _ABOVE if len(drawn) <= _FEW else _BESIDE
    label, group = varying(drawn), group_of(view)
    groups = list(dict.fromkeys(map(group, drawn)))
    colours = {name: svg.colour(index if len(groups) < len(drawn) else 0) for index, name in enumerate(groups)}
    bottom = 6 + rows.height * len(drawn)
    greatest = max(point.figure.interval.high for point in drawn)
    peaks = [peak if (peak := data_sheet_peak(point)) and peak <= _FARTHEST_PEAK * greatest else 0.0 for point in drawn]
    log = view.log_x or view.log_y
    like = _typical(drawn)
    end = svg.WIDTH - 10 - max(svg.width_of(_like_text(point.figure, like)) for point in drawn)
    ends = [*(point.figure.interval.high for point in drawn), *filter(None, peaks)]
    across = axis(ends, drawn[0].figure.unit, rows.left, end, log=log, room=1.25, count=4, like=like)
    parts = [svg.grid_across(across, bottom), svg.text(svg.WIDTH - 2, bottom + 15, across.unit, "end", "name")]
    for row, (point, peak) in enumerate(zip(drawn, peaks, strict=True)):
        top = 6 + rows.height * row
        text = _like_text(point.figure, like) if across.unit else point.figure.text
        parts.append(_bar(point, label(point) + _call_text(point), text, top, across, colours[group(point)], rows))
        x, y = across.place(peak), top + rows.height - 12
        parts += [svg.line(x, y - 7, x, y + 7, "target")] if peak else []
    legend = legend_of(groups) if len(groups) < len(drawn) else ()
    description = f"{view.title}: " + "; ".join(f"{label(point)} {point.figure.text}" for point in drawn)
    half = _MOST_BARS // 2
    left_out = f"the {half} lowest and the {half} highest of {len(points)}" if len(drawn) < len(points) else ""
    note = ", ".join(filter(None, (left_out, common_text(drawn, view))))
    notes = [note, "mark: peak (data sheet)" if any(peaks) else ""]
    notes += ["µs per call: too short for the full rate" if any(map(_call_text, drawn)) else ""]
    note = "; ".join(filter(None, notes))
    return Chart(view.title, note, svg.picture(description, bottom + 24, *parts), legend)


def _like_text(figure: gb.Figure, like: float) -> str:
    """Return a figure as text with the prefix of the value `like`, which its axis has: `1097 TFLOP/s`."""
    factor, unit = gb.units.scale(like, figure.unit)
    if factor == gb.units.scale(figure.interval.centre, figure.unit)[0]:
        return figure.text
    return f"{gb.units.significant(figure.interval.centre / factor)} {unit}"


def _call_text(point: gb.Point) -> str:
    """Return the time of a call, after a dot, for the label of a rate whose calls are short; else an empty text."""
    seconds = point.seconds
    if point.figure.unit == "s" or seconds is None or seconds.centre >= _SHORT:
        return ""
    return f" · {gb.units.quantity(seconds.centre, 's', 2)} per call"


def _bar(point: gb.Point, label: str, text: str, top: float, across: Axis, colour: str, rows: _Rows) -> Markup:
    y = top + rows.height - 12
    low, high = across.place(point.figure.interval.low), across.place(point.figure.interval.high)
    whisker = svg.line(low, y, high, y, "whisker") if high - low > (9 if across.log else 3) else Markup("")
    value = svg.text(svg.WIDTH - 2, y + 4, text, "end", "value")
    short_label = svg.shorten(label, rows.most)
    name = (
        svg.text(across.start, top + 12, short_label, "start", "label")
        if rows is _ABOVE
        else svg.text(across.start - 6, y + 4, short_label, "end")
    )
    return name + _length(point, across, y, colour) + whisker + value


def _length(point: gb.Point, across: Axis, y: float, colour: str) -> Markup:
    end = across.place(point.value)
    if across.log:
        return svg.dot(end, y, 4.0, colour, point_text(point))
    width = max(end - across.start, 1.0)
    return svg.element(
        "rect", *svg.title(point_text(point)), x=across.start, y=y - 5, width=width, height=10.0, class_=colour
    )


def legend_of(labels: Sequence[str], colours: Sequence[str] = ()) -> tuple[tuple[str, str], ...]:
    """Return pairs of a colour class and a label, in the order of `labels`; empty for fewer than two labels."""
    if len(labels) < 2:
        return ()
    classes = colours or list(map(svg.colour, range(len(labels))))
    return tuple((class_, label or "other") for class_, label in zip(classes, labels, strict=True))


def pareto(summary: gb.Summary, suite: str, view: gb.View) -> list[Chart]:
    """Return the Pareto chart of a view in a list: a point for each case, the series `view.x` across and `view.y` up.

    The list is empty if fewer than three cases have both series."""
    across_points, up_points = (
        gb.view_points(summary, suite, view, view.x),
        gb.view_points(summary, suite, view, view.y),
    )
    both = pairs(across_points, up_points, view)
    if len(both) < FEWEST_POINTS:
        return []
    up = _pareto_axis([pair.up for pair in both], BOTTOM, TOP, log=view.log_y)
    across = _pareto_axis([pair.across for pair in both], svg.left_of(up), _RIGHT, log=view.log_x)
    groups = list(dict.fromkeys(pair.group for pair in both))
    best = frontier(both)
    label = varying(across_points)
    names = quantity_name(across_points), quantity_name(up_points)
    parts = [svg.frame(across, up, *names)]
    parts += [svg.polyline([_place(pair, across, up) for pair in best], "frontier")] if len(best) > 1 else []
    colours = {group: svg.colour(index) for index, group in enumerate(groups)}
    parts += [_pair(pair, colours[pair.group], across, up, has_tooltip=len(both) <= MOST_TOOLTIPS) for pair in both]
    parts += _names([(pair, label(pair.across)) for pair in best], across, up, f"{names[1]}, {up.unit}")
    description = f"{view.title}: {len(both)} cases; Pareto frontier: {', '.join(label(pair.across) for pair in best)}"
    shared = common_text([pair.across for pair in both], view)
    note = ", ".join(part for part in (shared, "dashed: Pareto frontier") if part)
    return [Chart(view.title, note, svg.picture(description, HEIGHT, *parts), legend_of(groups))]


def _pareto_axis(points: Sequence[gb.Point], start: float, end: float, *, log: bool) -> Axis:
    """Return an axis for the medians of `points`, from `start` to `end` in drawing units."""
    values = [point.value for point in points]
    zero = min(values) < 0.6 * max(values)
    return axis(values, points[0].figure.unit, start, end, log=log, zero=zero, room=1.2)


def _place(pair: Pair, across: Axis, up: Axis) -> tuple[float, float]:
    return across.place(pair.across.value), up.place(pair.up.value)


def _pair(pair: Pair, colour: str, across: Axis, up: Axis, *, has_tooltip: bool) -> Markup:
    """Draw the dot of a case; with `has_tooltip`, both values are shown under the pointer."""
    tooltip = f"{pair.across.case.id}: {pair.across.figure.text} at {pair.up.figure.text}" if has_tooltip else ""
    return svg.dot(*_place(pair, across, up), 4.0, colour, tooltip)


def _names(named: Sequence[tuple[Pair, str]], across: Axis, up: Axis, axis_name: str) -> list[Markup]:
    """Return a label beside each of `named`, pairs on the frontier with their labels."""
    taken = [(0.0, svg.width_of(axis_name), 16.0)]
    parts = []
    for pair, label in named:
        x, y = _place(pair, across, up)
        width = svg.width_of(label)
        flipped = x + 7 + width > svg.WIDTH
        left, places = (x - 7 - width, (y + 16,)) if flipped else (x + 7, (y - 5, y + 14))
        for at in places:
            if left > across.start and _is_free(left, left + width, at, taken):
                taken.append((left, left + width, at))
                parts.append(svg.text(left, at, label, "start", "value"))
                break
    return parts


def _is_free(left: float, right: float, y: float, taken: Sequence[tuple[float, float, float]]) -> bool:
    """Return True if a text from x `left` to `right` on the baseline `y` overlaps none of the texts in `taken`."""
    return all(abs(y - at) > 12 or left > end or right < start for start, end, at in taken)
