"""Give the tables of a run: its suites' views, tail latencies, phases of a program, links and a soak test."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpubench import stats
from gpubench.analysis.figure import Figure, Spread
from gpubench.analysis.quantities import SUM, judged_better, judged_unit, judged_values
from gpubench.analysis.soak import soak_tables
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.amortised import Amortisation
from gpubench.analysis.views.choices import Choices
from gpubench.analysis.views.intervals import Intervals
from gpubench.analysis.views.payoffs import Payoffs
from gpubench.analysis.views.phase_tables import phase_tables
from gpubench.analysis.views.scaling import Scaling
from gpubench.analysis.views.served import Servings
from gpubench.analysis.views.staircases import Staircase
from gpubench.analysis.views.table import NO_VALUE, Derived, Table, derived
from gpubench.analysis.views.transfers import Transfers
from gpubench.base import units
from gpubench.model import Case, Series, View

_PREFIX = "link."
_SIZE = "size_bytes"
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
        params = tuple(pair for pair in figure.case.params if pair[0] != _SIZE)
        key = (frozenset(figure.devices), figure.case.suite, figure.case.name, params)
        if key not in largest or _size(figure.case) > _size(largest[key].case):
            largest[key] = figure
    groups: dict[frozenset[str], list[LinkFigure]] = {}
    for figure in largest.values():
        groups.setdefault(frozenset(figure.devices), []).append(figure)
    return [_with_differences(group) for group in groups.values() if len(group) > 1]


def _figures(summary: Summary) -> Iterable[LinkFigure]:
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
        figures = [summary.figure(row.result, series) for series in row.result.series if series.label == SUM]
        if figures and row.result.status == "ok":
            slowest_by_replicate.append(min(figures, key=lambda figure: figure.interval.centre))
    return Figure.over_replicates(slowest_by_replicate) if slowest_by_replicate else None


def _size(case: Case) -> float:
    """Return the size of a case in bytes; 0 if it has none."""
    value = dict(case.params).get(_SIZE, 0)
    return value if isinstance(value, int | float) else 0


def _with_differences(group: list[LinkFigure]) -> tuple[LinkFigure, ...]:
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


KINDS: tuple[type[Derived], ...] = (Staircase, Transfers, Payoffs, Servings, Amortisation, Choices, Intervals, Scaling)
_TOPICS = (("phases", phase_tables), ("links", link_tables), ("soak", soak_tables))
_P99_SAMPLES, _P999_SAMPLES = 1000, 10_000  # ten samples then lie beyond the percentile
_TAIL_HEADS = ("case", "device", "median", "p99", "p99.9", "maximum", "samples")


def tables(summary: Summary, suite: str = "") -> list[Table]:
    """Return the tables of a suite: first of its views, then of its tail latencies.

    Without a suite, the tables of the whole run: the phases of a profiled program, links measured in several ways, and
    a soak test; their `topic` tells them apart."""
    if not suite:
        return [replace(table, topic=topic) for topic, tables_of in _TOPICS for table in tables_of(summary)]
    info = summary.suite_infos.get(suite)
    views = info.views if info else ()
    return [*(table for view in views for table in view_tables(summary, suite, view)), *tail_tables(summary, suite)]


def derived_lines(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield the derived values of a run as flat lines, whose keys are names of `frame.COLUMNS`."""
    for kind in KINDS:
        for value in derived(summary, kind):
            yield from value.lines()


def view_tables(summary: Summary, suite: str, view: View) -> list[Table]:
    """Return the tables of a suite's view; views of other kinds than `KINDS` have none."""
    return [
        table
        for kind in KINDS
        if view.kind == kind.KIND
        for value in kind.of(summary, suite, view)
        for table in value.tables
    ]


def tail_tables(summary: Summary, suite: str) -> list[Table]:
    """Return a table of the tail latencies of a suite; an empty list if no series has enough samples (`tail_samples`).

    A row has the percentiles of one series; of several ranks or replicates the one with the highest p99 counts."""
    rows: dict[tuple[str, tuple[str, ...], str], tuple[float, tuple[str, ...]]] = {}
    for result in summary.results_of(suite):
        for series in result.series if result.status == "ok" else ():
            if len(series.values) < tail_samples(series):
                continue
            tail = tail_of(series)
            name = result.case.id + ("" if series.label == result.series[0].label else f" {series.label}")
            cells = (
                name,
                ", ".join(result.devices),
                *(units.quantity(value, "s") if value else NO_VALUE for value in tail),
            )
            key = (result.case.id, result.devices, series.label)
            rows[key] = max(rows.get(key, (0.0, cells)), (tail[1] or 0.0, (*cells, str(len(series.values)))))
    table_rows = tuple(cells for _, cells in rows.values())
    return [Table(f"Tails: {suite}", _TAIL_HEADS, table_rows, _TAIL_HEADS[:2])] if table_rows else []


def tail_samples(series: Series) -> float:
    """Return the number of samples that a series needs for percentiles: 1000 single calls, or 10 000 batches.

    It is infinite for a series that is not a time in seconds of which less is better, because such a series has no
    tail."""
    if judged_unit(series) != "s" or judged_better(series) != "less":
        return math.inf
    return _P99_SAMPLES if series.mode == "each" else _P999_SAMPLES


def tail_of(series: Series) -> tuple[float, float | None, float | None, float]:
    """Return the median, the 99th percentile, the 99.9th percentile and the maximum of the samples, in seconds.

    A percentile is None if fewer than ten samples lie beyond it."""
    values = judged_values(series).tolist()
    count = len(values)
    p99 = stats.quantile(values, 0.99) if count >= _P99_SAMPLES else None
    p999 = stats.quantile(values, 0.999) if count >= _P999_SAMPLES else None
    return stats.median(values), p99, p999, max(values)
