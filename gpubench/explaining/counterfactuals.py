"""Choose the cases that test the rungs of a ladder by doing without their cause, and compare rung and measurement."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpubench.analysis.summary import Summary
from gpubench.base import units
from gpubench.base.patterns import is_named
from gpubench.base.units import axis_label, axis_text
from gpubench.explaining.evidence import Evidence, Measured, tiles
from gpubench.explaining.ladder import Ladder, Rung, percent_of_change
from gpubench.knowledge import alone
from gpubench.model import Case

_BY_SIZE = ("bandwidth", "p2p", "ipc", "collectives")  # suites whose larger messages take no longer than 2 s
_MOST_WAYS = 2  # other ways to do the same work, of which some compile for seconds
MOST_CASES = 13  # of at most 2 s each in the full tier, most of them far less


@dataclass(frozen=True, slots=True)
class Check:
    """A rung, the speed-up that it predicts without its cause, and the one that the counterfactual case measured.

    `deviation` is the relative half width of the difference."""

    rung: str
    case: str
    predicted: float
    measured: float
    deviation: float

    @property
    def verdict(self) -> Literal["confirmed", "corrected"]:
        """Whether the measured speed-up is the predicted one, within the deviation."""
        return "confirmed" if abs(math.log(self.measured / self.predicted)) <= self.deviation else "corrected"

    @property
    def text(self) -> str:
        """`clock: predicted +23.4 %, measured +19.4 % (± 1.2 %) by gemm/burst[…]: corrected, the rest unexplained`."""
        predicted, measured = map(percent_of_change, (self.predicted, self.measured))
        width = units.percent(self.deviation)
        verdict = "corrected, the rest unexplained" if self.verdict == "corrected" else "confirmed"
        return f"{self.rung}: predicted {predicted}, measured {measured} (± {width}) by {self.case}: {verdict}"


def chosen(case: Case, cases: Sequence[Case]) -> list[Case]:
    """Return the case and the counterfactual ones among `cases`, each once; empty if the case is not among them."""
    if case.id not in {other.id for other in cases}:
        return []
    name = f"{case.suite}/{case.name}"
    patterns = alone.COUNTERFACTUALS.get(name) or alone.COUNTERFACTUALS.get(case.suite, ())
    axes = {axis_label(axis): axis_text(axis, value) for axis, value in case.params}
    wanted = [pattern.format(**axes) for pattern in patterns if _can_fill(pattern, axes)]
    tests = [other for pattern in wanted for other in cases if is_named(other.id, pattern)]
    larger = (
        max(others, key=lambda other: float(other.param(axis)))
        for axis in (*alone.SIZES, *alone.BLOCKS)
        if case.suite in _BY_SIZE and (others := _larger(case, cases, axis))
    )
    ways = (other for axis in alone.WAYS for other in cases if _differs_only_in(other, case, axis))
    picked = {other.id: other for other in (case, *tests, *larger, *itertools.islice(ways, _MOST_WAYS))}
    return list(picked.values())[:MOST_CASES]


def _can_fill(pattern: str, axes: Mapping[str, object]) -> bool:
    return all(part.partition("}")[0] in axes for part in pattern.split("{")[1:])


def _larger(case: Case, cases: Sequence[Case], axis: str) -> list[Case]:
    ours = dict(case.params).get(axis)
    if not isinstance(ours, int | float):
        return []
    return [other for other in cases if _differs_only_in(other, case, axis) and float(other.param(axis)) > ours]


def _differs_only_in(other: Case, case: Case, axis: str) -> bool:
    other_params, params = dict(other.params), dict(case.params)
    same = (other.suite, other.name, other_params.keys()) == (case.suite, case.name, params.keys())
    return same and {name for name, value in params.items() if other_params[name] != value} == {axis}


def checked(ladder: Ladder, summary: Summary) -> tuple[Ladder, list[Check]]:
    """Return the ladder with the rungs that the run's counterfactual cases correct, and all checks.

    A corrected rung takes the factor that was measured, and a loss becomes no gain; the rest of it is unexplained."""
    evidence = Evidence(summary)
    spread = next(s for s in summary.spreads() if (s.case.id, s.devices) == (ladder.case, ladder.devices))
    case = evidence.measured(spread)
    checks = list(_checks(ladder, evidence, case)) if case else []
    missed = {check.rung: check for check in checks if check.verdict == "corrected"}
    rungs = tuple(_corrected(rung, missed[rung.name]) if rung.name in missed else rung for rung in ladder.rungs)
    return replace(ladder, rungs=rungs), checks


def _corrected(rung: Rung, check: Check) -> Rung:
    factor = min(rung.factor * check.predicted / check.measured, max(rung.factor, 1.0))
    evidence = f"{rung.evidence}; corrected by {check.case}"
    return replace(rung, factor=factor, deviation=math.hypot(rung.deviation, check.deviation), evidence=evidence)


def _checks(ladder: Ladder, evidence: Evidence, case: Measured) -> Iterator[Check]:
    products = list(evidence.named((alone.BURST_CASE,), case.device.id))
    bursts = [other for other in products if other.params.get("dtype") == case.params.get("dtype")]
    shape = "x".join([str(case.params.get("n"))] * 3)
    rested = next((other for other in bursts if other.params["shape"] == shape), None)
    filling = next((other for other in bursts if other.params["shape"] != shape), None)
    clocks = {  # after a burst the driver says the clock at rest
        other.id: other.held.clock_hz * counted.value
        for other in (case, *products)
        if other.held and (counted := evidence.counted_clock(other))
    }
    data, zeros = ladder.rung("data"), evidence.product_of("zeros", case)
    if zeros and data:
        yield _check("data", zeros, case, 1 / data.factor, data.deviation)
    if rested and {case.id, rested.id} <= clocks.keys() and (lower := data or ladder.rung("clock")):
        yield _check(lower.name, rested, case, clocks[rested.id] / clocks[case.id], 2 * lower.deviation)
    slow = ladder.rung("edges") or ladder.rung("blocks")
    if rested and filling and slow and {rested.id, filling.id} <= clocks.keys():
        cube, whole = tiles(rested), tiles(filling)
        if cube and whole and math.prod(whole) > math.prod(cube):  # else the library's tile fills this shape less
            faster = clocks[filling.id] / clocks[rested.id]
            yield _check(slow.name, filling, rested, faster * math.prod(whole) / math.prod(cube), 0.01)


def _check(rung: str, without: Measured, case: Measured, predicted: float, deviation: float) -> Check:
    width = math.hypot(math.hypot(without.deviation, case.deviation), deviation)
    return Check(rung, without.id, predicted, without.rate / case.rate, width)
