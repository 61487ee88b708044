"""The gate against what a model of GPU is known to reach: for accepting a new machine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gpubench.api.gate import (
    Effect,
    Evidence,
    Figures,
    Finding,
    Floor,
    Gate,
    Judgement,
    Policy,
    Side,
    Verdict,
    against,
    badness,
    matches,
    unjudged,
)


@dataclass(frozen=True, slots=True)
class Floors:
    """Holds each case against the floor of its device's model; the user's own stand before the built-in ones."""

    summary: str = "against what a model of GPU is known to reach"

    def judge(self, baseline: Evidence, candidate: Evidence, policy: Policy) -> Judgement:
        """The verdicts, the worst first: `same` meets its floor, `slower` is surely below it."""
        del baseline  # the floor is one
        pairs = [(side, _floor(side, candidate, policy)) for side in candidate.sides.values()]
        findings = [_finding(side, floor, policy) for side, floor in pairs if floor is not None]
        kept = [found for found in findings if not policy.allows_skip(found.cause, found.case.id)]
        ids = [finding.case.id for finding in findings]
        return Judgement(
            tuple(sorted(kept, key=badness)),
            new=tuple(side.case for side, floor in pairs if floor is None),
            unmet=tuple(pattern for pattern in policy.required if not any(matches(each, (pattern,)) for each in ids)),
            notes=tuple(_notes(candidate, [side for side, floor in pairs if floor is None], bool(findings))),
        )


def _model(side: Side, candidate: Evidence) -> str:
    devices = candidate.readings[side.readings[0]].manifest.facts.devices
    return next((device.name for device in devices if device.id in side.devices[:1]), "unknown device")


def _floor(side: Side, candidate: Evidence, policy: Policy) -> Floor | None:
    return policy.floor(_model(side, candidate), side.case.id)


def _finding(side: Side, floor: Floor, policy: Policy) -> Finding:
    expected = Figures(floor.expected)
    plain = Finding(
        side.case, side.devices, Verdict.INVALID, "", "", floor.unit, floor.better, expected, Figures.of(side)
    )
    plain = replace(plain, required=policy.is_required(side.case.id))
    if objection := unjudged(side):
        return replace(plain, verdict=objection.verdict, cause=objection.cause, reason=objection.reason)
    if side.kinds[0].unit != floor.unit:
        reason = f"the unit is {side.kinds[0].unit}, the floor's {floor.unit}"
        return replace(plain, verdict=Verdict.NOT_COMPARABLE, cause="method", reason=reason)
    found, threshold = against(side, floor.expected), math.log1p(floor.tolerance_percent / 100)
    weighed = replace(plain, effect=found, threshold=threshold, asked=threshold)
    return replace(weighed, verdict=verdict(found, threshold), reason=floor.source)


def verdict(found: Effect, tolerance: float) -> Verdict:
    """slower: the whole interval lies below the floor; same: above it; faster: beyond what was expected by as much."""
    if found.low > tolerance:
        return Verdict.SLOWER
    if found.high > tolerance:
        return Verdict.SUSPECT
    return Verdict.FASTER if found.high < -tolerance else Verdict.SAME


def _notes(candidate: Evidence, without: list[Side], found_any: bool) -> list[str]:
    models = ", ".join(dict.fromkeys(_model(side, candidate) for side in without))
    if without and not found_any:
        return [f"no floor is known for {models}: write [[floor]] tables into gpubench.toml (docs/gate.md)"]
    return [f"{len(without)} cases have no floor on {models}"] if without else []


gate: Gate = Floors()
