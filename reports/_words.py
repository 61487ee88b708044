"""What a run says in words: its devices, its best figures, and what is wrong or odd about it."""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gpubench.api.report import (
    ABOVE_PEAK,
    ABOVE_PEAK_REASON,
    PROFILE,
    Device,
    Figure,
    Result,
    Row,
    Run,
    Summary,
    source_words,
    stats,
    units,
)

SHARES_HEAD = "% of spec · clock · best"
NOISY = 0.05  # a robust coefficient of variation above this is named: its median is not worth three digits
LEGEND = (
    "GB = 10⁹ B, GiB = 2³⁰ B. Within a process: the 95 % interval of the median of its samples (their range, where "
    "there are fewer than six) and their noise, 1.4826 · MAD / median; neither says what another process would "
    "measure. Between processes: the standard deviation (n - 1) of the medians of fresh processes over their mean, of "
    "three replicates or more. Shares are in % of the specification, of the peak at the clocks measured during the "
    "case, and of the best that the device reached in this run; a dash where that peak is not known."
)
REPLICATED = (
    " Each replicate ran in fresh processes. A case's median is that of the replicates' medians and stands with their "
    "lowest and highest; within is the median of their noise."
)
Level = Literal["bad", "odd", "note"]
_WORST: tuple[Level, ...] = ("bad", "odd", "note")
Namer = Callable[[Result], str]
_BESIDE = 8  # figures beside a headline that are written out
_NAMED = 6  # cases named in a notice; the rest are counted


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing a reader must know: how bad, the sentence, and the first of the cases it is about."""

    level: Level
    text: str
    cases: tuple[str, ...] = ()
    more: int = 0


def measured(summary: Summary) -> list[Device]:
    """The devices that results are of, in the order of the inventory; all of them where there is no result."""
    used = {device for result in summary.run.results for device in result.devices}
    devices = summary.run.manifest.facts.devices
    return [device for device in devices if device.id in used] or list(devices)


def device_words(device: Device) -> str:
    """`host · ExampleCPU · x86-64 · 64 units · 128 GiB`: what tells one device from another."""
    memory = units.round_size(device.memory_bytes) if device.memory_bytes else ""
    count = f"{device.units} units" if device.units else ""
    return " · ".join(part for part in (device.id, device.name, device.arch, count, memory) if part)


def host_words(summary: Summary) -> str:
    """The notice that figures are the host processor's, or nothing where none is."""
    devices = measured(summary)
    hosts = [device.id for device in devices if device.backend == "host"]
    if not hosts:
        return ""
    if len(hosts) == len(devices):
        return "All of these are host CPU figures, not a GPU's."
    return f"What is measured on {', '.join(hosts)} are host CPU figures, not a GPU's."


def count_words(summary: Summary) -> str:
    """`96 ok, 2 skipped, 1 failed, 0 invalid`."""
    return ", ".join(f"{count} {status}" for status, count in summary.counts().items())


def verdict_words(summary: Summary, found: Sequence[Notice]) -> str:
    """What became of the run in a sentence: whether anything is wrong, and how much is odd."""
    counts = summary.counts()
    total = sum(counts.values())
    bad = [f"{counts[status]} {status}" for status in ("failed", "invalid") if counts[status]]
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    measured = f"{counts['ok']} of {_cases(total)} are ok{skipped}"
    wrong = f": {' and '.join(bad)}" if bad else ""
    odd = sum(notice.level == "odd" for notice in found)
    rest = f"; {odd} {'thing is' if odd == 1 else 'things are'} odd" if odd else "" if bad else ", and nothing is odd"
    return f"{'Partial run: ' if not summary.run.complete else ''}{measured}{wrong}{rest}."


def legend_words(summary: Summary) -> str:
    """What the columns mean, for a page's foot, and where deviations between processes were recorded."""
    recorded = source_words(map(summary.reproducibility, summary.spreads()))
    sentence = f" {recorded[0].upper()}{recorded[1:]}." if recorded else ""
    return LEGEND + (REPLICATED if summary.replicated else "") + sentence


def case_namer(run: Run, replicated: bool = False) -> Namer:
    """A function that gives a result's case id, with its device where the run has several, and its replicate."""
    several = len({result.devices for result in run.results}) > 1

    def name(result: Result) -> str:
        device = f" on {'+'.join(result.devices)}" if several and result.devices else ""
        replicate = f" (replicate {result.replicate})" if replicated else ""
        return f"{result.case.id}{device}{replicate}"

    return name


def best_rows(rows: Iterable[Row]) -> list[Row]:
    """The best ok row of each suite, device set, unit and limit, in the order measured; phases of a program have none.

    Beside figures that are held against a limit, those of the same unit that are not (a copy in a cache) have none. A
    limit that two suites are held against is the better one's, unless the other has nothing else to show.
    """
    found: dict[tuple[str, tuple[str, ...], str, str], Row] = {}
    for row in rows:
        if row.figure and row.result.status == "ok" and row.suite != PROFILE:
            key = (row.suite, row.result.devices, row.figure.unit, row.figure.limit)
            found[key] = _better(found.get(key, row), row)
    limited = {key[:3] for key in found if key[3]}
    kept = {key: row for key, row in found.items() if key[3] or key[:3] not in limited}
    first: dict[tuple[tuple[str, ...], str, str], Row] = {}
    for (_, devices, unit, limit), row in kept.items():
        first[devices, unit, limit] = _better(first.get((devices, unit, limit), row), row)
    own = {key: row for key, row in kept.items() if not key[3] or first[key[1:]] is row}
    shown = {key[0] for key in own}
    return [row for key, row in kept.items() if key in own or key[0] not in shown]


def _better(one: Row, other: Row) -> Row:
    if one.figure is None or other.figure is None:
        return one
    if other.figure.better == "more":
        return other if other.figure.interval.centre > one.figure.interval.centre else one
    return other if other.figure.interval.centre < one.figure.interval.centre else one


def share_words(row: Row) -> str:
    """`87.7 % of spec dram`, marked where it is impossible; of the run's own best that no specification is known."""
    figure = row.figure
    if figure is None:
        return ""
    if row.impossible:
        return f"{figure.share_text} ({ABOVE_PEAK})"
    if figure.share is not None and figure.basis == "best" and figure.share >= 1:
        return "no specification known"
    return figure.share_text


def interval_words(figure: Figure, values: int | None = None) -> str:
    """The 95 % interval in the median's own prefix: `4180 – 4221 GB/s`; a dash for a single sample.

    Of fewer than six values, samples unless said, it is their range, and marked so: `4180 – 4221 GB/s (range)`.
    """
    count = figure.samples if values is None else values
    if count < 2:
        return "–"
    interval, mark = figure.interval, " (range)" if count < stats.LEAST_FOR_INTERVAL else ""
    if figure.unit == "B":
        return f"{units.round_size(interval.low)} – {units.round_size(interval.high)}{mark}"
    return units.interval(interval.low, interval.high, figure.unit, interval.centre) + mark


def named_text(figure: Figure) -> str:
    """A figure with its name: `decompress 163.2 GB/s`; the unit alone where it says the same: `32.00 cycles`."""
    name = figure.short
    return figure.text if name == figure.unit else f"{name} {figure.text}"


def beside_words(figures: Sequence[Figure]) -> str:
    """What a case says beside its headline: `decompress 163.2 GB/s, ratio 4.681`; of many only how many."""
    if len(figures) > _BESIDE:
        return f"{len(figures)} more series"
    return ", ".join(map(named_text, figures))


def notices(summary: Summary, rows: Sequence[Row]) -> list[Notice]:
    """Everything wrong or odd, the worst first."""
    run, name = summary.run, case_namer(summary.run)
    each = case_namer(run, summary.replicated)
    found = (
        [] if run.complete else [Notice("bad", "The run is partial: it ended before all of its cases were measured.")]
    )
    found += [Notice("odd", warning) for warning in run.told]
    for status, level in _LEVELS:
        found += _by_reason(run, each, status, level)
    found += [*_above_peak(name, rows), *_noisy(name, rows), *_wide(name, rows), *_discarded(run, each)]
    return sorted(found, key=lambda notice: _WORST.index(notice.level))


_LEVELS: tuple[tuple[str, Level], ...] = (
    ("failed", "bad"),
    ("invalid", "odd"),
    ("skipped", "note"),
)


def _by_reason(run: Run, name: Namer, status: str, level: Level) -> Iterator[Notice]:
    grouped: dict[tuple[str, str], list[str]] = {}
    for result in run.results:
        if result.status == status:
            grouped.setdefault((result.cause, result.reason), []).append(name(result))
    for (cause, reason), cases in grouped.items():
        yield _notice(level, f"{_cases(len(cases))} {status}: {reason or cause or 'no reason given'}", cases)


def _above_peak(name: Namer, rows: Sequence[Row]) -> Iterator[Notice]:
    cases = [f"{name(row.result)} ({row.impossible[0].text})" for row in rows if row.impossible]
    if cases:
        verb = "is" if len(cases) == 1 else "are"
        yield _notice("odd", f"{_cases(len(cases))} {verb} above-peak, {ABOVE_PEAK_REASON}", cases)


def _noisy(name: Namer, rows: Sequence[Row]) -> Iterator[Notice]:
    noisy = [row for row in rows if row.figure and row.figure.noise > NOISY and row.result.status == "ok"]
    noisy.sort(key=lambda row: -row.figure.noise if row.figure else 0.0)
    cases = [f"{name(row.result)} ({units.percent(row.figure.noise)})" for row in noisy if row.figure is not None]
    if cases:
        yield _notice("odd", f"{_cases(len(cases))} with noise within a process above {units.percent(NOISY, 0)}", cases)


def _wide(name: Namer, rows: Sequence[Row]) -> Iterator[Notice]:
    """Medians that are less sure than their noise says: few samples, or samples that drift."""
    wide = [
        row
        for row in rows
        if row.figure and row.result.status == "ok" and row.figure.samples > 1 and row.figure.noise <= NOISY
        if NOISY < row.figure.interval.half_width < math.inf
    ]
    wide.sort(key=lambda row: -row.figure.interval.half_width if row.figure else 0.0)
    cases = [f"{name(row.result)} (± {units.percent(row.figure.interval.half_width)})" for row in wide if row.figure]
    if cases:
        several = (
            "over the processes" if any(row.figure and row.figure.processes > 1 for row in wide) else "within a process"
        )
        words = f"{_cases(len(cases))} with a 95 % interval {several} wider than ± {units.percent(NOISY, 0)}"
        yield _notice("odd", words, cases)


def _discarded(run: Run, name: Namer) -> Iterator[Notice]:
    tally: Tally[str] = Tally()
    cases = []
    for result in run.results:
        tally.update(dict(result.discarded))
        if result.discarded:
            cases.append(name(result))
    if cases:
        reasons = ", ".join(f"{count} {reason}" for reason, count in tally.items())
        yield _notice("note", f"Samples were discarded in {_cases(len(cases))}: {reasons}", cases)


def _cases(count: int) -> str:
    return "1 case" if count == 1 else f"{count} cases"


def _notice(level: Level, text: str, cases: Sequence[str]) -> Notice:
    return Notice(level, text, tuple(cases[:_NAMED]), max(len(cases) - _NAMED, 0))
