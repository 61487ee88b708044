"""The lines of a table of cases, in words: what both the page and the Markdown show of a result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpubench.api import CounterFigure, CounterTable, Figure, Result, Row, Run, Series, Summary, stats, units

from ._words import interval_words

_NONE = "–"


@dataclass(frozen=True, slots=True)
class CaseLine:
    """One case of a table. A failed or skipped case has no figure that could be quoted."""

    name: str
    axes: str
    tags: tuple[str, ...]
    median: str
    interval: str
    share: str
    noise: str
    samples: str
    status: str
    reason: str
    result: Result


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
class CounterLine:
    """One counter over a case's window."""

    name: str
    device: str
    mean: str
    span: str
    samples: int


def case_lines(rows: list[Row], run: Run) -> list[CaseLine]:
    """A line for each row, tagged with its device and replicate where the run has several."""
    devices = len({result.devices for result in run.results}) > 1
    replicated = len({result.replicate for result in run.results}) > 1
    return [_case(row, devices, replicated) for row in rows]


def _case(row: Row, devices: bool, replicated: bool) -> CaseLine:
    result = row.result
    figure = row.figure if result.status in ("ok", "invalid") else None
    tags = ["+".join(result.devices)] if devices and result.devices else []
    tags += [f"replicate {result.replicate}"] if replicated else []
    return CaseLine(
        result.case.name,
        ", ".join(f"{units.axis_label(axis)}={units.axis_text(axis, value)}" for axis, value in result.case.params),
        tuple(tags),
        *(_cells(figure) if figure else (_NONE,) * 5),
        result.status,
        result.reason or (result.cause if result.status != "ok" else ""),
        result,
    )


def _cells(figure: Figure) -> tuple[str, str, str, str, str]:
    share = figure.share_text or _NONE
    return figure.text, interval_words(figure), share, units.percent(figure.noise), str(figure.samples)


def series_lines(summary: Summary, result: Result) -> Iterator[SeriesLine]:
    """Every series of a result, the headline first."""
    ranks = len({series.rank for series in result.series}) > 1
    for series in result.series:
        median, interval, share, noise, _ = _cells(summary.figure(result, series))
        name = f"{series.name} (rank {series.rank})" if ranks else series.name
        yield SeriesLine(name, median, interval, share, noise, len(series.values), _how(series))


def _how(series: Series) -> str:
    """How a series was timed: `612.4 µs a call, 20 calls a sample, warm-up 110 ms, stopped: narrow`."""
    call = units.quantity(stats.median(series.values), series.unit) if series.quantity != "value" else ""
    parts = [f"{call} a call"] if call else []
    parts += [f"{series.calls} calls a sample"] if series.calls > 1 else []
    parts += [f"warm-up {units.duration(series.warmup_s)}"] if series.warmup_s > 0 else []
    parts += [f"stopped: {series.stop}"] if series.stop else []
    return ", ".join(parts)


def method_words(result: Result) -> list[tuple[str, str]]:
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
    return [*found, *result.notes]


def counter_lines(table: CounterTable, result: Result) -> Iterator[CounterLine]:
    """The counters during a case; of a cumulative one its rise a second."""
    for figure in table.during(result):
        unit = rise_unit(figure.counter.unit) if figure.counter.kind == "cumulative" else figure.counter.unit
        yield CounterLine(
            figure.counter.name, figure.device, units.quantity(figure.mean, unit), _span(figure, unit), figure.samples
        )


def _span(figure: CounterFigure, unit: str) -> str:
    if figure.low == figure.high:
        return _NONE
    return f"{units.quantity(figure.low, unit)} – {units.quantity(figure.high, unit)}"


def rise_unit(unit: str) -> str:
    """The unit of a counter's rise a second: joules become watts."""
    return "W" if unit == "J" else f"{unit}/s"
