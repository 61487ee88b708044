"""Build the tables of cases of a run's page: one table per suite, one line per case, and the details of each case."""

import math
from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._cases import counter_lines, figure_cells, method_facts, reason_text, replicate_lines, series_lines, share_lines
from ._texts import secondary_text
from ._verdict import Anchors, link
from ._web import fragment

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


LINES = 2000  # cases in tables: 0.4 kB each
DETAILED = 400  # cases that can be opened: 3 kB each, 0.3 kB packed
INLINE = 40  # with at most this number of cases, the page itself holds the details, which need no script
_Key = tuple[str, tuple[str, ...]]  # a case's id and its device set


@dataclass(frozen=True, slots=True)
class Room:
    """The cases of a page: `lines` have a line in a table, and `detailed`, a part of them, can be unfolded.

    Out of `total`. A case is the pair of its id and its device set."""

    total: int
    lines: frozenset[_Key]
    detailed: frozenset[_Key]

    def shows(self, spread: gb.Spread) -> bool:
        """Return whether a case has a line in a table."""
        return _key(spread) in self.lines

    def opens(self, spread: gb.Spread) -> bool:
        """Return whether a case has details that can be opened."""
        return _key(spread) in self.detailed

    @property
    def inline(self) -> bool:
        """Whether the page itself holds the details of cases, so that they need no script."""
        return len(self.detailed) <= INLINE

    @property
    def left_out(self) -> str:
        """A sentence on the cases and details that the page leaves out; empty if it has everything."""
        order = "failed and invalid cases first, then an even selection of the others. The CSV report has every case."
        if len(self.lines) < self.total:
            opened = f"of which {len(self.detailed)} have their details on this page"
            return f"The tables list {len(self.lines)} of {self.total} cases, {opened}: {order}"
        if len(self.detailed) < self.total:
            return f"{len(self.detailed)} of {self.total} cases have their details on this page: {order}"
        return ""


def room_for(spreads: Sequence[gb.Spread], lines: int = LINES, detailed: int = DETAILED) -> Room:
    """Return the choice of cases: at most `lines` have a line in a table, and at most `detailed` of these have details.

    Failed and invalid cases come first; the others are an even selection."""
    listed = _choose(spreads, lines)
    return Room(len(spreads), frozenset(map(_key, listed)), frozenset(map(_key, _choose(listed, detailed))))


def _choose(spreads: Sequence[gb.Spread], most: int) -> list[gb.Spread]:
    """Return at most `most` cases: failed and invalid ones first, then the others."""
    bad = [spread for spread in spreads if spread.status in ("failed", "invalid")]
    first = _choose_evenly(bad, most)
    others = [spread for spread in spreads if spread.status not in ("failed", "invalid")]
    return [*first, *_choose_evenly(others, most - len(first))]


def _choose_evenly(spreads: Sequence[gb.Spread], most: int) -> list[gb.Spread]:
    """Return at most `most` cases, at equal distances in their order."""
    if len(spreads) <= most:
        return list(spreads)
    return [spreads[index * len(spreads) // most] for index in range(most)]


def _key(spread: gb.Spread) -> _Key:
    return spread.rows[0].result.key[:2]


@dataclass
class Blocks:
    """Builds the tables of cases of a page.

    `packed` is empty until `tables` runs; then it holds the details of cases as HTML, which the script of the page
    unfolds."""

    summary: gb.Summary
    room: Room
    packed: list[str] = field(default_factory=list)

    @cached_property
    def _anchors(self) -> Anchors:
        """The rule that names the anchors of the run's cases."""
        return Anchors.of(self.summary)

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the table of each suite that has a case in `room`, keyed by the suite's name.

        Call it once: it appends to `packed`."""
        totals = dict(self.summary.suites())
        suites = gb.listing(self.summary, shows=self.room.shows)
        return {suite.name: self._table(suite, totals[suite.name]) for suite in suites}

    def _table(self, suite: gb.ListedSuite, spreads: Sequence[gb.Spread]) -> dict[str, Any]:
        return {
            "title": _count_text(len(suite.cases), len(spreads)),
            "ended": _ended_text(spreads),
            "constants": suite.constants,
            "cases": list(map(self._block, suite.cases)),
        }

    def _block(self, case: gb.ListedCase) -> dict[str, Any]:
        """Return the line of a case, with its details in the line or, if the page has many, in `packed`."""
        spread = case.spread
        details: dict[str, Any] | None = None
        packed: int | None = None
        if self.room.opens(spread):
            details = _details(self.summary, spread)
            if not self.room.inline:
                self.packed.append(fragment("case.html", "more", details))
                details, packed = None, len(self.packed) - 1
        anchor = self._anchors.case(case.case_id, spread.devices)
        return {
            "name": case.name,
            "device": case.device,
            "anchor": anchor,
            "link": link(anchor),
            "status": spread.status,
            "state": case.ended or spread.status,
            "figures": figure_cells(case),
            "beside": secondary_text(self.summary.secondary_figures(spread)) if spread.figure else "",
            "reason": reason_text(spread),
            "details": details,
            "packed": packed,
        }


def _details(summary: gb.Summary, spread: gb.Spread) -> dict[str, Any]:
    result = spread.row.result
    series = gb.headline(result)
    return {
        "replicates": list(replicate_lines(spread)) if summary.replicated else [],
        "series": list(series_lines(summary, spread)),
        "shares": list(share_lines(spread)),
        "method": method_facts(summary, result),
        "counters": list(counter_lines(summary, result)),
        "of": f" (replicate {result.replicate})" if summary.replicated else "",
        "samples": distribution(series, summary.figure(result, series)) if series else None,
    }


def _count_text(listed_count: int, total: int) -> str:
    """Return the title of a table: `40 cases`, or `40 of 200 cases` if `listed_count` is smaller than `total`."""
    if listed_count < total:
        return f"{listed_count} of {total} cases"
    return "1 case" if total == 1 else f"{total} cases"


def _ended_text(spreads: Sequence[gb.Spread]) -> str:
    """Return how many cases have each status, and the median of their noise."""
    counts = Tally(spread.status for spread in spreads)
    noises = sorted(spread.figure.noise for spread in spreads if spread.figure and spread.figure.samples > 1)
    noise = f"; median noise within process {gb.units.percent(noises[len(noises) // 2])}" if noises else ""
    return ", ".join(f"{count} {status}" for status, count in counts.items()) + noise
