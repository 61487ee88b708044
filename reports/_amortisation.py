"""An amortisation view: the calls after which a provider pays as dots on a logarithmic axis, and as a record."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from gpubench.api.report import (
    STATES,
    Amortised,
    Summary,
    View,
    amortisation_tables,
    amortisations,
    amortised_of,
    frame,
    paid_words,
)

from . import _svg as svg
from ._charts import Chart
from ._ticks import Axis, axis

_ROW, _TOP, _LETTERS, _MOST_ROWS = 19.0, 6.0, 30, 40
_LEFT = 8.0 + svg.LETTER * _LETTERS
_ROOM = 1.6  # a factor left free at either end of the axis


def amortisation(summary: Summary, suite: str, view: View) -> list[Chart]:
    """Draw a row per operator and provider that pays, with a dot for each state of its caches, and the table of all."""
    found = amortised_of(summary, suite, view)
    tables = tuple(amortisation_tables(view.title, found))
    paying = [each for each in found if any(_dots(each))]
    if not tables:
        return []
    if not paying:
        words = f"{view.title}: no provider is faster than the library that it is compared with"
        return [Chart(view.title, "none pays", svg.picture(words, 1.0), tables=tables, full=True)]
    shown = paying[:_MOST_ROWS]
    bottom = _TOP + _ROW * len(shown)
    across = axis(
        [calls for each in shown for _, calls, _ in _dots(each)], "", _LEFT, svg.WIDTH - 30, log=True, room=_ROOM
    )
    parts = [svg.line(across.place(value), _TOP, across.place(value), bottom, "grid") for value, _ in across.ticks]
    parts += [svg.text(across.place(value), bottom + 15, label, "middle") for value, label in across.ticks]
    parts += [svg.text(2.0, bottom + 15, "calls", "start", "name")]
    parts += [_row(each, _TOP + _ROW * (row + 0.5), across) for row, each in enumerate(shown)]
    words = f"{view.title}: " + "; ".join(f"{_name(each)} {words}" for each in shown for _, _, words in _dots(each))
    legend = tuple((svg.colour(index), words) for index, words in enumerate(STATES.values()))
    note = "compared with the library in brackets" + _left_out(len(found) - len(paying), len(paying) - len(shown))
    return [Chart(view.title, note, svg.picture(words, bottom + 24, *parts), legend, tables, full=True)]


def _left_out(others: int, more: int) -> str:
    """Say how many rows only the table has."""
    said = f"; {others} that pay never, at once or without a measured build are in the table" if others else ""
    return said + (f"; {more} more are in the table" if more else "")


def _dots(each: Amortised) -> Iterator[tuple[str, float, str]]:
    """Yield the state of the caches, the calls and the words of each number that has a place on the axis."""
    for paid in each.paid:
        if 0 < paid.calls.centre < math.inf:
            yield paid.cache, paid.calls.centre, f"{STATES[paid.cache]} {paid_words(each, paid)}"


def _name(each: Amortised) -> str:
    return f"{each.by} ({each.eager}) {each.operator}"


def _row(each: Amortised, y: float, across: Axis) -> Markup:
    parts = [svg.text(across.start - 6, y + 4, svg.shorten(f"{each.op}: {each.by} ({each.eager})", _LETTERS), "end")]
    for paid in each.paid:
        low, high = paid.calls.low, paid.calls.high
        if 0 < paid.calls.centre < math.inf:
            colour = svg.colour(list(STATES).index(paid.cache))
            ends = [across.place(max(low, across.low)), across.place(high)]
            parts += [svg.line(ends[0], y, ends[1], y, f"line {colour}")] if ends[1] - ends[0] > 7 else []
            words = f"{_name(each)}: {STATES[paid.cache]} {paid_words(each, paid)}"
            parts += [svg.dot(across.place(paid.calls.centre), y, 4.0, colour, words)]
    return svg.join(parts)


def amortisation_records(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield each operator by each provider: the times of a call, and the calls after which it pays.

    A number of calls is null where the provider never pays.
    """
    for view, found in amortisations(summary):
        for each in found:
            yield {
                "view": view.title,
                "case": each.case.id,
                "devices": list(each.devices),
                "by": each.by,
                "eager": each.eager,
                "seconds": frame.finite(each.seconds),
                "eager_seconds": frame.finite(each.eager_seconds),
                "pays_after": {
                    paid.cache: {
                        "low": frame.finite(paid.calls.low),
                        "calls": frame.finite(paid.calls.centre),
                        "high": frame.finite(paid.calls.high),
                        "is_bound": paid.is_bound,
                    }
                    for paid in each.paid
                },
            }


def amortisation_lines(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield the same numbers of calls as flat lines, like those of series; a number is missing where it never pays."""
    for _, found in amortisations(summary):
        for each in found:
            line = {"case": each.case.id, "suite": each.case.suite, "params": "", "quantity": "derived", "unit": "call"}
            for paid in each.paid:
                ends = (paid.calls.low, paid.calls.centre, paid.calls.high)
                low, median, high = map(frame.finite, ends)
                series = f"pays after, {STATES[paid.cache]}, compared with {each.eager}"
                yield {**line, "series": series, "low": low, "median": median, "high": high}
