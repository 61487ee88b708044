"""Draw the samples of a case as a histogram that marks the median and its 95 % interval."""

import math
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg

_FEWEST = 5  # the fewest samples of a histogram: fewer show no distribution
_BINS, _WIDTH, _HEIGHT, _TOP = 40, 460.0, 64.0, 6.0
_BOTTOM, _CLIPPED = 44.0, 0.005  # the fraction of many samples that the last bin on either side takes


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram of the samples of one series, and a sentence that describes them."""

    description: str
    drawing: Markup


def distribution(series: gb.Series, figure: gb.Figure) -> Distribution | None:
    """Return the histogram of a series' samples; None for fewer than five samples.

    `figure` is the figure of the series."""
    values = gb.judged_values(series)
    if len(values) < _FEWEST:
        return None
    low, high = float(values.min()), float(values.max())
    inner = (low, high)
    if len(values) > _FEWEST / _CLIPPED:
        inner = gb.stats.quantile(values.tolist(), _CLIPPED), gb.stats.quantile(values.tolist(), 1 - _CLIPPED)
    ends = f"{gb.units.quantity(low, figure.unit)} to {gb.units.quantity(high, figure.unit)}"
    marked = "the median is marked with its 95 % interval within this process"
    description = f"{len(values)} samples of {series.label}, {ends}; {marked}"
    return Distribution(description, _draw_histogram(values, inner, figure, description))


def _draw_histogram(values: np.ndarray, ends: tuple[float, float], figure: gb.Figure, description: str) -> Markup:
    """Draw the histogram of `values`, shape (samples,), in the unit of `figure`."""
    low, high = ends if ends[1] > ends[0] else (ends[0] - 1.0, ends[0] + 1.0)
    bins = min(_BINS, max(8, 2 * math.isqrt(len(values))))
    counts, _ = np.histogram(np.clip(values, low, high), bins, (low, high))

    def place(value: float) -> float:
        return 4.0 + (_WIDTH - 8.0) * (min(max(value, low), high) - low) / (high - low)

    step, tallest = (_WIDTH - 8.0) / bins, max(int(counts.max()), 1)
    path = "".join(
        f"M{svg.number(4 + step * index)} {svg.number(_BOTTOM)}v{svg.number(-(_BOTTOM - _TOP) * count / tallest)}"
        f"h{svg.number(step - 1)}V{svg.number(_BOTTOM)}z"
        for index, count in enumerate(counts.tolist())
        if count
    )
    interval, middle = figure.interval, place(figure.interval.centre)
    parts = [
        svg.element("path", d=path, class_="c0"),
        svg.line(4.0, _BOTTOM, _WIDTH - 4.0, _BOTTOM, "axis"),
        svg.line(place(interval.low), _BOTTOM + 4, place(interval.high), _BOTTOM + 4, "whisker"),
        svg.line(middle, _TOP - 4, middle, _BOTTOM + 7, "whisker"),
        svg.text(4.0, _HEIGHT - 2, gb.units.quantity(low, figure.unit)),
        svg.text(_WIDTH - 4.0, _HEIGHT - 2, gb.units.quantity(high, figure.unit), "end"),
    ]
    return svg.picture(description, _HEIGHT, *parts)
