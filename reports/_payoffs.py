"""Break-even links of codecs and verdicts over the links of this machine: charts with tables, and records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from gpubench.api.report import Payoff, Payoffs, Summary, View, frame, payoff_tables, payoffs, payoffs_of, stats

from ._breakeven import break_even_chart
from ._charts import Chart, bars


def breakeven(summary: Summary, suite: str, view: View) -> list[Chart]:
    """Draw the links over which codecs pay, or the rates over the links of this machine, with their tables."""
    found = payoffs_of(summary, suite, view)
    pays = any(payoff.coded.message > 0 for payoff in found.codecs)
    drawn = [break_even_chart(summary, found)] if pays else bars(summary, suite, view)
    return [dataclasses.replace(chart, tables=tuple(payoff_tables(found)), full=True) for chart in drawn[:1]] + drawn[
        1:
    ]


def payoffs_record(found: Payoffs) -> dict[str, Any]:
    """Return the break-even links and verdicts of a view as plain values, B/s."""
    return {
        "suite": found.suite,
        "view": found.title,
        "codecs": [_payoff(each) for each in found.codecs],
        "crossings": [_payoff(each) for each in found.crossings],
    }


def payoff_lines(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield break-even links and speed-ups as flat lines, like those of series."""
    for found in payoffs(summary):
        for each in (*found.codecs, *found.crossings):
            line = {"case": each.case.id, "suite": found.suite, "params": "", "quantity": "derived"}
            for name, rate in _break_even(each).items():
                yield {**line, "series": f"break-even {name}", "unit": "B/s", "median": rate}
            if each.speedup:
                yield {**line, "series": "speed-up over raw", "unit": "", **_interval(each.speedup)}


def _break_even(payoff: Payoff) -> dict[str, float | None]:
    coded = payoff.coded
    found = {"message": coded.message, "write_only": coded.write_only, "read_only": coded.read_only}
    return {name: frame.finite(rate) for name, rate in found.items()}


def _payoff(each: Payoff) -> dict[str, Any]:
    record = {
        "case": each.case.id,
        "devices": list(each.devices),
        "ratio": frame.finite(each.coded.ratio),
        "compress": frame.finite(each.coded.compress),
        "decompress": frame.finite(each.coded.decompress),
        "break_even": _break_even(each),
    }
    if each.speedup is None:
        return record
    return {
        **record,
        "ends": each.ends,
        "bound": frame.finite(each.bound),
        "of_bound": frame.finite(each.share),
        "speedup": _interval(each.speedup),
    }


def _interval(interval: stats.Interval) -> dict[str, float | None]:
    low, median, high = map(frame.finite, (interval.low, interval.centre, interval.high))
    return {"low": low, "median": median, "high": high}
