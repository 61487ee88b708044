"""The cases of a page: the line of each, and what opens beneath it, in the page itself or packed beside it."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpubench.api.report import Spread, Summary, headline

from ._cases import (
    CaseLine,
    CounterLine,
    ReplicateLine,
    SeriesLine,
    ShareLine,
    case_lines,
    counter_lines,
    method_words,
    replicate_lines,
    series_lines,
    share_lines,
)
from ._distribution import Distribution, distribution
from ._room import Room
from ._web import fragment

_MOST_ROWS = 24  # of one case in a table that is not folded


@dataclass(frozen=True, slots=True)
class CaseBlock:
    """A case's line with all that is folded away beneath it; without a method there is nothing to open.

    Of several replicates the method, the samples and the counters are those of the one in `of`, in words. `packed`
    is the place of all that among the parts of the page that its script unfolds, None where it stands in the page.
    """

    line: CaseLine
    replicates: tuple[ReplicateLine, ...]
    series: tuple[SeriesLine, ...]
    shares: tuple[ShareLine, ...]
    method: tuple[tuple[str, str], ...]
    counters: tuple[CounterLine, ...]
    of: str
    samples: Distribution | None = None
    packed: int | None = None


@dataclass(frozen=True, slots=True)
class CaseTable:
    """Some cases of a suite as one table, folded away where they are the many points of one case."""

    title: str
    folded: bool
    cases: tuple[CaseBlock, ...]


@dataclass(slots=True)
class Blocks:
    """Makes the blocks of a page; what is `packed` is markup, in the order of the places that blocks name."""

    summary: Summary
    room: Room
    packed: list[str] = field(default_factory=list)

    def tables(self, suite: str, spreads: Sequence[Spread]) -> tuple[CaseTable, ...]:
        """The tables of a suite's cases."""
        lines = case_lines([spread for spread in spreads if self.room.shows(spread)], self.summary)
        return tuple(_case_tables(suite, spreads, [self._block(line) for line in lines]))

    def _block(self, line: CaseLine) -> CaseBlock:
        if not self.room.opens(line.spread):
            return CaseBlock(line, (), (), (), (), (), "")
        block = _opened(self.summary, line)
        if self.room.inline:
            return block
        self.packed.append(fragment("case.html", "more", block))
        return CaseBlock(line, (), (), (), (), (), "", packed=len(self.packed) - 1)


def _opened(summary: Summary, line: CaseLine) -> CaseBlock:
    """A case with everything that is known of it."""
    spread = line.spread
    result = spread.row.result
    series = headline(result)
    return CaseBlock(
        line,
        tuple(replicate_lines(spread)) if summary.replicated else (),
        tuple(series_lines(summary, spread)),
        tuple(share_lines(spread)),
        tuple(method_words(summary, result)),
        tuple(counter_lines(summary.counters, result)),
        f" (replicate {result.replicate})" if summary.replicated else "",
        distribution(series, summary.figure(result, series)) if series else None,
    )


def _case_tables(suite: str, spreads: Sequence[Spread], blocks: Sequence[CaseBlock]) -> Iterator[CaseTable]:
    """One table of all cases, but a folded one for each case of many points; what is not ok is never folded away."""
    counts = Tally(spread.case.name for spread in spreads if spread.status in ("ok", "skipped"))
    many = {name: count for name, count in counts.items() if count > _MOST_ROWS}
    folded = {name: [block for block in blocks if _is_point(block, name)] for name in many}
    hidden = {id(block) for group in folded.values() for block in group}
    rest = tuple(block for block in blocks if id(block) not in hidden)
    if rest:
        count = _count_words(len(rest), len(spreads) - sum(many.values()))
        yield CaseTable(f"{count} of {suite}; open one for its other series, its method and its counters", False, rest)
    for name, group in folded.items():
        yield CaseTable(f"{name}: {_count_words(len(group), many[name])}", True, tuple(group))


def _count_words(shown: int, total: int) -> str:
    if shown < total:
        return f"{shown} of {total} cases"
    return "1 case" if total == 1 else f"{total} cases"


def _is_point(block: CaseBlock, name: str) -> bool:
    return block.line.name == name and block.line.status in ("ok", "skipped")
