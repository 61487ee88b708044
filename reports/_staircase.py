"""A staircase: the curve, its levels, the 95 % interval of where each ends, and the sizes that the device reports."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from gpubench.api.report import Staircase, Step, Summary, View, level_table, staircases_of, units

from . import _svg as svg
from ._charts import FEWEST_POINTS, Chart, legend_of, line_of, x_axis
from ._ticks import Axis, axis
from ._views import common_words, quantity_name

_TOP, _HEIGHT = 50.0, 330.0
_BOTTOM = _HEIGHT - 60
_KNOWN_LANE, _KNOWN_LANES = 13.0, 2  # between two rows of the names of known sizes, and how many there are


def staircase(summary: Summary, suite: str, view: View) -> list[Chart]:
    """Draw the lines of one view on common axes, with a table of levels for each."""
    found = [each for each in staircases_of(summary, suite, view) if len(each.line.points) >= FEWEST_POINTS]
    return [_chart([each for each in found if each.steps[0].unit == unit], view) for unit in _units(found)]


def _units(found: Sequence[Staircase]) -> list[str]:
    return list(dict.fromkeys(each.steps[0].unit for each in found))


def _chart(found: Sequence[Staircase], view: View) -> Chart:
    points = [point for each in found for _, point in each.line.points]
    ends = [end for point in points for end in (point.figure.interval.low, point.figure.interval.high)]
    up = axis(ends, found[0].steps[0].unit, _BOTTOM, _TOP, log=view.log_y, room=1.2)
    across = x_axis([x for each in found for x, _ in each.line.points], view, svg.left_of(up))
    parts = [svg.frame(across, up, units.axis_label(view.x), quantity_name(points))]
    parts += [_known(found[0].steps, across)] if _is_one(found) else []
    for index, each in enumerate(found):
        parts += [_level(step, index, across, up) for step in each.steps]
        parts.append(line_of(each.line, svg.colour(index), across, up))
        parts += [_names(each.steps, across, up)] if len(found) == 1 else []
    words = "; ".join(f"{view.title}, {each.line.label}: {_words(each.steps)}" for each in found)
    known = (
        "triangles: sizes that the device reports"
        if _is_one(found) and any(step.known for step in found[0].steps)
        else ""
    )
    note = ", ".join(
        part
        for part in (common_words(points, view), "bands: levels, and the 95 % interval of where each ends", known)
        if part
    )
    legend = legend_of([each.line.label for each in found])
    return Chart(
        view.title, note, svg.picture(words, _HEIGHT, *parts), legend, tuple(map(level_table, found)), full=True
    )


def _is_one(found: Sequence[Staircase]) -> bool:
    """Return whether all lines are of one device, so that its known sizes apply to each."""
    return len({point.devices for each in found for _, point in each.line.points}) == 1


def _words(steps: Sequence[Step]) -> str:
    return ", then ".join(
        f"{units.quantity(step.height.centre, step.unit)}"
        + (f" up to {units.brief_size(step.end.centre)}" if step.end else "")
        for step in steps
    )


def _level(step: Step, index: int, across: Axis, up: Axis) -> Markup:
    """Draw a band along a level, and a band over the 95 % interval of its end."""
    left, right = across.place(step.smallest), across.place(step.end.centre if step.end else step.largest)
    y = up.place(step.height.centre)
    level = svg.element("rect", x=left, y=y - 5, width=max(right - left, 1.0), height=10.0, class_=_soft(index))
    if step.end is None:
        return level
    low, high = across.place(step.end.low), across.place(step.end.high)
    band = svg.element("rect", x=low, y=_TOP, width=max(high - low, 1.0), height=_BOTTOM - _TOP, class_=_soft(index))
    return band + level + svg.line(right, _TOP, right, _BOTTOM, "end")


def _soft(index: int) -> str:
    return f"soft {svg.colour(index)}"


def _names(steps: Sequence[Step], across: Axis, up: Axis) -> Markup:
    """Write the end of each level above the plot, and its height beside the level."""
    names = svg.Labels()
    for step in steps:
        if step.end:
            x = across.place(step.end.centre)
            names.add(units.brief_size(step.end.centre), (x, _TOP - 6), (x, _TOP - 19))
    for step in steps:
        cycles = f" · {units.significant(step.cycles, 3)} cycles" if step.cycles is not None else ""
        words = units.quantity(step.height.centre, step.unit, 3) + cycles
        left, right = across.place(step.smallest), across.place(step.largest)
        y, width = up.place(step.height.centre), svg.width_of(words)
        beside = [(right + width / 2 + 14, y + 4)] if right - left < width / 2 else []
        along = [(x, at) for at in (y - 10, y + 19) for x in ((left + right) / 2, right - width / 2)]
        names.add(words, *beside, *along)
    return names.drawn(across.start, svg.WIDTH)


def _known(steps: Sequence[Step], across: Axis) -> Markup:
    """Mark each size that the device reports on the axis, with its name below the ticks."""
    parts, names = [], svg.Labels()
    for known in [known for step in steps for known in step.known]:
        x = across.place(known.bytes)
        parts.append(svg.element("path", d=svg.triangle(x, _BOTTOM), class_="known"))
        lanes = [(x, _BOTTOM + 34 + _KNOWN_LANE * lane) for lane in range(_KNOWN_LANES)]
        names.add(f"{known.name} {units.brief_size(known.bytes)}", *lanes)
    return svg.join(parts) + names.drawn(across.start, svg.WIDTH)
