"""Show where compression pays: break-even links of codecs and the verdict over each link, as charts and records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from gpubench.api.report import Payoff, Payoffs, Summary, View, frame, payoff_tables, payoffs, payoffs_of, stats

from ._breakeven import break_even_chart
from ._charts import Chart, bars


def breakeven(summary: Summary, suite: str, view: View) -> list[Chart]:
    """Return the charts of a break-even view: break-even rates, or bars of rates if no codec ever pays.

    The first chart carries the tables."""
    view_payoffs = payoffs_of(summary, suite, view)
    pays = any(payoff.coded.both_sides > 0 for payoff in view_payoffs.codecs)
    drawn = [break_even_chart(summary, view_payoffs)] if pays else bars(summary, suite, view)
    tables = tuple(payoff_tables(view_payoffs))
    return [*(dataclasses.replace(chart, tables=tables, full=True) for chart in drawn[:1]), *drawn[1:]]


def payoffs_record(view_payoffs: Payoffs) -> dict[str, Any]:
    """Return the break-even links (`codecs`) and the transfers over links (`crossings`) of a view; rates are in B/s."""
    return {
        "suite": view_payoffs.suite,
        "view": view_payoffs.title,
        "codecs": [_payoff(payoff) for payoff in view_payoffs.codecs],
        "crossings": [_payoff(payoff) for payoff in view_payoffs.transfers],
    }


def payoff_lines(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield break-even rates and speed-ups as flat lines, whose keys are names of `frame.COLUMNS`.

    A break-even rate is in B/s, None if compression pays on any link. A speed-up has its 95 % interval."""
    for view_payoffs in payoffs(summary):
        for payoff in (*view_payoffs.codecs, *view_payoffs.transfers):
            line = {"case": payoff.case.id, "suite": view_payoffs.suite, "params": "", "quantity": "derived"}
            for name, rate in _break_even(payoff).items():
                yield {**line, "series": f"break-even {name}", "unit": "B/s", "median": rate}
            if payoff.speedup:
                yield {**line, "series": "speed-up over raw", "unit": "", **_interval(payoff.speedup)}


def _break_even(payoff: Payoff) -> dict[str, float | None]:
    """Return the break-even rates of a codec in B/s, None for infinity: it then pays on any link."""
    coded = payoff.coded
    rates = {"message": coded.both_sides, "write_only": coded.write_only, "read_only": coded.read_only}
    return {name: frame.finite(rate) for name, rate in rates.items()}


def _payoff(payoff: Payoff) -> dict[str, Any]:
    """Return the record of a codec: its ratio, its rates of compression and decompression, and its break-even rates."""
    record = {
        "case": payoff.case.id,
        "devices": list(payoff.devices),
        "ratio": frame.finite(payoff.coded.ratio),
        "compress": frame.finite(payoff.coded.compress),
        "decompress": frame.finite(payoff.coded.decompress),
        "break_even": _break_even(payoff),
    }
    if payoff.speedup is None:
        return record
    return {
        **record,
        "ends": payoff.ends,
        "bound": frame.finite(payoff.bound),
        "of_bound": frame.finite(payoff.share),
        "speedup": _interval(payoff.speedup),
    }


def _interval(interval: stats.Interval) -> dict[str, float | None]:
    """Return an interval as `low`, `median` (its centre) and `high`; a number that is not finite is None."""
    low, median, high = map(frame.finite, (interval.low, interval.centre, interval.high))
    return {"low": low, "median": median, "high": high}
