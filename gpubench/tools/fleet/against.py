"""The components of a fleet against themselves in an earlier fleet, and against the floors of their models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpubench import plugins
from gpubench.analysis.digest import Component
from gpubench.judging import effect
from gpubench.judging.causes import causes
from gpubench.judging.evidence import Evidence, Side
from gpubench.judging.fleet import Basis, FleetFinding, Place, SuspectState
from gpubench.judging.judge import Figures, Finding, decide
from gpubench.judging.noise import LEAST_TO_FAIL
from gpubench.judging.policy import Policy
from gpubench.model import Verdict
from gpubench.plugins.gate import Gate
from gpubench.tools.fleet.digests import ReadFleet
from gpubench.tools.gating import readings


@dataclass(frozen=True, slots=True)
class ComparedFleet:
    """What is slower than it should be, and the number of comparisons that were made."""

    findings: tuple[FleetFinding, ...]
    compared: int


@dataclass(frozen=True, slots=True)
class _Pair:
    """One case of one component, before and after."""

    place: Place
    component: Component
    earlier: Component
    before: Side
    after: Side


def baseline(found: ReadFleet, earlier: ReadFleet, policy: Policy) -> ComparedFleet:
    """Compare each component with itself in an earlier fleet.

    It is the same if its UUIDs are (of a host, the node), and it is comparable if driver and settings are. The
    statistics are those of a gate. What a gate takes as a reason not to judge, such as other programs on the device, is
    here a cause: whoever looks after a fleet wants to know of it.
    """
    pairs = list(_pairs(found, earlier))
    plain = [_plain(pair) for pair in pairs]
    effects = effect.effects([effect.pair(pair.before, pair.after) for pair in pairs])
    findings = (
        _finding(pair.place, pair.component, finding, "baseline", [pair.earlier])
        for pair, finding in zip(pairs, decide(plain, effects, policy.threshold), strict=True)
        if finding.verdict is Verdict.SLOWER
    )
    return ComparedFleet(tuple(findings), len(pairs))


def floors(found: ReadFleet, policy: Policy) -> ComparedFleet:
    """Compare each component with the floors of its model."""
    gate: Gate = plugins.load("gates", "floor")
    findings, compared = [], 0
    for digest in found.digests:
        components = {component.devices: component for component in digest.components}
        evidence = Evidence([[readings.read(found.files[digest.node])]])
        judged = gate.judge(Evidence([]), evidence, policy).findings
        compared += len(judged)
        findings += [
            _finding(Place(digest.node, finding.devices), components[finding.devices], finding, "floor", [])
            for finding in judged
            if finding.verdict is Verdict.SLOWER and finding.devices in components
        ]
    return ComparedFleet(tuple(findings), compared)


def _pairs(found: ReadFleet, earlier: ReadFleet) -> Iterator[_Pair]:
    known = {
        _identity(digest.node, component): (digest.node, component)
        for digest in earlier.digests
        for component in digest.components
    }
    for digest in found.digests:
        mine = [component for component in digest.components if _identity(digest.node, component) in known]
        if not mine:
            continue
        after = Evidence([[readings.read(found.files[digest.node])]])
        nodes = {known[_identity(digest.node, component)][0] for component in mine}
        before = {node: Evidence([[readings.read(earlier.files[node])]]) for node in nodes}
        for component in mine:
            node, same = known[_identity(digest.node, component)]
            if same.fingerprint == component.fingerprint:
                yield from _cases(Place(digest.node, component.devices), component, same, before[node], after)


def _identity(node: str, component: Component) -> tuple[str, ...]:
    """Return the UUIDs of a component; of a host, which has none, its node and its name there."""
    return component.uuids if all(component.uuids) else (node, *component.devices)


def _cases(
    place: Place, component: Component, earlier: Component, before: Evidence, after: Evidence
) -> Iterator[_Pair]:
    for key in component.rates:
        old = before.sides.get((key.case, earlier.devices))
        new = after.sides.get((key.case, component.devices))
        if old and new and old.kinds == new.kinds and effect.is_weighable(old) and effect.is_weighable(new):
            yield _Pair(place, component, earlier, old, new)


def _plain(pair: _Pair) -> Finding:
    (kind, *_) = pair.after.kinds
    before, after = Figures.of(pair.before), Figures.of(pair.after)
    return Finding(
        pair.after.case, pair.after.devices, Verdict.INCONCLUSIVE, "", "", kind.unit, kind.better, before, after
    )


def _finding(
    place: Place, component: Component, finding: Finding, basis: Basis, others: Sequence[Component]
) -> FleetFinding:
    key = next((key for key in component.rates if key.case == finding.case.id), None)
    shift = finding.effect.shift if finding.effect else math.nan
    floor_or_processes = finding.before.processes or LEAST_TO_FAIL  # a floor is no measurement
    is_sure = min(finding.after.processes, floor_or_processes) >= LEAST_TO_FAIL
    state: SuspectState = "confirmed" if is_sure else "suspect"
    family = key.family if key else ""
    return FleetFinding(
        place,
        component.kind,
        family,
        finding.case.id,
        basis,
        state,
        -math.expm1(-shift),
        -math.expm1(-finding.threshold),
        finding.after.median,
        finding.before.median,
        finding.unit,
        finding.better,
        causes=causes(key, family, shift, component, others),
    )
