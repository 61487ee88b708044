"""Verdicts: what an effect is called, given a threshold. Pure functions of evidence; docs/gate.md is the rule."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpubench import stats
from gpubench.judging import effect
from gpubench.judging.effect import Effect
from gpubench.judging.evidence import Evidence, Key, Side, paired
from gpubench.judging.noise import LEAST_TO_FAIL
from gpubench.judging.objections import Grounds
from gpubench.model import Better, Case, Verdict

_WORST_FIRST = tuple(Verdict)
_MOST_Q = 0.05  # of all the findings that are called slower or faster, chance makes no larger share
DECIDED = (Verdict.SLOWER, Verdict.FASTER, Verdict.SAME)
_OTHER_CARDS = (
    "baseline and candidate were measured on different cards of one model, and such cards differ by several per cent"
)


@dataclass(frozen=True, slots=True)
class Figures:
    """One side in numbers: the median of the processes' medians in SI units (NaN of none), and how many they are."""

    median: float = math.nan
    processes: int = 0

    @classmethod
    def of(cls, side: Side) -> Figures:
        """The figures of a side."""
        return cls(statistics.median(side.values) if side.values else math.nan, len(side.values))


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one case, with its reason in words where it is not plain, and a slug of it, `cause`.

    `threshold` is on logarithms as the effect is, NaN where nothing was weighed, like `q`; that of `same` is the
    user's, that of the other verdicts is never below what noise leaves decidable; `asked` is always the user's. A case
    that is not `required` changes no exit status unless it is slower or failed.
    """

    case: Case
    devices: tuple[str, ...]
    verdict: Verdict
    cause: str = ""
    reason: str = ""
    unit: str = ""
    better: Better = "less"
    before: Figures = Figures()
    after: Figures = Figures()
    effect: Effect | None = None
    threshold: float = math.nan
    asked: float = math.nan
    q: float = math.nan
    required: bool = True

    @property
    def key(self) -> Key:
        """The case's id and its device set, as the candidate has them."""
        return (self.case.id, self.devices)

    @property
    def change(self) -> float:
        """How much the figure changed, as a fraction of the baseline's; NaN where nothing was weighed."""
        return effect.as_change(self.effect.shift, self.better) if self.effect else math.nan

    @property
    def bounds(self) -> tuple[float, float]:
        """The 95 % interval of `change`, the lower end first."""
        if self.effect is None:
            return math.nan, math.nan
        ends = effect.as_change(self.effect.low, self.better), effect.as_change(self.effect.high, self.better)
        return min(ends), max(ends)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Findings, the worst first; the cases that only one side has, and notes.

    `missing` are cases that the baseline has a figure of and the candidate has not, unless a policy requires others
    only.
    """

    findings: tuple[Finding, ...]
    missing: tuple[Case, ...] = ()
    new: tuple[Case, ...] = ()  # the candidate has it, the baseline no figure
    unmet: tuple[str, ...] = ()  # patterns of required cases that no case is called by
    notes: tuple[str, ...] = ()

    @property
    def decided(self) -> int:
        """How many cases are slower, faster or the same."""
        return sum(finding.verdict in DECIDED for finding in self.findings)

    @property
    def cases(self) -> int:
        """How many cases should have been decided."""
        return len(self.findings) + len(self.missing)

    def counts(self) -> dict[Verdict, int]:
        """How many findings have each verdict that occurs, the worst first."""
        found = dict.fromkeys(_WORST_FIRST, 0)
        for finding in self.findings:
            found[finding.verdict] += 1
        return {verdict: count for verdict, count in found.items() if count}


def verdict_of(found: Effect, asked: float) -> Verdict:
    """The verdict on an effect, given the user's threshold; both on logarithms.

    slower, faster: the whole interval, and the estimate with it, lie beyond the threshold, which noise may widen; same:
    the whole interval lies within the user's. What is neither is a suspect where the estimate is beyond half the
    threshold.
    """
    threshold = max(asked, found.least_threshold)
    if found.low > threshold and found.shift > threshold:
        return Verdict.SLOWER
    if found.high < -threshold and found.shift < -threshold:
        return Verdict.FASTER
    if -asked <= found.low and found.high <= asked:
        return Verdict.SAME
    return Verdict.SUSPECT if found.shift > threshold / 2 else Verdict.INCONCLUSIVE


def judge(
    before: Evidence,
    after: Evidence,
    threshold: Callable[[str], float],
    noise: Evidence | None = None,
    allow_mismatch: bool = False,
) -> Judgement:
    """Weigh the candidate `after` against the baseline `before`, case by case.

    `threshold` gives the smallest change of a case, by its id, that matters, as a fraction; the one used is
    never below what noise leaves decidable (`Effect.least_threshold`). `noise` is a run of identical code, whose
    deviation counts where it is larger. `allow_mismatch` weighs what other machines or settings measured.
    """
    pairs = paired(before, after)
    grounds = Grounds(before, after, allow_mismatch)
    both = [
        (grounds.of_same_card(old, new), new)
        for old, new in pairs
        if old is not None and new is not None and old.is_measured
    ]
    objections = [grounds.objection(old, new) for old, new in both]
    findings = [
        _finding(*sides, found.verdict, found.cause, found.reason)
        for sides, found in zip(both, objections, strict=True)
        if found is not None
    ]
    ready = [sides for sides, found in zip(both, objections, strict=True) if found is None]
    weighed = _weighed(ready, threshold, noise)
    looked_into = (_looked_into(finding, grounds, *sides) for finding, sides in zip(weighed, ready, strict=True))
    findings += map(_by_enough_processes, looked_into)
    other_cards = any(grounds.are_other_cards(old, new) for old, new in both)
    return Judgement(
        tuple(sorted(findings, key=badness)),
        tuple(old.case for old, new in pairs if new is None and old is not None and old.is_measured),
        tuple(new.case for old, new in pairs if new is not None and (old is None or not old.is_measured)),
        notes=(*_partial("baseline", before), *_partial("candidate", after), *([_OTHER_CARDS] if other_cards else [])),
    )


def _partial(name: str, evidence: Evidence) -> list[str]:
    return [f"{name}: {each.source} is a partial run" for each in evidence.readings if not each.complete] + [
        f"{name}: {warning}" for each in evidence.readings for warning in each.warnings
    ]


def badness(finding: Finding) -> tuple[int, float, str]:
    """What sorts findings, the worst first."""
    shift = finding.effect.shift if finding.effect else 0.0
    return (_WORST_FIRST.index(finding.verdict), -shift, finding.case.id)


def settled(judgement: Judgement) -> Judgement:
    """The same where nothing is measured again: a suspect that is left is inconclusive."""
    findings = tuple(
        replace(finding, verdict=Verdict.INCONCLUSIVE) if finding.verdict is Verdict.SUSPECT else finding
        for finding in judgement.findings
    )
    return replace(judgement, findings=tuple(sorted(findings, key=badness)))


def exit_status(judgement: Judgement, strict: bool = False) -> int:
    """The exit status of a gate: 3 a case failed, 1 a case is slower, 4 it cannot judge, 0 nothing is slower.

    It cannot judge where a required case is missing, invalid or not comparable, where nothing was judged at
    all, and, if `strict`, where a required case is inconclusive or has vanished from the candidate.
    """
    silent = {Verdict.INVALID, Verdict.NOT_COMPARABLE, *([Verdict.INCONCLUSIVE, Verdict.SUSPECT] if strict else [])}
    required = [finding.verdict for finding in judgement.findings if finding.required]
    if any(finding.cause == "failed" for finding in judgement.findings):
        return 3
    if any(finding.verdict is Verdict.SLOWER for finding in judgement.findings):
        return 1
    vanished = bool(judgement.missing) and strict
    return 4 if judgement.unmet or not judgement.findings or vanished or silent.intersection(required) else 0


def _finding(old: Side, new: Side, verdict: Verdict, cause: str = "", reason: str = "") -> Finding:
    kinds = new.kinds or old.kinds
    unit, better = (kinds[0].unit, kinds[0].better) if kinds else ("", "less")
    before, after = Figures.of(old), Figures.of(new)
    return Finding(new.case, new.devices, verdict, cause, reason, unit, better, before, after)


def _weighed(
    pairs: Sequence[tuple[Side, Side]], threshold: Callable[[str], float], noise: Evidence | None
) -> list[Finding]:
    noises = noise.sides if noise else {}
    found = effect.effects([effect.pair(old, new, noises.get((old.case.id, old.devices))) for old, new in pairs])
    plain = [_finding(old, new, Verdict.INCONCLUSIVE) for old, new in pairs]
    return decide(plain, found, threshold)


def decide(plain: Sequence[Finding], found: Sequence[Effect], threshold: Callable[[str], float]) -> list[Finding]:
    """Return the findings with their effects, thresholds, q-values and the verdicts that follow from these alone."""
    adjusted = stats.false_discovery([each.p for each in found]).tolist()
    decided = []
    for finding, each, q in zip(plain, found, adjusted, strict=True):
        asked = math.log1p(threshold(finding.case.id))
        verdict = verdict_of(each, asked)
        used = asked if verdict is Verdict.SAME else max(asked, each.least_threshold)
        decided.append(_beyond_chance(replace(finding, verdict=verdict, effect=each, threshold=used, asked=asked, q=q)))
    return decided


def _beyond_chance(finding: Finding) -> Finding:
    """The finding, undecided where among so many cases chance alone would find as much."""
    if finding.q <= _MOST_Q or finding.verdict is Verdict.SAME:
        return finding
    return _open(finding, "chance", f"among all the cases chance alone finds as much (q = {finding.q:.2g})")


def _by_enough_processes(finding: Finding) -> Finding:
    """The finding, undecided where a side has too few processes to call a change slower or faster."""
    before, after = finding.before.processes, finding.after.processes
    if min(before, after) >= LEAST_TO_FAIL:
        return finding
    reason = f"{before} and {after} processes: with fewer than {LEAST_TO_FAIL} on a side no change is called slower"
    return _open(finding, "few-processes", f"{reason} or faster; measure with --replicates {LEAST_TO_FAIL}")


def _open(finding: Finding, cause: str, reason: str) -> Finding:
    """The finding as undecided for this reason, if it was called slower or faster; a slower one may be asked again."""
    if finding.verdict not in (Verdict.SLOWER, Verdict.FASTER):
        return finding
    verdict = Verdict.SUSPECT if finding.verdict is Verdict.SLOWER else Verdict.INCONCLUSIVE
    return replace(finding, verdict=verdict, cause=cause, reason=reason)


def _looked_into(finding: Finding, grounds: Grounds, old: Side, new: Side) -> Finding:
    """What looks slower or faster is asked for another explanation than the code; the clock may also hide a change."""
    if finding.effect is None:
        return finding
    is_change = finding.verdict not in (Verdict.SAME, Verdict.INCONCLUSIVE)
    found = grounds.other_card(old, new, finding.effect) if is_change else None
    if found is None:
        found = grounds.explanation(old, new, finding.verdict, finding.threshold)
    return replace(finding, verdict=found.verdict, cause=found.cause, reason=found.reason) if found else finding
