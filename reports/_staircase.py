"""Draw a staircase view: the curves, their levels with the 95 % interval of each end, and the known cache sizes."""

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import FEWEST_POINTS, Chart, common_text, legend_of, line_of, quantity_name, x_axis
from ._svg import Axis, axis

_TOP, _HEIGHT = 50.0, 330.0
_BOTTOM = _HEIGHT - 60
_KNOWN_LANE, _KNOWN_LANES = 13.0, 2  # the height in drawing units and the number of rows for names of known sizes


def staircase(summary: gb.Summary, suite: str, view: gb.View) -> list[Chart]:
    """Return a chart for each unit of a staircase view, with its curves, their levels and their tables of levels.

    Curves with fewer than three points are left out."""
    curves = gb.Staircase.of(summary, suite, view)
    long = [staircase for staircase in curves if len(staircase.line.points) >= FEWEST_POINTS]
    units = dict.fromkeys(staircase.unit for staircase in long)
    return [_chart([staircase for staircase in long if staircase.unit == unit], view) for unit in units]


def _chart(curves: Sequence[gb.Staircase], view: gb.View) -> Chart:
    """Return the chart of `curves`, which share a unit; the known sizes are marked if all are of one device set."""
    points = [point for staircase in curves for _, point in staircase.line.points]
    ends = [end for point in points for end in (point.figure.interval.low, point.figure.interval.high)]
    up = axis(ends, curves[0].unit, _BOTTOM, _TOP, log=view.log_y, room=1.2)
    across = x_axis([x for staircase in curves for x, _ in staircase.line.points], view, svg.left_of(up))
    parts = [svg.frame(across, up, gb.units.axis_label(view.x), quantity_name(points))]
    parts += [_known_sizes(curves[0], across)] if _is_one_device(curves) else []
    for index, staircase in enumerate(curves):
        parts += _levels(staircase, index, across, up)
        parts.append(line_of(staircase.line, svg.colour(index), across, up))
        parts += [_names(staircase, across, up)] if len(curves) == 1 else []
    description = "; ".join(f"{view.title}, {staircase.line.label}: {_description(staircase)}" for staircase in curves)
    reported_sizes = (
        "triangles: sizes that the device reports"
        if _is_one_device(curves) and any(step.known_sizes for step in curves[0].steps)
        else ""
    )
    bands = "bands: the levels, and the 95 % confidence interval of the end of each"
    note = ", ".join(filter(None, (common_text(points, view), bands, reported_sizes)))
    legend = legend_of([staircase.line.label for staircase in curves])
    return Chart(
        view.title,
        note,
        svg.picture(description, _HEIGHT, *parts),
        legend,
        tuple(table for staircase in curves for table in staircase.tables),
        full=True,
    )


def _is_one_device(curves: Sequence[gb.Staircase]) -> bool:
    return len({point.devices for staircase in curves for _, point in staircase.line.points}) == 1


def _description(staircase: gb.Staircase) -> str:
    """Return the levels as text: `120 ns up to 32 KiB, then 300 ns`."""
    return ", then ".join(
        f"{gb.units.quantity(step.height.centre, step.unit)}"
        + (f" up to {gb.units.brief_size(step.end.centre)}" if step.end else "")
        for step in staircase.steps
    )


def _levels(staircase: gb.Staircase, index: int, across: Axis, up: Axis) -> Iterator[Markup]:
    """Yield a band along each level of the curve at `index`, and one over the 95 % interval of its end."""
    soft = f"soft {svg.colour(index)}"
    for step in staircase.steps:
        left, right = across.place(step.smallest), across.place(step.end.centre if step.end else step.largest)
        y = up.place(step.height.centre)
        level = svg.element("rect", x=left, y=y - 5, width=max(right - left, 1.0), height=10.0, class_=soft)
        if step.end is None:
            yield level
            continue
        low, high = across.place(step.end.low), across.place(step.end.high)
        band = svg.element("rect", x=low, y=_TOP, width=max(high - low, 1.0), height=_BOTTOM - _TOP, class_=soft)
        yield band + level + svg.line(right, _TOP, right, _BOTTOM, "end")


def _names(staircase: gb.Staircase, across: Axis, up: Axis) -> Markup:
    names, steps = svg.Labels(), staircase.steps
    for step in steps:
        if step.end:
            x = across.place(step.end.centre)
            names.add(gb.units.brief_size(step.end.centre), (x, _TOP - 6), (x, _TOP - 19))
    for step in steps:
        cycles = f" · {gb.units.significant(step.cycles, 3)} cycles" if step.cycles is not None else ""
        label = gb.units.quantity(step.height.centre, step.unit, 3) + cycles
        left, right = across.place(step.smallest), across.place(step.largest)
        y, width = up.place(step.height.centre), svg.width_of(label)
        beside = [(right + width / 2 + 14, y + 4)] if right - left < width / 2 else []
        along = [(x, at) for at in (y - 10, y + 19) for x in ((left + right) / 2, right - width / 2)]
        names.add(label, *beside, *along)
    return names.drawn(across.start, svg.WIDTH)


def _known_sizes(staircase: gb.Staircase, across: Axis) -> Markup:
    parts, names = [], svg.Labels()
    for size in [size for step in staircase.steps for size in step.known_sizes]:
        x = across.place(size.bytes)
        parts.append(svg.element("path", d=svg.triangle(x, _BOTTOM), class_="known"))
        lanes = [(x, _BOTTOM + 34 + _KNOWN_LANE * lane) for lane in range(_KNOWN_LANES)]
        names.add(f"{size.name} {gb.units.brief_size(size.bytes)}", *lanes)
    return svg.join(parts) + names.drawn(across.start, svg.WIDTH)
