"""Tables that explain why copies, kernels and collectives over the same link reach different rates.

A case that measures the rate of a link describes its method in notes named `link.…`: direction, engine, counted bytes,
protocol. A table lists the figures of one link, each with the differences between its method and that of the best.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpubench.analysis.summary import Figure, Spread, Summary
from gpubench.analysis.views.tables import Table
from gpubench.base import units
from gpubench.model import Case, Params

_PREFIX = "link."
_SIZE = "size_bytes"
_SUM = "sum"  # the series that counts both directions
_HEADS = ("case", "rate", "both directions", "of the first", "difference from the first")
_NONE = "–"


@dataclass(frozen=True, slots=True)
class LinkFigure:
    """The rate of one direction of a case at its largest size; `sum` is the rate of both directions, if measured.

    `tags` are the notes of the case on its method, `because` those that differ from the best figure of the link.
    """

    case: Case
    devices: tuple[str, ...]
    figure: Figure
    sum: Figure | None
    tags: tuple[tuple[str, str], ...]
    because: tuple[tuple[str, str], ...] = ()

    @property
    def rate(self) -> float:
        """The median, B/s."""
        return self.figure.interval.centre


def link_figures(summary: Summary) -> list[tuple[LinkFigure, ...]]:
    """Return the figures of each set of devices, the best first; sets with a single figure are omitted."""
    largest: dict[tuple[object, ...], LinkFigure] = {}
    for found in _figures(summary):
        key = (frozenset(found.devices), found.case.suite, found.case.name, _rest(found.case.params))
        if key not in largest or _size(found.case) > _size(largest[key].case):
            largest[key] = found
    groups: dict[frozenset[str], list[LinkFigure]] = {}
    for found in largest.values():
        groups.setdefault(frozenset(found.devices), []).append(found)
    return [_explained(group) for group in groups.values() if len(group) > 1]


def _figures(summary: Summary) -> Iterable[LinkFigure]:
    for spread in summary.spreads():
        figure = spread.figure
        notes = spread.row.result.notes
        tags = tuple((name.removeprefix(_PREFIX), words) for name, words in notes if name.startswith(_PREFIX))
        if figure is not None and tags and figure.unit == "B/s":
            yield LinkFigure(spread.case, spread.devices, figure, _sum(summary, spread), tags)


def _sum(summary: Summary, spread: Spread) -> Figure | None:
    """Return the rate of both directions, taken from the slowest rank of each replicate."""
    found = []
    for row in spread.rows:
        figures = [summary.figure(row.result, each) for each in row.result.series if each.label == _SUM]
        if figures and row.result.status == "ok":
            found.append(min(figures, key=lambda figure: figure.interval.centre))
    return Figure.joined(found) if found else None


def _rest(params: Params) -> Params:
    return tuple((axis, value) for axis, value in params if axis != _SIZE)


def _size(case: Case) -> float:
    value = dict(case.params).get(_SIZE, 0)
    return value if isinstance(value, int | float) else 0


def _explained(group: list[LinkFigure]) -> tuple[LinkFigure, ...]:
    """Return the figures sorted, the best first, each with the tags that differ from those of the best."""
    ordered = sorted(group, key=lambda found: -found.rate)
    first = dict(ordered[0].tags)
    return tuple(
        LinkFigure(
            found.case,
            found.devices,
            found.figure,
            found.sum,
            found.tags,
            tuple((name, words) for name, words in found.tags if first.get(name) != words),
        )
        for found in ordered
    )


def link_tables(summary: Summary) -> list[Table]:
    """Return a table for each link with more than one figure."""
    return [_table(group) for group in link_figures(summary)]


def _table(group: tuple[LinkFigure, ...]) -> Table:
    first = group[0]
    rows = [_row(found, first) for found in group]
    words = "; ".join(f"{name}: {text}" for name, text in first.tags)
    note = f"Each rate is of one direction. The first case: {words}"
    return Table(f"Figures of one link: {' + '.join(first.devices)}", _HEADS, tuple(rows), _HEADS[::4], note)


def _row(found: LinkFigure, first: LinkFigure) -> tuple[str, ...]:
    because = "; ".join(f"{name}: {words}" for name, words in found.because)
    same = "" if found is first else "none: the same method in another case"
    share = units.percent(found.rate / first.rate)
    return (found.case.id, found.figure.text, found.sum.text if found.sum else _NONE, share, because or same)
