"""Choose which cases of a large run its page lists, and which it shows with details."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpubench.api import report as gb

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
