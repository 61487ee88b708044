"""Draw the counters of a run over time: when each case ran, and a line for each counter of a device."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._bands import Band, bands, slowdowns_among
from ._cases import rise_unit
from ._charts import Chart
from ._lanes import LANE, TOP, lanes, time_axis, untimed_of, windows
from ._ticks import Axis, axis
from ._zoom import case_chart, event_chart, line_chart

MOST_POINTS = 400  # the most points of a drawn line: the minimum and maximum of each of 200 spans keep every spike
DRAWN_POINTS, LEAST_POINTS = 8_000, 120  # the most of all drawn lines together (70 kB of a page), the least of each
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
        """The least time in seconds between two moments that a drawing shows apart: half a drawing unit."""
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
        (constant if _is_constant(track) else changing).append(track)
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


def _is_constant(track: gb.Track) -> bool:
    """Return True if a counter has one value in the whole run; a counter of events never counts as constant."""
    return track.counter.kind != "event" and bool((track.values == track.values[0]).all())


def _constant_counters(tracks: Sequence[gb.Track], device: str) -> tuple[tuple[str, str], ...]:
    """Return the name and the value of each counter in `tracks` that is of `device`."""
    of_device = [track for track in tracks if track.device == device]
    return tuple((track.counter.name, gb.units.quantity(float(track.values[0]), _unit(track))) for track in of_device)


def _unit(track: gb.Track) -> str:
    """Return the unit in which a counter is drawn: its unit, per second if it is cumulative."""
    return rise_unit(track.counter.unit) if track.counter.kind == "cumulative" else track.counter.unit


def _seconds(span: float) -> Axis:
    """Return an axis of time from 0 to `span` seconds, which ends there and not at a round number."""
    plain = axis([0.0, span], "", _LEFT, _RIGHT)
    ticks = tuple((place, label) for place, label in plain.ticks if place <= span or span <= 0)
    return dataclasses.replace(plain, high=span, ticks=ticks) if span > 0 else plain


def _drawable(track: gb.Track) -> gb.Track:
    """Return the track to draw: for a cumulative counter its rise per second between samples, else the track itself."""
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
    slowdowns = [band for event_bands in events.values() for band in slowdowns_among(event_bands)]
    behind = svg.join([windows(shaded, sheet.begin, sheet.across, TOP, _BOTTOM), *_draw_behind(sheet, slowdowns)])
    for track in of_device:
        yield (
            _events(sheet, track, events[id(track)]) if id(track) in events else _line(sheet, track, slowdowns, behind)
        )


def _rank(track: gb.Track) -> bool:
    """Return the sort key of a counter, which puts the power of the board first."""
    return track.counter.measures is not gb.Measure.BOARD_POWER


def _draw_behind(sheet: _Sheet, slowdowns: Iterable[Band]) -> Iterator[Markup]:
    """Yield a shape for each slowdown, to lie behind a line."""
    for band in slowdowns:
        yield _draw_band(sheet, band, TOP, _BOTTOM - TOP, band.kind, band.name)


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
    parts = [behind, *_value_axis(across, up), time_axis(across, _BOTTOM), svg.polyline(places, "line c0")]
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


def _value_axis(across: Axis, up: Axis) -> list[Markup]:
    """Draw the grid lines and tick labels of the y axis `up`, and its unit."""
    parts = [svg.line(across.start, up.place(value), across.end, up.place(value), "grid") for value, _ in up.ticks]
    parts += [svg.text(across.start - 6, up.place(value) + 4, label, "end") for value, label in up.ticks]
    return [*parts, svg.text(2.0, 11.0, up.unit, "start", "name")]
