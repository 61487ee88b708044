"""Draw a transfer view: rates or times over size on logarithmic axes, the fitted models dashed, and the crossovers."""

import math
from collections.abc import Iterator

from gpubench.api import report as gb

from . import _charts, _svg
from . import _svg as svg


def transfer(summary: gb.Summary, suite: str, view: gb.View) -> list[_charts.Chart]:
    """Return a chart for each unit of a transfer view: its curves and models, with tables of models and crossovers."""
    return [_chart(view_transfers, view) for view_transfers in gb.Transfers.of(summary, suite, view)]


def _chart(view_transfers: gb.Transfers, view: gb.View) -> _charts.Chart:
    points = [point for path in view_transfers.paths for _, point in path.line.points]
    unit, peak = points[0].figure.unit, _charts.peak_of_all(points)
    values = [end for point in points for end in (point.figure.interval.low, point.figure.interval.high)]
    up = _svg.axis([*values, *([peak[1]] if peak else [])], unit, _charts.BOTTOM, _charts.TOP, log=True, room=1.2)
    across = _charts.x_axis(
        [size for path in view_transfers.paths for size in path.sizes], view, svg.left_of(up), log=True
    )
    parts = [
        svg.frame(across, up, gb.units.axis_label(view.x), _charts.quantity_name(points)),
        _charts.peak_line(peak, [path.line for path in view_transfers.paths], across, up),
    ]
    for index, path in enumerate(view_transfers.paths):
        parts += [svg.polyline(places, f"model {svg.colour(index)}") for places in _models(path, across, up)]
        parts.append(_charts.line_of(path.line, svg.colour(index), across, up))
    paths = {path.line.label: path for path in view_transfers.paths}
    for crossover in view_transfers.crossovers:
        place = _ring(paths[crossover.below], crossover.size)
        parts.append(svg.dot(across.place(crossover.size.centre), up.place(place), 6.0, "ring", crossover.text))
    rings = "rings: measured crossovers" if view_transfers.crossovers else ""
    note = ", ".join(filter(None, (_charts.common_text(points, view), "dashed: fitted models", rings)))
    legend = _charts.legend_of([path.line.label for path in view_transfers.paths])
    drawing = svg.picture(_description(view_transfers), _charts.HEIGHT, *parts)
    return _charts.Chart(
        view_transfers.title, note, drawing, legend, tuple(view_transfers.tables), full=True, beside=True
    )


def _description(view_transfers: gb.Transfers) -> str:
    paths = "; ".join(f"{path.line.label} {path.text}" for path in view_transfers.paths)
    crossed = "; ".join(crossover.text for crossover in view_transfers.crossovers)
    return f"{view_transfers.title}: {paths}" + (f"; {crossed}" if crossed else "")


def _models(path: gb.TransferFit, across: _svg.Axis, up: _svg.Axis) -> Iterator[list[tuple[float, float]]]:
    """Yield for each piece of a model the points (x, y) of a line, two for each doubling of the size."""
    for piece in path.model.pieces:
        low, high = path.sizes[piece.first], path.sizes[piece.last]
        count = max(round(2 * math.log2(high / low)), 1)
        sizes = [low * (high / low) ** (step / count) for step in range(count + 1)]
        yield [(across.place(size), up.place(path.height(size, piece.seconds(size)))) for size in sizes]


def _ring(below: gb.TransferFit, size: gb.stats.Interval) -> float:
    """Return the height of the measured curve `below` at the size from which another curve is faster."""
    low, high = below.times[size.low].centre, below.times[size.high].centre
    share = math.log(size.centre / size.low) / math.log(size.high / size.low)
    return below.height(size.centre, low * (high / low) ** share)
