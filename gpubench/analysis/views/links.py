"""Make tables that explain why copies, kernels and collectives over the same link reach different rates.

A case that measures the rate of a link describes its method in notes named `link.…`: direction, engine, counted bytes,
protocol. A table lists the figures of one link, each with the differences between its method and the best figure's
method."""

from collections.abc import Iterable
from dataclasses import dataclass

from gpubench.analysis.figure import Figure, Spread
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.table import Table
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

    `tags` are the notes of the case on its method (name without `link.`, text), and `differences` are the tags that
    differ from the best figure's."""

    case: Case
    devices: tuple[str, ...]
    figure: Figure
    sum: Figure | None
    tags: tuple[tuple[str, str], ...]
    differences: tuple[tuple[str, str], ...] = ()

    @property
    def rate(self) -> float:
        """The median, B/s."""
        return self.figure.interval.centre


def link_figures(summary: Summary) -> list[tuple[LinkFigure, ...]]:
    """Return for each set of devices the rates of the link between them, the best first; at least two per set.

    If cases differ only in size, the figure at the largest size counts."""
    largest: dict[tuple[object, ...], LinkFigure] = {}
    for figure in _figures(summary):
        key = (frozenset(figure.devices), figure.case.suite, figure.case.name, _without_size(figure.case.params))
        if key not in largest or _size(figure.case) > _size(largest[key].case):
            largest[key] = figure
    groups: dict[frozenset[str], list[LinkFigure]] = {}
    for figure in largest.values():
        groups.setdefault(frozenset(figure.devices), []).append(figure)
    return [_with_differences(group) for group in groups.values() if len(group) > 1]


def _figures(summary: Summary) -> Iterable[LinkFigure]:
    """Yield the rate of each case whose notes describe a link and whose figure is in B/s, at each of its sizes."""
    for spread in summary.spreads():
        figure = spread.figure
        notes = spread.row.result.notes
        tags = tuple((name.removeprefix(_PREFIX), text) for name, text in notes if name.startswith(_PREFIX))
        if figure is not None and tags and figure.unit == "B/s":
            yield LinkFigure(spread.case, spread.devices, figure, _rate_of_both_directions(summary, spread), tags)


def _rate_of_both_directions(summary: Summary, spread: Spread) -> Figure | None:
    """Return the rate of both directions of a case over its ok replicates; None if it was not measured."""
    slowest_by_replicate = []
    for row in spread.rows:
        figures = [summary.figure(row.result, series) for series in row.result.series if series.label == _SUM]
        if figures and row.result.status == "ok":
            slowest_by_replicate.append(min(figures, key=lambda figure: figure.interval.centre))
    return Figure.over_replicates(slowest_by_replicate) if slowest_by_replicate else None


def _without_size(params: Params) -> Params:
    return tuple((axis, value) for axis, value in params if axis != _SIZE)


def _size(case: Case) -> float:
    """Return the size of a case in bytes; 0 if it has none."""
    value = dict(case.params).get(_SIZE, 0)
    return value if isinstance(value, int | float) else 0


def _with_differences(group: list[LinkFigure]) -> tuple[LinkFigure, ...]:
    """Return the figures of one link, the best first, each with the tags that differ from the best figure's."""
    ordered = sorted(group, key=lambda figure: -figure.rate)
    first = dict(ordered[0].tags)
    return tuple(
        LinkFigure(
            figure.case,
            figure.devices,
            figure.figure,
            figure.sum,
            figure.tags,
            tuple((name, text) for name, text in figure.tags if first.get(name) != text),
        )
        for figure in ordered
    )


def link_tables(summary: Summary) -> list[Table]:
    """Return a table for each link with more than one figure."""
    return [_table(group) for group in link_figures(summary)]


def _table(group: tuple[LinkFigure, ...]) -> Table:
    """Return the table of the figures of one link, a row for each; `group` has the best first."""
    first = group[0]
    rows = [_row(figure, first) for figure in group]
    method = "; ".join(f"{name}: {text}" for name, text in first.tags)
    note = f"Each rate is of one direction. The first case: {method}"
    return Table(f"Figures of one link: {' + '.join(first.devices)}", _HEADS, tuple(rows), _HEADS[::4], note)


def _row(figure: LinkFigure, first: LinkFigure) -> tuple[str, ...]:
    differences = "; ".join(f"{name}: {text}" for name, text in figure.differences)
    same = "" if figure is first else "none: the same method in another case"
    share = units.percent(figure.rate / first.rate)
    return (figure.case.id, figure.figure.text, figure.sum.text if figure.sum else _NONE, share, differences or same)
