"""Turn a run into flat lines in SI units, one for each series: the content of CSV, Parquet and data frames.

docs/reports.md lists the columns. pandas is imported only when a frame is requested.

List the cases of a run by suite, as texts: a short name, a figure with its interval, and its share of one peak."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gpubench.analysis.figure import WITHIN_PROCESS, Figure, NoEnergy, ResultRow, Spread
from gpubench.analysis.key_figures import KeyValue, leading_values
from gpubench.analysis.peaks import ABOVE_PEAK, BASES, Basis
from gpubench.analysis.quantities import SUM, headline, judged_better, judged_unit, judged_values
from gpubench.analysis.records import record
from gpubench.analysis.summary import CaseCounters, Summary, case_counters
from gpubench.base import clean, patterns, units
from gpubench.knowledge import words
from gpubench.model import Case, Result, Run

if TYPE_CHECKING:
    import pandas as pd


_MOST_ROWS = 30  # the most rows that a notebook shows


MEANINGS = words.HEADS  # the explanations of heads of tables


def explained(heads: Iterable[str]) -> tuple[str, ...]:
    """Return the explanations of the heads of a table, or of axes: `of roof: share of the limit by …`."""
    return words.explained(heads)


def axes_explained(results: Iterable[Result]) -> tuple[str, ...]:
    """Return the explanations of the axes of the results' cases."""
    return words.explained(units.axis_label(axis) for result in results for axis, _ in result.case.params)


@dataclass(frozen=True, slots=True)
class FrameColumn:
    """A column of the flat lines: its name, the kind of its values, and its meaning in words.

    Values of the kind `whole` are counts. An unknown number is a missing value."""

    name: str
    kind: Literal["text", "number", "whole"]
    meaning: str


COLUMNS = tuple(
    FrameColumn(*description)
    for description in (
        ("case", "text", "id of the case"),
        ("suite", "text", "suite of the case"),
        ("params", "text", "axes of the case as name=value, joined by semicolons"),
        ("device", "text", "ids of the devices, joined by +"),
        ("replicate", "whole", "number of the replicate, from 0"),
        ("status", "text", "ok, skipped, failed or invalid"),
        ("cause", "text", "cause in one word if the status is not ok"),
        ("reason", "text", "sentence with the reason if the status is not ok"),
        ("series", "text", "name of the series: hot, cold, ratio, …"),
        ("rank", "whole", "rank of the process that measured it"),
        (
            "quantity",
            "text",
            "what the figure counts: moved, payload, flops, items, item, value; derived for levels and models",
        ),
        ("unit", "text", "SI unit of median, low, high, lowest and highest"),
        ("better", "text", "whether more or less is better"),
        ("median", "number", "median of the samples"),
        ("low", "number", "lower end of the 95 % confidence interval within this process"),
        ("high", "number", "upper end of the 95 % confidence interval within this process"),
        ("noise", "number", "noise within this process: 1.4826 · MAD / median, a fraction"),
        ("samples", "whole", "number of samples"),
        ("share", "number", "share of the peak named by limit and basis, a fraction"),
        ("limit", "text", "name of the peak: dram, tensor.float16, link.h2d, …"),
        ("basis", "text", "source of the peak: spec (data sheet), clock (measured clock) or best (best of this run)"),
        (
            "labels",
            "text",
            "labels of the case, and above-peak for an impossible share, joined by semicolons",
        ),
        ("share_spec", "number", "share of the peak in the data sheet"),
        ("peak_spec", "number", "the peak of the data sheet"),
        ("share_clock", "number", "share of the peak at the measured clock"),
        ("peak_clock", "number", "the peak at the measured clock"),
        ("share_best", "number", "share of the best figure of this device in this run"),
        ("peak_best", "number", "the best figure of this device in this run"),
        ("share_roof", "number", "share of the roof, for operations and bytes"),
        ("peak_roof", "number", "the roof: a peak, or what the measured rate of reading memory allows"),
        ("work_per_joule", "number", "work of the headline per joule: B/J, FLOP/J, OP/J or items per joule"),
        ("watts", "number", "mean power in the window of the headline"),
        ("bound", "text", "what bounds the headline: compute, DRAM, L2, latency, launch, link, power or host"),
        ("dram_seen", "number", "bytes per second that the memory counters saw in the window of the headline"),
        ("dram_counted", "number", "bytes per second that the headline counts in the same window"),
        ("replicates", "whole", "number of replicates of the headline that are ok"),
        ("within", "number", "noise within a process, a fraction"),
        ("between", "number", "deviation between processes, a fraction"),
        ("lowest", "number", "lowest median of a process"),
        ("highest", "number", "highest median of a process"),
        ("reproducibility", "number", "known deviation of the headline between processes, a fraction"),
        (
            "reproducibility_of",
            "text",
            "source of that deviation: three or more replicates of this run, or a shipped recording",
        ),
    )
)


def lines(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield a dictionary from column name (see `COLUMNS`) to value for each series of a run, in the order measured.

    A result without a series has one line, too. An unknown column is left out or None. Columns on energy, bound and
    replicates are only in the line of a result's headline, which is its first series."""
    spreads = {row.result.key: spread for spread in summary.spreads() for row in spread.rows}
    for result in summary.run.results:
        shared, headline_series = _result_columns(result), headline(result)
        above = {impossible.series for impossible in summary.impossible_shares(result)}
        if not result.series:
            yield shared
        for series, columns in zip(result.series, records(summary, result), strict=True):
            line = shared | columns
            if series.label in above:
                line |= {"labels": ";".join((*result.labels, ABOVE_PEAK))}
            if series is headline_series:
                line |= _headline_columns(summary, result, spreads[result.key])
            yield line


def _headline_columns(summary: Summary, result: Result, spread: Spread) -> dict[str, Any]:
    """Return the columns, by name, that only the line of a result's headline (its first series) has."""
    joined = spread_record(spread) if summary.replicated else {}
    deviation = summary.reproducibility(spread)
    reproducible = (
        {"reproducibility": record(deviation.deviation), "reproducibility_of": deviation.source} if deviation else {}
    )
    energy = energy_record(summary, result)
    energies = {name: energy[name] for name in ("work_per_joule", "watts")}
    return joined | reproducible | energies | counter_record(case_counters(summary, result))


def _result_columns(result: Result) -> dict[str, Any]:
    """Return the columns that all lines of a result share, by name: case, device, replicate, status, reason and labels.

    Several devices are joined by `+`, parameters and labels by semicolons."""
    return {
        "case": result.case.id,
        "suite": result.case.suite,
        "params": ";".join(f"{axis}={value}" for axis, value in result.case.params),
        "device": "+".join(result.devices),
        "replicate": result.replicate,
        "status": result.status,
        "cause": result.cause,
        "reason": result.reason,
        "labels": ";".join(result.labels),
    }


def records(summary: Summary, result: Result) -> Iterator[dict[str, Any]]:
    """Yield a dictionary from column name (see `COLUMNS`) to value for each series of a result, in the order measured.

    It has only the columns of the figure: series, unit, median and interval in SI units, noise, and shares of peaks."""
    for series in result.series:
        shared = {"series": series.label, "rank": series.rank, "quantity": series.quantity}
        yield shared | record(summary.figure(result, series))


def energy_record(summary: Summary, result: Result) -> dict[str, Any]:
    """Return `work_per_joule`, `watts` and `no_energy` of a result's headline (its first series).

    The work is in FLOP, OP, bytes or items. Without an energy figure the first two are None, and `no_energy` gives the
    reason; otherwise it is empty."""
    energy = summary.energy(result)
    if isinstance(energy, NoEnergy):
        return {"work_per_joule": None, "watts": None, "no_energy": energy.reason}
    return {"work_per_joule": record(energy.rate / energy.watts), "watts": record(energy.watts), "no_energy": ""}


def counter_record(counters: CaseCounters) -> dict[str, Any]:
    """Return what bounds a case and its memory traffic: `bound`, `dram_seen` and `dram_counted`.

    `bound` is a label, empty if undecided. The traffic is in B/s, as the counters saw it and as the suite counts it;
    None if unknown."""
    traffic = counters.traffic
    return {
        "bound": counters.bound.label if counters.bound else "",
        "dram_seen": record(traffic.seen) if traffic else None,
        "dram_counted": record(traffic.counted) if traffic else None,
    }


def spread_record(spread: Spread) -> dict[str, Any]:
    """Return the spread of a case's medians over its ok replicates, by column name.

    `replicates` is their number, `within` and `between` are the noise within and between processes as a fraction,
    `lowest` and `highest` are medians in SI units; a value that is not defined is None."""
    lowest, highest = spread.ends
    return {
        "replicates": len(spread.medians),
        "within": record(spread.within),
        "between": record(spread.between),
        "lowest": record(lowest),
        "highest": record(highest),
    }


def to_frame(run: Run, samples: bool = False) -> pd.DataFrame:
    """Return a run as a data frame: a row per series, the columns of `COLUMNS`, and a column `axis.NAME` per axis.

    With `samples` it has a row for each sample instead, with `value` in the judged unit of the series and `at` in
    seconds of the run (None for a timing). A result without a series has one row in the first form and none in the
    second."""
    import pandas as pd

    if samples:
        return pd.DataFrame(_samples(run))
    table = pd.DataFrame(lines(Summary(run)), columns=[column.name for column in COLUMNS], dtype=object)
    kinds = {"text": "object", "number": "float64", "whole": "Int64"}
    table = table.astype({column.name: kinds[column.kind] for column in COLUMNS})
    texts = [column.name for column in COLUMNS if column.kind == "text"]
    table[texts] = table[texts].where(table[texts].notna(), "")
    axes = pd.DataFrame(
        [_axis_columns(result) for result in run.results for _ in result.series or (None,)], index=table.index
    )
    return pd.concat([table, axes], axis=1)


def _axis_columns(result: Result) -> dict[str, str | int | float]:
    """Return a column `axis.NAME` for each axis of a result's case."""
    return {f"axis.{axis}": value for axis, value in result.case.params}


def _samples(run: Run) -> Iterator[dict[str, Any]]:
    for result in run.results:
        shared = {name: _result_columns(result)[name] for name in ("case", "suite", "device", "replicate", "status")}
        for series in result.series:
            series_columns = {
                "series": series.label,
                "rank": series.rank,
                "unit": judged_unit(series),
                "better": judged_better(series),
            }
            for index, value in enumerate(judged_values(series).tolist()):
                at = series.at[index] if series.at else None
                yield {**shared, **series_columns, "sample": index, "value": value, "at": at, **_axis_columns(result)}


def to_html(run: Run) -> str:
    """Return the HTML table of the first 30 cases of a run for a notebook; a line below it counts the other cases.

    It has no style sheet and names neither the machine nor its user."""
    summary = Summary(clean.tidy(run))
    rows = [spread.row for spread in summary.spreads()]
    devices = {device for row in rows for device in row.result.devices}
    names = dict.fromkeys(device.name for device in summary.run.manifest.facts.devices if device.id in devices)
    counted = ", ".join(f"{count} {status}" for status, count in summary.counts().items() if count)
    covers = summary.interval_name
    head = "".join(f"<th>{name}</th>" for name in ("case", "median", covers, "of peak", "within", "status"))
    body = "".join(map(_html_row, rows[:_MOST_ROWS]))
    more = f"<p>and {len(rows) - _MOST_ROWS} more cases: to_frame() has them all</p>" if len(rows) > _MOST_ROWS else ""
    title = html.escape(f"{', '.join(names) or 'no device'}: {counted or 'no results'}")
    return f"<p><b>{title}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _html_row(row: ResultRow) -> str:
    """Return one case as `<tr>…</tr>` of the notebook's table; a case that is not ok has only id, status and cause."""
    figure, cells = row.figure, ["", "", "", ""]
    if figure and row.result.status == "ok":
        interval = figure.interval
        span = units.interval(interval.low, interval.high, figure.unit, interval.centre) if figure.samples > 1 else ""
        cells = [figure.text, span, figure.share_text, units.percent(figure.noise) if figure.samples > 1 else ""]
    status = row.result.status if row.result.status == "ok" else f"{row.result.status}: {row.result.cause}"
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in (row.result.case.id, *cells, status)) + "</tr>"


Order = Literal["measured", "share", "noise", "duration"]
_MOST_BESIDE = 3  # the most figures beside a headline
_ALIGNED = 8  # elements of a row of 16-bit numbers that 16 bytes hold


class ListedCase(NamedTuple):
    """One case as texts, which are empty for missing values, with the `spread` that they describe.

    `name` leaves out the axes that all cases of its name share. `device` is empty unless cases of the suite ran on
    different devices. `share` is the share of the main peak, and `shares` has the share of each peak in the order of
    `peaks.BASES`. `within` and `between` are the noise within and between processes. `ended` has the statuses and
    labels, and `beside` the secondary figures."""

    name: str
    case_id: str
    device: str
    median: str
    interval: str
    share: str
    shares: tuple[str, ...]
    within: str
    between: str
    bound: str
    ended: str
    is_ok: bool
    beside: str
    spread: Spread


@dataclass(frozen=True, slots=True)
class ListedSuite:
    """The listed cases of a suite.

    `constants` is a text with the axis values that the names of the cases leave out, and the device set if it is
    common. `interval_name` is the coverage of the intervals, as `Figure.interval_name`. `leading` are its key figures.
    """

    name: str
    constants: str
    cases: tuple[ListedCase, ...]
    interval_name: str = WITHIN_PROCESS
    leading: tuple[KeyValue, ...] = ()


def listing(
    summary: Summary,
    filters: Sequence[str] = (),
    order: Order = "measured",
    top: int | None = None,
    shows: Callable[[Spread], bool] | None = None,
) -> list[ListedSuite]:
    """Return the cases whose id contains one of `filters` (with the wildcards * and ?), by suite; without filters, all.

    `order` is `measured`, or puts the highest `share`, the highest `noise` or the longest `duration` first. Only the
    first `top` cases are returned; None returns all. `shows` chooses among the cases as `filters` does."""
    spreads = [spread for spread in summary.spreads() if not filters or patterns.matches(spread.case.id, filters)]
    spreads = list(filter(shows, spreads)) if shows else spreads
    if order != "measured":
        spreads.sort(key=lambda spread: -_sort_value(spread, order))
    by_suite: dict[str, list[Spread]] = {}
    for spread in spreads[:top]:
        by_suite.setdefault(spread.case.suite, []).append(spread)
    return [_suite(summary, name, suite_spreads) for name, suite_spreads in by_suite.items()]


def _sort_value(spread: Spread, order: Order) -> float:
    """Return the share, the noise or (in seconds) the duration of a case, by which the highest is listed first."""
    figure = spread.figure
    if order == "duration":
        return sum(row.result.elapsed_s for row in spread.rows)
    if figure is None:
        return -math.inf
    return figure.noise if order == "noise" else (figure.share or -math.inf)


def _suite(summary: Summary, name: str, spreads: Sequence[Spread]) -> ListedSuite:
    """Return the suite `name` as listed cases, one for each of its `spreads`, with their common axes and devices."""
    shared = _shared_axes(summary, name)
    devices = {spread.devices for spread in spreads}
    lines = tuple(
        _listed_case(summary, spread, shared.get(spread.case.name, {}), len(devices) > 1) for spread in spreads
    )
    where = [f"on {'+'.join(*devices)}"] if len(devices) == 1 and all(devices) else []
    places = {(spread.case.id, spread.devices) for spread in spreads}
    leading = [value for value in leading_values(summary, name) if (value.case_id, value.devices) in places]
    constants = "; ".join([*where, *_constants(shared, spreads)])
    return ListedSuite(name, constants, lines, summary.interval_name, tuple(leading))


def _shared_axes(summary: Summary, suite: str) -> dict[str, dict[str, str]]:
    grouped: dict[str, dict[str, Case]] = {}
    for result in summary.results_of(suite):
        grouped.setdefault(result.case.name, {})[result.case.id] = result.case
    return {name: _shared(list(cases.values())) for name, cases in grouped.items() if len(cases) > 1}


def _shared(cases: Sequence[Case]) -> dict[str, str]:
    texts = [_axis_texts(case) for case in cases]
    return {axis: text for axis, text in texts[0].items() if all(case_texts.get(axis) == text for case_texts in texts)}


def _axis_texts(case: Case) -> dict[str, str]:
    return {units.axis_label(axis): units.axis_text(axis, value) for axis, value in case.params}


def _constants(shared: Mapping[str, Mapping[str, str]], spreads: Iterable[Spread]) -> list[str]:
    """Return each shared axis value with the names of the cases that have it: `dtype=float32 in read, copy`."""
    names: dict[str, list[str]] = {}
    for name in dict.fromkeys(spread.case.name for spread in spreads):
        for axis, text in shared.get(name, {}).items():
            names.setdefault(f"{axis}={text}", []).append(name)
    return [f"{constant} in {', '.join(case_names)}" for constant, case_names in names.items()]


def _listed_case(summary: Summary, spread: Spread, shared: Mapping[str, str], with_device: bool) -> ListedCase:
    """Return a case over its replicates as texts: name, figure, shares of peaks, noise, bound and outcome."""
    figure = spread.figure
    deviation = summary.reproducibility(spread)
    bound = case_counters(summary, spread.row.result).bound
    axes = ",".join(f"{axis}={text}" for axis, text in _axis_texts(spread.case).items() if axis not in shared)
    stage = figure.name.rpartition(".")[0] if figure else ""
    return ListedCase(
        spread.case.name + (f"[{axes}]" if axes else "") + (f" {stage}" if stage else "") + _remark(spread.case),
        spread.case.id,
        "+".join(spread.devices) if with_device else "",
        figure.text if figure else "",
        figure.half_width_text if figure else "",
        _share(figure) if figure else "",
        tuple(_of_peak(figure, basis) for basis in BASES) if figure else ("",) * len(BASES),
        units.percent(figure.noise) if figure and figure.samples > 1 else "",
        deviation.text if figure and deviation else "",
        bound.label if bound else "",
        _outcome_text(spread),
        spread.status == "ok",
        _secondary_figures(summary, spread, bool(stage)),
        spread,
    )


def _remark(case: Case) -> str:
    """Return what a name, which never changes, does not say: `gemm/aligned` measures misaligned rows at most sizes."""
    n = dict(case.params).get("n", 0)
    is_misaligned = (case.suite, case.name) == ("gemm", "aligned") and isinstance(n, int) and n % _ALIGNED > 0
    return ", misaligned rows" if is_misaligned else ""


def _secondary_figures(summary: Summary, spread: Spread, has_stages: bool) -> str:
    """Return the first three secondary figures of a case as text: `compress 12.1 GB/s, ratio 2.1`."""
    figures = [figure for figure in summary.secondary_figures(spread) if has_stages or figure.short in ("early", SUM)]
    return ", ".join(f"{figure.short} {figure.text}" for figure in figures[:_MOST_BESIDE])


def _share(figure: Figure) -> str:
    """Return the share of the data sheet, else of the peak at the measured clock: `95.9 % dram`; empty if unknown."""
    share = figure.share_of("spec") or figure.share_of("clock")
    return f"{units.percent(share.fraction)} {share.limit}" if share else ""


def _of_peak(figure: Figure, basis: Basis) -> str:
    share = figure.share_of(basis)
    return units.percent(share.fraction) if share else ""


def _outcome_text(spread: Spread) -> str:
    """Return how the replicates ended, with cause and labels: `2 ok, 1 failed: wrong answer (loaded)`."""
    labels = ", ".join(spread.labels)
    if spread.statuses.keys() == {"ok"}:
        return labels
    counts = spread.statuses
    cause = spread.rows[0].result.cause.replace("-", " ")
    ending = ", ".join(status if count == len(spread.rows) else f"{count} {status}" for status, count in counts.items())
    ending = f"{ending}: {cause}" if cause and spread.status != "ok" else ending
    return f"{ending} ({labels})" if labels else ending
