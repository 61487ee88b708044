"""Draw a transfer view: rates or times over size on logarithmic axes, the fitted models dashed, and the crossovers."""

import math
from collections.abc import Iterator

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import BOTTOM, HEIGHT, TOP, Chart, legend_of, line_of, peak_line, x_axis
from ._ticks import Axis, axis
from ._views import common_text, peak_of_all, quantity_name


def transfer(summary: gb.Summary, suite: str, view: gb.View) -> list[Chart]:
    """Return a chart for each unit of a transfer view: its curves and models, with tables of models and crossovers."""
    return [_chart(view_transfers, view) for view_transfers in gb.transfers_of(summary, suite, view)]


def _chart(view_transfers: gb.Transfers, view: gb.View) -> Chart:
    """Return the chart of a view: measured points, fitted models, crossovers, and the data sheet's peak if known."""
    points = [point for path in view_transfers.paths for _, point in path.line.points]
    unit, peak = points[0].figure.unit, peak_of_all(points)
    values = [end for point in points for end in (point.figure.interval.low, point.figure.interval.high)]
    up = axis([*values, *([peak[1]] if peak else [])], unit, BOTTOM, TOP, log=True, room=1.2)
    across = x_axis([size for path in view_transfers.paths for size in path.sizes], view, svg.left_of(up), log=True)
    parts = [
        svg.frame(across, up, gb.units.axis_label(view.x), quantity_name(points)),
        peak_line(peak, [path.line for path in view_transfers.paths], across, up),
    ]
    for index, path in enumerate(view_transfers.paths):
        parts += [svg.polyline(places, f"model {svg.colour(index)}") for places in _models(path, across, up)]
        parts.append(line_of(path.line, svg.colour(index), across, up))
    paths = {path.line.label: path for path in view_transfers.paths}
    parts += [_draw_crossover(crossover, paths[crossover.below], across, up) for crossover in view_transfers.crossovers]
    note = ", ".join(
        part for part in (common_text(points, view), "dashed: fitted models", _rings_text(view_transfers)) if part
    )
    legend = legend_of([path.line.label for path in view_transfers.paths])
    drawing = svg.picture(_description(view_transfers), HEIGHT, *parts)
    return Chart(
        view_transfers.title, note, drawing, legend, tuple(gb.transfer_tables(view_transfers)), full=True, beside=True
    )


def _rings_text(view_transfers: gb.Transfers) -> str:
    """Return the part of the subtitle about the rings; empty if the view has no crossover."""
    return "rings: measured crossovers" if view_transfers.crossovers else ""


def _description(view_transfers: gb.Transfers) -> str:
    """Return the models and the crossovers of a view as text, for screen readers."""
    paths = "; ".join(f"{path.line.label} {_fit_text(path)}" for path in view_transfers.paths)
    crossed = "; ".join(_crossover_text(crossover) for crossover in view_transfers.crossovers)
    return f"{view_transfers.title}: {paths}" + (f"; {crossed}" if crossed else "")


def _fit_text(path: gb.TransferFit) -> str:
    """Return the latency and the asymptotic rate of a curve's model: `4.1 µs, 52.3 GB/s`; no rate if it is infinite."""
    first, last = path.model.pieces[0], path.model.pieces[-1]
    rate = path.rate(last)
    beta = f", {gb.units.quantity(rate, path.unit)}" if math.isfinite(rate) else ""
    return f"{gb.units.quantity(first.alpha_s, 's')}{beta}"


def _crossover_text(crossover: gb.Crossover) -> str:
    """Return a crossover as text, with the measured sizes between which it lies."""
    low, at, high = (
        gb.units.brief_size(size) for size in (crossover.size.low, crossover.size.centre, crossover.size.high)
    )
    return f"{crossover.above} is faster than {crossover.below} from {at} on (measured between {low} and {high})"


def _models(path: gb.TransferFit, across: Axis, up: Axis) -> Iterator[list[tuple[float, float]]]:
    """Yield for each piece of a model the points (x, y) of a line, two for each doubling of the size."""
    for piece in path.model.pieces:
        low, high = path.sizes[piece.first], path.sizes[piece.last]
        count = max(round(2 * math.log2(high / low)), 1)
        sizes = [low * (high / low) ** (step / count) for step in range(count + 1)]
        yield [(across.place(size), up.place(_height(path, size, piece.seconds(size)))) for size in sizes]


def _height(path: gb.TransferFit, size: float, seconds: float) -> float:
    """Return the modelled time `seconds` of a call as the view shows it: as a rate, or as the time itself."""
    return size * path.scale / seconds if path.is_rate else seconds


def _draw_crossover(crossover: gb.Crossover, below: gb.TransferFit, across: Axis, up: Axis) -> Markup:
    """Draw a ring on the measured curve `below`, where the other curve becomes faster."""
    seconds = dict(zip(below.sizes, below.seconds, strict=True))
    low, high = seconds[crossover.size.low].centre, seconds[crossover.size.high].centre
    share = math.log(crossover.size.centre / crossover.size.low) / math.log(crossover.size.high / crossover.size.low)
    height = _height(below, crossover.size.centre, low * (high / low) ** share)
    return svg.dot(across.place(crossover.size.centre), up.place(height), 6.0, "ring", _crossover_text(crossover))
