"""Build SVG from small functions that return escaped markup; colours are classes of the style sheet."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from gpubench.api import report as gb

_MOST_IN_ONE_UNIT = 1e4  # the highest tick of a logarithmic axis whose ticks share one unit
_LEAST_APART = 15.0  # between two ticks with a digit each: 7 for a digit and 8 for the gap
_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from `low` to `high` in SI units, drawn from `start` to `end` in drawing units.

    A tick is its value in SI units and its label."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[tuple[float, str], ...]
    unit: str  # written once beside the axis; empty where every tick has its own
    factor: float = 1.0  # of `unit`, in SI units

    def place(self, value: float) -> float:
        """Return where a value in SI units is drawn; a value beyond `low` or `high` is drawn at that end."""
        return self.places((value,))[0]

    def places(self, values: Iterable[float]) -> list[float]:
        """Return where values are drawn, as `place` does."""
        low, high, start, length = self.low, self.high, self.start, self.end - self.start
        inside = [low if value < low else high if value > high else value for value in values]
        if self.log:
            span = math.log(high / low)
            return [start + math.log(value / low) / span * length for value in inside]
        span = high - low
        return [start + (value - low) / span * length for value in inside]


def axis(
    values: Sequence[float],
    unit: str,
    start: float,
    end: float,
    *,
    log: bool = False,
    zero: bool = True,
    room: float = 1.0,
    count: int = 5,
    like: float | None = None,
) -> Axis:
    """Return an axis that holds `values`, in the SI unit `unit`, with round ticks; sizes (unit `B`) have binary ticks.

    `start` and `end` are the ends of the axis in drawing units, and `count` is about the number of ticks.
    The unit of the ticks is the one in which the value `like` is written."""
    positive = [value for value in values if value > 0]
    if log and positive:
        low, high = _widen(min(positive), max(positive), log=True)
        low, high = low / room, high * room
        ticks, text, factor = _log_ticks(low, high, unit, count, like)
        return Axis(low, high, start, end, True, ticks, text, factor)
    low, high = _widen(min(values, default=0.0), max(values, default=1.0), log=False)
    low = min(low, 0.0) if zero else low
    return _linear_axis(low, high, unit, start, end, count, like)


def at_values(plain: Axis, values: Iterable[float]) -> Axis:
    """Return the axis with a tick at each of `values`, or `plain` unchanged if their labels would overlap."""
    places = sorted(set(values))
    if (len(places) - 1) * _LEAST_APART > abs(plain.end - plain.start):
        return plain
    apart = min((b - a for a, b in itertools.pairwise(plain.places(places))), default=0.0)
    labels = [f"{place:.0f}" if float(place).is_integer() else f"{place:.6g}" for place in places]
    if not labels or (len(places) > 1 and apart < 7.0 * max(map(len, labels)) + 8):
        return plain
    return dataclasses.replace(plain, ticks=tuple(zip(places, labels, strict=True)))


def _widen(low: float, high: float, *, log: bool) -> tuple[float, float]:
    """Return both ends of an axis, moved apart if they are equal; `log` keeps positive ends positive."""
    if high > low:
        return low, high
    if log:
        return low / 1.5, high * 1.5
    if not low:
        return 0.0, 1.0
    reach = abs(low) * 0.05
    return low - reach, high + reach


def _linear_axis(low: float, high: float, unit: str, start: float, end: float, count: int, like: float | None) -> Axis:
    """Return a linear axis that contains `low` and `high`, with about `count` ticks at round values."""
    step = _step((high - low) / count, binary=unit == "B")
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    places = [index * step for index in range(first, last + 1)]
    if unit == "B":
        return Axis(places[0], places[-1], start, end, False, _binary_ticks(places), "")
    factor, text = gb.units.scale(like or max(abs(low), abs(high)), unit)  # the last tick may be larger than all values
    ticks = tuple((place, f"{place / factor:.6g}") for place in places)
    return Axis(places[0], places[-1], start, end, False, ticks, text, factor)


def _binary_ticks(places: Sequence[float]) -> tuple[tuple[float, str], ...]:
    """Return ticks at sizes in bytes, labelled in the binary unit of the largest: `124GiB`, `124.5GiB`."""
    _, _, unit = gb.units.round_size(max(map(abs, places))).partition(" ")
    factor = next(1024.0**power for power in range(9) if gb.units.round_size(1024.0**power).endswith(f" {unit}"))
    return tuple((place, f"{place / factor:.6g}{unit}" if place else "0") for place in places)


def _step(least: float, *, binary: bool) -> float:
    """Return the smallest round number that is not below `least`."""
    if binary:
        return float(2 ** math.ceil(math.log2(least)))
    power = 10.0 ** math.floor(math.log10(least))
    return next(nice * power for nice in _NICE if nice * power >= least * (1 - 1e-9))


def _log_ticks(
    low: float, high: float, unit: str, count: int, like: float | None
) -> tuple[tuple[tuple[float, str], ...], str, float]:
    if unit == "B":
        first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
        stride = max(math.ceil((last - first + 1) / count), 1)
        places = [2.0**power for power in range(max(first, 0), last + 1, stride)] or [low, high]
        return tuple((place, gb.units.size(place)) for place in places), "", 1.0
    places = _log_places(low, high, count)
    factor, text = gb.units.scale(like or places[0], unit)
    if places[-1] / factor < _MOST_IN_ONE_UNIT and places[0] / factor > 1 / _MOST_IN_ONE_UNIT:
        return tuple((place, f"{place / factor:.6g}") for place in places), text, factor
    return tuple((place, _value_with_unit(place, unit)) for place in places), "", 1.0


def _log_places(low: float, high: float, count: int) -> list[float]:
    """Return the values of the ticks between `low` and `high`: powers of ten, and if they are few more digits."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for digits in ((1,), (1, 2, 5), tuple(range(1, 10))):
        places = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
        inside = [place for place in places if low * 0.999 <= place <= high * 1.001]
        if len(inside) >= 3:
            break
    stride = math.ceil(len(inside) / count) if len(inside) > count + 3 else 1
    return inside[::stride] or [low, high]


def _value_with_unit(value: float, unit: str) -> str:
    """Return a value as text with its own prefix and unit: `1.5 TB/s`."""
    factor, text = gb.units.scale(value, unit)
    return f"{value / factor:.6g} {text}".rstrip()


WIDTH = 460.0  # drawing units; one is about a pixel, so that text stays legible on a phone
LETTER = 7.9  # a digit of DejaVu Sans, the widest of the style sheet's fonts, at its size of text on a phone
COLOURS = 12  # the style sheet's classes c0 … c11; after these they are dashed


def element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return an SVG element with `children` inside: markup as it is, text escaped.

    `_` in the name of an attribute becomes `-`, a trailing `_` is dropped, and an attribute with the value None is
    left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{number(value) if isinstance(value, float) else escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(map(escape, children))
    return Markup(f"<{name}{written}>{inner}</{name}>" if inner else f"<{name}{written}/>")


def join(parts: Iterable[str]) -> Markup:
    """Return the parts joined: markup as it is, text escaped."""
    return Markup("".join(map(escape, parts)))


def number(value: float) -> str:
    """Return a coordinate in drawing units, rounded to a tenth, as text without a needless `.0`."""
    return f"{value:.1f}".removesuffix(".0")


def picture(description: str, height: float, *children: str, width: float = WIDTH) -> Markup:
    """Return the `svg` element around `children`; sizes are in drawing units.

    `description` tells screen readers what it shows."""
    box = f"0 0 {number(width)} {number(height)}"
    wide = width if width > WIDTH else None
    class_ = "wide" if wide else None
    return element("svg", *children, viewBox=box, width=wide, role="img", aria_label=description, class_=class_)


def text(x: float, y: float, content: str, anchor: str = "start", class_: str | None = None) -> Markup:
    """Return a text whose baseline is at y; `anchor` (start, middle or end) says which point of the text is at x."""
    return element("text", content, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def polyline(places: Sequence[tuple[float, float]], class_: str) -> Markup:
    """Return a line through places."""
    points = "".join([f"{x:.1f},{y:.1f} " for x, y in places]).replace(".0,", ",").replace(".0 ", " ")
    return element("polyline", points=points.rstrip(), class_=class_)


def dot(x: float, y: float, radius: float, class_: str, tooltip: str = "") -> Markup:
    """Return a filled circle at (x, y); a `tooltip` that is not empty is shown under the pointer."""
    return element("circle", *title(tooltip), cx=x, cy=y, r=radius, class_=class_)


def title(tooltip: str) -> tuple[Markup, ...]:
    """Return the child element that shows a tooltip under the pointer, in a tuple; it is empty for an empty tooltip."""
    return (element("title", tooltip),) if tooltip else ()


def colour(index: int) -> str:
    """Return the colour class of the series at `index`; after the twelfth series it is dashed."""
    return f"c{index % COLOURS}" + (" dashed" if index >= COLOURS else "")


def triangle(x: float, y: float) -> str:
    """Return the path of a triangle whose tip points up at (x, y)."""
    return f"M{number(x)} {number(y)}l-4.5 8h9z"


@dataclass(slots=True)
class Labels:
    """Labels beside places, drawn so that no two overlap: the label that was added first stays.

    `wanted` holds each label with the places (x, y) where it may be centred, the best first."""

    wanted: list[tuple[str, tuple[tuple[float, float], ...]]] = field(default_factory=list)

    def add(self, label: str, *places: tuple[float, float]) -> None:
        """Add a label with the places (x, y) where it may be centred, the best place first."""
        self.wanted.append((label, places))

    def drawn(self, left: float, right: float) -> Markup:
        """Draw each label at its first place that overlaps no label drawn before it.

        A label without such a place is left out. Each label is moved to lie between x `left` and `right`."""
        taken: list[tuple[float, float, float]] = []
        parts = []
        for label, places in self.wanted:
            half = width_of(label) / 2
            inside = [(min(max(x, left + half), right - half), y) for x, y in places]
            free = next(((x, y) for x, y in inside if not _is_taken(x, y, half, taken)), None)
            if free:
                x, y = free
                taken.append((x - half, x + half, y))
                parts.append(text(x, y, label, "middle", "value"))
        return join(parts)


def width_of(label: str) -> float:
    """Return the approximate width of a text in drawing units."""
    return LETTER * len(label)


def _is_taken(x: float, y: float, half: float, taken: Sequence[tuple[float, float, float]]) -> bool:
    """Return True if a text at (x, y), `half` of its width to either side, overlaps a text in `taken`."""
    return any(abs(y - at) < 12 and x - half < end and x + half > start for start, end, at in taken)


def shorten(label: str, most: int) -> str:
    """Return the label, or its beginning, an ellipsis and its end if it has more than `most` characters."""
    if len(label) <= most:
        return label
    half = (most - 1) // 2
    return f"{label[:half]}…{label[len(label) - (most - 1 - half) :]}"


def frame(across: Axis, up: Axis, across_name: str, up_name: str) -> Markup:
    """Draw the axes of a plot: grid lines, ticks with labels, and the name of each axis with its unit.

    A name may be empty. The y axis `up` starts at the bottom."""
    parts = [grid_up(across, up), line(across.start, up.start, across.end, up.start, "axis")]
    for value, label in across.ticks:
        x = across.place(value)
        inside = min(x, across.end + 26 - 4.0 * len(label))  # the last label is not cut off
        parts += [line(x, up.start, x, up.start + 4, "axis"), text(inside, up.start + 17, label, "middle")]
    parts += [text(across.end, up.start + 34, _axis_title(across_name, across.unit), "end", "name")]
    parts += [text(2.0, 12.0, _axis_title(up_name, up.unit), "start", "name")]
    return join(parts)


def grid_up(across: Axis, up: Axis) -> Markup:
    """Draw the grid lines and the tick labels of a y axis."""
    lines = [line(across.start, up.place(value), across.end, up.place(value), "grid") for value, _ in up.ticks]
    return join([*lines, *(text(across.start - 6, up.place(value) + 4, label, "end") for value, label in up.ticks)])


def grid_across(across: Axis, bottom: float) -> Markup:
    """Draw the grid lines of an axis up to the top of the picture, and its tick labels below `bottom`."""
    lines = [line(across.place(value), 4.0, across.place(value), bottom, "grid") for value, _ in across.ticks]
    return join([*lines, *(text(across.place(value), bottom + 15, label, "middle") for value, label in across.ticks)])


def left_of(up: Axis) -> float:
    """Return the x at which a plot must begin so that the tick labels of its y axis fit to the left of it."""
    return 14.0 + max((width_of(label) for _, label in up.ticks), default=0.0)


def _axis_title(name: str, unit: str) -> str:
    """Return the name of an axis with its unit: `size, B`; only one of them if the other is empty."""
    return f"{name}, {unit}" if name and unit else name or unit
