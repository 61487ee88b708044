"""Show the derived figures of a suite's views as tables: cache levels, transfer models, tails, and all others."""

import math
from collections.abc import Iterator

from gpubench import stats
from gpubench.analysis.quantities import judged_better, judged_unit, judged_values
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.amortisation_tables import amortisation_tables
from gpubench.analysis.views.amortised import amortised_of
from gpubench.analysis.views.derived import Staircase, Step, TransferFit, Transfers, staircases_of, transfers_of
from gpubench.analysis.views.fastest import fastest_rows
from gpubench.analysis.views.payoff_tables import payoff_tables
from gpubench.analysis.views.payoffs import payoffs_of
from gpubench.analysis.views.served import energies_of, served_of
from gpubench.analysis.views.serving_tables import energy_tables, serving_tables
from gpubench.analysis.views.table import NO_VALUE, Table
from gpubench.analysis.views.transfer import Piece
from gpubench.base import units
from gpubench.model import Series, View
from gpubench.stats import Interval

_P99_SAMPLES, _P999_SAMPLES = 1000, 10_000  # ten samples then lie beyond the percentile
_TAIL_HEADS = ("case", "device", "median", "p99", "p99.9", "maximum", "samples")
_LEVEL_HEADS = (
    "level",
    "95 % interval",
    "cycles",
    "working sets",
    "ends at",
    "95 % interval of the end",
    "device reports",
)
_PATH_HEADS = ("path", "sizes", "α", "β", "n½ = α·β", "n½ measured", "residual")
_CROSSOVER_HEADS = ("faster below", "faster above", "crossover", "measured between", "crossover of the models")


def level_table(staircase: Staircase) -> Table:
    """Return the table of the levels of one curve, a row for each, from the first cache to memory.

    The note gives the source of each cache size that the device reports."""
    label = "" if staircase.line.label in staircase.title else f", {staircase.line.label}"
    rows = tuple(_level_row(step) for step in staircase.steps)
    sources = [f"{size.name}: {size.source}" for step in staircase.steps for size in step.known_sizes]
    note = "; ".join(["A level ends at the largest working set that it holds", *sources])
    return Table(f"Levels: {staircase.title}{label}", _LEVEL_HEADS, rows, _LEVEL_HEADS[-1:], note)


def _level_row(step: Step) -> tuple[str, ...]:
    """Return the cells of a level: height with interval, cycles, working sets, end with interval, reported sizes."""
    height, end = step.height, step.end
    points = "1 point" if step.points == 1 else f"{step.points} points"
    return (
        step.text,
        units.interval(height.low, height.high, step.unit, height.centre),
        units.significant(step.cycles) if step.cycles is not None else NO_VALUE,
        f"{units.brief_size(step.smallest)} – {units.brief_size(step.largest)} ({points})",
        units.brief_size(end.centre) if end else "not reached",
        f"{units.brief_size(end.low)} – {units.brief_size(end.high)}" if end else NO_VALUE,
        "; ".join(_known_size_texts(step, end)) or NO_VALUE,
    )


def _known_size_texts(step: Step, end: Interval | None) -> Iterator[str]:
    """Yield each size that the device reports near the end of a level, and the end over that size."""
    for size in step.known_sizes:
        ratio = f", × {end.centre / size.bytes:.2f}" if end else ""
        yield f"{size.name} {units.brief_size(size.bytes)}{ratio}"


def transfer_tables(transfers: Transfers) -> list[Table]:
    """Return the tables of a transfer view: the fastest path by size, the fitted models, and the crossovers.

    The first and the last are left out if they have no row."""
    is_size = transfers.axis.endswith("_bytes")
    rows = tuple(row for path in transfers.paths for row in _transfer_rows(path, is_size))
    tables = [Table(f"Transfer model: {transfers.title}", _PATH_HEADS, rows, _PATH_HEADS[:1])]
    if transfers.crossovers:
        crossed = tuple(
            (
                crossover.below,
                crossover.above,
                _place(crossover.size.centre, is_size),
                f"{_place(crossover.size.low, is_size)} – {_place(crossover.size.high, is_size)}",
                _place(crossover.fitted, is_size) if crossover.fitted else NO_VALUE,
            )
            for crossover in transfers.crossovers
        )
        tables.append(Table(f"Crossovers: {transfers.title}", _CROSSOVER_HEADS, crossed, _CROSSOVER_HEADS[:2]))
    if rows := fastest_rows(transfers):
        heads = (f"{units.axis_label(transfers.by[0])} among", "fastest")
        tables.insert(0, Table(f"Fastest by {units.axis_label(transfers.axis)}: {transfers.title}", heads, rows, heads))
    return tables


def _transfer_rows(path: TransferFit, is_size: bool) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each piece of a path's model; the first row also has the values of the whole path."""
    model = path.model
    half = _place(model.half.centre, is_size) if model.half else NO_VALUE
    for index, piece in enumerate(model.pieces):
        of_path = (half, units.percent(model.residual)) if index == 0 else ("", "")
        yield (path.line.label if index == 0 else "", *_piece_cells(path, piece, is_size), *of_path)


def _piece_cells(path: TransferFit, piece: Piece, is_size: bool) -> tuple[str, str, str, str]:
    """Return the cells of one piece of a path's model: its range of sizes, α, β and n½."""
    rate = path.rate(piece)
    return (
        f"{_place(path.sizes[piece.first], is_size)} – {_place(path.sizes[piece.last], is_size)}",
        units.quantity(piece.alpha_s, "s"),
        units.quantity(rate, path.unit) if math.isfinite(rate) else NO_VALUE,
        _place(piece.half, is_size) if math.isfinite(piece.half) else NO_VALUE,
    )


def _place(value: float, is_size: bool) -> str:
    """Return a place on the x axis as text: bytes as KiB, MiB or GiB if `is_size`, else a plain number."""
    return units.brief_size(value) if is_size else units.significant(value)


def derived_tables(summary: Summary, suite: str) -> list[Table]:
    """Return the tables of all views of the suite with that name, then the table of its tail latencies."""
    views = next((info.views for info in summary.run.manifest.suites if info.name == suite), ())
    return [*(table for view in views for table in view_tables(summary, suite, view)), *tail_tables(summary, suite)]


def tail_tables(summary: Summary, suite: str) -> list[Table]:
    """Return a table of the tail latencies of a suite; an empty list if no series has enough samples (`tail_samples`).

    A row has the percentiles of one series; if several ranks or replicates measured it, those with the highest p99."""
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


def view_tables(summary: Summary, suite: str, view: View) -> list[Table]:
    """Return the tables of a suite's view of the kind staircase, transfer, breakeven, serving or amortisation.

    Views of other kinds have none."""
    if view.kind == "amortisation":
        return amortisation_tables(view.title, amortised_of(summary, suite, view))
    if view.kind == "serving":
        return [*serving_tables(served_of(summary, suite, view)), *energy_tables(energies_of(summary, suite, view))]
    if view.kind == "breakeven":
        return payoff_tables(payoffs_of(summary, suite, view))
    if view.kind == "staircase":
        return [level_table(staircase) for staircase in staircases_of(summary, suite, view)]
    if view.kind == "transfer":
        return [table for group in transfers_of(summary, suite, view) for table in transfer_tables(group)]
    return []
