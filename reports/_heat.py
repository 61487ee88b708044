"""Draw a matrix with too many cells for numbers as a heat map, with a scale that gives the value of each shade."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg

SHADES = 7  # the style sheet's classes h0 … h6
_LEFT, _TOP, _TALLEST, _WIDEST = 62.0, 40.0, 560.0, 900.0
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
    wide = min(max((svg.WIDTH - _LEFT - 4) / columns, 3.0), max((_WIDEST - _LEFT) / columns, 1.0))
    high = min(max(_TALLEST / rows, 3.0), 16.0)
    width, bottom = max(svg.WIDTH, _LEFT + wide * columns + 4), _TOP + high * rows
    parts = [
        svg.text(_LEFT, 12.0, f"{across} →", "start", "name"),
        svg.text(2.0, _TOP - 8, f"{down} ↓", "start", "name"),
    ]
    parts += list(_labels(heat.columns, wide, across=True)) + list(_labels(heat.rows, high, across=False))
    runs = [
        svg.element("path", d=path, class_=f"run h{index}")
        for index, path in enumerate(_shade_paths(heat.values, scale))
        if path
    ]
    cells = f"translate({svg.number(_LEFT)} {svg.number(_TOP + high / 2)}) scale({wide:.6g} {high:.6g})"
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
            x = _LEFT + max(min(middle, step * len(labels) - half), half)
            yield svg.text(x, _TOP - 8, labels[index], "middle")
        else:
            yield svg.text(_LEFT - 6, _TOP + middle + 4, svg.shorten(labels[index], 8), "end")


def _shade_paths(values: Numbers, scale: tuple[float, float]) -> list[str]:
    shade_of_cell = shades(values, *scale)
    return ["".join(strokes(shade_of_cell >= index)) for index in range(SHADES)]


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
    """Draw a swatch for each shade, with the values between two shades and the unit."""
    low, high = scale
    factor, unit_label = gb.units.scale(high, unit)
    parts = [
        svg.element("rect", x=_LEFT + _SWATCH * index, y=top, width=_SWATCH, height=10.0, class_=f"h{index}")
        for index in range(SHADES)
    ]
    for index in range(SHADES + 1):
        value = low + (high - low) * index / SHADES
        parts.append(svg.text(_LEFT + _SWATCH * index, top + 24, gb.units.significant(value / factor), "middle"))
    return [*parts, svg.text(2.0, top + 9, unit_label, "start", "name")]
