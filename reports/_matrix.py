"""Draw a matrix view as heat maps: a number in every cell, shaded by its place between minimum and maximum."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import FEWEST_POINTS, MOST_TOOLTIPS, Chart, Grid, Value, bar_chart, common_text, grids, point_text
from ._texts import case_namer

SHADES = 7  # the style sheet's classes h0 … h6
_HEAT_LEFT, _HEAT_TOP, _TALLEST, _WIDEST = 62.0, 40.0, 560.0, 900.0
_SCALE_HEIGHT, _SWATCH = 46.0, 52.0
_CLIPPED = 0.02  # share of the values beyond each end of the scale: a few extremes would leave one shade for all others

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Heat:
    """A matrix of values in SI units, shape (rows, columns), with the labels of its rows and columns.

    A value that was not measured is NaN."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Numbers
    unit: str


def bounds(values: Numbers) -> tuple[float, float]:
    """Return the ends of the scale of shades: the 2nd and the 98th percentile of the values that are not NaN."""
    low, high = np.nanquantile(values, (_CLIPPED, 1 - _CLIPPED))
    return float(low), float(high)


def shade(value: float, low: float, high: float) -> int:
    """Return the shade of one value on a scale: 0 at the end `low` to 6 at the end `high`, or -1 for NaN."""
    return int(shades(np.array([value]), low, high)[0])


def shades(values: Numbers, low: float, high: float) -> npt.NDArray[np.int64]:
    """Return the shade of each value in an array of the same shape: 0 at `low` to 6 at `high`, or -1 for NaN.

    A value beyond the scale has the shade of the nearer end; if `high` equals `low`, every value has the middle
    shade."""
    share = (values - low) / (high - low) if high > low else np.where(np.isnan(values), np.nan, 0.5)
    return np.where(np.isnan(share), -1, np.clip(np.nan_to_num(share * SHADES), 0, SHADES - 1)).astype(np.int64)


def heat_map(heat: Heat, across: str, down: str, description: str, scale: tuple[float, float]) -> Markup:
    """Draw the matrix with the names of its axes, the labels for which there is room, and the scale of its shades.

    `across` and `down` name the axes, `description` is for screen readers, and `scale` holds the values at both ends
    of the scale, in SI units."""
    rows, columns = heat.values.shape
    wide = min(max((svg.WIDTH - _HEAT_LEFT - 4) / columns, 3.0), max((_WIDEST - _HEAT_LEFT) / columns, 1.0))
    high = min(max(_TALLEST / rows, 3.0), 16.0)
    width, bottom = max(svg.WIDTH, _HEAT_LEFT + wide * columns + 4), _HEAT_TOP + high * rows
    parts = [
        svg.text(_HEAT_LEFT, 12.0, f"{across} →", "start", "name"),
        svg.text(2.0, _HEAT_TOP - 8, f"{down} ↓", "start", "name"),
    ]
    parts += list(_labels(heat.columns, wide, across=True)) + list(_labels(heat.rows, high, across=False))
    shaded = shades(heat.values, *scale)
    runs = [
        svg.element("path", d=path, class_=f"run h{index}")
        for index, path in enumerate("".join(strokes(shaded >= index)) for index in range(SHADES))
        if path
    ]
    cells = f"translate({svg.number(_HEAT_LEFT)} {svg.number(_HEAT_TOP + high / 2)}) scale({wide:.6g} {high:.6g})"
    parts.append(svg.element("g", *runs, transform=cells))
    parts += _scale(heat.unit, scale, bottom + 16)
    return svg.picture(description, bottom + _SCALE_HEIGHT, *parts, width=width)


def _labels(labels: Sequence[str], step: float, *, across: bool) -> Iterator[Markup]:
    """Yield labels beside the rows, or above the columns if `across`; only every n-th if they would touch."""
    room = svg.LETTER * max(map(len, labels), default=1) + 10 if across else 14.0
    stride = max(math.ceil(room / step), 1)
    for index in range(0, len(labels), stride):
        middle = step * (index + 0.5)
        if across:
            half = svg.width_of(labels[index]) / 2
            x = _HEAT_LEFT + max(min(middle, step * len(labels) - half), half)
            yield svg.text(x, _HEAT_TOP - 8, labels[index], "middle")
        else:
            yield svg.text(_HEAT_LEFT - 6, _HEAT_TOP + middle + 4, svg.shorten(labels[index], 8), "end")


def strokes(inside: npt.NDArray[np.bool_]) -> Iterator[str]:
    """Yield the parts of an SVG path over the True cells of `inside`, shape (rows, columns).

    Each run of True cells in a row is one stroke; a cell is one unit wide and high."""
    edge = np.zeros((len(inside), 1), bool)
    steps = np.diff(np.hstack([edge, inside, edge]).astype(np.int8), axis=1)
    row_before, place = -1, 0
    for (row, start), (_, end) in zip(np.argwhere(steps > 0).tolist(), np.argwhere(steps < 0).tolist(), strict=True):
        yield f"M{start} {row}" if row != row_before else f"m{start - place} 0"
        yield f"h{end - start}"
        row_before, place = row, end


def _scale(unit: str, scale: tuple[float, float], top: float) -> list[Markup]:
    low, high = scale
    factor, unit_label = gb.units.scale(high, unit)
    parts = [
        svg.element("rect", x=_HEAT_LEFT + _SWATCH * index, y=top, width=_SWATCH, height=10.0, class_=f"h{index}")
        for index in range(SHADES)
    ]
    for index in range(SHADES + 1):
        value = low + (high - low) * index / SHADES
        parts.append(svg.text(_HEAT_LEFT + _SWATCH * index, top + 24, gb.units.significant(value / factor), "middle"))
    return [*parts, svg.text(2.0, top + 9, unit_label, "start", "name")]


_CELL_WIDTH, _CELL_HEIGHT, _LEFT, _TOP = 44.0, 28.0, 76.0, 42.0
_MOST_CELLS, _MOST_COLUMNS = 400, 20  # the largest matrix with a number in each cell


def matrix(summary: gb.Summary, suite: str, view: gb.View) -> list[Chart]:
    """Return a heat map for each case name, device set and value of `view.by`; the maps of one unit share one scale.

    If no map has three cells, the points are drawn as bars instead."""
    if view.series.endswith("*"):
        return list(_profile_maps(summary, suite, view))
    groups = gb.by_unit(gb.view_points(summary, suite, view, view.series))
    return [chart for points in groups if len(points) >= FEWEST_POINTS for chart in _maps(points, view)]


def _profile_maps(summary: gb.Summary, suite: str, view: gb.View) -> Iterator[Chart]:
    """Yield a map for each ok result of the view: a row for each series that matches `view.series`."""
    name = case_namer(summary.run, summary.replicated)
    for result in summary.results_of(suite):
        if result.status != "ok" or result.case.name not in view.cases:
            continue
        rows = [series for series in result.series if series.label.startswith(view.series[:-1])]
        if rows and all(map(gb.stats.is_drawable, (value for series in rows for value in series.values))):
            longest = max(len(series.values) for series in rows)
            values = np.array([[*series.values, *[np.nan] * (longest - len(series.values))] for series in rows])
            labels = tuple(series.label.removeprefix(view.series[:-1]) for series in rows)
            heat = Heat(labels, tuple(map(str, range(longest))), values, rows[0].unit)
            yield _shade_map(view.title, heat, view, bounds(values), name(result))


def _maps(points: Sequence[gb.Point], view: gb.View) -> list[Chart]:
    """Return the charts of `points`, which share a unit, on one scale; a bar chart if no map has three cells."""
    drawn = grids(points, view)
    if all(len(grid.cells) < FEWEST_POINTS for grid in drawn):
        return [bar_chart(points, view)]
    cell_points = [point for grid in drawn for point in grid.cells.values()]
    titles = [f"{view.title}: {grid.label}" if len(drawn) > 1 else view.title for grid in drawn]
    return [_grid_chart(title, grid, view, cell_points) for title, grid in zip(titles, drawn, strict=True)]


def _grid_chart(title: str, grid: Grid, view: gb.View, cell_points: Sequence[gb.Point]) -> Chart:
    """Return a grid as a map with numbers, or as a map of shades if it has more than 400 cells or 20 columns."""
    if len(grid.cells) <= _MOST_CELLS and len(grid.columns) <= _MOST_COLUMNS:
        return _number_map(title, grid, view, cell_points)
    values = np.full((len(grid.rows), len(grid.columns)), np.nan)
    for (row, column), point in grid.cells.items():
        values[grid.rows.index(row), grid.columns.index(column)] = point.value
    rows = tuple(gb.units.axis_text(view.y, row) for row in grid.rows)
    columns = tuple(gb.units.axis_text(view.x, column) for column in grid.columns)
    scale = bounds(np.array([point.value for point in cell_points]))
    heat = Heat(rows, columns, values, cell_points[0].figure.unit)
    return _shade_map(title, heat, view, scale, common_text(list(grid.cells.values()), view))


def _shade_map(title: str, heat: Heat, view: gb.View, scale: tuple[float, float], shared: str) -> Chart:
    low, middle, high = (
        gb.units.quantity(float(np.nanquantile(heat.values, share)), heat.unit) for share in (0, 0.5, 1)
    )
    summary = f"{len(heat.rows)} × {len(heat.columns)} values, {low} to {high}, median {middle}"
    note = ", ".join(part for part in (summary, shared, "shades from the 2nd to the 98th percentile") if part)
    across, down = gb.units.axis_label(view.x), gb.units.axis_label(view.y)
    return Chart(title, note, heat_map(heat, across, down, f"{title}: {summary}", scale))


def _number_map(title: str, grid: Grid, view: gb.View, cell_points: Sequence[gb.Point]) -> Chart:
    """Return a grid as a map with a number in each cell; its shades span the values of `cell_points`."""
    wide = max(_CELL_WIDTH, min((svg.WIDTH - _LEFT - 4) / len(grid.columns), 84.0))
    factor, unit = gb.units.scale(max(point.value for point in cell_points), cell_points[0].figure.unit)
    low, high = min(point.value for point in cell_points), max(point.value for point in cell_points)
    parts = [_column(view.x, column, _LEFT + wide * (index + 0.5)) for index, column in enumerate(grid.columns)]
    parts += [_row(view.y, row, _TOP + _CELL_HEIGHT * (index + 0.5)) for index, row in enumerate(grid.rows)]
    parts += [svg.text(_LEFT, 14.0, f"{gb.units.axis_label(view.x)} →", "start", "name")]
    parts += [svg.text(2.0, _TOP - 10, f"{gb.units.axis_label(view.y)} ↓", "start", "name")]
    for (row, column), point in grid.cells.items():
        left, top = _LEFT + wide * grid.columns.index(column), _TOP + _CELL_HEIGHT * grid.rows.index(row)
        tooltip = point_text(point) if len(cell_points) <= MOST_TOOLTIPS else ""
        parts.append(_cell(point, tooltip, left, top, wide, factor, shade(point.value, low, high)))
    width = max(svg.WIDTH, _LEFT + wide * len(grid.columns) + 4)
    height = _TOP + _CELL_HEIGHT * len(grid.rows) + 6
    note_parts = unit, common_text(list(grid.cells.values()), view), _best(grid, view)
    return Chart(
        title, ", ".join(filter(None, note_parts)), svg.picture(_description(title, grid), height, *parts, width=width)
    )


def _best(grid: Grid, view: gb.View) -> str:
    """Return the best cell of a grid with its place as text: `best 820.5 TFLOP/s at n 6144, m 1536`."""
    better = max if next(iter(grid.cells.values())).figure.better == "more" else min
    (row, column), point = better(grid.cells.items(), key=lambda cell: cell[1].value)
    places = ((view.x, column), (view.y, row))
    where = ", ".join(f"{gb.units.axis_label(axis)} {gb.units.axis_text(axis, value)}" for axis, value in places)
    return f"best {point.figure.text} at {where}"


def _description(title: str, grid: Grid) -> str:
    cells = "; ".join(f"{row} to {column} {point.figure.text}" for (row, column), point in grid.cells.items())
    return f"{title}: {cells}"


def _column(axis: str, value: Value, x: float) -> Markup:
    """Draw the label of a column at its middle `x`."""
    return svg.text(x, _TOP - 10, svg.shorten(gb.units.axis_text(axis, value), 10), "middle")


def _row(axis: str, value: Value, y: float) -> Markup:
    """Draw the label of a row at its middle `y`."""
    return svg.text(_LEFT - 6, y + 4, svg.shorten(gb.units.axis_text(axis, value), 11), "end")


def _cell(point: gb.Point, tooltip: str, left: float, top: float, wide: float, factor: float, shade: int) -> Markup:
    """Draw a cell with its value divided by `factor`."""
    box = svg.element(
        "rect",
        *svg.title(tooltip),
        x=left + 1,
        y=top + 1,
        width=wide - 2,
        height=_CELL_HEIGHT - 2,
        class_=f"h{shade}",
    )
    label = gb.units.significant(point.value / factor, 4 if wide > 52 else 3)
    return box + svg.text(left + wide / 2, top + _CELL_HEIGHT / 2 + 4, label, "middle", f"t{shade}")
