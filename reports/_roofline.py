"""Draw the roofline of a run: every case that declares operations and bytes, under the peaks of its device.

Williams, Waterman & Patterson, "Roofline: an insightful visual performance model", CACM 52 (2009)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import FEWEST_POINTS, MOST_TOOLTIPS, Chart, legend_of
from ._svg import Axis, axis

_TOP, _WIDTH, _HEIGHT = 22.0, 880.0, 320.0
_BOTTOM = _HEIGHT - 42
_LINE = 13.0  # drawing units between two names of roofs
_NAMES = 205.0  # drawing units beside the plot, for the names of roofs
_RATE, _INTENSITY = "FLOP/s", "FLOP/B"
_MEMORY = "dram"


@dataclass(frozen=True, slots=True)
class _RooflinePoint:
    """A case in the roofline: `intensity` is in FLOP/B, `rate` in FLOP/s, and `limit` is the name of its peak.

    `limit` is empty if the peak is unknown."""

    case_id: str
    intensity: float
    rate: float
    limit: str

    @property
    def text(self) -> str:
        """The tooltip of the point: case id, rate in FLOP/s, arithmetic intensity, and limit, `unknown` without one."""
        return (
            f"{self.case_id}: {gb.units.quantity(self.rate, _RATE)} at {gb.units.significant(self.intensity)} "
            f"{_INTENSITY}, limit {self.limit or 'unknown'}"
        )


@dataclass(frozen=True, slots=True)
class _Roofs:
    """The peaks of a device: the memory bandwidth in B/s (None if unknown), and names with rates in FLOP/s or OP/s."""

    memory: float | None
    compute: tuple[tuple[str, float], ...]


def rooflines(summary: gb.Summary) -> list[Chart]:
    """Return a roofline for each device with at least three cases of at least two arithmetic intensities.

    Cases that are not ok, use several devices, or declare no operations or no bytes are left out."""
    places_by_device: dict[str, list[_RooflinePoint]] = {}
    figures: dict[str, list[gb.Figure]] = {}
    for spread in summary.spreads():
        if spread.figure and spread.status == "ok" and len(spread.devices) == 1:
            figures.setdefault(spread.devices[0], []).append(spread.figure)
            places_by_device.setdefault(spread.devices[0], []).extend(_places(spread))
    several = sum(len(places) > 1 for places in places_by_device.values()) > 1
    return [
        _chart(places, figures[device], f" of {device}" if several else "")
        for device, places in places_by_device.items()
        if len({place.intensity for place in places}) > 1 and len(places) >= FEWEST_POINTS
    ]


def _places(spread: gb.Spread) -> Iterator[_RooflinePoint]:
    """Yield the point of a case; none if its headline is not a time in seconds with declared operations and bytes."""
    result = spread.row.result
    series = gb.headline(result)
    if series is None or series.unit != "s" or not (series.work.flops > 0 and series.work.moved > 0):
        return
    seconds = gb.stats.median(
        [gb.stats.median(timed.values) for row in spread.rows if (timed := gb.headline(row.result)) is not None]
    )
    if seconds > 0:
        yield _RooflinePoint(
            result.case.id, series.work.flops / series.work.moved, series.work.flops / seconds, series.limit
        )


def _chart(places: Sequence[_RooflinePoint], figures: Sequence[gb.Figure], device: str) -> Chart:
    """Return the roofline of the cases `places`; `figures` give the peaks."""
    spec, best = _roofs(figures, "spec"), _roofs(figures, "best")
    rates = [place.rate for place in places] + [rate for roofs in (spec, best) for _, rate in roofs.compute]
    up = axis(rates, _RATE, _BOTTOM, _TOP, log=True, room=1.5)
    ridges = [rate / spec.memory for _, rate in spec.compute] if spec.memory else []
    reached = [*(place.intensity for place in places), *ridges]
    across = axis(reached, "", svg.left_of(up), _WIDTH - _NAMES, log=True, room=1.5)
    limits = list(dict.fromkeys(place.limit for place in places))
    colours = {limit: svg.colour(index) for index, limit in enumerate(limits)}
    has_tooltips = len(places) <= MOST_TOOLTIPS
    parts = [svg.frame(across, up, f"arithmetic intensity, {_INTENSITY}", "")]
    parts += [*_draw_roofs(best, across, up, "roof reached"), *_draw_roofs(spec, across, up, "peak roof")]
    parts += [
        svg.dot(
            across.place(place.intensity),
            up.place(place.rate),
            4.0,
            colours[place.limit],
            place.text if has_tooltips else "",
        )
        for place in places
    ]
    parts += _names(spec, across, up)
    description = f"Roofline{device}: {len(places)} cases; " + "; ".join(_highest_rates(places, limits))
    lines = [
        "dashed: peaks of the data sheet" if spec.memory or spec.compute else "",
        "solid: best of this run" if best.memory or best.compute else "",
    ]
    note = ", ".join(filter(None, [f"{len(places)} cases", *lines]))
    legend = legend_of([limit or "unknown limit" for limit in limits])
    return Chart(
        f"All cases that declare both operations and bytes{device}",
        note,
        svg.picture(description, _HEIGHT, *parts, width=_WIDTH),
        legend,
    )


def _names(roofs: _Roofs, across: Axis, up: Axis) -> Iterator[Markup]:
    together = dict[float, list[str]]()
    for name, rate in roofs.compute:
        together.setdefault(rate, []).append(name.removeprefix("tensor."))
    y = -_LINE
    for rate, names in sorted(together.items(), reverse=True):
        y = max(up.place(rate) + 4, y + _LINE)
        yield svg.text(across.end + 6, y, f"{gb.units.quantity(rate, _RATE, 3)} {', '.join(names)}", class_="value")
    if roofs.memory:
        label = f"{_MEMORY} {gb.units.quantity(roofs.memory, 'B/s')}"
        middle = across.low * (min(up.high / roofs.memory, across.high) / across.low) ** 0.45
        yield svg.text(across.place(middle) - 12, up.place(middle * roofs.memory) - 6, label, "end", "value")


def _highest_rates(places: Sequence[_RooflinePoint], limits: Iterable[str]) -> Iterator[str]:
    """Yield for each of `limits`, names of peaks, the highest rate under it as text: `dram up to 1.2 TFLOP/s`."""
    for limit in limits:
        best = max((place for place in places if place.limit == limit), key=lambda place: place.rate)
        yield f"{limit or 'no limit'} up to {gb.units.quantity(best.rate, _RATE)}"


def _roofs(figures: Iterable[gb.Figure], basis: Literal["spec", "best"]) -> _Roofs:
    """Return the peaks of one basis, such as `spec` (data sheet), with which `figures` are compared."""
    memory: float | None = None
    compute: dict[str, float] = {}
    for figure in figures:
        share = figure.share_of(basis)
        if share and figure.unit == "B/s" and share.limit == _MEMORY:
            memory = share.peak
        elif share and figure.unit in (_RATE, "OP/s"):
            compute[share.limit] = share.peak
    return _Roofs(memory, tuple(compute.items()))


def _draw_roofs(roofs: _Roofs, across: Axis, up: Axis, class_: str) -> Iterator[Markup]:
    highest = max((rate for _, rate in roofs.compute), default=up.high)
    if roofs.memory:
        start, end = max(across.low, up.low / roofs.memory), min(across.high, highest / roofs.memory)
        if start < end:
            places = [(across.place(x), up.place(x * roofs.memory)) for x in (start, end)]
            yield svg.line(*places[0], *places[1], class_)
    for _, rate in roofs.compute:
        left = min(max(rate / roofs.memory, across.low), across.high) if roofs.memory else across.low
        yield svg.line(across.place(left), up.place(rate), across.end, up.place(rate), class_)
