"""Build the tables of cases of a run's page: one table per suite, one line per case, and the details of each case."""

from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gpubench.api import report as gb

from ._cases import counter_lines, figure_cells, method_facts, reason_text, replicate_lines, series_lines, share_lines
from ._distribution import distribution
from ._room import Room
from ._texts import secondary_text
from ._verdict import Anchors, link
from ._web import fragment


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
