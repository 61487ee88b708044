"""Write a finding as text; the text is the same in the terminal, in Markdown, in JUnit and on a page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpubench.base import units
from gpubench.judging.decidable import processes_needed
from gpubench.judging.judge import CONFIRM, NOISY, Finding
from gpubench.judging.noise import percent
from gpubench.model import Verdict
from gpubench.model.verdict import Reason

HEADS = ("verdict", "case", "baseline", "candidate", "change", "95 % interval", "threshold")  # the heads of every table
MISSING = "–"
_LEAST_PART = 0.002  # a smaller change of a rung is not named
UNDECIDED = (Verdict.INCONCLUSIVE, Verdict.SUSPECT)
_REASONS: dict[str, Reason] = {  # by the cause of a finding; every other cause leaves too little to decide
    "method": "other method",
    **dict.fromkeys(("machine", "card", "clock", "machine-step"), "hardware"),
    "contended": "contention",
    **dict.fromkeys(("failed", "invalid", "skipped", "missing", "no-ratio"), "failure"),
}


@dataclass(frozen=True, slots=True)
class FindingCells:
    """A finding as the cells of a table; a cell without a value is MISSING."""

    verdict: str
    before: str
    after: str
    change: str
    interval: str
    threshold: str
    explanation: str


def finding_cells(finding: Finding) -> FindingCells:
    """Return the cells of a finding: both figures, the change with its interval, the threshold, and the explanation.

    A cell is MISSING if there is no figure, or, for the last three numbers, no effect."""
    fraction = finding.observed_change
    return FindingCells(
        verdict_text(finding),
        figure(finding.before.median, finding.unit),
        figure(finding.after.median, finding.unit),
        signed(fraction) if math.isfinite(fraction) else MISSING,
        interval(finding) if finding.effect else MISSING,
        percent(math.expm1(finding.threshold)) if finding.effect else MISSING,
        explanation(finding),
    )


def verdict_text(finding: Finding) -> str:
    """Return the verdict as text; a slowdown that one session is too little to prove is `to be confirmed`."""
    return CONFIRM.replace("-", " ") if finding.cause == CONFIRM else str(finding.verdict)


def figure(median: float, unit: str) -> str:
    """Return a side's median with its unit as text; MISSING if it is not finite."""
    return units.quantity(median, unit) if math.isfinite(median) else MISSING


def signed(fraction: float) -> str:
    """Return a change as a percentage with its sign, `−4.8 %`; from a factor of 2 on as a ratio, `2.1 times`."""
    size = abs(fraction)
    if fraction >= 1:
        return f"{fraction + 1:.2g} times" if fraction < 99 else "over 100 times"
    return f"{'−' if fraction < 0 else '+'}{units.percent(size, 1 if size >= 0.001 or not size else 2)}"


def interval(finding: Finding) -> str:
    """Return the 95 % interval of the change: `−6.2 to −1.0 %`."""
    low, high = finding.bounds
    unit = " times" if low >= 1 else " %" if high < 1 else ""
    return f"{signed(low).removesuffix(unit)} to {signed(high)}"


def name(finding: Finding) -> str:
    """Return the id of the case with its devices."""
    return f"{finding.case.id} on {'+'.join(finding.devices)}" if finding.devices else finding.case.id


def sentence(finding: Finding) -> str:
    """Return a finding as one line: `+4.9 % (+4.1 to +5.6 %), threshold 2.0 %; measured on another card`.

    Without an effect the line is only the reason, which may be empty."""
    if finding.effect is None:
        return finding.reason
    threshold = _widened_threshold(finding) or f"threshold {percent(math.expm1(finding.threshold))}"
    effect = f"{signed(finding.change)} ({interval(finding)}), {threshold}"
    return "; ".join(filter(None, (effect, attribution(finding), _reason(finding))))


def explanation(finding: Finding) -> str:
    """Return why the threshold is wider than the user's, and the reason of the finding; empty if it has neither."""
    return "; ".join(filter(None, (attribution(finding), _widened_threshold(finding), _reason(finding))))


def attribution(finding: Finding) -> str:
    """Return what a change consists of: `clock −3.9 %, rest −0.2 %`; empty if no rung of the case has changed."""
    sign = 1.0 if finding.better == "more" else -1.0
    parts = [(rung, sign * change) for rung, change in finding.parts if abs(change) >= _LEAST_PART]
    if not parts:
        return ""
    rest = math.log1p(finding.observed_change) - sum(change for _, change in parts)
    return ", ".join(f"{rung} {signed(math.expm1(change))}" for rung, change in (*parts, ("rest", rest)))


def _widened_threshold(finding: Finding) -> str:
    """Return `threshold 4.1 %, because identical code varies by 1.5 % (…)`; empty if the threshold is the user's."""
    effect = finding.effect
    if effect is None or not finding.threshold > finding.user_threshold or finding.cause == NOISY:
        return ""
    noise = f"identical code varies by {percent(math.expm1(effect.deviation))} ({effect.counted})"
    return f"threshold {percent(math.expm1(finding.threshold))}, because {noise}"


def _reason(finding: Finding) -> str:
    if finding.reason or finding.verdict not in UNDECIDED:
        return finding.reason
    count = processes_needed(finding)
    return f"needs about {count} processes per side to decide" if count else "its interval reaches across the threshold"


def reason_word(finding: Finding) -> Reason | None:
    """Return why a case does not pass, in a closed set of words; None for a case that is the same or faster."""
    if finding.verdict in (Verdict.SAME, Verdict.FASTER):
        return None
    return "regression" if finding.verdict is Verdict.SLOWER else _REASONS.get(finding.cause, "noise")


def first(names: Sequence[str]) -> str:
    """Return the first of several names and the number of the others: `a and 2 more`; `names` is not empty."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]
