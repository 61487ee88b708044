"""Build the tables of cases of a run's page: one table per suite, one line per case, and the details of each case."""

from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gpubench.api import report as gb

from ._cases import (
    CounterLine,
    ReplicateLine,
    SeriesLine,
    ShareLine,
    counter_lines,
    figure_cells,
    method_facts,
    reason_text,
    replicate_lines,
    series_lines,
    share_lines,
)
from ._distribution import Distribution, distribution
from ._room import Room
from ._texts import secondary_text
from ._verdict import Anchors, link
from ._web import fragment


@dataclass(frozen=True, slots=True)
class CaseDetails:
    """The details of a case, which a reader unfolds.

    `method` pairs the name of a fact with its text."""

    replicates: tuple[ReplicateLine, ...]
    series: tuple[SeriesLine, ...]
    shares: tuple[ShareLine, ...]
    method: tuple[tuple[str, str], ...]
    counters: tuple[CounterLine, ...]
    of: str
    samples: Distribution | None


@dataclass(frozen=True, slots=True)
class CaseBlock:
    """One case as a line of a table.

    `anchor` is the id of the line in the page, and `link` is `#` with the quoted anchor."""

    name: str
    device: str
    anchor: str
    link: str
    status: str
    state: str
    figures: tuple[str, ...]
    beside: str
    reason: str
    details: CaseDetails | None
    packed: int | None


@dataclass(frozen=True, slots=True)
class CaseTable:
    """The cases of a suite: `title` counts them, and `ended` says how many have each status.

    `constants` names the axes that the names of the cases leave out, because all of them have the same value there."""

    title: str
    ended: str
    constants: str
    cases: tuple[CaseBlock, ...]


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

    def tables(self) -> dict[str, CaseTable]:
        """Return the table of each suite that has a case in `room`, keyed by the suite's name.

        Call it once: it appends to `packed`."""
        totals = dict(self.summary.suites())
        suites = gb.listing(self.summary, shows=self.room.shows)
        return {suite.name: self._table(suite, totals[suite.name]) for suite in suites}

    def _table(self, suite: gb.ListedSuite, spreads: Sequence[gb.Spread]) -> CaseTable:
        title = _count_text(len(suite.cases), len(spreads))
        return CaseTable(title, _ended_text(spreads), suite.constants, tuple(map(self._block, suite.cases)))

    def _block(self, case: gb.ListedCase) -> CaseBlock:
        """Return the line of a case, with its details in the line or, if the page has many, in `packed`."""
        spread = case.spread
        details, packed = None, None
        if self.room.opens(spread):
            details = _details(self.summary, spread)
            if not self.room.inline:
                self.packed.append(fragment("case.html", "more", details))
                details, packed = None, len(self.packed) - 1
        anchor = self._anchors.case(case.case_id, spread.devices)
        return CaseBlock(
            case.name,
            case.device,
            anchor,
            link(anchor),
            spread.status,
            case.ended or spread.status,
            figure_cells(case),
            secondary_text(self.summary.secondary_figures(spread)) if spread.figure else "",
            reason_text(spread),
            details,
            packed,
        )


def _details(summary: gb.Summary, spread: gb.Spread) -> CaseDetails:
    result = spread.row.result
    series = gb.headline(result)
    return CaseDetails(
        tuple(replicate_lines(spread)) if summary.replicated else (),
        tuple(series_lines(summary, spread)),
        tuple(share_lines(spread)),
        tuple(method_facts(summary, result)),
        tuple(counter_lines(summary, result)),
        f" (replicate {result.replicate})" if summary.replicated else "",
        distribution(series, summary.figure(result, series)) if series else None,
    )


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
