"""The lines of a table of cases, in words: what both the page and the Markdown show of a case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpubench.api.report import (
    ABOVE_PEAK,
    BASIS_WORDS,
    WITHIN_PROCESS,
    CaseCounters,
    CounterFigure,
    CounterTable,
    Energy,
    Figure,
    Result,
    Row,
    Series,
    Spread,
    Summary,
    case_counters,
    stats,
    units,
)

from ._words import SHARES_HEAD, beside_words, interval_words

_NONE = "–"
_AS_IT_IS = stats.LEAST_FOR_INTERVAL  # lowest and highest, whatever their number
_HEADS = ("median", WITHIN_PROCESS, SHARES_HEAD, "within", "between")
_REPLICATED_HEADS = ("median", "lowest – highest", SHARES_HEAD, "within", "between")


@dataclass(frozen=True, slots=True)
class CaseLine:
    """One case of a table, its replicates joined; `figures` stand under `heads`.

    A failed or skipped case has no figure that could be quoted. `status` is the worst of the
    replicates, `ended` says how each ended.
    """

    name: str
    axes: str
    tags: tuple[str, ...]
    figures: tuple[str, ...]
    status: str
    ended: str
    labels: tuple[str, ...]
    reason: str
    beside: str
    spread: Spread


@dataclass(frozen=True, slots=True)
class SeriesLine:
    """One series of a case and how it was timed."""

    name: str
    median: str
    interval: str
    share: str
    noise: str
    samples: int
    how: str


@dataclass(frozen=True, slots=True)
class ShareLine:
    """One peak that a case's headline is held against: its share, the peak itself, where that is from."""

    basis: str
    share: str
    peak: str
    source: str


@dataclass(frozen=True, slots=True)
class ReplicateLine:
    """One replicate of a case."""

    replicate: int
    median: str
    interval: str
    noise: str
    samples: str
    status: str


@dataclass(frozen=True, slots=True)
class CounterLine:
    """One counter over a case's window."""

    name: str
    device: str
    mean: str
    span: str
    samples: int


def heads(summary: Summary) -> tuple[str, ...]:
    """The heads of the columns of figures."""
    return _REPLICATED_HEADS if summary.replicated else _HEADS


def case_lines(spreads: list[Spread], summary: Summary) -> list[CaseLine]:
    """A line for each case, tagged with its device where the run has several."""
    devices = len({result.devices for result in summary.run.results}) > 1
    return [_case(summary, spread, devices) for spread in spreads]


def _case(summary: Summary, spread: Spread, devices: bool) -> CaseLine:
    figure, replicated = _quoted(spread.row), summary.replicated
    cells = (_NONE,) * len(_HEADS)
    if figure:
        known = summary.reproducibility(spread)
        between = known.text if known else _NONE
        cells = _joined_cells(spread, figure, between) if replicated else (*_cells(figure)[:-1], between)
    reasons = dict.fromkeys(_reason(row.result) for row in spread.rows)
    return CaseLine(
        spread.case.name,
        ", ".join(f"{units.axis_label(axis)}={units.axis_text(axis, value)}" for axis, value in spread.case.params),
        tuple(tag for tag in (_stage(figure), "+".join(spread.devices) if devices else "") if tag),
        cells,
        spread.status,
        ", ".join(f"{count} {status}" for status, count in spread.statuses.items()) if replicated else spread.status,
        spread.labels,
        "; ".join(reason for reason in reasons if reason),
        beside_words(summary.beside(spread)) if figure else "",
        spread,
    )


def _stage(figure: Figure | None) -> str:
    """Of several stages the one whose figure it is."""
    return figure.name.rpartition(".")[0] if figure else ""


def _quoted(row: Row) -> Figure | None:
    return row.figure if row.result.status in ("ok", "invalid") else None


def _reason(result: Result) -> str:
    return result.reason or (result.cause if result.status != "ok" else "")


def _cells(figure: Figure) -> tuple[str, str, str, str, str]:
    return (
        figure.text,
        interval_words(figure),
        figure.shares_text or _NONE,
        units.percent(figure.noise) if figure.samples > 1 else _NONE,
        str(figure.samples),
    )


def _joined_cells(spread: Spread, figure: Figure, between: str) -> tuple[str, str, str, str, str]:
    medians = spread.medians or (figure.interval.centre,)
    span = replace(figure, interval=stats.Interval(min(medians), figure.interval.centre, max(medians)))
    return (
        figure.text,
        interval_words(span, _AS_IT_IS),
        figure.shares_text or _NONE,
        units.percent(figure.noise),
        between,
    )


def replicate_lines(spread: Spread) -> Iterator[ReplicateLine]:
    """Each replicate of a case, in order; a failed one has no figure."""
    for row in spread.rows:
        figure, result = _quoted(row), row.result
        median, interval, _, noise, samples = _cells(figure) if figure else (_NONE,) * 5
        words = ", ".join((result.status, *row.labels))
        yield ReplicateLine(result.replicate, median, interval, noise, samples, words)


def series_lines(summary: Summary, spread: Spread) -> Iterator[SeriesLine]:
    """Every series of a case, its replicates joined as the headline's are, the headline first."""
    of_status = spread.row.result.status
    results = [row.result for row in spread.rows if row.result.status == of_status]
    ranks = len({series.rank for result in results for series in result.series}) > 1
    impossible = {each.series for row in spread.rows for each in row.impossible}
    grouped: dict[tuple[str, int], list[tuple[Result, Series]]] = {}
    for result in results:
        for series in result.series:
            grouped.setdefault((series.label, series.rank), []).append((result, series))
    for (name, rank), found in grouped.items():
        figure = Figure.joined([summary.figure(result, series) for result, series in found])
        median, _, share, noise, _ = _cells(figure)
        share += f" {ABOVE_PEAK}" if name in impossible else ""
        interval = interval_words(figure, len(found) if len(found) > 1 else figure.samples)
        words = f"{name} (rank {rank})" if ranks else name
        yield SeriesLine(words, median, interval, share, noise, figure.samples, _how(found[0][1]))


def share_lines(spread: Spread) -> Iterator[ShareLine]:
    """The peaks of a case's headline, in the order of the shares in its line."""
    figure = _quoted(spread.row)
    for share in figure.shares if figure else ():
        peak = units.quantity(share.peak, figure.unit) if figure else ""
        yield ShareLine(f"{BASIS_WORDS[share.basis]} {share.limit}", units.percent(share.fraction), peak, share.source)


def _how(series: Series) -> str:
    """How a series was timed: `612.4 µs a call, 20 calls a sample, warm-up 110 ms, stopped: narrow`."""
    call = units.quantity(stats.median(series.values), series.unit) if series.quantity != "value" else ""
    parts = [f"{call} a call"] if call else []
    parts += [f"{series.calls} calls a sample"] if series.calls > 1 else []
    parts += [f"warm-up {units.duration(series.warmup_s)}"] if series.warmup_s > 0 else []
    parts += [f"stopped: {series.stop}"] if series.stop else []
    return ", ".join(parts)


def method_words(summary: Summary, result: Result) -> list[tuple[str, str]]:
    """What else is to know of how a case was measured: name and words."""
    found = [
        ("case", result.case.id),
        ("device", " + ".join(result.devices)),
        ("method version", str(result.case.version)),
    ]
    found += [("took", units.duration(result.elapsed_s))] if result.elapsed_s > 0 else []
    found += [("ranks", str(result.case.ranks))] if result.case.ranks > 1 else []
    found += [("cause", result.cause)] if result.cause else []
    discarded = ", ".join(f"{count} {reason}" for reason, count in result.discarded)
    found += [("discarded samples", discarded)] if discarded else []
    energy = summary.energy(result)
    if result.status == "ok":
        found += [("energy", energy.text if isinstance(energy, Energy) else f"none: {energy.reason}")]
        found += joined_words(case_counters(summary, result))
    return [*found, *result.notes]


def joined_words(found: CaseCounters) -> list[tuple[str, str]]:
    """What the counters of a case's window say of it."""
    words = [("bound by", found.bound.text)] if found.bound else []
    words += [("device memory", found.traffic.text)] if found.traffic else []
    held = ", ".join(f"{reason.name} for {units.duration(reason.seconds)}" for reason in found.throttled)
    return [*words, ("clock held down", held)] if held else words


def counter_lines(table: CounterTable, result: Result) -> Iterator[CounterLine]:
    """The counters during a case; of a cumulative one its rise a second."""
    for figure in table.during(result):
        if figure.counter.kind == "event":
            names = ", ".join(bit.name for bit in figure.counter.events(int(figure.mean))) or "none"
            yield CounterLine(figure.counter.name, figure.device, names, _NONE, figure.samples)
            continue
        unit = rise_unit(figure.counter.unit) if figure.counter.kind == "cumulative" else figure.counter.unit
        yield CounterLine(
            figure.counter.name, figure.device, units.quantity(figure.mean, unit), _span(figure, unit), figure.samples
        )


def _span(figure: CounterFigure, unit: str) -> str:
    if figure.low == figure.high:
        return _NONE
    return f"{units.quantity(figure.low, unit)} – {units.quantity(figure.high, unit)}"


def rise_unit(unit: str) -> str:
    """The unit of a counter's rise a second: joules become watts, core seconds cores."""
    return "W" if unit == "J" else unit.removesuffix("·s") if unit.endswith("·s") else f"{unit}/s"
