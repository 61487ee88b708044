"""Judge the nodes, and the links between them, by the rates of pairs of nodes; `outliers.find_links` has the rule.

Nodes are paired in rounds by the circle method, so that the pairs of a round are disjoint and measure together."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from gpubench.analysis.overview import ComponentKind
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
    StandingState,
    Suspect,
    worst_first,
)
from gpubench.model.fleet import Fleet, FleetNode

Pair = tuple[int, int]  # the lower number first
FAMILY = "links between nodes"
Name = TypeVar("Name", int, Pair)
_KINDS: tuple[ComponentKind, ...] = ("node", "link")
_NO_FIGURE = "no pair has a figure"


def schedule(nodes: int, rounds: int) -> list[list[Pair]]:
    """Return the pairs of nodes that measure together in each of `rounds` rounds; the nodes are 0 to `nodes` − 1."""
    seats = nodes + nodes % 2
    rounds_of_pairs = []
    for round_number in range(rounds if nodes > 1 else 0):
        ring = [(place + round_number) % (seats - 1) for place in range(seats - 1)]
        pairs = [(seats - 1, ring[0]), *((ring[step], ring[-step]) for step in range(1, seats // 2))]
        rounds_of_pairs.append(sorted((min(pair), max(pair)) for pair in pairs if max(pair) < nodes))
    return rounds_of_pairs


class LinkEffect(NamedTuple):
    """The slowdown of a node or a link as a share of the rate, and whether it is beyond chance."""

    slowdown: float = math.nan
    detectable: float = math.nan
    is_suspect: bool = False


class LinkJudgement(NamedTuple):
    """The judgement of the rates of pairs: the typical rate of a pair in B/s, and the effect of each node and link."""

    typical: float
    nodes: dict[int, LinkEffect]
    links: dict[Pair, LinkEffect]
    too_few: str = ""


def judge(rates: Mapping[Pair, float]) -> LinkJudgement:
    """Return the judgement of the rates of pairs, in B/s; a pair holds the numbers of its nodes, the lower first."""
    pairs = sorted(rates)
    values = np.log([rates[pair] for pair in pairs])
    numbers, ends = np.unique(np.array(pairs, dtype=np.intp).reshape(-1, 2), return_inverse=True)
    nodes, ends = numbers.tolist(), ends.reshape(-1, 2)
    if reason := outliers.reason_too_few_links(ends, len(nodes)):
        typical = float(np.exp(np.median(values))) if pairs else math.nan
        return LinkJudgement(typical, dict.fromkeys(nodes, LinkEffect()), dict.fromkeys(pairs, LinkEffect()), reason)
    links, of_nodes, rate = outliers.find_links(ends, values, len(nodes))
    return LinkJudgement(float(np.exp(rate)), _effects(nodes, of_nodes), _effects(pairs, links))


def _effects(names: Iterable[Name], judged: outliers.Outliers) -> dict[Name, LinkEffect]:
    """Return the effects by name from `Outliers` whose arrays have a single row."""
    shares = (-np.expm1(-part[0]) for part in (judged.slowdown, judged.detectable))
    rows = zip(names, *shares, judged.is_suspect[0], strict=True)
    return {name: LinkEffect(float(slow), float(least), bool(flag)) for name, slow, least, flag in rows}


def judge_pairs(
    names: Sequence[str], rates: Mapping[str, Mapping[Pair, float]], failures: Sequence[str] = ()
) -> FleetJudgement:
    """Return the judgement of a fleet in one family, the links between nodes; nothing is judged with too few pairs.

    `names` are the names of the nodes by number. `rates` has the rates of pairs in B/s by the id of the case, and
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
                    figures = (effect.slowdown, effect.detectable, rate, rate / (1 - effect.slowdown), "B/s")
                    finding = FleetFinding(place, kind, FAMILY, case, "others", "suspect", *figures)
                    findings.setdefault((kind, place), []).append(finding)
    state: StandingState = "not compared" if too_few else "ok"
    suspects, standings = [], []
    for (kind, place), values in shares.items():
        slow = sorted(findings.get((kind, place), ()), key=lambda finding: -finding.slowdown)
        suspects += [Suspect(kind, place, (), tuple(slow))] if slow else []
        share = ((FAMILY, float(np.mean(values))),)
        standings.append(Standing(place, kind, _KINDS.index(kind), share, state="suspect" if slow else state))
    fleet = Fleet(tuple(FleetNode(name, "answered") for name in names))
    bases: tuple[Basis, ...] = () if too_few else ("others",)
    of_kinds = tuple(groups.values()) if cases else ()
    return FleetJudgement(fleet, of_kinds, worst_first(suspects), tuple(standings), bases, tuple(notes))


def _place(names: Sequence[str], pair: Pair) -> Place:
    return Place("", tuple(names[node] for node in pair))


def pair_of(finding: FleetFinding, names: Sequence[str], rates: Mapping[Pair, float]) -> Pair:
    """Return the pair to measure again for a finding: the slow link, or the pair of a slow node nearest to normal.

    In that pair, the link does not explain the slowdown. `rates` are the rates of the finding's case."""
    ends = {names.index(name) for name in finding.place.devices or (finding.place.node,)}
    effects = judge(rates).links
    return min((pair for pair in effects if ends <= set(pair)), key=lambda pair: abs(effects[pair].slowdown))
