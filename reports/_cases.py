"""Write the texts of a case that the page and the Markdown share: its cells in a table, and its details."""

from collections.abc import Iterator

from gpubench.api import report as gb

from ._texts import basis_text, interval_text, share_brief

_NONE = "–"
_STOPS = {  # why sampling ended, by `Series.stop`
    "interval": "narrow interval",
    "noise": "more samples would not narrow the interval",
    "count": "enough samples",
    "budget": "end of the time budget",
    "drift": "still drifting at the end of the settling time",
}


def heads(summary: gb.Summary) -> tuple[str, ...]:
    """Return the heads of the columns that `figure_cells` fills.

    With replicates the interval is between the processes."""
    return ("median", summary.interval_name, "% of peak", "noise within process", "between processes", "bound by")


def figure_cells(case: gb.ListedCase) -> tuple[str, ...]:
    """Return the cells of a case under the heads of `heads`; a dash for an empty text."""
    cells = (case.median, case.interval, case.share, case.within, case.between, case.bound)
    return tuple(text or _NONE for text in cells)


def reason_text(spread: gb.Spread) -> str:
    """Return the reasons of all replicates of a case, each once, joined by semicolons; empty if there is none."""
    reasons = dict.fromkeys(row.result.reason for row in spread.rows)
    return "; ".join(reason for reason in reasons if reason)


def _quoted(row: gb.ResultRow) -> gb.Figure | None:
    """Return the figure of a replicate with status ok or invalid; None for any other replicate."""
    return row.figure if row.result.status in ("ok", "invalid") else None


def _cells(figure: gb.Figure) -> tuple[str, str, str, str, str]:
    """Return median, 95 % interval, share of the main peak, noise and number of samples as texts."""
    return (
        figure.text,
        interval_text(figure),
        share_brief(figure) or _NONE,
        gb.units.percent(figure.noise) if figure.samples > 1 else _NONE,
        str(figure.samples),
    )


def replicate_lines(spread: gb.Spread) -> Iterator[tuple[object, ...]]:
    """Yield for each replicate: number, median, interval, noise, samples, and status with labels; dashes if unknown."""
    for row in spread.rows:
        figure, result = _quoted(row), row.result
        median, interval, _, noise, samples = _cells(figure) if figure else (_NONE,) * 5
        state = ", ".join((result.status, *row.labels))
        yield (result.replicate, median, interval, noise, samples, state)


def series_lines(summary: gb.Summary, spread: gb.Spread) -> Iterator[tuple[object, ...]]:
    """Yield for each series, the headline first: name, median, interval, share, noise, samples, and how it was timed.

    The replicates that have the status of the case's row are joined."""
    of_status = spread.row.result.status
    results = [row.result for row in spread.rows if row.result.status == of_status]
    ranks = len({series.rank for result in results for series in result.series}) > 1
    impossible = {share.series: share.label for row in spread.rows for share in row.impossible}
    grouped: dict[tuple[str, int], list[tuple[gb.Result, gb.Series]]] = {}
    for result in results:
        for series in result.series:
            grouped.setdefault((series.label, series.rank), []).append((result, series))
    for (name, rank), measured in grouped.items():
        figure = gb.Figure.over_replicates([summary.figure(result, series) for result, series in measured])
        median, _, share, noise, _ = _cells(figure)
        share += f" {impossible[name]}" if name in impossible else ""
        interval = interval_text(figure, len(measured) if len(measured) > 1 else figure.samples)
        title = f"{name} (rank {rank})" if ranks else name
        yield (title, median, interval, share, noise, figure.samples, _timing_text(measured[0][1]))


def share_lines(spread: gb.Spread) -> Iterator[tuple[str, ...]]:
    """Yield basis, share, peak and source for each known peak of the headline of a case that is ok or invalid."""
    figure = _quoted(spread.row)
    for share in figure.shares if figure else ():
        peak = gb.units.quantity(share.peak, figure.unit) if figure else ""
        yield (f"{basis_text(share)}, {share.limit}", gb.units.percent(share.fraction), peak, share.source)


def _timing_text(series: gb.Series) -> str:
    """Return how a series was timed: `612.4 µs per call, 20 calls per sample, stopped: narrow interval`."""
    call = gb.units.quantity(gb.stats.median(series.values), series.unit) if series.quantity != "value" else ""
    parts = [f"{call} per call"] if call else []
    parts += [f"{series.calls} calls per sample"] if series.calls > 1 else []
    parts += [f"warm-up {gb.units.duration(series.warmup_s)}"] if series.warmup_s > 0 else []
    parts += [f"stopped: {_STOPS.get(series.stop, series.stop)}"] if series.stop else []
    return ", ".join(parts)


def method_facts(summary: gb.Summary, result: gb.Result) -> list[tuple[str, str]]:
    """Return the facts about the measurement of a result as pairs of a name and a text, with its notes at the end.

    Energy and counters are given only for a result with status ok."""
    facts = [
        ("case", result.case.id),
        ("device", " + ".join(result.devices)),
        ("method version", str(result.case.version)),
    ]
    facts += [("duration", gb.units.duration(result.elapsed_s))] if result.elapsed_s > 0 else []
    facts += [("ranks", str(result.case.ranks))] if result.case.ranks > 1 else []
    facts += [("cause", result.cause)] if result.cause else []
    discarded = ", ".join(f"{count} {reason}" for reason, count in result.discarded)
    facts += [("discarded samples", discarded)] if discarded else []
    energy = summary.energy(result)
    if result.status == "ok":
        counters = gb.case_counters(summary, result)
        reasons = ", ".join(f"{reason.name} for {gb.units.duration(reason.seconds)}" for reason in counters.throttled)
        facts += [("energy", energy.text)]
        facts += [("bound by", counters.bound.text)] if counters.bound else []
        facts += [("device memory", counters.traffic.text)] if counters.traffic else []
        facts += [("throttled", reasons)] if reasons else []
    return [*facts, *result.notes]


def counter_lines(summary: gb.Summary, result: gb.Result) -> Iterator[tuple[object, ...]]:
    """Yield name, device, mean, range and samples of each counter that has readings in the time window of `result`.

    A cumulative counter shows its rise per second; a counter of events names the events that occurred."""
    for figure in summary.counters.during(result):
        if figure.counter.kind == "event":
            names = ", ".join(bit.name for bit in figure.counter.events(int(figure.mean))) or "none"
            yield (figure.counter.name, figure.device, names, _NONE, figure.samples)
            continue
        unit = rise_unit(figure.counter.unit) if figure.counter.kind == "cumulative" else figure.counter.unit
        mean, low, high = (gb.units.quantity(value, unit) for value in (figure.mean, figure.low, figure.high))
        span = _NONE if figure.low == figure.high else f"{low} – {high}"
        yield (figure.counter.name, figure.device, mean, span, figure.samples)


def rise_unit(unit: str) -> str:
    """Return the unit of the rise per second of a cumulative counter in `unit`.

    `J` becomes `W`, `core·s` becomes `core`, and any other unit `x` becomes `x/s`."""
    return "W" if unit == "J" else unit.removesuffix("·s") if unit.endswith("·s") else f"{unit}/s"
