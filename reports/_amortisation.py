"""Show the number of calls after which each compiler has earned back its cost, as a chart and as records."""

import math
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import Chart
from ._ticks import Axis, axis

_ROW, _TOP, _LETTERS, _MOST_ROWS = 19.0, 6.0, 30, 40
_LEFT = 8.0 + svg.LETTER * _LETTERS
_ROOM = 1.6  # a factor left free at either end of the axis


def amortisation(summary: gb.Summary, suite: str, view: gb.View) -> list[Chart]:
    """Return the chart of an amortisation view in a list, which is empty if the view has no operator.

    The tables of the chart list all rows."""
    operators = gb.amortised_of(summary, suite, view)
    tables = tuple(gb.amortisation_tables(view.title, operators))
    paying = [operator for operator in operators if any(_dots(operator))]
    if not tables:
        return []
    if not paying:
        description = f"{view.title}: no provider is faster than the library with which it is compared"
        return [Chart(view.title, "none pays", svg.picture(description, 1.0), tables=tables, full=True)]
    drawn = paying[:_MOST_ROWS]
    bottom = _TOP + _ROW * len(drawn)
    across = axis(
        [calls for operator in drawn for _, calls, _ in _dots(operator)],
        "",
        _LEFT,
        svg.WIDTH - 30,
        log=True,
        room=_ROOM,
    )
    parts = [svg.line(across.place(value), _TOP, across.place(value), bottom, "grid") for value, _ in across.ticks]
    parts += [svg.text(across.place(value), bottom + 15, label, "middle") for value, label in across.ticks]
    parts += [svg.text(2.0, bottom + 15, "calls", "start", "name")]
    parts += [_row(operator, _TOP + _ROW * (row + 0.5), across) for row, operator in enumerate(drawn)]
    outcomes = (f"{_name(operator)} {outcome}" for operator in drawn for _, _, outcome in _dots(operator))
    description = f"{view.title}: {'; '.join(outcomes)}"
    legend = tuple((svg.colour(index), state) for index, state in enumerate(gb.STATES.values()))
    note = "compared with the library in brackets" + _left_out(len(operators) - len(paying), len(paying) - len(drawn))
    return [Chart(view.title, note, svg.picture(description, bottom + 24, *parts), legend, tables, full=True)]


def _left_out(not_drawable: int, over_limit: int) -> str:
    """Return the clause on the rows that only the tables have."""
    reason = "that never pay, pay at once, or have no measured build"
    text = f"; {not_drawable} {reason} are in the table" if not_drawable else ""
    return text + (f"; {over_limit} more are in the table" if over_limit else "")


def _dots(operator: gb.Amortised) -> Iterator[tuple[str, float, str]]:
    """Yield a dot for each cache state: the state, the number of calls, and a sentence about them."""
    for paid in operator.paid:
        if 0 < paid.calls.centre < math.inf:
            yield paid.cache, paid.calls.centre, f"{gb.STATES[paid.cache]} {gb.paid_after_text(operator, paid)}"


def _name(operator: gb.Amortised) -> str:
    """Return the provider, in brackets the eager library that it is compared with, and the operator as one text."""
    return f"{operator.by} ({operator.eager}) {operator.operator}"


def _row(operator: gb.Amortised, y: float, across: Axis) -> Markup:
    """Draw the row of an operator at `y`: its label, and for each cache state the 95 % interval and a dot."""
    parts = [
        svg.text(
            across.start - 6, y + 4, svg.shorten(f"{operator.op}: {operator.by} ({operator.eager})", _LETTERS), "end"
        )
    ]
    for paid in operator.paid:
        low, high = paid.calls.low, paid.calls.high
        if 0 < paid.calls.centre < math.inf:
            colour = svg.colour(list(gb.STATES).index(paid.cache))
            left, right = across.place(max(low, across.low)), across.place(high)
            parts += [svg.line(left, y, right, y, f"line {colour}")] if right - left > 7 else []
            tooltip = f"{_name(operator)}: {gb.STATES[paid.cache]} {gb.paid_after_text(operator, paid)}"
            parts += [svg.dot(across.place(paid.calls.centre), y, 4.0, colour, tooltip)]
    return svg.join(parts)


def amortisation_records(summary: gb.Summary) -> Iterator[dict[str, Any]]:
    """Yield a record for each operator and provider (a compiler or library) of the run's amortisation views.

    `seconds` is the time of a call by the provider, and `eager_seconds` by the library that it is compared with."""
    for view, operators in gb.amortisations(summary):
        for operator in operators:
            yield {
                "view": view.title,
                "case": operator.case.id,
                "devices": list(operator.devices),
                "by": operator.by,
                "eager": operator.eager,
                "seconds": gb.frame.finite(operator.seconds),
                "eager_seconds": gb.frame.finite(operator.eager_seconds),
                "pays_after": {
                    paid.cache: {
                        "low": gb.frame.finite(paid.calls.low),
                        "calls": gb.frame.finite(paid.calls.centre),
                        "high": gb.frame.finite(paid.calls.high),
                        "is_bound": paid.is_bound,
                    }
                    for paid in operator.paid
                },
            }


def amortisation_lines(summary: gb.Summary) -> Iterator[dict[str, Any]]:
    """Yield the numbers of calls after which providers pay as flat lines, whose keys are names of `frame.COLUMNS`.

    There is one line for each operator, provider and cache state; the median is None if the provider never pays."""
    for _, operators in gb.amortisations(summary):
        for operator in operators:
            line = {
                "case": operator.case.id,
                "suite": operator.case.suite,
                "params": "",
                "quantity": "derived",
                "unit": "call",
            }
            for paid in operator.paid:
                ends = (paid.calls.low, paid.calls.centre, paid.calls.high)
                low, median, high = map(gb.frame.finite, ends)
                series = f"pays after, {gb.STATES[paid.cache]}, compared with {operator.eager}"
                yield {**line, "series": series, "low": low, "median": median, "high": high}
