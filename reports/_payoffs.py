"""Show where compression pays: break-even links of codecs and the verdict over each link, as charts and records."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from gpubench.api import report as gb

from ._breakeven import break_even_chart
from ._charts import Chart, bars


def breakeven(summary: gb.Summary, suite: str, view: gb.View) -> list[Chart]:
    """Return the charts of a break-even view: break-even rates, or bars of rates if no codec ever pays.

    The first chart carries the tables."""
    view_payoffs = gb.payoffs_of(summary, suite, view)
    pays = any(payoff.coded.both_sides > 0 for payoff in view_payoffs.codecs)
    drawn = [break_even_chart(summary, view_payoffs)] if pays else bars(summary, suite, view)
    tables = tuple(gb.payoff_tables(view_payoffs))
    return [*(dataclasses.replace(chart, tables=tables, full=True) for chart in drawn[:1]), *drawn[1:]]


def payoffs_record(view_payoffs: gb.Payoffs) -> dict[str, Any]:
    """Return the break-even links (`codecs`) and the transfers over links (`crossings`) of a view; rates are in B/s."""
    return {
        "suite": view_payoffs.suite,
        "view": view_payoffs.title,
        "codecs": [_payoff(payoff) for payoff in view_payoffs.codecs],
        "crossings": [_payoff(payoff) for payoff in view_payoffs.transfers],
    }


def payoff_lines(summary: gb.Summary) -> Iterator[dict[str, Any]]:
    """Yield break-even rates and speed-ups as flat lines, whose keys are names of `frame.COLUMNS`.

    A break-even rate is in B/s, None if compression pays on any link. A speed-up has its 95 % interval."""
    for view_payoffs in gb.payoffs(summary):
        for payoff in (*view_payoffs.codecs, *view_payoffs.transfers):
            line = {"case": payoff.case.id, "suite": view_payoffs.suite, "params": "", "quantity": "derived"}
            for name, rate in _break_even(payoff).items():
                yield {**line, "series": f"break-even {name}", "unit": "B/s", "median": rate}
            if payoff.speedup:
                yield {**line, "series": "speed-up over raw", "unit": "", **_interval(payoff.speedup)}


def _break_even(payoff: gb.Payoff) -> dict[str, float | None]:
    """Return the break-even rates of a codec in B/s, None for infinity: it then pays on any link."""
    coded = payoff.coded
    rates = {"message": coded.both_sides, "write_only": coded.write_only, "read_only": coded.read_only}
    return {name: gb.frame.finite(rate) for name, rate in rates.items()}


def _payoff(payoff: gb.Payoff) -> dict[str, Any]:
    """Return the record of a codec: its ratio, its rates of compression and decompression, and its break-even rates."""
    record = {
        "case": payoff.case.id,
        "devices": list(payoff.devices),
        "ratio": gb.frame.finite(payoff.coded.ratio),
        "compress": gb.frame.finite(payoff.coded.compress),
        "decompress": gb.frame.finite(payoff.coded.decompress),
        "break_even": _break_even(payoff),
    }
    if payoff.speedup is None:
        return record
    return {
        **record,
        "ends": payoff.ends,
        "bound": gb.frame.finite(payoff.bound),
        "of_bound": gb.frame.finite(payoff.share),
        "speedup": _interval(payoff.speedup),
    }


def _interval(interval: gb.stats.Interval) -> dict[str, float | None]:
    """Return an interval as `low`, `median` (its centre) and `high`; a number that is not finite is None."""
    low, median, high = map(gb.frame.finite, (interval.low, interval.centre, interval.high))
    return {"low": low, "median": median, "high": high}
