"""Show the break-even links of codecs as tables: measured transfers, break-even rates, and modelled links."""

import math
from collections.abc import Iterator

from gpubench.analysis.views import breakeven
from gpubench.analysis.views.payoffs import Payoff, Payoffs
from gpubench.analysis.views.table import NO_VALUE, Table
from gpubench.base import units

_B_STAR = ("B* encoder and decoder", "B* encoder only", "B* decoder only")
_EVEN_HEADS = ("case", "device", "ratio", "compress", "decompress", *_B_STAR)
_NAMED_HEADS = ("case", "device", "link", "staged", "overlapped", "encoder only", "decoder only")
_MEASURED_HEADS = (
    "case",
    "device",
    "ratio",
    "raw",
    "staged",
    "overlapped",
    "upper bound",
    "overlap efficiency",
    "verdict",
    "model",
)


def payoff_tables(payoffs: Payoffs) -> list[Table]:
    """Return the tables of measured transfers, of each codec's break-even links, and of the user's named links.

    A table without rows is left out."""
    tables = []
    if payoffs.transfers:
        note = "Rates count uncompressed bytes. The upper bound is that of perfect overlap (docs/compression.md)"
        rows = tuple(map(_measured_row, payoffs.transfers))
        text_heads = ("case", "device", *_MEASURED_HEADS[-2:])
        tables.append(Table(f"Measured: {payoffs.title}", _MEASURED_HEADS, rows, text_heads, note))
    if payoffs.codecs:
        note = "Over a link slower than B*, compression pays even without overlap"
        rows = tuple(map(_break_even_row, payoffs.codecs))
        tables.append(Table(payoffs.title, _EVEN_HEADS, rows, _EVEN_HEADS[:2], note))
    named = tuple(row for payoff in payoffs.codecs for row in _named_link_rows(payoff, payoffs))
    if named:
        note = "Computed from the rates above and the rate of the link; staged and overlapped use one device per side"
        title = f"Modelled, not measured: {payoffs.title}"
        tables.append(Table(title, _NAMED_HEADS, named, _NAMED_HEADS, note))
    return tables


def _measured_row(payoff: Payoff) -> tuple[str, ...]:
    """Return the cells of a measured transfer: its rates, the bound of perfect overlap, and both verdicts."""
    bound, share, speedup, raw = payoff.bound, payoff.share, payoff.speedup, payoff.raw
    by_model = breakeven.modelled_verdict(bound / raw.centre) if bound and raw else NO_VALUE
    intervals = (raw, payoff.staged, payoff.overlapped)
    rates = [units.quantity(rate.centre, "B/s") if rate else NO_VALUE for rate in intervals]
    return (
        payoff.case.id,
        ", ".join(payoff.devices),
        units.significant(payoff.coded.ratio, 3),
        *rates,
        units.quantity(bound, "B/s") if bound else NO_VALUE,
        units.percent(share) if share else NO_VALUE,
        breakeven.verdict(speedup) if speedup else NO_VALUE,
        by_model,
    )


def _break_even_row(payoff: Payoff) -> tuple[str, ...]:
    """Return the cells of a codec: its ratio, its rates, and the rates of links below which compression pays."""
    coded = payoff.coded
    rates, links = (coded.compress, coded.decompress), (coded.both_sides, coded.write_only, coded.read_only)
    return (
        payoff.case.id,
        ", ".join(payoff.devices),
        units.significant(coded.ratio, 3),
        *(units.quantity(rate, "B/s") if math.isfinite(rate) else NO_VALUE for rate in rates),
        *(_link_rate(rate) for rate in links),
    )


def _link_rate(rate: float) -> str:
    """Return a break-even rate, given in B/s, as GB/s and Gb/s: no value if it is infinite, `never` if it is 0."""
    if not math.isfinite(rate):
        return NO_VALUE
    return f"{units.quantity(rate, 'B/s', 3)} ({units.significant(rate * 8e-9, 3)} Gb/s)" if rate > 0 else "never"


def _named_link_rows(payoff: Payoff, payoffs: Payoffs) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each link that the user named, with the modelled verdicts of a codec on that link."""
    coded = payoff.coded
    for link in payoffs.links:
        rates = (
            coded.serial("apart", link.rate),
            coded.pipelined("apart", link.rate),
            coded.pipelined("write", link.rate),
            coded.pipelined("read", link.rate),
        )
        verdicts = (breakeven.modelled_verdict(rate / link.rate) for rate in rates)
        yield (payoff.case.id, ", ".join(payoff.devices), link.name, *verdicts)
