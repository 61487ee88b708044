"""Build SVG from small functions that return escaped markup; colours are classes of the style sheet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from ._ticks import Axis

WIDTH = 460.0  # drawing units; one is about a pixel, so that text stays legible on a phone
LETTER = 7.9  # a digit of DejaVu Sans, the widest of the style sheet's fonts, at its size of text on a phone
COLOURS = 8  # the style sheet's classes c0 … c7; from the ninth on they are dashed


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
    return element("polyline", points=" ".join(f"{number(x)},{number(y)}" for x, y in places), class_=class_)


def dot(x: float, y: float, radius: float, class_: str, tooltip: str = "") -> Markup:
    """Return a filled circle at (x, y); a `tooltip` that is not empty is shown under the pointer."""
    return element("circle", *title(tooltip), cx=x, cy=y, r=radius, class_=class_)


def title(tooltip: str) -> tuple[Markup, ...]:
    """Return the child element that shows a tooltip under the pointer, in a tuple; it is empty for an empty tooltip."""
    return (element("title", tooltip),) if tooltip else ()


def colour(index: int) -> str:
    """Return the colour class of the series at `index`; from the ninth series on it is dashed."""
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
    parts = [line(across.start, up.place(value), across.end, up.place(value), "grid") for value, _ in up.ticks]
    parts += [text(across.start - 6, up.place(value) + 4, label, "end") for value, label in up.ticks]
    parts += [line(across.start, up.start, across.end, up.start, "axis")]
    for value, label in across.ticks:
        x = across.place(value)
        parts += [line(x, up.start, x, up.start + 4, "axis"), text(x, up.start + 17, label, "middle")]
    parts += [text(across.end, up.start + 34, _axis_title(across_name, across.unit), "end", "name")]
    parts += [text(2.0, 12.0, _axis_title(up_name, up.unit), "start", "name")]
    return join(parts)


def left_of(up: Axis) -> float:
    """Return the x at which a plot must begin so that the tick labels of its y axis fit to the left of it."""
    return 14.0 + max((width_of(label) for _, label in up.ticks), default=0.0)


def _axis_title(name: str, unit: str) -> str:
    """Return the name of an axis with its unit: `size, B`; only one of them if the other is empty."""
    return f"{name}, {unit}" if name and unit else name or unit
