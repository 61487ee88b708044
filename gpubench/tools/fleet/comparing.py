"""Compare the GPUs, links and hosts of a fleet with an earlier fleet, and with the least accepted figures (floors)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpubench import plugins
from gpubench.analysis.digest import Component
from gpubench.judging import effect
from gpubench.judging.causes import causes
from gpubench.judging.evidence import Evidence, Side
from gpubench.judging.fleet import Basis, FleetFinding, Place, SuspectState
from gpubench.judging.judge import Finding, SideFigures, decide
from gpubench.judging.noise import LEAST_TO_FAIL
from gpubench.judging.policy import Policy
from gpubench.model import Verdict
from gpubench.plugins.gate import Gate
from gpubench.tools.fleet.digests import ReadFleet
from gpubench.tools.gating import readings


@dataclass(frozen=True, slots=True)
class FleetComparison:
    """The components that are slower than expected, and in `compared` the number of compared cases."""

    findings: tuple[FleetFinding, ...]
    compared: int


@dataclass(frozen=True, slots=True)
class _Pair:
    """One case of one component, as measured in the current fleet and in the earlier fleet.

    `place` is the component's place in the current fleet."""

    place: Place
    component: Component
    earlier: Component
    before: Side
    after: Side


def compare_with_baseline(current: ReadFleet, earlier: ReadFleet, policy: Policy) -> FleetComparison:
    """Compare each case of each component with its measurement in an earlier fleet, and return the slower ones.

    The statistics and the threshold are those of a gate with this `policy`."""
    pairs = list(_comparable_pairs(current, earlier))
    unjudged = [_unjudged_finding(pair) for pair in pairs]
    effects = effect.effects([effect.pair(pair.before, pair.after) for pair in pairs])
    findings = (
        _fleet_finding(pair.place, pair.component, finding, "baseline", [pair.earlier])
        for pair, finding in zip(pairs, decide(unjudged, effects, policy.threshold), strict=True)
        if finding.verdict is Verdict.SLOWER
    )
    return FleetComparison(tuple(findings), len(pairs))


def compare_with_floors(current: ReadFleet, policy: Policy) -> FleetComparison:
    """Compare each case of each component with the floor of its GPU model, and return those below their floor.

    A floor is the least accepted figure, as the gate `floor` reads it with this `policy`."""
    gate: Gate = plugins.load("gates", "floor")
    findings, compared = [], 0
    for digest in current.digests:
        components = {component.devices: component for component in digest.components}
        evidence = Evidence([[readings.read(current.files[digest.node])]])
        judged_findings = gate.judge(Evidence([]), evidence, policy).findings
        compared += len(judged_findings)
        findings += [
            _fleet_finding(Place(digest.node, finding.devices), components[finding.devices], finding, "floor", [])
            for finding in judged_findings
            if finding.verdict is Verdict.SLOWER and finding.devices in components
        ]
    return FleetComparison(tuple(findings), compared)


def _comparable_pairs(current: ReadFleet, earlier: ReadFleet) -> Iterator[_Pair]:
    """Yield a pair of measurements for each case of each component that both fleets measured."""
    earlier_by_identity = {
        _component_key(digest.node, component): (digest.node, component)
        for digest in earlier.digests
        for component in digest.components
    }
    for digest in current.digests:
        comparable = [
            component
            for component in digest.components
            if _component_key(digest.node, component) in earlier_by_identity
        ]
        if not comparable:
            continue
        after = Evidence([[readings.read(current.files[digest.node])]])
        nodes = {earlier_by_identity[_component_key(digest.node, component)][0] for component in comparable}
        before = {node: Evidence([[readings.read(earlier.files[node])]]) for node in nodes}
        for component in comparable:
            node, earlier_component = earlier_by_identity[_component_key(digest.node, component)]
            if earlier_component.fingerprint == component.fingerprint:
                yield from _case_pairs(
                    Place(digest.node, component.devices), component, earlier_component, before[node], after
                )


def _component_key(node: str, component: Component) -> tuple[str, ...]:
    """Return the key of a component in every fleet: its UUIDs, or for a host its node and device ids."""
    return component.uuids if all(component.uuids) else (node, *component.devices)


def _case_pairs(
    place: Place, component: Component, earlier: Component, before: Evidence, after: Evidence
) -> Iterator[_Pair]:
    """Yield the pair of each case of one component that can be judged in both fleets."""
    for key in component.rates:
        old = before.sides.get((key.case, earlier.devices))
        new = after.sides.get((key.case, component.devices))
        if old and new and old.kinds == new.kinds and effect.is_judgeable(old) and effect.is_judgeable(new):
            yield _Pair(place, component, earlier, old, new)


def _unjudged_finding(pair: _Pair) -> Finding:
    """Return the inconclusive finding of a pair, with the figures of both fleets, for `decide` to judge."""
    (kind, *_) = pair.after.kinds
    before, after = SideFigures.of(pair.before), SideFigures.of(pair.after)
    return Finding(
        pair.after.case, pair.after.devices, Verdict.INCONCLUSIVE, "", "", kind.unit, kind.better, before, after
    )


def _fleet_finding(
    place: Place, component: Component, finding: Finding, basis: Basis, others: Sequence[Component]
) -> FleetFinding:
    """Return a gate's finding about one component as a finding of the fleet, with the probable causes."""
    key = next((key for key in component.rates if key.case == finding.case.id), None)
    shift = finding.effect.shift if finding.effect else math.nan
    floor_or_processes = (
        finding.before.processes or LEAST_TO_FAIL
    )  # a floor has no processes, because it is not measured
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
