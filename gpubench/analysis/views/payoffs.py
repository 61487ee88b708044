"""Compute break-even links of a run's codecs, and the speed-up of compression over the links that the run measured.

A case takes part if it has stages `compress` and `decompress` and the observed `ratio`. If it also has a stage `raw`,
it moved data over a link: its headline is the overlapped transfer, `staged` is the transfer block by block, and its
note `ends` says which sides are charged (breakeven.ChargedSides)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from gpubench.analysis.figure import Figure, Spread
from gpubench.analysis.records import record
from gpubench.analysis.summary import Summary
from gpubench.analysis.views import breakeven, choices
from gpubench.analysis.views.breakeven import CodecRates, Payoff
from gpubench.analysis.views.table import NO_VALUE, Derived, Table
from gpubench.base import units
from gpubench.model import NamedLink, View
from gpubench.stats import Interval

_RATE = "B/s"
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


@dataclass(frozen=True, slots=True)
class Payoffs(Derived):
    """The payoffs of one view: codecs alone, transfers over measured links, and the links that the user named.

    `sent` are the suite's transfers over all links, with which the advice of a codec is compared."""

    KIND: ClassVar[str] = "breakeven"
    RECORD: ClassVar[str] = "suite view=title codecs crossings=transfers advice"
    suite: str
    title: str
    codecs: tuple[Payoff, ...]
    transfers: tuple[Payoff, ...]
    links: tuple[NamedLink, ...]
    sent: tuple[Payoff, ...] = ()

    @classmethod
    def of(cls, summary: Summary, suite: str, view: View) -> list[Payoffs]:
        """Return the codecs and the transfers over links of a view's ok cases, with replicates joined."""
        of_suite = [
            payoff
            for spread in summary.spreads()
            if spread.case.suite == suite and (payoff := _payoff(summary, spread))
        ]
        of_view = [payoff for payoff in of_suite if payoff.case.name in view.cases]
        codecs = tuple(payoff for payoff in of_view if payoff.raw is None)
        transfers = tuple(payoff for payoff in of_view if payoff.raw is not None)
        sent = tuple(payoff for payoff in of_suite if payoff.raw is not None)
        return [cls(suite, view.title, codecs, transfers, summary.run.manifest.settings.links, sent)]

    @property
    def advice(self) -> list[choices.MeasuredAdvice]:
        """The codec that is advised for each transfer of the suite, compared with the transfers."""
        return choices.measured_advice(self.codecs, self.sent)

    @property
    def tables(self) -> list[Table]:
        """The tables that have rows: measured transfers, break-even links, named links, and advised codecs."""
        tables = []
        if self.transfers:
            note = "Rates count uncompressed bytes. The upper bound is that of perfect overlap (docs/compression.md)"
            rows = tuple(map(_measured_row, self.transfers))
            text_heads = ("case", "device", *_MEASURED_HEADS[-2:])
            tables.append(Table(f"Measured: {self.title}", _MEASURED_HEADS, rows, text_heads, note))
        if self.codecs:
            note = "Over a link slower than B*, compression pays even without overlap"
            rows = tuple(map(_break_even_row, self.codecs))
            tables.append(Table(self.title, _EVEN_HEADS, rows, _EVEN_HEADS[:2], note))
        if named := tuple(row for payoff in self.codecs for row in _named_link_rows(payoff, self)):
            note = (
                "Computed from the rates above and the rate of the link; staged and overlapped use one device per side"
            )
            tables.append(Table(f"Modelled, not measured: {self.title}", _NAMED_HEADS, named, _NAMED_HEADS, note))
        return [*tables, *choices.tables(self.title, self.codecs, self.sent, self.links)]

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield break-even rates, None where compression pays on any link, and speed-ups with their intervals."""
        for payoff in (*self.codecs, *self.transfers):
            line = {"case": payoff.case.id, "suite": self.suite, "params": "", "quantity": "derived"}
            for name, rate in payoff.break_even.items():
                yield {**line, "series": f"break-even {name}", "unit": _RATE, "median": record(rate)}
            if payoff.speedup:
                yield {**line, "series": "speed-up over raw", "unit": "", **record(payoff.speedup)}


def _payoff(summary: Summary, spread: Spread) -> Payoff | None:
    """Return the payoff of a case; None if it has no positive ratio, no rate of a codec, or a rate of 0."""
    stages = dict(_stages(summary, spread))
    ratio = stages.get("ratio")
    if ratio is None or not ratio.centre > 0:
        return None
    ends = dict(spread.row.result.notes).get("ends", "")
    rates = [stages[name].centre if name in stages else math.inf for name in ("compress", "decompress")]
    if all(map(math.isinf, rates)) or min(rates) <= 0:
        return None
    headline = spread.figure.interval if spread.figure and "raw" in stages else None
    coded = CodecRates(ratio.centre, *rates)
    return Payoff(spread.case, spread.devices, coded, ends, stages.get("raw"), stages.get("staged"), headline)


def _stages(summary: Summary, spread: Spread) -> Iterator[tuple[str, Interval]]:
    """Yield the name and the rate in B/s of each stage of a case, and `ratio` with the compression ratio."""
    headlines: list[Figure] = [spread.figure] if spread.figure else []
    for figure in [*headlines, *summary.secondary_figures(spread)]:
        stage = figure.stage
        if figure.unit == _RATE and stage:
            yield stage, figure.interval
        elif figure.name == "ratio":
            yield figure.name, figure.interval


def _measured_row(payoff: Payoff) -> tuple[str, ...]:
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
