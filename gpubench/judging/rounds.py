"""Judge a candidate in rounds: measure, judge, measure the suspects again, and judge all results together.

docs/gate.md gives the reason: the first measurement only has to find the cases to measure again."""

from collections.abc import Callable
from dataclasses import dataclass

from gpubench.judging.evidence import Evidence, Key
from gpubench.judging.judge import Finding, Judgement, settled
from gpubench.judging.references import CAUSE, MachineSteps
from gpubench.model import Verdict

ROUNDS = 3  # 5 processes become 20: what docs/gate.md promises (tests/studies/gate_simulation.py)


@dataclass(frozen=True, slots=True)
class Sides:
    """All measurements so far: the baseline and the candidate."""

    before: Evidence
    after: Evidence


def settle(
    sides: Sides,
    judge: Callable[[Sides], Judgement],
    again: Callable[[Sides, tuple[Finding, ...]], Sides],
    rounds: int = ROUNDS,
    undecided: bool = False,
    references: Callable[[Sides, Judgement, tuple[Finding, ...]], tuple[Finding, ...]] = lambda *_: (),
    conclude: Callable[[Sides, Judgement], Judgement] = lambda _, judgement: judgement,
) -> Judgement:
    """Return the judgement after at most `rounds` rounds; in each of them `again` measures the suspects once more.

    `judge` judges all measurements so far, `references` names further cases to measure, and `conclude` has the last
    word on the settled judgement."""
    judgement = judge(sides)
    confirmed: set[Key] = set()
    for _ in range(rounds):
        suspects = tuple(finding for finding in judgement.findings if _is_asked_again(finding, confirmed, undecided))
        if not suspects:
            break
        sides = again(sides, (*suspects, *references(sides, judgement, suspects)))
        confirmed |= {finding.key for finding in suspects}
        judgement = judge(sides)
    return conclude(sides, settled(judgement))


def settle_stored(
    sides: Sides,
    judge: Callable[[Sides], Judgement],
    again: Callable[[Sides, tuple[Finding, ...]], Sides],
    rounds: int = ROUNDS,
    undecided: bool = False,
    is_reference: Callable[[str], bool] = lambda _: False,
) -> Judgement:
    """Return the judgement of `settle` against a stored baseline, with reference cases measured in each round.

    `is_reference` says of the id of a case whether no change of the code can reach it."""

    def steps(now: Sides, judgement: Judgement) -> MachineSteps:
        """Return the steps of the machine in a judgement of the measurements so far."""
        return MachineSteps(judgement, now.before, now.after, is_reference)

    return settle(
        sides,
        lambda now: steps(now, judge(now)).judgement(),
        again,
        rounds,
        undecided,
        lambda now, judgement, suspects: steps(now, judgement).references(suspects),
        lambda now, judgement: steps(now, judgement).confirmed(),
    )


def _is_asked_again(finding: Finding, confirmed: set[Key], undecided: bool) -> bool:
    """Return whether to measure the case of a finding again."""
    first_sight = finding.verdict is Verdict.SLOWER and finding.key not in confirmed
    is_open = undecided and finding.verdict is Verdict.INCONCLUSIVE and finding.effect is not None
    return finding.verdict is Verdict.SUSPECT or first_sight or (is_open and finding.cause != CAUSE)
