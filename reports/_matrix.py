"""Draw a matrix view as heat maps: a number in every cell, shaded by its place between minimum and maximum."""

from collections.abc import Iterator, Sequence

import numpy as np
from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import FEWEST_POINTS, MOST_TOOLTIPS, Chart, bar_chart, point_text
from ._heat import Heat, bounds, heat_map, shade
from ._texts import case_namer
from ._views import Grid, Value, common_text, grids

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
    """Return all cells of a grid as text, for screen readers."""
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
