"""Counters over a run as drawings: what ran, and a line for every counter of a device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from gpubench.api import CounterTable, Result, Run, Track, event_names, extremes, units

from . import _svg as svg
from ._cases import rise_unit
from ._charts import Chart
from ._ticks import Axis, axis

MOST_POINTS = 600  # of a line: the least and the greatest of each of 300 spans, so that no spike is lost
_LEFT, _RIGHT, _TOP, _BOTTOM, _HEIGHT = 90.0, svg.WIDTH - 16, 22.0, 110.0, 134.0
_LANE = 20.0
_APART, _NARROW = 0.5, 1.0  # drawing units: what is nearer is not seen apart, what is wider is drawn alone

Numbers = npt.NDArray[np.float64]
_Span = tuple[Result, float, float]  # a case from one moment to another


@dataclass(slots=True)
class _Group:
    """Cases that are drawn as one, from `left` to `right` in drawing units."""

    left: float
    right: float
    results: list[Result]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The charts of one device, on one time axis."""

    device: str
    charts: tuple[Chart, ...]


def timelines(run: Run, table: CounterTable) -> list[Timeline]:
    """A timeline for each device that has samples, from the first sample of the run to the last."""
    tracks = [track for track in map(_drawable, table.tracks) if len(track.at)]
    if not tracks:
        return []
    begin, end = min(track.at[0] for track in tracks), max(track.at[-1] for track in tracks)
    across = _seconds(float(end - begin))
    devices = list(dict.fromkeys(track.device for track in tracks))
    return [_timeline(device, tracks, run, float(begin), across, lanes=device == devices[0]) for device in devices]


def _seconds(span: float) -> Axis:
    """An axis of time that ends where the run does, not at a round number."""
    plain = axis([0.0, span], "", _LEFT, _RIGHT)
    ticks = tuple((place, label) for place, label in plain.ticks if place <= span or span <= 0)
    return dataclasses.replace(plain, high=span, ticks=ticks) if span > 0 else plain


def _drawable(track: Track) -> Track:
    """The track as it is drawn: of a cumulative counter, its rise a second between readings."""
    if track.counter.kind != "cumulative":
        return track
    spans = np.diff(track.at)
    there = spans > 0
    return Track(track.counter, track.device, track.at[1:][there], np.diff(track.values)[there] / spans[there])


def _timeline(device: str, tracks: Sequence[Track], run: Run, begin: float, across: Axis, *, lanes: bool) -> Timeline:
    wanted = [
        result
        for result in run.results
        if result.window[1] > result.window[0] and (device == "host" or device in result.devices)
    ]
    untimed = _untimed(run.results) if lanes else []
    charts = [_lanes(device, wanted, untimed, begin, across)] if lanes and (wanted or untimed) else []
    bands = _bands(wanted, begin, across)
    for track in tracks:
        if track.device == device:
            draw = _events if track.counter.kind == "event" else _counter
            charts.append(draw(track, begin, across, bands))
    return Timeline(device, tuple(charts))


def _untimed(results: Sequence[Result]) -> list[tuple[Result, float]]:
    """What failed before it was timed, and when: it has no window, but stands between those that have one."""
    found, last = [], 0.0
    for result in results:
        if result.window[1] > result.window[0]:
            last = result.window[1]
        elif result.status == "failed":
            last += result.elapsed_s
            found.append((result, last))
    return found


def _lanes(
    device: str, results: Sequence[Result], untimed: Sequence[tuple[Result, float]], begin: float, across: Axis
) -> Chart:
    suites = list(dict.fromkeys(result.case.suite for result in [*results, *(result for result, _ in untimed)]))
    bottom = _TOP + _LANE * len(suites)
    parts = [_time_axis(across, bottom)]
    parts += [
        svg.text(across.start - 6, _TOP + _LANE * row + 14, svg.shorten(suite, 12), "end")
        for row, suite in enumerate(suites)
    ]
    crosses = [*untimed, *((result, result.window[1]) for result in results if result.status == "failed")]
    timed = _by_suite((result, *result.window) for result in results)
    ended = _by_suite((result, at, at) for result, at in crosses)
    for row, suite in enumerate(suites):
        parts += [_windows(group, row) for group in _grouped(timed.get(suite, ()), begin, across)]
        parts += [_failures(group, row) for group in _grouped(ended.get(suite, ()), begin, across)]
    failed = len(untimed) + sum(result.status == "failed" for result in results)
    note = "when each one ran" + (f"; crosses: {failed} failed" if failed else "")
    words = f"When each case ran on {device}: {', '.join(suites)}" + (f"; {failed} failed" if failed else "")
    return Chart("cases", note, svg.picture(words, bottom + 24, *parts))


def _by_suite(spans: Iterable[_Span]) -> dict[str, list[_Span]]:
    found: dict[str, list[_Span]] = {}
    for span in spans:
        found.setdefault(span[0].case.suite, []).append(span)
    return found


def _grouped(spans: Iterable[_Span], begin: float, across: Axis, widest: float = _NARROW) -> list[_Group]:
    """The cases by where they are drawn: those that cannot be told apart, of thousands, as one shape of this width."""
    groups: list[_Group] = []
    for result, start, end in sorted(spans, key=lambda span: span[1]):
        left, right = across.place(start - begin), across.place(end - begin)
        last = groups[-1] if groups else None
        if last and left < last.right + _APART and right < last.left + widest:
            last.right = max(right, last.right)
            last.results.append(result)
        else:
            groups.append(_Group(left, right, [result]))
    return groups


def _words(results: Sequence[Result], said: str) -> str:
    more = f" and {len(results) - 1} more" if len(results) > 1 else ""
    return f"{results[0].case.id}{more}{said}"


def _failures(group: _Group, row: int) -> Markup:
    """A cross where cases failed."""
    first, x, y = group.results[0], group.left, _TOP + _LANE * row + 10
    words = _words(group.results, f" failed: {first.reason or first.cause}")
    cross = f"M{svg.number(x - 4)} {svg.number(y - 4)}l8 8m0 -8l-8 8"
    return svg.element("path", *svg.title(words), d=cross, class_="failure")


def _windows(group: _Group, row: int) -> Markup:
    took = sum(result.window[1] - result.window[0] for result in group.results)
    return svg.element(
        "rect",
        *svg.title(_words(group.results, f": {units.duration(took)}")),
        x=group.left,
        y=_TOP + _LANE * row + 4,
        width=max(group.right - group.left - 0.4, 0.6),
        height=_LANE - 7,
        class_=svg.colour(row),
    )


def _bands(results: Iterable[Result], begin: float, across: Axis) -> Markup:
    """All case windows as one light shape behind a line."""
    spans = [(result, *result.window) for result in results]
    height = svg.number(_BOTTOM - _TOP)
    path = "".join(
        f"M{svg.number(group.left)} {svg.number(_TOP)}h{svg.number(max(group.right - group.left, 0.3))}"
        f"v{height}H{svg.number(group.left)}z"
        for group in _grouped(spans, begin, across, math.inf)
    )
    return svg.element("path", d=path, class_="band") if path else Markup("")


def _counter(track: Track, begin: float, across: Axis, bands: Markup) -> Chart:
    counter = track.counter
    rise = counter.kind == "cumulative"
    unit = rise_unit(counter.unit) if rise else counter.unit
    low, high = float(track.values.min()), float(track.values.max())
    up = axis([low, high], unit, _BOTTOM, _TOP, zero=low < 0.5 * high or low == high, count=3)
    at, values = decimate(track.at - begin, track.values)
    places = [(across.place(x), up.place(y)) for x, y in zip(at.tolist(), values.tolist(), strict=True)]
    parts = [bands, *_value_axis(across, up), _time_axis(across, _BOTTOM), svg.polyline(places, "line c0")]
    mean = units.quantity(float(track.values.mean()), unit)
    ends = f"mean {mean}, {units.quantity(low, unit)} to {units.quantity(high, unit)}"
    note = ", ".join(part for part in (ends, "rise of the counter" if rise else "") if part)
    return Chart(
        counter.name, note, svg.picture(f"{counter.name} of {track.device} over time: {ends}", _HEIGHT, *parts)
    )


def _events(track: Track, begin: float, across: Axis, bands: Markup) -> Chart:
    """A lane for each event that ever was, filled while it was."""
    counter, values = track.counter, track.values.astype(np.int64)
    every = int(np.bitwise_or.reduce(values))
    bits = [1 << place for place in range(every.bit_length()) if every >> place & 1]
    bottom = max(_TOP + _LANE * len(bits), _TOP + _LANE)
    parts = [bands if bits else Markup(""), _time_axis(across, bottom)]
    shares = []
    for row, bit in enumerate(bits):
        (name,), there = event_names(counter.name, bit), (values & bit) > 0
        shares.append(f"{name} in {units.percent(float(there.mean()), 0)} of the readings")
        parts.append(svg.text(2.0, _TOP + _LANE * row + 13, svg.shorten(name, 14)))
        parts.append(_spans(track.at - begin, there, counter.period_s, row, across))
    note = "; ".join(shares) or "none in the whole run"
    words = f"{counter.name} of {track.device} over time: {note}"
    return Chart(counter.name, note, svg.picture(words, bottom + 24, *parts))


def _spans(at: Numbers, there: npt.NDArray[np.bool_], period_s: float, row: int, across: Axis) -> Markup:
    """One shape over all times at which an event was: each reading stands for the period before it."""
    top, height, path = svg.number(_TOP + _LANE * row + 3), svg.number(_LANE - 6), []
    edges = np.flatnonzero(np.diff(np.concatenate([[False], there, [False]]).astype(np.int8)))
    for first, past in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        left = across.place(max(float(at[first]) - period_s, 0.0))
        right = max(across.place(float(at[past - 1])), left + 0.6)
        path.append(f"M{svg.number(left)} {top}H{svg.number(right)}v{height}H{svg.number(left)}z")
    return svg.element("path", d="".join(path), class_=svg.colour(row)) if path else Markup("")


def _value_axis(across: Axis, up: Axis) -> list[Markup]:
    parts = [svg.line(across.start, up.place(value), across.end, up.place(value), "grid") for value, _ in up.ticks]
    parts += [svg.text(across.start - 6, up.place(value) + 4, label, "end") for value, label in up.ticks]
    return [*parts, svg.text(2.0, 11.0, up.unit, "start", "name")]


def _time_axis(across: Axis, bottom: float) -> Markup:
    parts = [svg.line(across.start, bottom, across.end, bottom, "axis")]
    parts += [svg.text(across.place(value), bottom + 16, f"{label} s", "middle") for value, label in across.ticks]
    return svg.join(parts)


def decimate(at: Numbers, values: Numbers, most: int = MOST_POINTS) -> tuple[Numbers, Numbers]:
    """At most `most` points that keep every extreme: the least and greatest of equal runs, in time order."""
    kept = extremes(values, most)
    return at[kept], values[kept]
