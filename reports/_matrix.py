"""A matrix view as heat maps: the number in every cell, its shade by its place between least and greatest."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from gpubench.api import Point, Summary, Value, View, by_unit, units, view_points

from . import _svg as svg
from ._charts import Chart, point_words
from ._views import Grid, common_words, grids

_SHADES = 7  # the style sheet's classes h0 … h6
_CELL_WIDTH, _CELL_HEIGHT, _LEFT, _TOP = 44.0, 28.0, 76.0, 42.0


def matrix(summary: Summary, suite: str, view: View) -> list[Chart]:
    """One heat map for each case, device set and value of `by`; those of a unit share one scale."""
    return [chart for found in by_unit(view_points(summary, suite, view, view.series)) for chart in _maps(found, view)]


def _maps(found: Sequence[Point], view: View) -> list[Chart]:
    drawn = grids(found, view)
    shown = [point for grid in drawn for point in grid.cells.values()]
    titles = [f"{view.title}: {grid.label}" if len(drawn) > 1 else view.title for grid in drawn]
    return [_map(title, grid, view, shown) for title, grid in zip(titles, drawn, strict=True)]


def _map(title: str, grid: Grid, view: View, shown: Sequence[Point]) -> Chart:
    wide = max(_CELL_WIDTH, min((svg.WIDTH - _LEFT - 4) / len(grid.columns), 84.0))
    factor, unit = units.scale(max(point.value for point in shown), shown[0].figure.unit)
    low, high = min(point.value for point in shown), max(point.value for point in shown)
    parts = [_column(view.x, column, _LEFT + wide * (index + 0.5)) for index, column in enumerate(grid.columns)]
    parts += [_row(view.y, row, _TOP + _CELL_HEIGHT * (index + 0.5)) for index, row in enumerate(grid.rows)]
    parts += [svg.text(_LEFT, 14.0, f"{units.axis_label(view.x)} →", "start", "name")]
    parts += [svg.text(2.0, _TOP - 10, f"{units.axis_label(view.y)} ↓", "start", "name")]
    for (row, column), point in grid.cells.items():
        left, top = _LEFT + wide * grid.columns.index(column), _TOP + _CELL_HEIGHT * grid.rows.index(row)
        parts.append(_cell(point, left, top, wide, factor, _shade(point.value, low, high)))
    width = max(svg.WIDTH, _LEFT + wide * len(grid.columns) + 4)
    height = _TOP + _CELL_HEIGHT * len(grid.rows) + 6
    note = ", ".join(part for part in (unit, common_words(list(grid.cells.values()), view)) if part)
    return Chart(title, note, svg.picture(_words(title, grid), height, *parts, width=width))


def _words(title: str, grid: Grid) -> str:
    cells = "; ".join(f"{row} to {column} {point.figure.text}" for (row, column), point in grid.cells.items())
    return f"{title}: {cells}"


def _column(axis: str, value: Value, x: float) -> Markup:
    return svg.text(x, _TOP - 10, svg.shorten(units.axis_text(axis, value), 10), "middle")


def _row(axis: str, value: Value, y: float) -> Markup:
    return svg.text(_LEFT - 6, y + 4, svg.shorten(units.axis_text(axis, value), 11), "end")


def _shade(value: float, low: float, high: float) -> int:
    share = (value - low) / (high - low) if high > low else 0.5
    return min(int(share * _SHADES), _SHADES - 1)


def _cell(point: Point, left: float, top: float, wide: float, factor: float, shade: int) -> Markup:
    box = svg.element(
        "rect",
        *svg.title(point_words(point)),
        x=left + 1,
        y=top + 1,
        width=wide - 2,
        height=_CELL_HEIGHT - 2,
        class_=f"h{shade}",
    )
    words = units.significant(point.value / factor, 4 if wide > 52 else 3)
    return box + svg.text(left + wide / 2, top + _CELL_HEIGHT / 2 + 4, words, "middle", f"t{shade}")
