"""Show where compression pays: break-even links of codecs and the verdict over each link, as charts."""

import dataclasses

from gpubench.api import report as gb

from ._breakeven import break_even_chart
from ._charts import Chart, bars


def breakeven(summary: gb.Summary, suite: str, view: gb.View) -> list[Chart]:
    """Return the charts of a break-even view: break-even rates, or bars of rates if no codec ever pays.

    The first chart carries the tables."""
    (view_payoffs,) = gb.Payoffs.of(summary, suite, view)
    pays = any(payoff.coded.both_sides > 0 for payoff in view_payoffs.codecs)
    drawn = [break_even_chart(summary, view_payoffs)] if pays else bars(summary, suite, view)
    tables = tuple(view_payoffs.tables)
    return [*(dataclasses.replace(chart, tables=tables, full=True) for chart in drawn[:1]), *drawn[1:]]
