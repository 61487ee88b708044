"""Draw where the peak goes: for each key figure its share of the peak, and what each rung of its ladder takes away."""

from collections.abc import Iterator

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import Chart
from ._svg import Axis, axis

_WIDTH, _ROW, _NAMES = svg.WIDTH, 28.0, 8.0
_COLOURS = {"user": "c1", "author": "c4", "nobody": "c7", "": "c2"}
_REACHED, _UNEXPLAINED = "c0", "c3"
_LEGEND = (
    (_REACHED, "reached"),
    ("c1", "the user can win it"),
    ("c4", "the kernel's author can"),
    ("c7", "nobody can"),
    (_UNEXPLAINED, "unexplained"),
    ("c2", "gained"),
)


def waterfall(summary: gb.Summary) -> list[Chart]:
    """Return the chart of the key figures that have a ladder, as a list of one; an empty list without any."""
    ladders = gb.key_ladders(summary)
    if not ladders:
        return []
    most = max(left for _, ladder in ladders for _, left in ladder.levels)
    bottom = _ROW * len(ladders)
    across = axis([0.0, most * 100], "%", _NAMES, _WIDTH - 2 * _NAMES)
    parts = [svg.grid_across(across, bottom)]
    for row, (title, ladder) in enumerate(ladders):
        parts += _row(title, ladder, _ROW * row, across)
    lines = [
        (title, gb.units.percent(ladder.whole), ladder.source, ladder.brief, ladder.standing or "–")
        for title, ladder in ladders
    ]
    heads = ("key figure", "of peak", "peak", "change by rung, from the peak down", "other cards of the model")
    table = gb.Table("Causes of each key figure", heads, tuple(lines), (heads[0], *heads[2:]))
    description = "; ".join(f"{title}: {ladder.brief}" for title, ladder in ladders)
    note = "% of the peak: the part that is reached, and what each measured cause takes away (gpubench explain)"
    drawing = svg.picture(description, bottom + 22, *parts, width=_WIDTH)
    return [Chart("Key figures", note, drawing, _LEGEND, (table,), full=True)]


def _row(title: str, ladder: gb.Ladder, top: float, across: Axis) -> Iterator[Markup]:
    """Yield the name and the bar of a key figure: what is reached at its left, each loss where it begins."""
    of = ladder.source if ladder.unit == "s" else "the peak"
    yield svg.text(across.start, top + 11, f"{title}, {gb.units.percent(ladder.whole)} of {of}", "start", "label")
    y = top + 15
    end = across.place(100 * min(ladder.whole, 1.0))
    yield _bar(across.start, end, y, _REACHED, f"{title}: {gb.units.percent(ladder.whole)}")
    colours = [_COLOURS[rung.remedy] if rung.factor < 1 else "c2" for rung in ladder.shown]
    tooltips = [f"{rung.title}: {rung.evidence}" for rung in ladder.shown]
    steps = list(zip(ladder.levels, ladder.levels[1:], [*colours, _UNEXPLAINED], [*tooltips, ""], strict=False))
    for (_, before), (name, after), colour, tooltip in steps:
        low, high = sorted((across.place(100 * before), across.place(100 * after)))
        if high - low >= 0.5:
            change = f"{gb.units.percent(before)} to {gb.units.percent(after)}"
            yield _bar(low, high, y, colour, f"{tooltip or name}: {change}")


def _bar(start: float, end: float, y: float, colour: str, tooltip: str) -> Markup:
    return svg.element(
        "rect", *svg.title(tooltip), x=start, y=y, width=max(end - start, 1.0), height=9.0, class_=colour
    )
