"""The head of a page: the best figure of each suite and limit, and what it is of its peak."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpubench.api.report import Figure, Row, Staircase, Summary, staircases, units

from ._words import best_rows, case_namer, share_words


@dataclass(frozen=True, slots=True)
class Best:
    """A tile of the page's head: the best figure of a suite and limit."""

    what: str
    figure: str
    share: str
    case: str
    bar: float | None = None  # of the peak, 0 … 100


def tiles(rows: Iterable[Row], summary: Summary) -> Iterable[Best]:
    """The best figure of each suite and limit; of a suite with a staircase, its levels instead of its least time."""
    name = case_namer(summary.run)
    ladders = {found.suite: found for found in reversed(staircases(summary))}
    told = set()
    for row in best_rows(rows):
        ladder = ladders.get(row.suite)
        if ladder and row.figure and row.figure.unit == ladder.steps[0].unit:
            if row.suite not in told:
                yield from _level_tiles(ladder)
            told.add(row.suite)
        elif row.figure:
            what = f"{row.suite} · {row.figure.limit}" if row.figure.limit else row.suite
            yield Best(what, row.figure.text, share_words(row), name(row.result), _bar(row.figure))


def _bar(figure: Figure) -> float | None:
    """How much of the peak's bar is filled, in per cent; None where no peak is known but the run's own best."""
    if figure.share is None or figure.basis == "best":
        return None
    return round(min(max(100 * figure.share, 0.0), 100.0), 1)


def _level_tiles(ladder: Staircase) -> Iterable[Best]:
    for number, step in enumerate(ladder.steps, 1):
        what = f"{ladder.suite} · {units.brief_size(step.smallest)} – {units.brief_size(step.largest)}"
        cycles = f"{units.significant(step.cycles)} cycles" if step.cycles is not None else ""
        level = f"level {number} of {len(ladder.steps)}: {ladder.title}"
        yield Best(what, step.text, cycles, level)
