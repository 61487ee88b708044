"""Show the number of calls after which each compiler has earned back its cost, as a chart."""

from collections.abc import Iterator

from markupsafe import Markup

from gpubench.api import report as gb

from . import _svg as svg
from ._charts import Chart
from ._svg import Axis, axis

_ROW, _TOP, _LETTERS, _MOST_ROWS = 19.0, 6.0, 30, 40
_LEFT = 8.0 + svg.LETTER * _LETTERS
_ROOM = 1.6  # a factor left free at either end of the axis


def amortisation(summary: gb.Summary, suite: str, view: gb.View) -> list[Chart]:
    """Return the chart of an amortisation view in a list, which is empty if the view has no operator.

    The tables of the chart list all rows."""
    (amortised,) = gb.Amortisation.of(summary, suite, view)
    operators, tables = amortised.operators, tuple(amortised.tables)
    paying = amortised.paying
    if not tables:
        return []
    if not paying:
        description = f"{view.title}: no provider is faster than the library with which it is compared"
        return [Chart(view.title, "none pays", svg.picture(description, 1.0), tables=tables, full=True)]
    drawn = paying[:_MOST_ROWS]
    bottom = _TOP + _ROW * len(drawn)
    across = axis(
        [calls.centre for operator in drawn for _, calls, _ in operator.outcomes],
        "",
        _LEFT,
        svg.WIDTH - 30,
        log=True,
        room=_ROOM,
    )
    parts = [svg.line(across.place(value), _TOP, across.place(value), bottom, "grid") for value, _ in across.ticks]
    parts += [svg.text(across.place(value), bottom + 15, label, "middle") for value, label in across.ticks]
    parts += [svg.text(2.0, bottom + 15, "calls", "start", "name")]
    parts += _rows(amortised, across)
    outcomes = (f"{operator.name} {outcome}" for operator in drawn for _, _, outcome in operator.outcomes)
    description = f"{view.title}: {'; '.join(outcomes)}"
    legend = tuple((svg.colour(index), state) for index, state in enumerate(amortised.STATES.values()))
    note = "compared with the library in brackets" + _left_out(len(operators) - len(paying), len(paying) - len(drawn))
    return [Chart(view.title, note, svg.picture(description, bottom + 24, *parts), legend, tables, full=True)]


def _left_out(not_drawable: int, over_limit: int) -> str:
    reason = "that never pay, pay at once, or have no measured build"
    text = f"; {not_drawable} {reason} are in the table" if not_drawable else ""
    return text + (f"; {over_limit} more are in the table" if over_limit else "")


def _rows(amortised: gb.Amortisation, across: Axis) -> Iterator[Markup]:
    """Yield a row for each operator: its label, and for each cache state the 95 % interval and a dot."""
    for row, operator in enumerate(amortised.paying[:_MOST_ROWS]):
        y = _TOP + _ROW * (row + 0.5)
        label = f"{operator.op}: {operator.by} ({operator.eager})"
        yield svg.text(across.start - 6, y + 4, svg.shorten(label, _LETTERS), "end")
        for state, calls, outcome in operator.outcomes:
            colour = svg.colour(state)
            left, right = across.place(max(calls.low, across.low)), across.place(calls.high)
            if right - left > 7:
                yield svg.line(left, y, right, y, f"line {colour}")
            yield svg.dot(across.place(calls.centre), y, 4.0, colour, f"{operator.name}: {outcome}")
