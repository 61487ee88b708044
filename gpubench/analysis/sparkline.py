"""Draw a trend as a line of text: one bar for each run, with its steps, drifts and states marked below."""

import bisect
import itertools

from gpubench import stats
from gpubench.analysis.trend import Trend
from gpubench.base import blocks


def sparkline(trend: Trend, width: int) -> tuple[str, str]:
    """Return the values of a trend, which has at least one run, as at most `width` bars, and a row of marks below them.

    The bars reach from the minimum to the maximum."""
    values = trend.values
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)]
    heights = [stats.median(values[start:end]) for start, end in itertools.pairwise(edges)]
    low, high = min(heights), max(heights)
    bars = blocks.chart([(value - low) / (high - low) if high > low else 0.5 for value in heights])
    marks = [" "] * count
    parts = [(part.start, part.end, mark) for mark, kind in (("~", trend.drifts), ("=", trend.states)) for part in kind]
    for start, end, mark in parts:
        first, last = (bisect.bisect_right(edges, index) - 1 for index in (start, end - 1))
        marks[first : last + 1] = mark * (last + 1 - first)
    for change in trend.changes:
        marks[bisect.bisect_right(edges, change.index) - 1] = "^"
    return bars, "".join(marks).rstrip()
