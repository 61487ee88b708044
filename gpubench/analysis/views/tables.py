"""Derived figures as tables of texts, which the terminal, Markdown and the page share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpubench import stats
from gpubench.analysis.energy import Energy
from gpubench.analysis.quantities import judged_better, judged_unit, judged_values
from gpubench.analysis.serving import OBJECTIVES, Objectives, RatePoint, SimulatedPercentile
from gpubench.analysis.summary import Summary
from gpubench.analysis.views import breakeven
from gpubench.analysis.views.amortised import STATES, Amortised, PaidAfter, amortised_of
from gpubench.analysis.views.derived import Path, Staircase, Step, Transfers, staircases_of, transfers_of
from gpubench.analysis.views.fastest import fastest_rows
from gpubench.analysis.views.payoffs import Payoff, Payoffs, payoffs_of
from gpubench.analysis.views.served import Latencies, Serving, SessionCheck, energies_of, served_of
from gpubench.analysis.views.transfer import Piece
from gpubench.base import units
from gpubench.model import Series, View
from gpubench.stats import Interval

_NONE = "–"
_P99_SAMPLES, _P999_SAMPLES = 1000, 10_000  # so that ten samples lie beyond the percentile
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
_B_STAR = ("B* both ends", "B* write only", "B* read only")
_EVEN_HEADS = ("case", "device", "ratio", "compress", "decompress", *_B_STAR)
_NAMED_HEADS = ("case", "device", "link", "staged", "overlapped", "write only", "read only")
_CROSSED_HEADS = (
    "case",
    "device",
    "ratio",
    "raw",
    "staged",
    "overlapped",
    "upper bound",
    "overlap efficiency",
    "verdict",
    "model",
)
_TIMES = tuple(f"{time} {share}" for time in ("first token", "per token", "last token") for share in ("p50", "p99"))
_KNEE_HEADS = ("model", "device", "batch", "prompt", "output", "objectives", "highest rate", "tokens", *_TIMES[:4])
_RATE_HEADS = ("model", "device", "rate", *_TIMES, "goodput server", "goodput interactive", "queue")
_SESSION_HEADS = (
    "case",
    "queries",
    "time",
    *(f"p50{suffix}" for suffix in ("", ", simulated", ", error")),
    *(f"p99{suffix}" for suffix in ("", ", simulated", ", error", ", 95 % interval of the error")),
)
_ENERGY_HEADS = ("case", "energy", "power")
_LATENCY_HEADS = ("case", "queries", "median", "p90", "p99")
_PAID_HEADS = ("operator", "provider", "device", "compared with", "call", "call there", "speed-up", *STATES.values())
_PAID_NOTE = (
    "The number of calls after which a provider has earned back what its build costs more than that of the library "
    "beside it; in brackets that library's time for these calls, and the 95 % interval. At most: the run has no build "
    "by that library"
)
_ROUNDED = 1 - 1e-9  # so that a whole number with a rounding error is not rounded up
_MOST_DIGITS = 1e7  # a smaller number of calls is written in full
_SERVING_NOTE = "LoadGen scenario Server, simulated from measured steps and prefills; not an MLPerf result"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts with one cell per head in each row; `words` are the heads of columns without figures.

    `note` explains the columns.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[str, ...]
    note: str = ""


def level_table(staircase: Staircase) -> Table:
    """Return the levels of one curve, from the first cache to memory, beside the sizes that the device reports."""
    label = "" if staircase.line.label in staircase.title else f", {staircase.line.label}"
    rows = tuple(_level(step) for step in staircase.steps)
    sources = [f"{size.name}: {size.source}" for step in staircase.steps for size in step.known]
    note = "; ".join(["A level ends at the largest working set that it holds", *sources])
    return Table(f"Levels: {staircase.title}{label}", _LEVEL_HEADS, rows, _LEVEL_HEADS[-1:], note)


def _level(step: Step) -> tuple[str, ...]:
    height, end = step.height, step.end
    points = "1 point" if step.points == 1 else f"{step.points} points"
    return (
        step.text,
        units.interval(height.low, height.high, step.unit, height.centre),
        units.significant(step.cycles) if step.cycles is not None else _NONE,
        f"{units.brief_size(step.smallest)} – {units.brief_size(step.largest)} ({points})",
        units.brief_size(end.centre) if end else "not reached",
        f"{units.brief_size(end.low)} – {units.brief_size(end.high)}" if end else _NONE,
        "; ".join(_known(step, end)) or _NONE,
    )


def _known(step: Step, end: Interval | None) -> Iterator[str]:
    for size in step.known:
        ratio = f", × {end.centre / size.bytes:.2f}" if end else ""
        yield f"{size.name} {units.brief_size(size.bytes)}{ratio}"


def transfer_tables(transfers: Transfers) -> list[Table]:
    """Return a table of the models, with a row per piece, and one of the crossovers if there are any."""
    is_size = transfers.axis.endswith("_bytes")
    rows = tuple(row for path in transfers.paths for row in _pieces(path, is_size))
    tables = [Table(f"Transfer model: {transfers.title}", _PATH_HEADS, rows, _PATH_HEADS[:1])]
    if transfers.crossovers:
        crossed = tuple(
            (
                crossover.below,
                crossover.above,
                _place(crossover.size.centre, is_size),
                f"{_place(crossover.size.low, is_size)} – {_place(crossover.size.high, is_size)}",
                _place(crossover.fitted, is_size) if crossover.fitted else _NONE,
            )
            for crossover in transfers.crossovers
        )
        tables.append(Table(f"Crossovers: {transfers.title}", _CROSSOVER_HEADS, crossed, _CROSSOVER_HEADS[:2]))
    if rows := fastest_rows(transfers):
        heads = (f"{units.axis_label(transfers.by[0])} among", "fastest")
        tables.insert(0, Table(f"Fastest by {units.axis_label(transfers.axis)}: {transfers.title}", heads, rows, heads))
    return tables


def _pieces(path: Path, is_size: bool) -> Iterator[tuple[str, ...]]:
    """Yield a row per piece; the first row also has the values of the whole path."""
    model = path.model
    half = _place(model.half.centre, is_size) if model.half else _NONE
    for index, piece in enumerate(model.pieces):
        of_path = (half, units.percent(model.residual)) if index == 0 else ("", "")
        yield (path.line.label if index == 0 else "", *_piece(path, piece, is_size), *of_path)


def _piece(path: Path, piece: Piece, is_size: bool) -> tuple[str, str, str, str]:
    rate = path.rate(piece)
    return (
        f"{_place(path.sizes[piece.first], is_size)} – {_place(path.sizes[piece.last], is_size)}",
        units.quantity(piece.alpha_s, "s"),
        units.quantity(rate, path.unit) if math.isfinite(rate) else _NONE,
        _place(piece.half, is_size) if math.isfinite(piece.half) else _NONE,
    )


def _place(value: float, is_size: bool) -> str:
    return units.brief_size(value) if is_size else units.significant(value)


def derived_tables(summary: Summary, suite: str) -> list[Table]:
    """Return all tables of a suite's views, and the table of its tail latencies."""
    views = next((info.views for info in summary.run.manifest.suites if info.name == suite), ())
    return [*(table for view in views for table in view_tables(summary, suite, view)), *tail_tables(summary, suite)]


def tail_tables(summary: Summary, suite: str) -> list[Table]:
    """Return the percentiles of every series that has enough samples, from the rank with the highest p99."""
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
                *(units.quantity(value, "s") if value else _NONE for value in tail),
            )
            key = (result.case.id, result.devices, series.label)
            rows[key] = max(rows.get(key, (0.0, cells)), (tail[1] or 0.0, (*cells, str(len(series.values)))))
    table_rows = tuple(cells for _, cells in rows.values())
    return [Table(f"Tails: {suite}", _TAIL_HEADS, table_rows, _TAIL_HEADS[:2])] if table_rows else []


def tail_samples(series: Series) -> float:
    """Return the samples that a series needs for percentiles: 1000 single calls, or 10 000 batches."""
    if judged_unit(series) != "s" or judged_better(series) != "less":
        return math.inf
    return _P99_SAMPLES if series.mode == "each" else _P999_SAMPLES


def tail_of(series: Series) -> tuple[float, float | None, float | None, float]:
    """Return median, 99th and 99.9th percentile (if ten samples lie beyond) and maximum in seconds."""
    values = judged_values(series).tolist()
    count = len(values)
    p99 = stats.quantile(values, 0.99) if count >= _P99_SAMPLES else None
    p999 = stats.quantile(values, 0.999) if count >= _P999_SAMPLES else None
    return stats.median(values), p99, p999, max(values)


def view_tables(summary: Summary, suite: str, view: View) -> list[Table]:
    """Return the tables of a staircase, transfer, break-even, serving or amortisation view; other kinds have none."""
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


def payoff_tables(payoffs: Payoffs) -> list[Table]:
    """Return break-even links of each codec, verdicts over measured links, and modelled verdicts over named links."""
    tables = []
    if payoffs.crossings:
        note = "Rates count uncompressed bytes. The upper bound is that of perfect overlap (docs/compression.md)"
        rows = tuple(map(_crossing, payoffs.crossings))
        text_heads = ("case", "device", *_CROSSED_HEADS[-2:])
        tables.append(Table(f"Measured: {payoffs.title}", _CROSSED_HEADS, rows, text_heads, note))
    if payoffs.codecs:
        note = "Over a link slower than B*, compression pays even without overlap"
        rows = tuple(map(_break_even, payoffs.codecs))
        tables.append(Table(payoffs.title, _EVEN_HEADS, rows, _EVEN_HEADS[:2], note))
    named = tuple(row for payoff in payoffs.codecs for row in _over_named(payoff, payoffs))
    if named:
        note = "Computed from the rates above and the rate of the link; staged and overlapped have a device at each end"
        title = f"Modelled, not measured: {payoffs.title}"
        tables.append(Table(title, _NAMED_HEADS, named, _NAMED_HEADS, note))
    return tables


def _crossing(payoff: Payoff) -> tuple[str, ...]:
    bound, share, speedup, raw = payoff.bound, payoff.share, payoff.speedup, payoff.raw
    by_model = breakeven.modelled(bound / raw.centre) if bound and raw else _NONE
    rates = [units.quantity(rate.centre, "B/s") if rate else _NONE for rate in (raw, payoff.staged, payoff.overlapped)]
    return (
        payoff.case.id,
        ", ".join(payoff.devices),
        units.significant(payoff.coded.ratio, 3),
        *rates,
        units.quantity(bound, "B/s") if bound else _NONE,
        units.percent(share) if share else _NONE,
        breakeven.verdict(speedup) if speedup else _NONE,
        by_model,
    )


def _break_even(payoff: Payoff) -> tuple[str, ...]:
    coded = payoff.coded
    links = (coded.message, coded.write_only, coded.read_only)
    return (
        payoff.case.id,
        ", ".join(payoff.devices),
        units.significant(coded.ratio, 3),
        *(units.quantity(rate, "B/s") if math.isfinite(rate) else _NONE for rate in (coded.compress, coded.decompress)),
        *(_link_rate(rate) for rate in links),
    )


def _link_rate(rate: float) -> str:
    """Return the rate of a break-even link in GB/s and Gb/s; `never` if compression never pays."""
    if not math.isfinite(rate):
        return _NONE
    return f"{units.quantity(rate, 'B/s', 3)} ({units.significant(rate * 8e-9, 3)} Gb/s)" if rate > 0 else "never"


def _over_named(payoff: Payoff, payoffs: Payoffs) -> Iterator[tuple[str, ...]]:
    coded = payoff.coded
    for link in payoffs.links:
        rates = (
            coded.serial("apart", link.rate),
            coded.pipelined("apart", link.rate),
            coded.pipelined("write", link.rate),
            coded.pipelined("read", link.rate),
        )
        verdicts = (breakeven.modelled(rate / link.rate) for rate in rates)
        yield (payoff.case.id, ", ".join(payoff.devices), link.name, *verdicts)


def amortisation_tables(title: str, operators: Sequence[Amortised]) -> list[Table]:
    """Return the table of the calls after which providers have earned back their cost, a row for each comparison."""
    rows = tuple(_amortised(operator) for operator in operators if operator.paid)
    return [Table(title, _PAID_HEADS, rows, (*_PAID_HEADS[:4], *STATES.values()), _PAID_NOTE)] if rows else []


def _amortised(operator: Amortised) -> tuple[str, ...]:
    paid = {payment.cache: paid_words(operator, payment) for payment in operator.paid}
    times = (units.quantity(seconds, "s") for seconds in (operator.seconds, operator.eager_seconds))
    speedup = breakeven.times(operator.speedup)
    states = (paid.get(cache, _NONE) for cache in STATES)
    return (operator.operator, operator.by, ", ".join(operator.devices), operator.eager, *times, speedup, *states)


def paid_words(operator: Amortised, paid: PaidAfter) -> str:
    """Return when a provider has paid: `after 626 calls (0.4 s of work; 600 – 655)`, `at once` or `never`."""
    calls = paid.calls
    if math.isinf(calls.centre):
        return "never"
    if calls.high == 0:
        return "at once"
    work = units.quantity(operator.work_s(paid), "s", 2)
    low, high = _calls(calls.low), _calls(calls.high)
    between = f"; {low} – {high}" if low != high else ""
    return f"after {'at most ' if paid.is_bound else ''}{_calls(calls.centre)} calls ({work} of work{between})"


def _calls(calls: float) -> str:
    if math.isinf(calls):
        return "never"
    return str(math.ceil(calls * _ROUNDED)) if calls < _MOST_DIGITS else units.significant(calls, 3)


def serving_tables(models: Sequence[Serving]) -> list[Table]:
    """Return the highest rates within the objectives, the latencies over rate, and sessions beside their simulation."""
    if not models:
        return []
    limits = (f"{name}: {first_s:g} s and {token_s:g} s" for name, first_s, token_s in map(_limits, OBJECTIVES))
    note = f"{_SERVING_NOTE}. Objectives on p99, first token and per token: {', '.join(limits)}; batch: the largest one"
    knees = tuple(_knee(model, objectives.name, point) for model in models for objectives, point in model.knees)
    tables = [Table("Highest rate within the objectives", _KNEE_HEADS, knees, ("model", "device", "objectives"), note)]
    rates = tuple(_rate(model, point) for model in models for point in model.points)
    tables.append(Table(models[0].title, _RATE_HEADS, rates, ("model", "device", "queue"), _SERVING_NOTE))
    sessions = tuple(_session(session) for model in models for session in model.sessions)
    latencies = tuple(_latency(latency) for measured in models for latency in measured.latencies)
    if latencies:
        title, note = "LoadGen scenarios, not MLPerf results: time of a query", "p90 from 64 queries, p99 from 662"
        tables.append(Table(title, _LATENCY_HEADS, latencies, _LATENCY_HEADS[:1], note))
    if sessions:
        title = "Simulation beside measured sessions with the same arrivals"
        note = "The error is the share by which the simulation exceeds the measured time; p99 needs 662 queries"
        tables.append(Table(title, _SESSION_HEADS, sessions, ("case", "time"), note))
    return tables


def energy_tables(energies: Sequence[tuple[str, Energy]]) -> list[Table]:
    """Return the energy per token of cases as a table; an empty list without cases."""
    rows = tuple((case, energy.figure, units.quantity(energy.watts, "W")) for case, energy in energies)
    return [Table("Energy per token", _ENERGY_HEADS, rows, _ENERGY_HEADS[:1])] if rows else []


def _latency(latencies: Latencies) -> tuple[str, ...]:
    times = (
        _NONE if value is None else units.quantity(value, "s")
        for value in (latencies.median, latencies.p90, latencies.p99)
    )
    return (latencies.case, str(latencies.queries), *times)


def _limits(objectives: Objectives) -> tuple[str, float, float]:
    return objectives.name, objectives.first_token_s, objectives.token_s


def _knee(served: Serving, objectives: str, point: RatePoint | None) -> tuple[str, ...]:
    sizes = map(str, (served.times.slots, served.load.prompt, served.load.output))
    start = served.label, ", ".join(served.devices), *sizes, objectives
    if point is None:
        return (*start, "none meets them", *(_NONE for _ in _KNEE_HEADS[7:]))
    rates = units.quantity(point.rate, "query/s"), units.quantity(point.rate * served.load.output, "token/s")
    return (*start, *rates, *_pairs(point.first_token_s, point.token_s))


def _rate(served: Serving, point: RatePoint) -> tuple[str, ...]:
    goodput = (units.quantity(rate, "query/s") for rate in point.goodput)
    return (
        served.label,
        ", ".join(served.devices),
        units.quantity(point.rate, "query/s"),
        *_pairs(point.first_token_s, point.token_s, point.whole_s),
        *goodput,
        "sustained" if point.is_sustained else "not sustained",
    )


def _pairs(*pairs: tuple[float, float | None]) -> Iterator[str]:
    """Yield the median and the 99th percentile of each pair as texts."""
    return (_NONE if value is None else units.quantity(value, "s") for pair in pairs for value in pair)


def _session(session: SessionCheck) -> tuple[str, ...]:
    p99 = session.p99
    cells = (*_percentile(session.p50), *(_percentile(p99) if p99 else (_NONE,) * 3))
    errors = p99.errors if p99 else None
    interval = f"{100 * errors[0]:+.1f} to {100 * errors[1]:+.1f} %" if errors else _NONE
    return (session.case, str(session.queries), session.time, *cells, interval)


def _percentile(percentile: SimulatedPercentile) -> tuple[str, ...]:
    times = (units.quantity(seconds, "s") for seconds in (percentile.measured, percentile.simulated))
    return (*times, f"{100 * percentile.error:+.1f} %")
