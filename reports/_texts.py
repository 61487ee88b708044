"""Write the texts that the page and the Markdown share: devices, shares, intervals, notices, and the head of a run."""

from __future__ import annotations

import itertools
import math
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from gpubench.api import report as gb

from . import _svg as svg

_SCALE = 0.05  # the greatest distance from the median, as a fraction of it, on the picture of the samples
DATA_SHEET_NOTE = "Of data sheet: the share of the peak in the vendor's data sheet."


@dataclass(frozen=True, slots=True)
class Anchors:
    """The rule that names the anchors of cases in a page: their ids, with their devices if `with_devices`."""

    with_devices: bool

    @classmethod
    def of(cls, summary: gb.Summary) -> Anchors:
        """Return the rule for a run: the anchors contain the devices if the run has several device sets."""
        return cls(len({result.devices for result in summary.run.results}) > 1)

    def case(self, case_id: str, devices: tuple[str, ...]) -> str:
        """Return the anchor of a case: `gemm/square[n=64]@cuda:0`, with `_` for white space."""
        where = f"@{'+'.join(devices)}" if devices and self.with_devices else ""
        return "_".join(f"{case_id}{where}".split())


def head(summary: gb.Summary) -> dict[str, Any]:
    """Return the head of the page of a run: its overview as texts, with links to the cases and suites."""
    run_overview, anchors = gb.overview(summary), Anchors.of(summary)
    ticks = f"Ticks: samples, within ± {gb.units.percent(_SCALE, 0)} of the median."
    return {
        "devices": run_overview.devices or ("No device",),
        "conditions": run_overview.conditions,
        "trust": trust_text(run_overview),
        "notes_lead": run_overview.notes_lead[:1].upper() + run_overview.notes_lead[1:],
        "is_trusted": not run_overview.doubts,
        "groups": [
            (group, [tile(value, anchors) for value in values])
            for group, values in itertools.groupby(run_overview.values, lambda value: value.group)
        ],
        "note": f"{key_note(run_overview)} {ticks}".strip(),
        "limitations": run_overview.notes,
        "suites": [(line, f"#{suite_anchor(line.name)}", seconds_text(line.seconds)) for line in run_overview.suites],
    }


def trust_text(run_overview: gb.Overview) -> str:
    """Return `Trustworthy: yes`, or `Trustworthy: no, 2 reasons`, which are the first of `Overview.notes`."""
    return run_overview.brief_trust[:1].upper() + run_overview.brief_trust[1:]


def key_note(run_overview: gb.Overview) -> str:
    """Return the sentences on what the shares of the key figures refer to; empty if no figure has a share."""
    expected = run_overview.expected_note
    sheet = DATA_SHEET_NOTE if any(value.of_spec is not None for value in run_overview.values) else ""
    has_range = any(value.figure.half_width_text.endswith(" range") for value in run_overview.values)
    meaning = [
        f"{text[:1].upper()}{text[1:]}." for text in (expected, *gb.frame.explained(["range"] * has_range)) if text
    ]
    return " ".join((sheet, *meaning)).strip()


def share_text(share: float | None) -> str:
    """Return a share (a fraction) in per cent; empty for None."""
    return gb.units.percent(share) if share is not None else ""


def seconds_text(seconds: float) -> str:
    """Return a duration in seconds as text; empty unless it is positive."""
    return gb.units.duration(seconds) if seconds > 0 else ""


def tile(value: gb.KeyValue, anchors: Anchors) -> dict[str, Any]:
    """Return a key figure as texts; `bar` is its share of the data sheet's peak in per cent, None if unknown."""
    spec = value.of_spec
    return {
        "title": value.title,
        "device": "+".join(value.devices) if anchors.with_devices else "",
        "text": value.figure.text,
        "interval": value.figure.half_width_text,
        "direction": f"{value.figure.better} is better",
        "samples": _ticks(value),
        "of_spec": share_text(spec),
        "bar": round(min(max(100 * spec, 0.0), 100.0), 1) if spec is not None else None,
        "of_expected": share_text(value.of_expected),
        "is_below": value.is_below_expectation,
        "link": link(anchors.case(value.case_id, value.devices)),
    }


def _ticks(value: gb.KeyValue) -> str:
    """Return the path of a picture, 100 wide: a tick for each place on which a sample lies, the median at 50."""
    middle = value.figure.interval.centre
    has_middle = middle and math.isfinite(middle)  # a process without samples has no median
    reaches = ((sample / middle - 1) / _SCALE for sample in value.samples if has_middle)
    places = {round(50 + 49 * min(max(reach, -1), 1)) for reach in reaches} if len(value.samples) > 1 else ()
    return "".join(f"M{svg.number(place)} 0v6" for place in sorted(places))


def suite_anchor(name: str) -> str:
    """Return the anchor of the section of the suite `name`."""
    return "suite-" + "_".join(name.split())


def link(anchor: str) -> str:
    """Return the address of an anchor in the same page: `#` and the quoted anchor."""
    return f"#{quote(anchor, safe='/,=@+:')}"


NOISY = 0.05  # noise above this fraction makes a warning: the median is not worth three digits
LEGEND = (
    "GB = 10⁹ B, GiB = 2³⁰ B. 95 % within process: half the width of the 95 % confidence interval of the median of the "
    "samples; of fewer than six samples, half their range. Noise within process: 1.4826 · MAD / median. Neither "
    "predicts what another process would measure. Between processes: the standard deviation (n - 1) of the medians of "
    "at least three new processes over their mean. % of peak: compared with the data sheet; where that is unknown, "
    "with the peak at the clock measured during the case. Of roof: compared with that peak or, if less, with what the "
    "rate of reading memory in this run allows for the bytes of the case."
)
REPLICATED = (
    " Each replicate ran in new processes: the median of a case is the median of its replicates, 95 % of processes "
    "is half the width of its confidence interval, and the noise within a process is the median over the replicates."
)
Level = Literal["error", "warning", "note"]
_LEVELS: tuple[Level, ...] = ("error", "warning", "note")  # the worst first
Namer = Callable[[gb.Result], str]
_BASES: dict[str, str] = {
    "spec": "peak (data sheet)",
    "clock": "peak at the measured clock",
    "best": "best of this run",
    "roof": "the roof",
}
_PARTIAL = "The run was interrupted before all cases were measured; `gpubench run --resume` continues it."
_BESIDE = 8  # the most figures beside a headline that are written out
_NAMED = 6  # cases that a notice names; the others are counted


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning or a note: `cases` are the first six cases that it is about, `more` is the number of the others."""

    level: Level
    text: str
    cases: tuple[str, ...] = ()
    more: int = 0


def device_text(device: gb.Device) -> str:
    """Return a device as text: `host · ExampleCPU · x86-64 · 64 cores · 128 GiB`; unknown parts are left out."""
    return " · ".join(part for part in (device.id, device.name, device.arch, *device.sizes) if part)


def legend_text(summary: gb.Summary) -> str:
    """Return the text at the foot of a page: what the columns mean, and where recorded deviations come from."""
    recorded = summary.recorded_sources_text
    sentence = f" {recorded[0].upper()}{recorded[1:]}." if recorded else ""
    return LEGEND + (REPLICATED if summary.replicated else "") + sentence


def case_namer(run: gb.Run, replicated: bool = False) -> Namer:
    """Return a function from a result to its name in notices: `gemm/square[n=64] on cuda:0 (replicate 1)`.

    The devices are named only if the run has several device sets, and the replicate only if `replicated`."""
    several = len({result.devices for result in run.results}) > 1

    def name(result: gb.Result) -> str:
        device = f" on {'+'.join(result.devices)}" if several and result.devices else ""
        replicate = f" (replicate {result.replicate})" if replicated else ""
        return f"{result.case.id}{device}{replicate}"

    return name


def basis_text(share: gb.Share) -> str:
    """Return the name of the peak's source: `peak (data sheet)`, `peak at the measured clock` or `best of this run`."""
    return _BASES[share.basis]


def share_of_basis(share: gb.Share) -> str:
    """Return a share in full: `95.9 % of peak (data sheet), dram`."""
    return f"{gb.units.percent(share.fraction)} of {basis_text(share)}, {share.limit}"


def share_brief(figure: gb.Figure) -> str:
    """Return the main share of a figure for a table: `95.9 % dram`; empty if no peak is known."""
    share = figure.main_share
    if share is None:
        return ""
    return f"{gb.units.percent(share.fraction)} {share.limit}" + (" (best of run)" if share.basis == "best" else "")


def interval_text(figure: gb.Figure, values: int | None = None) -> str:
    """Return the 95 % interval with its unit, in the prefix of the median: `4180 – 4221 GB/s`.

    `values` is the number of values behind the interval, None for the number of samples."""
    count = figure.samples if values is None else values
    if count < 2:
        return "–"
    interval, mark = figure.interval, " (range)" if count < gb.stats.LEAST_FOR_INTERVAL else ""
    if figure.unit == "B":
        return f"{gb.units.round_size(interval.low)} – {gb.units.round_size(interval.high)}{mark}"
    return gb.units.interval(interval.low, interval.high, figure.unit, interval.centre) + mark


def named_text(figure: gb.Figure) -> str:
    """Return a figure with its name: `decompress 163.2 GB/s`; without the name if that is the unit: `32.00 cycles`."""
    name = figure.short
    return figure.text if name == figure.unit else f"{name} {figure.text}"


def secondary_text(figures: Sequence[gb.Figure]) -> str:
    """Return figures as one text: `decompress 163.2 GB/s, ratio 4.681`; for more than eight `12 more series`."""
    if len(figures) > _BESIDE:
        return f"{len(figures)} more series"
    return ", ".join(map(named_text, figures))


def notices(summary: gb.Summary, rows: Sequence[gb.ResultRow]) -> list[Notice]:
    """Return every warning and note about a run: errors first, then warnings, then notes.

    `rows` holds one row for each case; its noise, its interval and its shares are checked."""
    run, name = summary.run, case_namer(summary.run)
    replicate_name = case_namer(run, summary.replicated)
    all_notices = [] if run.complete else [Notice("error", _PARTIAL)]
    all_notices += [Notice("warning", warning) for warning in run.messages]
    for status, level in _STATUS_LEVELS:
        all_notices += _by_reason(run, replicate_name, status, level)
    all_notices += [*_above_peak(name, rows), *_noisy(name, rows), *_wide(name, rows), *_discarded(run, replicate_name)]
    return sorted(all_notices, key=lambda notice: _LEVELS.index(notice.level))


_STATUS_LEVELS: tuple[tuple[str, Level], ...] = (
    ("failed", "error"),
    ("invalid", "warning"),
    ("skipped", "note"),
)


def counts_by_level(all_notices: Sequence[Notice]) -> str:
    """Return the number of notices of each level that occurs: `1 error, 2 warnings, 3 notes`; empty without notices."""
    counts = Tally(notice.level for notice in all_notices)
    return ", ".join(gb.units.count(counts[level], level) for level in _LEVELS if counts[level])


def _by_reason(run: gb.Run, name: Namer, status: str, level: Level) -> Iterator[Notice]:
    """Yield a notice of `level` for each distinct cause and reason among the results with `status`."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for result in run.results:
        if result.status == status:
            grouped.setdefault((result.cause, result.reason), []).append(name(result))
    for (cause, reason), cases in grouped.items():
        yield _notice(level, f"{gb.units.count(len(cases))} {status}: {reason or cause or 'no reason given'}", cases)


def _above_peak(name: Namer, rows: Sequence[gb.ResultRow]) -> Iterator[Notice]:
    """Yield one warning about all cases with a rate above a peak of the device; `name` names a result."""
    above = [row for row in rows if row.impossible]
    cases = [f"{name(row.result)} ({_impossible_shares_text(row)})" for row in above]
    if cases:
        verb = "is" if len(cases) == 1 else "are"
        yield _notice(
            "warning",
            f"{gb.units.count(len(cases))} {verb} {above[0].impossible[0].label}, {above[0].impossible[0].reason}",
            cases,
        )


def _impossible_shares_text(row: gb.ResultRow) -> str:
    """Return the first share above a peak, with its series: `cold: 104.3 % of peak at the measured clock, dram`."""
    first = row.impossible[0]
    return f"{first.series}: {share_of_basis(first.share)}"


def _noisy(name: Namer, rows: Sequence[gb.ResultRow]) -> Iterator[Notice]:
    """Yield one warning about all ok cases with more than 5 % of noise within a process, the noisiest first."""
    noisy = [row for row in rows if row.figure and row.figure.noise > NOISY and row.result.status == "ok"]
    noisy.sort(key=lambda row: -row.figure.noise if row.figure else 0.0)
    cases = [f"{name(row.result)} ({gb.units.percent(row.figure.noise)})" for row in noisy if row.figure is not None]
    if cases:
        yield _notice(
            "warning",
            f"{gb.units.count(len(cases))} with more than {gb.units.percent(NOISY, 0)} of noise within a process",
            cases,
        )


def _wide(name: Namer, rows: Sequence[gb.ResultRow]) -> Iterator[Notice]:
    """Yield one warning about all ok cases with at most 5 % of noise but a 95 % interval wider than ± 5 %."""
    wide = [
        row
        for row in rows
        if row.figure and row.result.status == "ok" and row.figure.samples > 1 and row.figure.noise <= NOISY
        if NOISY < row.figure.interval.half_width < math.inf
    ]
    wide.sort(key=lambda row: -row.figure.interval.half_width if row.figure else 0.0)
    cases = [f"{name(row.result)} (± {gb.units.percent(row.figure.interval.half_width)})" for row in wide if row.figure]
    if cases:
        several = (
            "of the processes" if any(row.figure and row.figure.processes > 1 for row in wide) else "within a process"
        )
        wider = f"interval {several} wider than ± {gb.units.percent(NOISY, 0)}"
        yield _notice("warning", f"{gb.units.count(len(cases))} with a 95 % confidence {wider}", cases)


def _discarded(run: gb.Run, name: Namer) -> Iterator[Notice]:
    tally: Tally[str] = Tally()
    cases = []
    for result in run.results:
        tally.update(dict(result.discarded))
        if result.discarded:
            cases.append(name(result))
    if cases:
        reasons = ", ".join(f"{count} {reason}" for reason, count in tally.items())
        yield _notice("note", f"Samples were discarded in {gb.units.count(len(cases))}: {reasons}", cases)


def _notice(level: Level, text: str, cases: Sequence[str]) -> Notice:
    """Return a notice that names the first six of `cases` and counts the others."""
    return Notice(level, text, tuple(cases[:_NAMED]), max(len(cases) - _NAMED, 0))
