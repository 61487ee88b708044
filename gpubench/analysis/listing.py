"""List the cases of a run by suite, as texts: a short name, a figure with its interval, and its share of one peak."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpubench import stats
from gpubench.analysis.case_counters import case_counters
from gpubench.analysis.figure import Figure, Spread
from gpubench.analysis.peaks import BASES
from gpubench.analysis.summary import Summary
from gpubench.base import units
from gpubench.base.patterns import matches
from gpubench.model import Case

Order = Literal["measured", "share", "noise", "duration"]
_MOST_BESIDE = 3  # the most figures beside a headline
_ONE_DIGIT = 0.00095  # ± 0.1 %: a smaller half width has two digits behind the point


@dataclass(frozen=True, slots=True)
class ListedCase:
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
    common."""

    name: str
    constants: str
    cases: tuple[ListedCase, ...]


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
    spreads = [spread for spread in summary.spreads() if not filters or matches(spread.case.id, filters)]
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
    return ListedSuite(name, "; ".join([*where, *_constants(shared, spreads)]), lines)


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
        spread.case.name + (f"[{axes}]" if axes else "") + (f" {stage}" if stage else ""),
        spread.case.id,
        "+".join(spread.devices) if with_device else "",
        figure.text if figure else "",
        _interval(figure) if figure else "",
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


def _secondary_figures(summary: Summary, spread: Spread, has_stages: bool) -> str:
    """Return the first three secondary figures of a case as text: `compress 12.1 GB/s, ratio 2.1`."""
    figures = [figure for figure in summary.secondary_figures(spread) if has_stages or figure.short == "early"]
    return ", ".join(f"{figure.short} {figure.text}" for figure in figures[:_MOST_BESIDE])


def _interval(figure: Figure) -> str:
    """Return half the width of the interval as `± 0.1 %`, with a second digit if it is smaller than 0.1 %."""
    half_width = figure.interval.half_width
    values = figure.processes if figure.processes > 1 else figure.samples
    if values < 2 or not math.isfinite(half_width):
        return ""
    digits = 1 if half_width >= _ONE_DIGIT else 2
    return f"± {units.percent(half_width, digits)}" + (" range" if values < stats.LEAST_FOR_INTERVAL else "")


def _share(figure: Figure) -> str:
    """Return the share of the data sheet, else of the peak at the measured clock: `95.9 % dram`; empty if unknown."""
    share = figure.share_of("spec") or figure.share_of("clock")
    return f"{units.percent(share.fraction)} {share.limit}" if share else ""


def _of_peak(figure: Figure, basis: Literal["spec", "clock", "best"]) -> str:
    share = figure.share_of(basis)
    return units.percent(share.fraction) if share else ""


def _outcome_text(spread: Spread) -> str:
    """Return how the replicates ended, with cause and labels: `2 ok, 1 failed: wrong answer (loaded)`."""
    counts = spread.statuses
    cause = spread.rows[0].result.cause.replace("-", " ")
    ending = ", ".join(status if count == len(spread.rows) else f"{count} {status}" for status, count in counts.items())
    ending = f"{ending}: {cause}" if cause and spread.status != "ok" else ending
    labels = ", ".join(spread.labels)
    if set(counts) == {"ok"}:
        return labels
    return f"{ending} ({labels})" if labels else ending
