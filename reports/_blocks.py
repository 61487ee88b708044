"""Build the tables of cases of a run's page: one table per suite, one line per case, and the details of each case."""

import math
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._texts import Anchors, basis_text, interval_text, link, secondary_text, share_brief, tile
from ._web import fragment

_NONE = "–"
_STOPS = {  # why sampling ended, by `Series.stop`
    "interval": "narrow interval",
    "noise": "more samples would not narrow the interval",
    "count": "enough samples",
    "budget": "end of the time budget",
    "drift": "still drifting at the end of the settling time",
}


def heads(summary: gb.Summary, has_roof: bool = True) -> tuple[str, ...]:
    """Return the heads of the columns that `figure_cells` fills.

    With replicates the interval is between the processes."""
    shares = ("% of peak", *(("of roof",) if has_roof else ()))
    return ("median", summary.interval_name, *shares, "noise within process", "between processes", "bound by")


def figure_cells(case: gb.ListedCase, has_roof: bool = True) -> tuple[str, ...]:
    """Return the cells of a case under the heads of `heads`; a dash for an empty text."""
    shares = (case.share, *case.shares[-1:]) if has_roof else (case.share,)
    cells = (case.median, case.interval, *shares, case.within, case.between, case.bound)
    return tuple(text or _NONE for text in cells)


def reason_text(spread: gb.Spread) -> str:
    """Return the reasons of all replicates of a case, each once, joined by semicolons; empty if there is none."""
    reasons = dict.fromkeys(row.result.reason for row in spread.rows)
    return "; ".join(reason for reason in reasons if reason)


def _quoted(row: gb.ResultRow) -> gb.Figure | None:
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


_FEWEST = 5  # the fewest samples of a histogram: fewer show no distribution
_BINS, _WIDTH, _HEIGHT, _TOP = 40, 460.0, 64.0, 6.0
_BOTTOM, _CLIPPED = 44.0, 0.005  # the fraction of many samples that the last bin on either side takes


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram of the samples of one series, and a sentence that describes them."""

    description: str
    drawing: Markup


def distribution(series: gb.Series, figure: gb.Figure) -> Distribution | None:
    """Return the histogram of a series' samples; None for fewer than five samples.

    `figure` is the figure of the series."""
    values = gb.judged_values(series)
    if len(values) < _FEWEST:
        return None
    low, high = float(values.min()), float(values.max())
    inner = (low, high)
    if len(values) > _FEWEST / _CLIPPED:
        inner = gb.stats.quantile(values.tolist(), _CLIPPED), gb.stats.quantile(values.tolist(), 1 - _CLIPPED)
    ends = f"{gb.units.quantity(low, figure.unit)} to {gb.units.quantity(high, figure.unit)}"
    marked = "the median is marked with its 95 % interval within this process"
    description = f"{len(values)} samples of {series.label}, {ends}; {marked}"
    return Distribution(description, _draw_histogram(values, inner, figure, description))


def _draw_histogram(values: np.ndarray, ends: tuple[float, float], figure: gb.Figure, description: str) -> Markup:
    """Draw the histogram of `values`, shape (samples,), in the unit of `figure`."""
    low, high = ends if ends[1] > ends[0] else (ends[0] - 1.0, ends[0] + 1.0)
    bins = min(_BINS, max(8, 2 * math.isqrt(len(values))))
    counts, _ = np.histogram(np.clip(values, low, high), bins, (low, high))

    def place(value: float) -> float:
        return 4.0 + (_WIDTH - 8.0) * (min(max(value, low), high) - low) / (high - low)

    step, tallest = (_WIDTH - 8.0) / bins, max(int(counts.max()), 1)
    path = "".join(
        f"M{svg.number(4 + step * index)} {svg.number(_BOTTOM)}v{svg.number(-(_BOTTOM - _TOP) * count / tallest)}"
        f"h{svg.number(step - 1)}V{svg.number(_BOTTOM)}z"
        for index, count in enumerate(counts.tolist())
        if count
    )
    interval, middle = figure.interval, place(figure.interval.centre)
    parts = [
        svg.element("path", d=path, class_="c0"),
        svg.line(4.0, _BOTTOM, _WIDTH - 4.0, _BOTTOM, "axis"),
        svg.line(place(interval.low), _BOTTOM + 4, place(interval.high), _BOTTOM + 4, "whisker"),
        svg.line(middle, _TOP - 4, middle, _BOTTOM + 7, "whisker"),
        svg.text(4.0, _HEIGHT - 2, gb.units.quantity(low, figure.unit)),
        svg.text(_WIDTH - 4.0, _HEIGHT - 2, gb.units.quantity(high, figure.unit), "end"),
    ]
    return svg.picture(description, _HEIGHT, *parts)


LINES = 2000  # cases in tables: 0.4 kB each
DETAILED = 400  # cases that can be opened: 3 kB each, 0.3 kB packed
INLINE = 40  # with at most this number of cases, the page itself holds the details, which need no script
_Key = tuple[str, tuple[str, ...]]  # a case's id and its device set


@dataclass(frozen=True, slots=True)
class Room:
    """The cases of a page: `lines` have a line in a table, and `detailed`, a part of them, can be unfolded.

    Out of `total`. A case is the pair of its id and its device set."""

    total: int
    lines: frozenset[_Key]
    detailed: frozenset[_Key]

    def shows(self, spread: gb.Spread) -> bool:
        """Return whether a case has a line in a table."""
        return _key(spread) in self.lines

    def opens(self, spread: gb.Spread) -> bool:
        """Return whether a case has details that can be opened."""
        return _key(spread) in self.detailed

    @property
    def inline(self) -> bool:
        """Whether the page itself holds the details of cases, so that they need no script."""
        return len(self.detailed) <= INLINE

    @property
    def left_out(self) -> str:
        """A sentence on the cases and details that the page leaves out; empty if it has everything."""
        order = "failed and invalid cases first, then an even selection of the others. The CSV report has every case."
        if len(self.lines) < self.total:
            opened = f"of which {len(self.detailed)} have their details on this page"
            return f"The tables list {len(self.lines)} of {self.total} cases, {opened}: {order}"
        if len(self.detailed) < self.total:
            return f"{len(self.detailed)} of {self.total} cases have their details on this page: {order}"
        return ""


def room_for(spreads: Sequence[gb.Spread]) -> Room:
    """Return the choice of cases: at most 2000 have a line in a table, and at most 400 of these have details.

    Failed and invalid cases come first; the others are an even selection."""
    listed = _choose(spreads, LINES)
    return Room(len(spreads), frozenset(map(_key, listed)), frozenset(map(_key, _choose(listed, DETAILED))))


def _choose(spreads: Sequence[gb.Spread], most: int) -> list[gb.Spread]:
    """Return at most `most` cases: failed and invalid ones first, then the others."""
    bad = [spread for spread in spreads if spread.status in ("failed", "invalid")]
    first = _choose_evenly(bad, most)
    others = [spread for spread in spreads if spread.status not in ("failed", "invalid")]
    return [*first, *_choose_evenly(others, most - len(first))]


def _choose_evenly(spreads: Sequence[gb.Spread], most: int) -> list[gb.Spread]:
    """Return at most `most` cases, at equal distances in their order."""
    if len(spreads) <= most:
        return list(spreads)
    return [spreads[index * len(spreads) // most] for index in range(most)]


def _key(spread: gb.Spread) -> _Key:
    return spread.rows[0].result.key[:2]


@dataclass
class Blocks:
    """Builds the tables of cases of a page.

    `packed` is empty until `tables` runs; then it holds the details of cases as HTML, which the script of the page
    unfolds."""

    summary: gb.Summary
    room: Room
    packed: list[str] = field(default_factory=list)

    @cached_property
    def _anchors(self) -> Anchors:
        return Anchors.of(self.summary)

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the table of each suite that has a case in `room`, keyed by the suite's name.

        Call it once: it appends to `packed`."""
        totals = dict(self.summary.suites())
        suites = gb.listing(self.summary, shows=self.room.shows)
        return {suite.name: self._table(suite, totals[suite.name]) for suite in suites}

    def _table(self, suite: gb.ListedSuite, spreads: Sequence[gb.Spread]) -> dict[str, Any]:
        return {
            "title": _count_text(len(suite.cases), len(spreads)),
            "ended": _ended_text(spreads),
            "constants": suite.constants,
            "axes": "; ".join(gb.frame.axes_explained(self.summary.results_of(suite.name))),
            "tiles": [tile(value, self._anchors) for value in suite.leading],
            "cases": list(map(self._block, suite.cases)),
        }

    def _block(self, case: gb.ListedCase) -> dict[str, Any]:
        """Return the line of a case, with its details in the line or, if the page has many, in `packed`."""
        spread = case.spread
        details: dict[str, Any] | None = None
        packed: int | None = None
        figures = figure_cells(case)
        if self.room.opens(spread) and spread.status != "skipped":
            details = _details(self.summary, spread)
            if not self.room.inline:
                self.packed.append(fragment("case.html", "more", details))
                details, packed = None, len(self.packed) - 1
        anchor = self._anchors.case(case.case_id, spread.devices)
        return {
            "name": case.name,
            "device": case.device,
            "anchor": anchor,
            "link": link(anchor),
            "status": spread.status,
            "state": case.ended or spread.status,
            "figures": figures,
            "is_empty": set(figures) == {_NONE},
            "beside": secondary_text(self.summary.secondary_figures(spread)) if spread.figure else "",
            "reason": reason_text(spread),
            "details": details,
            "packed": packed,
        }


def _details(summary: gb.Summary, spread: gb.Spread) -> dict[str, Any]:
    result = spread.row.result
    series = gb.headline(result)
    return {
        "replicates": list(replicate_lines(spread)) if summary.replicated else [],
        "series": list(series_lines(summary, spread)),
        "shares": list(share_lines(spread)),
        "method": method_facts(summary, result),
        "counters": list(counter_lines(summary, result)),
        "of": f" (replicate {result.replicate})" if summary.replicated else "",
        "samples": distribution(series, summary.figure(result, series)) if series else None,
    }


def _count_text(listed_count: int, total: int) -> str:
    """Return the title of a table: `40 cases`, or `40 of 200 cases` if `listed_count` is smaller than `total`."""
    if listed_count < total:
        return f"{listed_count} of {total} cases"
    return gb.units.count(total)


def _ended_text(spreads: Sequence[gb.Spread]) -> str:
    counts = Tally(spread.status for spread in spreads)
    noises = sorted(spread.figure.noise for spread in spreads if spread.figure and spread.figure.samples > 1)
    noise = f"; median noise within process {gb.units.percent(noises[len(noises) // 2])}" if noises else ""
    return ", ".join(f"{count} {status}" for status, count in counts.items()) + noise
