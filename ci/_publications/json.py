"""Publish a judgement as JSON for programs: every finding with its figures."""

import json
from dataclasses import dataclass

from gpubench.api import gate as gb


@dataclass(frozen=True, slots=True)
class Json:
    """Writes one JSON object; changes and thresholds are fractions, and a missing number is null."""

    summary: str = "JSON, for programs"

    def render(self, judgement: gb.Judgement, answer: gb.GateAnswer, limit: int = 0) -> str:
        """Return the whole document, which ends with a newline.

        `limit` is ignored, because a truncated one would not be JSON."""
        del limit
        document: gb.VerdictRecord = {
            "schema": gb.VERDICT_SCHEMA,
            "title": answer.title,
            "status": answer.status,
            "verdict": answer.verdict,
            "why": list(answer.reasons),
            "next_steps": [{"words": step.text, "command": step.command} for step in answer.next_steps],
            "counts": judgement.counts(),
            "findings": [_finding_object(finding) for finding in judgement.findings],
            "missing": [case.id for case in judgement.missing],
            "new": [case.id for case in judgement.new],
            "unmet": list(judgement.unmet),
            "notes": list(judgement.notes),
        }
        return json.dumps(gb.record(document), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _finding_object(finding: gb.Finding) -> gb.FindingRecord:
    return {
        "case": finding.case.id,
        "devices": list(finding.devices),
        "verdict": finding.verdict,
        "reason": gb.reason_word(finding),
        "cause": finding.cause,
        "words": gb.sentence(finding),
        "required": finding.required,
        "unit": finding.unit,
        "better": finding.better,
        "baseline": {"median": finding.before.median, "processes": finding.before.processes},
        "candidate": {"median": finding.after.median, "processes": finding.after.processes},
        "change": finding.change,
        "change_low": finding.low,
        "change_high": finding.high,
        "threshold": finding.threshold_fraction,
        "p": finding.effect.p if finding.effect else None,
        "q": finding.q,
    }


publication: gb.Publication = Json()
