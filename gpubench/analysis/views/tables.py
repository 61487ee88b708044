"""Give the tables of a run: its suites' views, tail latencies, phases of a program, links and a soak test."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gpubench import stats
from gpubench.analysis.quantities import judged_better, judged_unit, judged_values
from gpubench.analysis.soak import soak_tables
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.amortised import Amortisation
from gpubench.analysis.views.links import link_tables
from gpubench.analysis.views.payoffs import Payoffs
from gpubench.analysis.views.phase_tables import phase_tables
from gpubench.analysis.views.served import Servings
from gpubench.analysis.views.staircases import Staircase
from gpubench.analysis.views.table import NO_VALUE, Derived, Table, derived
from gpubench.analysis.views.transfers import Transfers
from gpubench.base import units
from gpubench.model import Series, View

KINDS: tuple[type[Derived], ...] = (Staircase, Transfers, Payoffs, Servings, Amortisation)
_TOPICS = (("phases", phase_tables), ("links", link_tables), ("soak", soak_tables))
_P99_SAMPLES, _P999_SAMPLES = 1000, 10_000  # ten samples then lie beyond the percentile
_TAIL_HEADS = ("case", "device", "median", "p99", "p99.9", "maximum", "samples")


def tables(summary: Summary, suite: str = "") -> list[Table]:
    """Return the tables of a suite: first of its views, then of its tail latencies.

    Without a suite, the tables of the whole run: the phases of a profiled program, links measured in several ways, and
    a soak test; their `topic` tells them apart."""
    if not suite:
        return [replace(table, topic=topic) for topic, tables_of in _TOPICS for table in tables_of(summary)]
    views = next((info.views for info in summary.run.manifest.suites if info.name == suite), ())
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
    for result in summary.run.results:
        for series in result.series if result.status == "ok" and result.case.suite == suite else ():
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
