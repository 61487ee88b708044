"""Measure, judge, measure the suspects again, judge the union: the whole procedure of a gate that can measure.

docs/gate.md says why: the first measurement only has to find whom to ask again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpubench.judging.evidence import Evidence, Key
from gpubench.judging.judge import Finding, Judgement, settled
from gpubench.model import Verdict

ROUNDS = 3  # 5 processes become 20: what docs/gate.md promises (tests/gate_simulation.py)


@dataclass(frozen=True, slots=True)
class Sides:
    """What has been measured so far: the baseline and the candidate."""

    before: Evidence
    after: Evidence


def settle(
    sides: Sides,
    judge: Callable[[Sides], Judgement],
    again: Callable[[Sides, tuple[Finding, ...]], Sides],
    rounds: int = ROUNDS,
    undecided: bool = False,
) -> Judgement:
    """The judgement after at most so many rounds, in each of which `again` adds to the sides what suspects measured.

    A case that is slower at first sight is a suspect too: it fails nothing until its second measurement agrees.
    With no rounds what the first measurement says is what counts. `undecided` asks again whatever is inconclusive
    for want of processes, too.
    """
    judgement = judge(sides)
    confirmed: set[Key] = set()
    for _ in range(rounds):
        suspects = tuple(finding for finding in judgement.findings if _is_asked_again(finding, confirmed, undecided))
        if not suspects:
            break
        sides = again(sides, suspects)
        confirmed |= {finding.key for finding in suspects}
        judgement = judge(sides)
    return settled(judgement)


def _is_asked_again(finding: Finding, confirmed: set[Key], undecided: bool) -> bool:
    first_sight = finding.verdict is Verdict.SLOWER and finding.key not in confirmed
    open_ = undecided and finding.verdict is Verdict.INCONCLUSIVE and finding.effect is not None
    return finding.verdict is Verdict.SUSPECT or first_sight or open_
