"""Draw the counters of a run over time: when each case ran, and a line for each counter of a device."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._blocks import rise_unit
from ._charts import Chart
from ._svg import Axis, axis

TOP, LANE = 22.0, 20.0
_APART, _NARROW = 0.5, 1.0  # drawing units: the least visible gap, and the width of a box that is drawn alone
_PALE_APART = 2.0  # drawing units: the least gap between the windows behind a line

_Span = tuple[gb.Result, float, float]  # a case, its start and its end in seconds


@dataclass(slots=True)
class _Group:
    """Cases that are drawn as one, from `left` to `right` in drawing units; `seconds` is how long they took."""

    left: float
    right: float
    seconds: float
    results: list[gb.Result]


def _lane_of(result: gb.Result) -> str:
    return next(iter(gb.result_lanes([result])))


def untimed_of(results: Sequence[gb.Result]) -> list[tuple[gb.Result, float]]:
    """Return the failed results that have no time window, each with an estimate of its end in seconds of the run.

    The estimate is the end of the result before it plus its own duration. `results` are in the order measured."""
    untimed, last_end = [], 0.0
    for result in results:
        if result.window[1] > result.window[0]:
            last_end = result.window[1]
        elif result.status == "failed":
            last_end += result.elapsed_s
            untimed.append((result, last_end))
    return untimed


def lanes(
    results: Sequence[gb.Result], untimed: Sequence[tuple[gb.Result, float]], begin: float, across: Axis
) -> Chart:
    """Return the chart of when each case ran, with a cross for each failure.

    `results` have a time window; `untimed` are failures without one, with their ends."""
    timed = gb.result_lanes(results)
    names = list(dict.fromkeys([*timed, *(_lane_of(result) for result, _ in untimed)]))
    bottom = TOP + LANE * len(names)
    parts = [time_axis(across, bottom)]
    parts += [
        svg.text(across.start - 6, TOP + LANE * row + 14, svg.shorten(name, 12), "end")
        for row, name in enumerate(names)
    ]
    crosses = [*untimed, *((result, result.window[1]) for result in results if result.status == "failed")]
    ended = [(result, at, at) for result, at in crosses]
    for row, name in enumerate(names):
        parts += [_box(group, row) for group in _group_close(timed.get(name, ()), begin, across)]
        failures = [span for span in ended if _lane_of(span[0]) == name]
        parts += [_cross(group, row) for group in _group_close(failures, begin, across)]
    failed = len(untimed) + sum(result.status == "failed" for result in results)
    note = "when each case ran" + (f"; crosses: {failed} failed" if failed else "")
    description = f"When each case ran: {', '.join(names)}" + (f"; {failed} failed" if failed else "")
    return Chart("cases", note, svg.picture(description, bottom + 24, *parts))


def _group_close(
    spans: Iterable[_Span], begin: float, across: Axis, widest: float = _NARROW, apart: float = _APART
) -> list[_Group]:
    """Return `spans` as shapes in drawing units, where cases that are too close to be seen apart are one shape."""
    groups: list[_Group] = []
    for result, start, end in sorted(spans, key=lambda span: span[1]):
        left, right = across.place(start - begin), across.place(end - begin)
        last = groups[-1] if groups else None
        if last and left < last.right + apart and right < last.left + widest:
            last.right = max(right, last.right)
            last.seconds += end - start
            last.results.append(result)
        else:
            groups.append(_Group(left, right, end - start, [result]))
    return groups


def _tooltip(results: Sequence[gb.Result], ending: str) -> str:
    """Return the id of the first case, the number of the others, and `ending`: `gemm/square[n=64] and 3 more: 2 s`."""
    more = f" and {len(results) - 1} more" if len(results) > 1 else ""
    return f"{results[0].case.id}{more}{ending}"


def _cross(group: _Group, row: int) -> Markup:
    """Draw a cross in lane `row`, counted from 0, where the cases of the group failed; its tooltip gives the reason."""
    first, x, y = group.results[0], group.left, TOP + LANE * row + 10
    tooltip = _tooltip(group.results, f" failed: {first.reason or first.cause}")
    cross = f"M{svg.number(x - 4)} {svg.number(y - 4)}l8 8m0 -8l-8 8"
    return svg.element("path", *svg.title(tooltip), d=cross, class_="failure")


def _box(group: _Group, row: int) -> Markup:
    """Draw a box in lane `row`, counted from 0, over the time in which the cases of the group ran."""
    return svg.element(
        "rect",
        *svg.title(_tooltip(group.results, f": {gb.units.duration(group.seconds)}")),
        x=group.left,
        y=TOP + LANE * row + 4,
        width=max(group.right - group.left - 0.4, 0.6),
        height=LANE - 7,
        class_="c0",
    )


def windows(results: Iterable[gb.Result], begin: float, across: Axis, top: float, bottom: float) -> Markup:
    """Draw the time windows of `results` as one pale shape from `top` to `bottom`, to lie behind a line.

    `begin` is the time in seconds at which the axis starts; the markup is empty without results."""
    spans = [(result, *result.window) for result in results]
    height = svg.number(bottom - top)
    path = "".join(
        f"M{svg.number(group.left)} {svg.number(top)}h{svg.number(max(group.right - group.left, 0.3))}"
        f"v{height}H{svg.number(group.left)}z"
        for group in _group_close(spans, begin, across, math.inf, _PALE_APART)
    )
    return svg.element("path", d=path, class_="band") if path else Markup("")


def time_axis(across: Axis, bottom: float) -> Markup:
    """Draw the axis of seconds under a drawing."""
    parts = [svg.line(across.start, bottom, across.end, bottom, "axis")]
    parts += [svg.text(across.place(value), bottom + 16, f"{label} s", "middle") for value, label in across.ticks]
    return svg.join(parts)


Moments = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Band:
    """The spans of one event: start and end in seconds of the run.

    `kind` is `capped` if the power cap slowed the device down, `slowed` for another reason, and empty if it did not
    slow."""

    name: str
    kind: Literal["", "capped", "slowed"]
    spans: tuple[Moments, ...]
    share: float  # the fraction of the samples in which the event was set


def bands(track: gb.Track, apart_s: float) -> list[Band]:
    """Return a band for each event that occurred.

    The values of `track` are bit masks. Spans less than `apart_s` seconds apart are joined."""
    values = track.values.astype(np.int64)
    all_bits = int(np.bitwise_or.reduce(values)) if len(values) else 0
    event_bands = []
    for bit in track.counter.events(all_bits):
        is_set = (values & bit.mask) > 0
        spans = tuple(_join(_spans(track.at, is_set, track.counter.period_s), apart_s))
        event_bands.append(
            Band(
                bit.name,
                "capped" if bit.kind == "power cap" else "slowed" if bit.slows else "",
                spans,
                float(is_set.mean()),
            )
        )
    return event_bands


def _spans(at: npt.NDArray[np.float64], is_set: npt.NDArray[np.bool_], period_s: float) -> Iterator[Moments]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_set, [False]]).astype(np.int8)))
    for first, past in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield float(at[first]) - period_s, float(at[past - 1])


def _join(spans: Iterable[Moments], apart_s: float) -> list[Moments]:
    """Return `spans`, which are sorted by time, and join spans less than `apart_s` seconds apart."""
    joined: list[Moments] = []
    for start, end in spans:
        if joined and start - joined[-1][1] < apart_s:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return joined


Numbers = npt.NDArray[np.float64]
_GIB = 2.0**30


def line_chart(
    device: str, unit: str, at: Numbers, values: Numbers, slowdowns: Sequence[Band], begin: float
) -> dict[str, Any]:
    """Return a line for the script as a dict: `kind`, `device`, `unit`, `at` (s), `values` and `bands` (the slowdowns).

    `begin` is the time in seconds of the run at which the axis starts."""
    factor, axis_unit = _scale(float(np.abs(values).max()), unit)
    return {
        "kind": "line",
        "device": device,
        "unit": axis_unit,
        "at": np.round(at, 3).tolist(),
        "values": [float(f"{value:.5g}") for value in (values / factor).tolist()],
        "bands": [_band(band, begin) for band in slowdowns],
    }


def event_chart(device: str, event_bands: Sequence[Band], begin: float) -> dict[str, Any]:
    """Return a lane for each event, for the script, as a dict: `kind`, `device` and `bands`.

    `begin` is the time in seconds of the run at which the axis starts."""
    return {"kind": "lanes", "device": device, "bands": [_band(band, begin) for band in event_bands]}


def case_chart(results: Sequence[gb.Result], begin: float) -> dict[str, Any]:
    """Return a lane for each suite, or each phase of a profiled program, for the script, as a dict.

    Its keys are `kind`, `device` (empty) and `bands`, which have the times of the cases."""
    bands = [
        [name, "", [round(at - begin, 3) for _, *span in spans for at in span]]
        for name, spans in gb.result_lanes(results).items()
    ]
    return {"kind": "lanes", "device": "", "bands": bands}


def _band(band: Band, begin: float) -> list[Any]:
    """Return a band as its name, its kind, and a list of the starts and ends of its spans in seconds since `begin`."""
    return [band.name, band.kind, [round(at - begin, 3) for span in band.spans for at in span]]


def _scale(value: float, unit: str) -> tuple[float, str]:
    """Return the factor and the prefixed unit in which to show values up to `value`; bytes are in GiB or MiB."""
    if unit == "B":
        factor, name = (_GIB, "GiB") if value >= _GIB else (2.0**20, "MiB")
        return factor, name
    return gb.units.scale(value, unit)


MOST_POINTS = 400  # the most points of a drawn line: the minimum and maximum of each of 200 spans keep every spike
DRAWN_POINTS, LEAST_POINTS = 4_000, 100  # the most of all drawn lines together (35 kB of a page), the least of each
ZOOM_POINTS = 60_000  # the most of all lines that can be zoomed, together: about 200 kB of a page
_LEFT, _RIGHT, _BOTTOM, _HEIGHT = 90.0, svg.WIDTH - 16, 110.0, 134.0
_HOST = "host"  # the device that every case uses
_NAME = 14.0  # drawing units above a lane of events, for its name


@dataclass(frozen=True, slots=True)
class Timeline:
    """The charts of one device, on one time axis.

    `constant` pairs the name of a counter that never changed with its value."""

    device: str
    charts: tuple[Chart, ...]
    constant: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Timelines:
    """A timeline for each device that has samples, and the numbers from which the script draws zoomable charts.

    `thinned` is the number of samples that `zoom` leaves out."""

    devices: tuple[Timeline, ...] = ()
    zoom: dict[str, Any] | None = None
    thinned: int = 0


@dataclass(slots=True)
class _Sheet:
    """The settings of all charts of a run, and the numbers that their zoomable forms need (`zoom`).

    `begin` is the time of the first sample in seconds, and `across` the axis of time."""

    run: gb.Run
    begin: float
    across: Axis
    points: int
    drawn: int
    zoom: list[dict[str, Any]]
    thinned: int = 0

    @property
    def apart_s(self) -> float:
        return 0.5 * (self.across.high - self.across.low) / (self.across.end - self.across.start)

    def add(self, chart: Chart, numbers: dict[str, Any]) -> Chart:
        """Append `numbers` to `zoom` and return the chart with their index."""
        self.zoom.append(numbers)
        return dataclasses.replace(chart, zoom=len(self.zoom) - 1)


def timelines(summary: gb.Summary) -> Timelines:
    """Return a timeline for each device that has counter samples, the host last.

    All share one axis of time, from the first sample of the run to the last."""
    run = summary.run
    tracks = [track for track in map(_drawable, summary.counters.tracks) if len(track.at)]
    if not tracks:
        return Timelines()
    begin, end = min(float(track.at[0]) for track in tracks), max(float(track.at[-1]) for track in tracks)
    constant: list[gb.Track] = []
    changing: list[gb.Track] = []
    for track in tracks:
        is_constant = track.counter.kind != "event" and bool((track.values == track.values[0]).all())
        (constant if is_constant else changing).append(track)
    count = max(len(changing), 1)
    drawn_points = min(max(DRAWN_POINTS // count, LEAST_POINTS), MOST_POINTS)
    sheet = _Sheet(run, begin, _seconds(end - begin), max(ZOOM_POINTS // count, MOST_POINTS), drawn_points, [])
    devices = sorted(dict.fromkeys(track.device for track in tracks), key=lambda device: device == _HOST)
    drawn = [
        Timeline(
            device,
            tuple(_charts(sheet, device, changing, first=device == devices[0])),
            _constant_counters(constant, device),
        )
        for device in devices
    ]
    ran = [
        [result.case.id, *(round(at - begin, 3) for at in result.window)]
        for result in run.results
        if result.window[1] > result.window[0]
    ]
    return Timelines(tuple(drawn), {"end": end - begin, "cases": ran, "charts": sheet.zoom}, sheet.thinned)


def _constant_counters(tracks: Sequence[gb.Track], device: str) -> tuple[tuple[str, str], ...]:
    """Return the name and the value of each counter in `tracks` that is of `device`."""
    of_device = [track for track in tracks if track.device == device]
    return tuple((track.counter.name, gb.units.quantity(float(track.values[0]), _unit(track))) for track in of_device)


def _unit(track: gb.Track) -> str:
    return rise_unit(track.counter.unit) if track.counter.kind == "cumulative" else track.counter.unit


def _seconds(span: float) -> Axis:
    """Return an axis of time from 0 to `span` seconds, which ends there and not at a round number."""
    plain = axis([0.0, span], "", _LEFT, _RIGHT)
    ticks = tuple((place, label) for place, label in plain.ticks if place <= span or span <= 0)
    return dataclasses.replace(plain, high=span, ticks=ticks) if span > 0 else plain


def _drawable(track: gb.Track) -> gb.Track:
    if track.counter.kind != "cumulative":
        return track
    spans = np.diff(track.at)
    advances = spans > 0
    return gb.Track(
        track.counter, track.device, track.at[1:][advances], np.diff(track.values)[advances] / spans[advances]
    )


def _charts(sheet: _Sheet, device: str, tracks: Sequence[gb.Track], *, first: bool) -> Iterator[Chart]:
    """Yield the charts of a device: the cases if `first`, then its counters, power first."""
    shaded = [
        result
        for result in sheet.run.results
        if result.window[1] > result.window[0] and (device == _HOST or device in result.devices)
    ]
    timed = [result for result in sheet.run.results if result.window[1] > result.window[0]]
    untimed = untimed_of(sheet.run.results)
    if first and (timed or untimed):
        yield sheet.add(lanes(timed, untimed, sheet.begin, sheet.across), case_chart(timed, sheet.begin))
    of_device = sorted((track for track in tracks if track.device == device), key=_rank)
    events = {id(track): bands(track, sheet.apart_s) for track in of_device if track.counter.kind == "event"}
    slowdowns = [band for event_bands in events.values() for band in event_bands if band.kind]
    shapes = (_draw_band(sheet, band, TOP, _BOTTOM - TOP, band.kind, band.name) for band in slowdowns)
    behind = svg.join([windows(shaded, sheet.begin, sheet.across, TOP, _BOTTOM), *shapes])
    for track in of_device:
        yield (
            _events(sheet, track, events[id(track)]) if id(track) in events else _line(sheet, track, slowdowns, behind)
        )


def _rank(track: gb.Track) -> bool:
    return track.counter.measures is not gb.Measure.BOARD_POWER


def _draw_band(sheet: _Sheet, band: Band, top: float, height: float, class_: str, tooltip: str = "") -> Markup:
    """Draw all spans of a band as one shape with the class `class_`; `top` and `height` are in drawing units."""
    path = []
    for start, end in band.spans:
        left = sheet.across.place(max(start - sheet.begin, 0.0))
        right = max(sheet.across.place(end - sheet.begin), left + 0.6)
        path.append(
            f"M{svg.number(left)} {svg.number(top)}H{svg.number(right)}v{svg.number(height)}H{svg.number(left)}z"
        )
    return svg.element("path", *svg.title(tooltip), d="".join(path), class_=class_)


def _line(sheet: _Sheet, track: gb.Track, slowdowns: Sequence[Band], behind: Markup) -> Chart:
    """Return the chart of a counter over time, drawn over the markup `behind`, and add its numbers to the sheet."""
    counter, across = track.counter, sheet.across
    rise, unit = counter.kind == "cumulative", _unit(track)
    low, high = float(track.values.min()), float(track.values.max())
    up = axis([low, high], unit, _BOTTOM, TOP, zero=low < 0.5 * high or low == high, count=3)
    drawn = track.thinned(sheet.drawn)
    moments = (drawn.at - sheet.begin).tolist()
    places = [(across.place(x), up.place(y)) for x, y in zip(moments, drawn.values.tolist(), strict=True)]
    unit_text = svg.text(2.0, 11.0, up.unit, "start", "name")
    parts = [behind, svg.grid_up(across, up), unit_text, time_axis(across, _BOTTOM), svg.polyline(places, "line c0")]
    mean = gb.units.quantity(float(track.values.mean()), unit)
    ends = f"mean {mean}, {gb.units.quantity(low, unit)} to {gb.units.quantity(high, unit)}"
    note = ", ".join(part for part in (ends, "rise of the counter per second" if rise else "") if part)
    description = f"{counter.name} of {track.device} over time: {ends}"
    chart = Chart(counter.name, note, svg.picture(description, _HEIGHT, *parts))
    kept = track.thinned(sheet.points)
    sheet.thinned += len(track.at) - len(kept.at)
    numbers = line_chart(track.device, unit, kept.at - sheet.begin, kept.values, slowdowns, sheet.begin)
    return sheet.add(chart, numbers)


def _events(sheet: _Sheet, track: gb.Track, event_bands: Sequence[Band]) -> Chart:
    counter, across, step = track.counter, sheet.across, LANE + _NAME
    bottom = TOP + step * len(event_bands) + (6 if event_bands else LANE)
    parts = [time_axis(across, bottom)]
    for row, band in enumerate(event_bands):
        top = TOP + step * row
        parts.append(svg.text(across.start, top + 9, band.name))
        parts.append(_draw_band(sheet, band, top + _NAME, LANE - 6, band.kind or svg.colour(7)))
    note = "; ".join(f"{band.name} in {gb.units.percent(band.share, 0)} of the samples" for band in event_bands)
    note = note or "none in the whole run"
    description = f"{counter.name} of {track.device} over time: {note}"
    chart = Chart(counter.name, note, svg.picture(description, bottom + 24, *parts))
    return sheet.add(chart, event_chart(track.device, event_bands, sheet.begin))
