"""Judge a candidate against the performance that a model of GPU is known to reach: the gate for a new machine."""

import math
from dataclasses import dataclass, replace

from gpubench.api import gate as gb


@dataclass(frozen=True, slots=True)
class Floors:
    """Compares each case with the floor of its device's model; the user's floors come before the built-in ones."""

    summary: str = "against the performance that a model of GPU is expected to reach"

    def judge(self, baseline: gb.Evidence, candidate: gb.Evidence, policy: gb.Policy) -> gb.Judgement:
        """Return the verdicts on all cases that have a floor, the worst first; `baseline` is ignored.

        The judgement lists the cases without a floor in `new`."""
        del baseline  # the floor takes its place
        pairs = [
            (side, policy.floor(_device_model(side, candidate), side.case.id)) for side in candidate.sides.values()
        ]
        findings = [_judge_side(side, floor, policy) for side, floor in pairs if floor is not None]
        reported = [finding for finding in findings if not policy.allows_skip(finding.cause, finding.case.id)]
        ids = [finding.case.id for finding in findings]
        return gb.Judgement(
            tuple(sorted(reported, key=gb.badness)),
            new=tuple(side.case for side, floor in pairs if floor is None),
            unmet=tuple(
                pattern for pattern in policy.required if not any(gb.matches(case_id, (pattern,)) for case_id in ids)
            ),
            notes=tuple(_notes(candidate, [side for side, floor in pairs if floor is None], bool(findings))),
        )


def _device_model(side: gb.Side, candidate: gb.Evidence) -> str:
    """Return the name of the model of a case's first device; `unknown device` if the run does not describe it."""
    devices = candidate.readings[side.readings[0]].manifest.facts.devices
    return next((device.name for device in devices if device.id in side.devices[:1]), "unknown device")


def _judge_side(side: gb.Side, floor: gb.Floor, policy: gb.Policy) -> gb.Finding:
    """Return the finding of a case on a device: its verdict against the floor, or why it cannot be judged."""
    expected = gb.SideFigures(floor.expected)
    unjudged_finding = gb.Finding(
        side.case, side.devices, gb.Verdict.INVALID, "", "", floor.unit, floor.better, expected, gb.SideFigures.of(side)
    )
    unjudged_finding = replace(unjudged_finding, required=policy.is_required(side.case.id))
    if objection := gb.unjudged(side):
        return replace(unjudged_finding, verdict=objection.verdict, cause=objection.cause, reason=objection.reason)
    if side.kinds[0].unit != floor.unit:
        reason = f"the unit is {side.kinds[0].unit}, the floor's {floor.unit}"
        return replace(unjudged_finding, verdict=gb.Verdict.NOT_COMPARABLE, cause="method", reason=reason)
    effect, threshold = gb.against(side, floor.expected), math.log1p(floor.tolerance_percent / 100)
    judged_finding = replace(unjudged_finding, effect=effect, threshold=threshold, user_threshold=threshold)
    return replace(judged_finding, verdict=verdict(effect, threshold), reason=floor.source)


def verdict(effect: gb.Effect, tolerance: float) -> gb.Verdict:
    """Return the verdict on an effect: the logarithm of a ratio, positive for slower, with its interval.

    `tolerance` is a logarithm of a ratio too. `slower`: the whole interval is above the tolerance."""
    if effect.low > tolerance:
        return gb.Verdict.SLOWER
    if effect.high > tolerance:
        return gb.Verdict.SUSPECT
    return gb.Verdict.FASTER if effect.high < -tolerance else gb.Verdict.SAME


def _notes(candidate: gb.Evidence, sides_without_floor: list[gb.Side], any_judged: bool) -> list[str]:
    """Return a note on the cases without a floor in a list, which is empty if every case has one."""
    models = ", ".join(dict.fromkeys(_device_model(side, candidate) for side in sides_without_floor))
    if sides_without_floor and not any_judged:
        return [f"no floor is known for {models}: write [[floor]] tables into gpubench.toml (docs/gate.md)"]
    return [f"{len(sides_without_floor)} cases have no floor on {models}"] if sides_without_floor else []


gate: gb.Gate = Floors()
