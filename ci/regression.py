"""Judge a candidate against a baseline: the gate that finds the cases that became slower."""

from dataclasses import dataclass, replace

from gpubench.api import gate as gb
from gpubench.api.gate import judge


@dataclass(frozen=True, slots=True)
class Regression:
    """Compares every case that both sides have; the policy says which cases are required and which may be skipped."""

    summary: str = "against a baseline: cases that became slower"

    def judge(self, baseline: gb.Evidence, candidate: gb.Evidence, policy: gb.Policy) -> gb.Judgement:
        """Return the verdicts on all cases that baseline and candidate have, the worst first.

        A required case without a figure of the candidate is `invalid`."""
        judgement = judge(baseline, candidate, policy.threshold, policy.noise, policy.allow_mismatch)
        allowed = [finding for finding in judgement.findings if policy.allows_skip(finding.cause, finding.case.id)]
        reported = (
            [finding for finding in judgement.findings if finding not in allowed] if allowed else judgement.findings
        )
        findings = [replace(finding, required=policy.is_required(finding.case.id)) for finding in reported]
        missing = [
            gb.Finding(case, (), gb.Verdict.INVALID, "missing", "the baseline has a figure, the candidate has none")
            for case in judgement.missing
            if policy.required and policy.is_required(case.id)
        ]
        ids = [
            case.id for case in (*(finding.case for finding in judgement.findings), *judgement.missing, *judgement.new)
        ]
        return replace(
            judgement,
            findings=tuple(sorted([*findings, *missing], key=gb.badness)),
            missing=() if policy.required else judgement.missing,
            unmet=tuple(pattern for pattern in policy.required if not _is_met(pattern, ids)),
            notes=(*judgement.notes, *_notes(judgement, allowed, policy, ids)),
        )


def _is_met(pattern: str, ids: list[str]) -> bool:
    """Return True if a required pattern matches at least one of the case ids `ids`."""
    return any(gb.matches(case_id, (pattern,)) for case_id in ids)


def _notes(judgement: gb.Judgement, allowed: list[gb.Finding], policy: gb.Policy, ids: list[str]) -> list[str]:
    """Return sentences on cases that only one side has, on allowed skips, and on patterns that match no case."""
    vanished = (case for case in judgement.missing if not (policy.required and policy.is_required(case.id)))
    notes = [f"{case.id}: the baseline has a figure, the candidate has none" for case in vanished]
    notes += [f"{case.id}: new, there is no baseline for it" for case in judgement.new]
    notes += [f"{finding.case.id}: skipped, which the policy allows" for finding in allowed]
    loose = [pattern for pattern in policy.patterns if pattern not in policy.required and not _is_met(pattern, ids)]
    return notes + [f"the policy's pattern {pattern!r} matches no case" for pattern in loose]


gate: gb.Gate = Regression()
