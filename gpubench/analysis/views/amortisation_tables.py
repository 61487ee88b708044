"""Show after how many calls compilers have earned back their cost, as a table and as texts."""

import math
from collections.abc import Sequence

from gpubench.analysis.views import breakeven
from gpubench.analysis.views.amortised import STATES, Amortised, PaidAfter
from gpubench.analysis.views.table import NO_VALUE, Table
from gpubench.base import units

_PAID_HEADS = ("operator", "provider", "device", "compared with", "call", "call there", "speed-up", *STATES.values())
_PAID_NOTE = (
    "The number of calls after which a provider has earned back what its build costs more than that of the library "
    "beside it; in brackets that library's time for these calls, and the 95 % interval. At most: the run has no build "
    "by that library"
)
_ROUNDED = 1 - 1e-9  # keeps a whole number with a rounding error from being rounded up
_MOST_DIGITS = 1e7  # a smaller number of calls is written in full


def amortisation_tables(title: str, operators: Sequence[Amortised]) -> list[Table]:
    """Return a table of the calls after which providers have earned back their cost, a row for each comparison.

    The result has one table, or none if no cost was measured."""
    rows = tuple(_row(operator) for operator in operators if operator.paid)
    return [Table(title, _PAID_HEADS, rows, (*_PAID_HEADS[:4], *STATES.values()), _PAID_NOTE)] if rows else []


def _row(operator: Amortised) -> tuple[str, ...]:
    """Return the cells of one comparison: operator, providers, both times of a call, speed-up, and calls to pay."""
    paid = {payment.cache: paid_after_text(operator, payment) for payment in operator.paid}
    times = (units.quantity(seconds, "s") for seconds in (operator.seconds, operator.eager_seconds))
    speedup = breakeven.times(operator.speedup)
    states = (paid.get(cache, NO_VALUE) for cache in STATES)
    return (operator.operator, operator.by, ", ".join(operator.devices), operator.eager, *times, speedup, *states)


def paid_after_text(operator: Amortised, paid: PaidAfter) -> str:
    """Return when a provider has earned back its cost, as text: `after 626 calls (0.4 s of work)`, `at once`, `never`.

    The text has the 95 % interval of the calls unless both ends are equal. `at once (0 – 48 calls)` says that the
    provider may cost more than the eager library, but not by its median. `paid` is one of the payments of `operator`.
    """
    calls = paid.calls
    if math.isinf(calls.centre):
        return "never"
    if calls.high == 0:
        return "at once"
    work = units.quantity(operator.work_s(paid), "s", 2)
    low, high = _calls(calls.low), _calls(calls.high)
    if calls.centre == 0:
        return f"at once ({low} – {high} calls)"
    between = f"; {low} – {high}" if low != high else ""
    return f"after {'at most ' if paid.is_bound else ''}{_calls(calls.centre)} calls ({work} of work{between})"


def _calls(calls: float) -> str:
    """Return a number of calls as text, rounded up; `never` if it is infinite."""
    if math.isinf(calls):
        return "never"
    return str(math.ceil(calls * _ROUNDED)) if calls < _MOST_DIGITS else units.significant(calls, 3)
