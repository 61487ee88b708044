"""Compute break-even links of a run's codecs, and the speed-up of compression over the links that the run measured.

A case takes part if it has stages `compress` and `decompress` and the observed `ratio`. If it also has a stage `raw`,
it moved data over a link: its headline is the overlapped transfer, `staged` is the transfer block by block, and its
note `ends` says which sides are charged (breakeven.ChargedSides)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from gpubench.analysis.figure import Figure, Spread
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.breakeven import ChargedSides, CodecRates, quotient
from gpubench.model import Case, NamedLink, View
from gpubench.stats import Interval

_RATE = "B/s"


@dataclass(frozen=True, slots=True)
class Payoff:
    """The figures of a codec on some data: `coded` gives the break-even rates, the others the speed-up over a link.

    `raw`, `staged` and `overlapped` are rates of uncompressed bytes in B/s, with their 95 % intervals. `ends` names the
    charged sides (`breakeven.ChargedSides`). If the case has no link, `ends` is empty and the rates are None."""

    case: Case
    devices: tuple[str, ...]
    coded: CodecRates
    ends: str = ""
    raw: Interval | None = None
    staged: Interval | None = None
    overlapped: Interval | None = None

    @property
    def speedup(self) -> Interval | None:
        """The rate of compressed transfer over the rate of raw transfer; None if the case has no link."""
        if self.overlapped is None or self.raw is None or min(self.overlapped.low, self.raw.low) <= 0:
            return None
        return quotient(self.overlapped, self.raw)

    @property
    def bound(self) -> float | None:
        """The rate of perfect overlap in B/s, over a link as fast as it was for raw bytes; None without a link."""
        sides = _charged_sides(self.ends)
        return self.coded.pipelined(sides, self.raw.centre) if sides and self.raw else None

    @property
    def share(self) -> float | None:
        """The overlap efficiency: the reached fraction of the bound; None if the case has no link."""
        return self.overlapped.centre / self.bound if self.overlapped and self.bound else None


@dataclass(frozen=True, slots=True)
class Payoffs:
    """The payoffs of one view: codecs alone, transfers over measured links, and the links that the user named."""

    suite: str
    title: str
    codecs: tuple[Payoff, ...]
    transfers: tuple[Payoff, ...]
    links: tuple[NamedLink, ...]


def payoffs(summary: Summary) -> list[Payoffs]:
    """Return the payoffs of every break-even view of the run, in the order of the manifest."""
    return [
        payoffs_of(summary, suite.name, view)
        for suite in summary.run.manifest.suites
        for view in suite.views
        if view.kind == "breakeven"
    ]


def payoffs_of(summary: Summary, suite: str, view: View) -> Payoffs:
    """Return the codecs and the transfers over links of the ok cases of a suite's view, with replicates joined."""
    all_payoffs = [
        payoff
        for spread in summary.spreads()
        if spread.case.suite == suite and spread.case.name in view.cases and (payoff := _payoff(summary, spread))
    ]
    codecs = tuple(payoff for payoff in all_payoffs if payoff.raw is None)
    transfers = tuple(payoff for payoff in all_payoffs if payoff.raw is not None)
    return Payoffs(suite, view.title, codecs, transfers, summary.run.manifest.settings.links)


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


def _charged_sides(text: str) -> ChargedSides | None:
    """Return the charged sides that a note names; None if it names none."""
    return next((sides for sides in get_args(ChargedSides) if sides == text), None)
