"""Find the slow nodes, and the slow links between nodes, from the rates of pairs of nodes. Pure functions of numbers.

Nodes are paired in rounds by the circle method, so that all pairs of a round are disjoint and measure at the same time.
The model for the logarithm of a pair's rate is log rate(i, j) = μ + aᵢ + aⱼ + ε. A link is slow by its deletion
residual: how far its rate lies below the prediction from the other pairs of its two nodes, over the standard error of
that prediction (Belsley, Kuh & Welsch, Regression Diagnostics, 1980, section 2.1). The slowest links are removed one
after the other, and the suspects are all links up to the last one that is slow beyond chance (Rosner, Technometrics 25,
1983). Then the effects aᵢ, fitted without these links, are compared with each other by the rule of `outliers`.

A median polish finds the same slow nodes and links, but its residuals have no known distribution: with noise of 2 %, it
accused a node or link in 11 to 23 % of healthy fleets, where this rule does so in 1 %. The study
`links_simulation` has the simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from gpubench import stats
from gpubench.analysis.digest import ComponentKind
from gpubench.base import units
from gpubench.judging import outliers
from gpubench.judging.fleet import (
    Basis,
    FleetCase,
    FleetFinding,
    FleetGroup,
    FleetJudgement,
    Place,
    Standing,
    Suspect,
    worst_first,
)
from gpubench.model.fleet import Fleet, FleetNode

Pair = tuple[int, int]  # the lower number first
FAMILY = "links between nodes"
_KINDS: tuple[ComponentKind, ...] = ("node", "link")
_NO_FIGURE = "no pair has a figure"
Vector = npt.NDArray[np.float64]
_ALPHA = 0.001  # the share of fleets in which chance accuses a link; it is small because there are many pairs
_MOST_SHARE = 0.2  # the largest share of the links that can be suspects
_LOOK_AHEAD = 1  # links that are removed although none is beyond chance yet, because two slow ones hide each other
_LEAST_FREEDOM = 2  # pairs that must remain beyond those that the effects of the nodes need
_FULL_LEVERAGE = 1 - 1e-6  # a pair with a larger leverage is the only source of an effect


def schedule(nodes: int, rounds: int) -> list[list[Pair]]:
    """Return the pairs of nodes that measure together in each of `rounds` rounds; the nodes are 0 to `nodes` − 1.

    The pairs of a round are disjoint and sorted."""
    seats = nodes + nodes % 2
    rounds_of_pairs = []
    for round_number in range(rounds if nodes > 1 else 0):
        ring = [(place + round_number) % (seats - 1) for place in range(seats - 1)]
        pairs = [(seats - 1, ring[0]), *((ring[step], ring[-step]) for step in range(1, seats // 2))]
        rounds_of_pairs.append(sorted((min(pair), max(pair)) for pair in pairs if max(pair) < nodes))
    return rounds_of_pairs


@dataclass(frozen=True, slots=True)
class LinkEffect:
    """The slowdown of a node or a link against the others, as a share of the rate, and whether it is beyond chance.

    `detectable` is the smallest slowdown that would have been beyond chance."""

    slowdown: float
    detectable: float
    is_suspect: bool


@dataclass(frozen=True, slots=True)
class LinkJudgement:
    """The judgement of the rates of pairs: the typical rate of a pair in B/s, and the effect of each node and link.

    `too_few` gives the reason why nothing is judged, and is otherwise empty."""

    typical: float
    nodes: dict[int, LinkEffect]
    links: dict[Pair, LinkEffect]
    too_few: str = ""


def judge(rates: Mapping[Pair, float]) -> LinkJudgement:
    """Return the judgement of the rates of pairs, in B/s; a pair holds the numbers of its nodes, the lower first.

    The numbers need not be consecutive."""
    pairs = sorted(rates)
    values = np.log([rates[pair] for pair in pairs])
    numbers = sorted({node for pair in pairs for node in pair})
    place = {node: index for index, node in enumerate(numbers)}
    ends = np.array([[place[node] for node in pair] for pair in pairs], dtype=np.intp).reshape(-1, 2)
    typical = float(np.exp(np.median(values))) if pairs else np.nan
    if reason := _reason_too_few(ends, len(numbers)):
        none = LinkEffect(np.nan, np.nan, False)
        return LinkJudgement(typical, dict.fromkeys(numbers, none), dict.fromkeys(pairs, none), reason)
    slow, slowdowns, limits = _slow_links(ends, values, len(numbers))
    remaining = np.setdiff1d(np.arange(len(pairs)), slow)
    fit = _Fit.of(ends[remaining], values[remaining], len(numbers))
    node_effects = outliers.find(fit.effects[None, :])
    links = [LinkEffect(_share(slowdowns[row]), _share(limits[row]), row in slow) for row in range(len(pairs))]
    return LinkJudgement(
        float(np.exp(2 * np.median(fit.effects))),
        dict(zip(numbers, _node_effects(node_effects), strict=True)),
        dict(zip(pairs, links, strict=True)),
    )


def judge_pairs(
    names: Sequence[str], rates: Mapping[str, Mapping[Pair, float]], failures: Sequence[str] = ()
) -> FleetJudgement:
    """Return the judgement of a fleet in one family, the links between nodes; nothing is judged with too few pairs.

    `names` are those of the nodes by number. `rates` has the rates of pairs in B/s by the id of the case, and
    `failures` are sentences about pairs without a rate."""
    cases = {case: judge(of_case) for case, of_case in rates.items()}
    too_few = [judged.too_few for judged in cases.values() if judged.too_few] or ([] if cases else [_NO_FIGURE])
    findings: dict[tuple[ComponentKind, Place], list[FleetFinding]] = {}
    shares: dict[tuple[ComponentKind, Place], list[float]] = {}
    notes = [*too_few[:1], *(f"not measured: {failure}" for failure in failures)]
    groups = {kind: FleetGroup(kind, f"{kind}s by their pairs", 0, ()) for kind in _KINDS}
    for case, judged in cases.items():
        slowest = min(rates[case], key=lambda pair: rates[case][pair])
        low, usual = (units.quantity(rate, "B/s", 4) for rate in (rates[case][slowest], judged.typical))
        notes.append(f"{case}: typical {usual}, slowest {_place(names, slowest).text} with {low}")
        of_kind = {
            "node": [(Place(names[node], ()), effect, math.nan) for node, effect in judged.nodes.items()],
            "link": [(_place(names, pair), effect, rates[case][pair]) for pair, effect in judged.links.items()],
        }
        for kind in _KINDS:
            limit = float(np.median([effect.detectable for _, effect, _ in of_kind[kind]]))
            listed = FleetCase(case, FAMILY, "B/s", len(of_kind[kind]), judged.typical, math.nan, limit)
            groups[kind] = replace(groups[kind], components=listed.components, cases=(*groups[kind].cases, listed))
            for place, effect, rate in of_kind[kind]:
                shares.setdefault((kind, place), []).append(1 - effect.slowdown)
                if effect.is_suspect:
                    expected, sizes = rate / (1 - effect.slowdown), (effect.slowdown, effect.detectable)
                    finding = FleetFinding(
                        place, kind, FAMILY, case, "others", "suspect", *sizes, rate, expected, "B/s"
                    )
                    findings.setdefault((kind, place), []).append(finding)
    state: Literal["ok", "not compared"] = "not compared" if too_few else "ok"
    suspects = [
        Suspect(*of, (), tuple(sorted(of_place, key=lambda finding: -finding.slowdown)))
        for of, of_place in findings.items()
    ]
    standings = [
        Standing(
            place,
            kind,
            _KINDS.index(kind),
            ((FAMILY, float(np.mean(values))),),
            state="suspect" if (kind, place) in findings else state,
        )
        for (kind, place), values in shares.items()
    ]
    fleet = Fleet(tuple(FleetNode(name, "answered") for name in names))
    bases: tuple[Basis, ...] = () if too_few else ("others",)
    of_kinds = tuple(groups.values()) if cases else ()
    return FleetJudgement(fleet, of_kinds, worst_first(suspects), tuple(standings), bases, tuple(notes))


def _place(names: Sequence[str], pair: Pair) -> Place:
    return Place("", tuple(names[node] for node in pair))


def pair_of(finding: FleetFinding, names: Sequence[str], rates: Mapping[Pair, float]) -> Pair:
    """Return the pair to measure again for a finding: the slow link, or the pair of a slow node nearest to normal.

    In that pair, the link does not explain the slowdown. `rates` are those of the case of the finding."""
    ends = {names.index(name) for name in finding.place.devices or (finding.place.node,)}
    effects = judge(rates).links
    return min((pair for pair in effects if ends <= set(pair)), key=lambda pair: abs(effects[pair].slowdown))


def _reason_too_few(ends: npt.NDArray[np.intp], count: int) -> str:
    """Return the reason why the pairs are too few for a verdict, as a clause; empty if they are enough."""
    if count < outliers.LEAST_COMPONENTS:
        return f"{count} nodes are too few for a verdict, which needs at least {outliers.LEAST_COMPONENTS}"
    rank = int(np.linalg.matrix_rank(_design(ends, count)))
    if rank < count or len(ends) < count + _LEAST_FREEDOM:
        return f"{len(ends)} pairs do not tell {count} nodes from their links; measure more --rounds"
    return ""


def _design(ends: npt.NDArray[np.intp], count: int) -> npt.NDArray[np.float64]:
    """Return the matrix of the model, shape (pairs, count): a row for each pair, with a 1 for both of its nodes."""
    design = np.zeros((len(ends), count))
    design[np.arange(len(ends))[:, None], ends] = 1.0
    return design


@dataclass(slots=True)
class _Fit:
    """Least squares of the model, from which pairs can be removed one after the other.

    `effects` has μ/2 + aᵢ of each node."""

    ends: npt.NDArray[np.intp]
    values: Vector
    effects: Vector
    inverse: npt.NDArray[np.float64]

    @classmethod
    def of(cls, ends: npt.NDArray[np.intp], values: Vector, count: int) -> _Fit:
        """Return the fit of all pairs; `count` is the number of nodes."""
        design = _design(ends, count)
        inverse = np.asarray(np.linalg.inv(design.T @ design), dtype=np.float64)
        return cls(ends, values, inverse @ (design.T @ values), inverse)

    def residuals(self) -> tuple[Vector, Vector]:
        """Return the residual and the leverage of every pair, including the removed ones, each of shape (pairs,)."""
        first, second = self.ends.T
        leverages = self.inverse[first, first] + self.inverse[second, second] + 2 * self.inverse[first, second]
        return self.values - self.effects[first] - self.effects[second], leverages

    def remove(self, row: int) -> None:
        """Remove the pair in this row of `ends` from the fit; its leverage must be below 1."""
        residuals, leverages = self.residuals()
        column = self.inverse[:, self.ends[row]].sum(axis=1)
        self.effects = self.effects - column * residuals[row] / (1 - leverages[row])
        self.inverse = self.inverse + np.outer(column, column) / (1 - leverages[row])


def _slow_links(ends: npt.NDArray[np.intp], values: Vector, count: int) -> tuple[npt.NDArray[np.intp], Vector, Vector]:
    """Return the indices of the slow links, and for every link its distance below its prediction and the limit."""
    fit = _Fit.of(ends, values, count)
    removed: list[int] = []
    suspects = 0
    deletions = []
    for _ in range(max(1, int(_MOST_SHARE * len(values)))):
        slowdowns, limits = _deletion_residuals(fit, removed)
        deletions.append((slowdowns, limits))
        excess = slowdowns / limits
        excess[removed] = -np.inf
        worst = int(excess.argmax())
        is_finished = len(removed) - suspects > _LOOK_AHEAD or not np.isfinite(excess[worst])
        if is_finished or len(values) - len(removed) - count <= _LEAST_FREEDOM:
            break
        removed.append(worst)
        if excess[worst] > 1:
            suspects = len(removed)
        fit.remove(worst)
    else:
        deletions.append(_deletion_residuals(fit, removed))
    slowdowns, limits = deletions[min(suspects, len(deletions) - 1)]
    return np.array(sorted(removed[:suspects]), dtype=np.intp), slowdowns, limits


def _deletion_residuals(fit: _Fit, removed: list[int]) -> tuple[Vector, Vector]:
    """Return for each link how far it is below the prediction from the other pairs, and the limit of this distance."""
    residuals, leverages = fit.residuals()
    is_in = np.ones(len(residuals), dtype=bool)
    is_in[removed] = False
    free = np.where(is_in, np.maximum(1 - leverages, 1 - _FULL_LEVERAGE), 1.0)
    prediction_errors = residuals / free  # the residual of a removed pair already is one
    freedom = int(is_in.sum()) - len(fit.effects)
    squares = float((residuals[is_in] ** 2).sum())
    without = np.where(is_in, squares - residuals**2 / free, squares) / np.where(is_in, freedom - 1, freedom)
    error = np.sqrt(np.maximum(without, outliers.LEAST_SPREAD**2) * np.where(is_in, 1 / free, 1 + leverages))
    tail = 2 * _ALPHA / len(residuals)
    quantiles = stats.student_quantile(np.array([freedom - 1.0, float(freedom)]), tail)
    limit = np.maximum(-np.log1p(-outliers.LEAST_EFFECT), np.where(is_in, *quantiles) * error)
    limit[is_in & (leverages > _FULL_LEVERAGE)] = np.inf
    return -prediction_errors, limit


def _share(logarithm: float) -> float:
    """Return a slowdown on logarithms as a share of the rate."""
    return float(-np.expm1(-logarithm))


def _node_effects(node_effects: outliers.Outliers) -> list[LinkEffect]:
    """Return the effects of the nodes, in order, from `Outliers` whose arrays have a single row."""
    rows = zip(node_effects.slowdown[0], node_effects.detectable[0], node_effects.is_suspect[0], strict=True)
    return [LinkEffect(_share(slow), _share(least), bool(flag)) for slow, least, flag in rows]
