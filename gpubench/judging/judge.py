"""Decide the verdict on each case from an effect and a threshold. Pure functions of evidence.

docs/gate.md states the rule."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from gpubench import stats
from gpubench.judging import effect
from gpubench.judging.effect import Effect
from gpubench.judging.evidence import Evidence, Key, Side, paired
from gpubench.judging.noise import LEAST_TO_FAIL
from gpubench.judging.objections import Grounds
from gpubench.model import Better, Case, Verdict

_WORST_FIRST = tuple(Verdict)
_MOST_Q = 0.05  # the largest share of chance findings among the cases that are called slower or faster
DECIDED = (Verdict.SLOWER, Verdict.FASTER, Verdict.SAME)
_OTHER_CARDS = (
    "baseline and candidate were measured on different cards of one model, and such cards differ by several per cent"
)


@dataclass(frozen=True, slots=True)
class SideFigures:
    """One side as numbers: the median of its processes' medians in SI units, and their number.

    The median is NaN if there are no processes."""

    median: float = math.nan
    processes: int = 0

    @classmethod
    def of(cls, side: Side) -> SideFigures:
        """Return the figures of a side."""
        return cls(statistics.median(side.values) if side.values else math.nan, len(side.values))


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one case with its reason as a sentence; `cause` is a slug of the reason, for programs.

    `threshold` is a logarithm, as the effect is, and NaN like `q` if the case has no effect. For the verdict `same` it
    is the user's threshold; for the other verdicts it is never below the smallest difference that noise leaves
    decidable. `user_threshold` is always the user's threshold, a logarithm too. `q` is the share of chance findings
    among all that are at least as convincing. A case that is not `required` changes the exit status only if it is
    slower or failed."""

    RECORD: ClassVar[str] = (
        "case=case.id devices verdict cause reason unit better before after change=observed_change low high "
        "threshold=threshold_fraction q"
    )
    case: Case
    devices: tuple[str, ...]
    verdict: Verdict
    cause: str = ""
    reason: str = ""
    unit: str = ""
    better: Better = "less"
    before: SideFigures = SideFigures()
    after: SideFigures = SideFigures()
    effect: Effect | None = None
    threshold: float = math.nan
    user_threshold: float = math.nan
    q: float = math.nan
    required: bool = True

    @property
    def key(self) -> Key:
        """The case's id and its device set, as the candidate has them."""
        return (self.case.id, self.devices)

    @property
    def change(self) -> float:
        """The change of the figure as a fraction of the baseline's; NaN if the case has no effect."""
        return effect.as_change(self.effect.shift, self.better) if self.effect else math.nan

    @property
    def observed_change(self) -> float:
        """The change of the effect, or of the medians if the finding has no effect, as a fraction of the baseline.

        NaN if a figure is missing or the figures are not comparable."""
        if self.effect:
            return self.change
        before, after = self.before.median, self.after.median
        if self.verdict is Verdict.NOT_COMPARABLE or not before:
            return math.nan
        return after / before - 1 if math.isfinite(after) and math.isfinite(before) else math.nan

    @property
    def threshold_fraction(self) -> float:
        """The threshold as a fraction."""
        return math.expm1(self.threshold)

    @property
    def low(self) -> float:
        """The lower end of `bounds`."""
        return self.bounds[0]

    @property
    def high(self) -> float:
        """The upper end of `bounds`."""
        return self.bounds[1]

    @property
    def bounds(self) -> tuple[float, float]:
        """The 95 % interval of `change`, the lower end first."""
        if self.effect is None:
            return math.nan, math.nan
        ends = effect.as_change(self.effect.low, self.better), effect.as_change(self.effect.high, self.better)
        return min(ends), max(ends)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The findings, the worst first; the cases that only one side has, and notes.

    `missing` are cases with a figure of the baseline and none of the candidate; a policy may remove cases from it that
    it does not require."""

    findings: tuple[Finding, ...]
    missing: tuple[Case, ...] = ()
    new: tuple[Case, ...] = ()  # cases with a figure of the candidate and none of the baseline
    unmet: tuple[str, ...] = ()  # patterns of required cases that match no case
    notes: tuple[str, ...] = ()

    @property
    def decided(self) -> int:
        """The number of cases that are slower, faster or the same."""
        return sum(finding.verdict in DECIDED for finding in self.findings)

    @property
    def cases(self) -> int:
        """The number of cases that should have been decided."""
        return len(self.findings) + len(self.missing)

    def counts(self) -> dict[Verdict, int]:
        """Return the number of findings for each verdict that occurs, the worst verdict first."""
        counts = dict.fromkeys(_WORST_FIRST, 0)
        for finding in self.findings:
            counts[finding.verdict] += 1
        return {verdict: count for verdict, count in counts.items() if count}


def verdict_of(measured: Effect, user_threshold: float) -> Verdict:
    """Return the verdict on a measured effect for the user's threshold; both are on logarithms.

    It is the same if the whole interval lies within the user's threshold."""
    threshold = max(user_threshold, measured.least_threshold)
    if measured.low > threshold and measured.shift > threshold:
        return Verdict.SLOWER
    if measured.high < -threshold and measured.shift < -threshold:
        return Verdict.FASTER
    if -user_threshold <= measured.low and measured.high <= user_threshold:
        return Verdict.SAME
    return Verdict.SUSPECT if measured.shift > threshold / 2 else Verdict.INCONCLUSIVE


def judge(
    before: Evidence,
    after: Evidence,
    threshold: Callable[[str], float],
    noise: Evidence | None = None,
    allow_mismatch: bool = False,
) -> Judgement:
    """Compare the candidate `after` with the baseline `before`, case by case, and return the judgement.

    `threshold` takes the id of a case and returns the smallest relevant change as a fraction; the effective threshold
    is never below the smallest difference that noise leaves decidable (`Effect.least_threshold`). `noise` is a run of
    identical code, whose deviation counts if it is larger. With `allow_mismatch`, runs of other machines or settings
    are compared."""
    pairs = paired(before, after)
    grounds = Grounds(before, after, allow_mismatch)
    both = [
        (grounds.of_same_card(old, new), new)
        for old, new in pairs
        if old is not None and new is not None and old.is_measured
    ]
    objections = [grounds.objection(old, new) for old, new in both]
    findings = [
        _finding(*sides, objection.verdict, objection.cause, objection.reason)
        for sides, objection in zip(both, objections, strict=True)
        if objection is not None
    ]
    ready = [sides for sides, objection in zip(both, objections, strict=True) if objection is None]
    compared = _findings_with_effects(ready, threshold, noise)
    explained = (_with_explanation(finding, grounds, *sides) for finding, sides in zip(compared, ready, strict=True))
    findings += map(_by_enough_processes, explained)
    other_cards = any(grounds.are_other_cards(old, new) for old, new in both)
    return Judgement(
        tuple(sorted(findings, key=badness)),
        tuple(old.case for old, new in pairs if new is None and old is not None and old.is_measured),
        tuple(new.case for old, new in pairs if new is not None and (old is None or not old.is_measured)),
        notes=(
            *_partial_run_notes("baseline", before),
            *_partial_run_notes("candidate", after),
            *([_OTHER_CARDS] if other_cards else []),
        ),
    )


def _partial_run_notes(name: str, evidence: Evidence) -> list[str]:
    """Return a note for each run that ended early, and a note for each warning of a run."""
    return [f"{name}: {reading.source} is a partial run" for reading in evidence.readings if not reading.complete] + [
        f"{name}: {warning}" for reading in evidence.readings for warning in reading.warnings
    ]


def badness(finding: Finding) -> tuple[int, float, str]:
    """Return the sort key that puts the worst finding first: verdict, effect, case id."""
    shift = finding.effect.shift if finding.effect else 0.0
    return (_WORST_FIRST.index(finding.verdict), -shift, finding.case.id)


def settled(judgement: Judgement) -> Judgement:
    """Return the judgement with the remaining suspects as inconclusive, because nothing is measured again."""
    findings = tuple(
        replace(finding, verdict=Verdict.INCONCLUSIVE) if finding.verdict is Verdict.SUSPECT else finding
        for finding in judgement.findings
    )
    return replace(judgement, findings=tuple(sorted(findings, key=badness)))


def exit_status(judgement: Judgement, strict: bool = False) -> int:
    """Return the exit status of a gate: 3 a case failed, 1 a case is slower, 4 it cannot judge, 0 nothing is slower.

    If several apply, the first of 3, 1, 4 and 0 counts."""
    silent = {Verdict.INVALID, Verdict.NOT_COMPARABLE, *([Verdict.INCONCLUSIVE, Verdict.SUSPECT] if strict else [])}
    required = [finding.verdict for finding in judgement.findings if finding.required]
    if any(finding.cause == "failed" for finding in judgement.findings):
        return 3
    if any(finding.verdict is Verdict.SLOWER for finding in judgement.findings):
        return 1
    vanished = bool(judgement.missing) and strict
    return 4 if judgement.unmet or not judgement.findings or vanished or silent.intersection(required) else 0


def _finding(old: Side, new: Side, verdict: Verdict, cause: str = "", reason: str = "") -> Finding:
    """Return a finding about the candidate's side `new` with the figures of both sides and no effect."""
    kinds = new.kinds or old.kinds
    unit, better = (kinds[0].unit, kinds[0].better) if kinds else ("", "less")
    before, after = SideFigures.of(old), SideFigures.of(new)
    return Finding(new.case, new.devices, verdict, cause, reason, unit, better, before, after)


def _findings_with_effects(
    pairs: Sequence[tuple[Side, Side]], threshold: Callable[[str], float], noise: Evidence | None
) -> list[Finding]:
    """Return the findings of comparable pairs of sides (baseline, candidate), with effects and verdicts."""
    noises = noise.sides if noise else {}
    effects = effect.effects([effect.pair(old, new, noises.get((old.case.id, old.devices))) for old, new in pairs])
    plain = [_finding(old, new, Verdict.INCONCLUSIVE) for old, new in pairs]
    return decide(plain, effects, threshold)


def decide(plain: Sequence[Finding], effects: Sequence[Effect], threshold: Callable[[str], float]) -> list[Finding]:
    """Return the findings with effects, thresholds and q-values, and the verdicts that follow from these alone.

    `plain` are findings without an effect, and `effects` the effects of the same cases in the same order."""
    adjusted = stats.false_discovery([case_effect.p for case_effect in effects]).tolist()
    decided = []
    for finding, case_effect, q in zip(plain, effects, adjusted, strict=True):
        user_threshold = math.log1p(threshold(finding.case.id))
        verdict = verdict_of(case_effect, user_threshold)
        used = user_threshold if verdict is Verdict.SAME else max(user_threshold, case_effect.least_threshold)
        decided.append(
            _beyond_chance(
                replace(
                    finding, verdict=verdict, effect=case_effect, threshold=used, user_threshold=user_threshold, q=q
                )
            )
        )
    return decided


def _beyond_chance(finding: Finding) -> Finding:
    """Return the finding, but undecided instead of slower or faster if chance alone finds as much (q above 5 %)."""
    if finding.q <= _MOST_Q or finding.verdict is Verdict.SAME:
        return finding
    return _as_undecided(
        finding, "chance", f"among this number of cases, chance alone produces such a change (q = {finding.q:.2g})"
    )


def _by_enough_processes(finding: Finding) -> Finding:
    """Return the finding, but undecided instead of slower or faster if a side has fewer than five ok processes."""
    before, after = finding.before.processes, finding.after.processes
    if min(before, after) >= LEAST_TO_FAIL:
        return finding
    reason = f"{before} and {after} processes: with fewer than {LEAST_TO_FAIL} on a side no change is called slower"
    return _as_undecided(finding, "few-processes", f"{reason} or faster; measure with --replicates {LEAST_TO_FAIL}")


def _as_undecided(finding: Finding, cause: str, reason: str) -> Finding:
    """Return the finding as undecided for the given cause and reason if its verdict is slower or faster."""
    if finding.verdict not in (Verdict.SLOWER, Verdict.FASTER):
        return finding
    verdict = Verdict.SUSPECT if finding.verdict is Verdict.SLOWER else Verdict.INCONCLUSIVE
    return replace(finding, verdict=verdict, cause=cause, reason=reason)


def _with_explanation(finding: Finding, grounds: Grounds, old: Side, new: Side) -> Finding:
    """Return the finding; if something other than the code may explain its change, with that as verdict and reason."""
    if finding.effect is None:
        return finding
    is_change = finding.verdict not in (Verdict.SAME, Verdict.INCONCLUSIVE)
    objection = grounds.other_card(old, new, finding.effect) if is_change else None
    if objection is None:
        objection = grounds.explanation(old, new, finding.verdict, finding.threshold)
    return (
        replace(finding, verdict=objection.verdict, cause=objection.cause, reason=objection.reason)
        if objection
        else finding
    )
