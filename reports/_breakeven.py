"""Draw the break-even chart: the fastest link over which each codec pays, next to the links of this machine."""

import dataclasses
import math
from collections.abc import Sequence

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import Chart, bars
from ._svg import Axis, axis


def breakeven(summary: gb.Summary, suite: str, view: gb.View) -> list[Chart]:
    """Return the charts of a break-even view: break-even rates, or bars of rates if no codec ever pays.

    The first chart carries the tables."""
    (view_payoffs,) = gb.Payoffs.of(summary, suite, view)
    pays = any(payoff.coded.both_sides > 0 for payoff in view_payoffs.codecs)
    drawn = [break_even_chart(summary, view_payoffs)] if pays else bars(summary, suite, view)
    tables = tuple(view_payoffs.tables)
    return [*(dataclasses.replace(chart, tables=tables, full=True) for chart in drawn[:1]), *drawn[1:]]


_ROW, _TOP, _LETTERS, _MOST_ROWS = 19.0, 48.0, 18, 60
_BARE_TOP = 6.0  # the top of the bars without names of links above them
_LEFT = 8.0 + svg.LETTER * _LETTERS
_ROOM = 1.6  # a factor left free at either end of the axis
_RATE = "B/s"

Link = tuple[str, float]


def break_even_chart(summary: gb.Summary, payoffs_of_view: gb.Payoffs) -> Chart:
    """Draw a bar for each codec up to B*, the rate of the fastest link over which compression pays.

    Two marks give that rate if only the encoder, or only the decoder, is charged."""
    paying = [payoff for payoff in payoffs_of_view.codecs if payoff.coded.both_sides > 0]
    drawn, labels = paying[:_MOST_ROWS], _labels(paying[:_MOST_ROWS])
    links = sorted(
        [*measured_links(summary, payoffs_of_view.suite), *((link.name, link.rate) for link in payoffs_of_view.links)]
    )
    top = _TOP if links else _BARE_TOP
    bottom = top + _ROW * len(drawn)
    rates = [rate for payoff in drawn for rate in _rates(payoff)] + [rate for _, rate in links]
    across = axis(rates, _RATE, _LEFT, svg.WIDTH - 30, log=True, room=_ROOM)
    parts = [*_frame(across, top, bottom), _links(links, across, bottom)]
    rows = list(zip(drawn, labels, strict=True))
    parts += [_row(payoff, label, top + _ROW * row, across) for row, (payoff, label) in enumerate(rows)]
    description = "; ".join(
        f"{label} up to {gb.units.quantity(payoff.coded.both_sides, _RATE, 3)}" for payoff, label in rows
    )
    legend = ((svg.colour(0), "encoder and decoder"), (svg.colour(1), "encoder only"), (svg.colour(2), "decoder only"))
    drawing = svg.picture(f"{payoffs_of_view.title}: {description}", bottom + 24, *parts)
    return Chart(
        payoffs_of_view.title,
        _note(len(payoffs_of_view.codecs) - len(paying), len(paying) - len(drawn)),
        drawing,
        legend,
    )


def _note(never: int, over_limit: int) -> str:
    parts = ["compression pays over links slower than the end of the bar; dashed: links of this machine"]
    parts += [f"not shown, because they never pay: {never}"] if never else []
    parts += [f"{over_limit} more are in the table"] if over_limit else []
    return "; ".join(parts)


def measured_links(summary: gb.Summary, suite: str) -> list[Link]:
    """Return the links over which the cases of `suite` sent raw bytes, each as a name and its highest rate in B/s."""
    best: dict[str, float] = {}
    of_suite = (view_payoffs for view_payoffs in gb.derived(summary, gb.Payoffs) if view_payoffs.suite == suite)
    for transfer in (transfer for view_payoffs in of_suite for transfer in view_payoffs.transfers):
        if transfer.raw:
            name = str(dict(transfer.case.params).get("link", transfer.case.name))
            best[name] = max(best.get(name, 0.0), transfer.raw.centre)
    return list(best.items())


def _rates(payoff: gb.Payoff) -> list[float]:
    """Return the break-even rates of a codec in B/s, at most three, without rates of 0 or infinity."""
    coded = payoff.coded
    return [rate for rate in (coded.both_sides, coded.write_only, coded.read_only) if 0 < rate < math.inf]


def _labels(drawn: Sequence[gb.Payoff]) -> list[str]:
    values: dict[str, set[object]] = {}
    for payoff in drawn:
        for name, value in payoff.case.params:
            values.setdefault(name, set()).add(value)
    varying = {name for name, distinct in values.items() if len(distinct) > 1}
    return [
        " · ".join(gb.units.axis_value_text(name, value) for name, value in payoff.case.params if name in varying)
        or payoff.case.name
        for payoff in drawn
    ]


def _frame(across: Axis, top: float, bottom: float) -> list[Markup]:
    parts = [svg.line(across.place(value), top, across.place(value), bottom, "grid") for value, _ in across.ticks]
    parts += [svg.text(across.place(value), bottom + 15, label, "middle") for value, label in across.ticks]
    return [*parts, svg.text(2.0, bottom + 15, f"link, {across.unit}" if across.unit else "link", "start", "name")]


def _links(links: Sequence[Link], across: Axis, bottom: float) -> Markup:
    names = svg.Labels()
    parts = []
    for name, rate in links:
        x = across.place(rate)
        dashed = svg.line(x, _TOP - 2, x, bottom, "peak")
        parts.append(svg.element("g", *svg.title(f"{name}: {gb.units.quantity(rate, _RATE, 3)}"), dashed))
        names.add(f" {name} ", *((x, _TOP - 6 - 14 * row) for row in range(3)))
    return svg.join([*parts, names.drawn(across.start, svg.WIDTH)])


def _row(payoff: gb.Payoff, label: str, top: float, across: Axis) -> Markup:
    coded, y = payoff.coded, top + _ROW / 2
    end = across.place(coded.both_sides)
    tooltip = (
        f"{payoff.case.id}: B* {gb.units.quantity(coded.both_sides, _RATE, 3)} encoder and decoder, "
        f"{_rate(coded.write_only)} encoder only, {_rate(coded.read_only)} decoder only"
    )
    bar = svg.element(
        "rect",
        *svg.title(tooltip),
        x=across.start,
        y=y - 5,
        width=max(end - across.start, 1.0),
        height=10.0,
        class_="c0",
    )
    marks = [
        svg.element("path", *svg.title(tooltip), d=svg.triangle(across.place(rate), y - 4), class_=colour)
        for rate, colour in ((coded.write_only, "c1"), (coded.read_only, "c2"))
        if 0 < rate < math.inf
    ]
    name = svg.text(across.start - 6, y + 4, svg.shorten(label, _LETTERS), "end")
    return svg.join([name, bar, *marks])


def _rate(rate: float) -> str:
    """Return a break-even rate in B/s as text; `any link` if it is infinite."""
    return gb.units.quantity(rate, _RATE, 3) if math.isfinite(rate) else "any link"
