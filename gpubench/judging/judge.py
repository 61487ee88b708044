"""Decide the verdict on each case from an effect and a threshold. Pure functions of evidence.

docs/gate.md states the rule."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from gpubench import stats
from gpubench.base.patterns import matches
from gpubench.judging import effect
from gpubench.judging.effect import Effect
from gpubench.judging.evidence import Evidence, Key, Side, in_turn, paired
from gpubench.judging.noise import LEAST_TO_FAIL
from gpubench.judging.objections import Grounds
from gpubench.judging.sessions import UNKNOWN, SessionSpreads, between_two_sessions, without_outlying_processes
from gpubench.model import Better, Case, Verdict

_WORST_FIRST = tuple(Verdict)
_MOST_Q = 0.05  # the largest share of chance findings among the cases that are called slower or faster
_ABSURD = math.log1p(0.5)  # a machine whose threshold would be above 50 % cannot judge
_ATTRIBUTED = 0.01  # a smaller change is not split into its causes
_STATES = 0.01  # medians and pairs of processes that disagree about the direction by this much show two states
DECIDED = (Verdict.SLOWER, Verdict.FASTER, Verdict.SAME)
NOISY = "too-noisy"  # the cause of a case that no useful threshold can decide on this machine
CONFIRM = "to-be-confirmed"  # the cause of a slowdown that the baseline's one session is too little to prove
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
    parts: tuple[tuple[str, float], ...] = ()  # rungs that changed the figure, as logarithms of the rate

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

    `missing` are cases with a figure of the baseline and none of the candidate, which the candidate's selection still
    names; a policy may remove cases that it does not require. `partial` says whether a candidate ended early."""

    findings: tuple[Finding, ...]
    missing: tuple[Case, ...] = ()
    new: tuple[Case, ...] = ()  # cases with a figure of the candidate and none of the baseline
    unmet: tuple[str, ...] = ()  # patterns of required cases that match no case
    notes: tuple[str, ...] = ()
    partial: bool = False

    @property
    def to_confirm(self) -> tuple[Finding, ...]:
        """The findings that are slower, to be confirmed."""
        return tuple(finding for finding in self.findings if finding.cause == CONFIRM)

    @property
    def undecided_suites(self) -> tuple[str, ...]:
        """The suites with required cases of which none is decided, sorted."""
        required = [finding for finding in self.findings if finding.required]
        suites = {finding.case.suite for finding in required}
        return tuple(sorted(suites - {finding.case.suite for finding in required if finding.verdict in DECIDED}))

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
    is_suspect = measured.shift > min(threshold / 2, user_threshold)  # a noisy case is worth more processes too
    return Verdict.SUSPECT if is_suspect and threshold <= _ABSURD else Verdict.INCONCLUSIVE


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
    before, left_out = without_outlying_processes(before, "baseline")
    after, left_out_after = without_outlying_processes(after, "candidate")
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
    other_cards = any(grounds.are_other_cards(old, new) for old, new in both)
    bounds = None if in_turn(before, after) else [UNKNOWN + grounds.card_allowance(old, new) for old, new in ready]
    compared = _findings_with_effects(ready, threshold, noise, grounds.spreads, bounds)
    explained = (with_explanation(finding, grounds, *sides) for finding, sides in zip(compared, ready, strict=True))
    least = LEAST_TO_FAIL - bool(left_out or left_out_after)  # a bad process was measured, and is known to be bad
    findings += (_by_enough_processes(finding, least) for finding in explained)
    vanished = (old for old, new in pairs if new is None and old is not None and old.is_measured)
    return Judgement(
        tuple(sorted(findings, key=badness)),
        tuple(old.case for old in vanished if _is_named(old, before, after)),
        tuple(new.case for old, new in pairs if new and new.is_measured and not (old and old.is_measured)),
        notes=(
            *_partial_run_notes("baseline", before),
            *_partial_run_notes("candidate", after),
            *left_out,
            *left_out_after,
            *([_OTHER_CARDS] if other_cards else []),
        ),
        partial=not all(reading.complete for reading in after.readings),
    )


def _is_named(old: Side, before: Evidence, after: Evidence) -> bool:
    """Return whether a run of the candidate selects a case of the baseline by suite, filters and headline."""
    case, settings = old.case, [reading.manifest.settings for reading in after.readings]
    is_headline = all(before.readings[index].manifest.settings.headline for index in old.readings)
    return any(
        case.suite in (Path(suite).stem for suite in chosen.suites)
        and (not chosen.filters or matches(case.id, chosen.filters))
        and (is_headline or not chosen.headline)
        for chosen in settings
    )


def _partial_run_notes(name: str, evidence: Evidence) -> list[str]:
    """Return a note for each run that ended early, and a note for each warning of a run."""
    return [f"{name}: {reading.source} is a partial run" for reading in evidence.readings if not reading.complete] + [
        f"{name}: {warning}" for reading in evidence.readings for warning in reading.warnings
    ]


def badness(finding: Finding) -> tuple[int, float, str]:
    """Return the sort key that puts the worst finding first: verdict, effect, case id."""
    shift = finding.effect.shift if finding.effect else 0.0
    place = 2 * _WORST_FIRST.index(finding.verdict) - (finding.cause == CONFIRM)
    return (place, -shift, finding.case.id)


def settled(judgement: Judgement) -> Judgement:
    """Return the judgement with the remaining suspects as inconclusive, because nothing is measured again."""
    findings = tuple(
        replace(finding, verdict=Verdict.INCONCLUSIVE) if finding.verdict is Verdict.SUSPECT else finding
        for finding in judgement.findings
    )
    return replace(judgement, findings=tuple(sorted(findings, key=badness)))


def exit_status(
    judgement: Judgement, strict: bool = False, allow_missing: bool = False, allow_undecided: bool = False
) -> int:
    """Return the exit status of a gate, of which the first counts: 3 failed, 1 slower, 4 cannot judge, 0 passes.

    It is 4 also if a case vanished, unless `allow_missing`; if nothing is decided in a suite or the candidate is
    partial, unless `allow_undecided`; and with `strict` if any case is inconclusive."""
    required = [finding for finding in judgement.findings if finding.required]
    verdicts = {finding.verdict for finding in required}
    if any(finding.cause == "failed" for finding in judgement.findings):
        return 3
    if any(finding.verdict is Verdict.SLOWER for finding in judgement.findings):
        return 1
    cannot_judge = (
        judgement.unmet
        or not judgement.findings
        or judgement.to_confirm
        or verdicts & {Verdict.INVALID, Verdict.NOT_COMPARABLE}
        or (judgement.missing and not allow_missing)
        or ((judgement.undecided_suites or judgement.partial) and not allow_undecided)
        or (strict and (judgement.missing or verdicts & {Verdict.INCONCLUSIVE, Verdict.SUSPECT}))
    )
    return 4 if cannot_judge else 0


def _finding(old: Side, new: Side, verdict: Verdict, cause: str = "", reason: str = "") -> Finding:
    """Return a finding about the candidate's side `new` with the figures of both sides and no effect."""
    kinds = new.kinds or old.kinds
    unit, better = (kinds[0].unit, kinds[0].better) if kinds else ("", "less")
    before, after = SideFigures.of(old), SideFigures.of(new)
    return Finding(new.case, new.devices, verdict, cause, reason, unit, better, before, after)


def _findings_with_effects(
    pairs: Sequence[tuple[Side, Side]],
    threshold: Callable[[str], float],
    noise: Evidence | None,
    spreads: SessionSpreads,
    bounds: Sequence[float] | None,
) -> list[Finding]:
    """Return the findings of comparable pairs; `bounds` is None for sides of one session, else what these differ by."""
    noises = noise.sides if noise else {}
    scatters = [spreads.scatter(old, new) if bounds else None for old, new in pairs]
    side_pairs = [
        effect.pair(old, new, noises.get((old.case.id, old.devices)), scatter)
        for (old, new), scatter in zip(pairs, scatters, strict=True)
    ]
    if bounds is None:
        are_neighbours = [(old.readings, old.ok) == (new.readings, new.ok) for old, new in pairs]
        side_pairs = effect.with_drift_taken_out(side_pairs, are_neighbours)
    effects = effect.effects(side_pairs)
    if bounds:
        effects = between_two_sessions(pairs, effects, bounds)
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
        judged = replace(
            finding, verdict=verdict, effect=case_effect, threshold=used, user_threshold=user_threshold, q=q
        )
        decided.append(_of_one_state(_on_quiet_machine(_beyond_chance(judged))))
    return decided


def _on_quiet_machine(finding: Finding) -> Finding:
    """Return the finding, but as too noisy to judge if it is undecided and its threshold would exceed 50 %."""
    if finding.verdict in DECIDED or finding.threshold <= _ABSURD or finding.effect is None:
        return finding
    reason = "this machine is too noisy to judge, because differences between processes hide changes of 50 %; "
    reason += "stop other work on it, and see `gpubench doctor --noise`"
    return replace(finding, verdict=Verdict.INCONCLUSIVE, cause=NOISY, reason=reason)


def _of_one_state(finding: Finding) -> Finding:
    """Return the finding, but undecided if the medians moved in the other direction than the pairs of processes."""
    before, after, estimate = finding.before.median, finding.after.median, finding.effect
    if estimate is None or finding.cause or not (before > 0 and after > 0) or finding.verdict is Verdict.SAME:
        return finding
    moved = math.log(after / before) * (-1.0 if finding.better == "more" else 1.0)
    if moved * estimate.shift >= 0 or min(abs(moved), abs(estimate.shift)) < _STATES:
        return finding
    verdict = Verdict.SUSPECT if finding.verdict in (Verdict.SLOWER, Verdict.SUSPECT) else Verdict.INCONCLUSIVE
    reason = "the processes have two states: their medians moved in the other direction than most pairs of processes"
    return replace(finding, verdict=verdict, cause="two-states", reason=reason)


def _beyond_chance(finding: Finding) -> Finding:
    """Return the finding, but undecided instead of slower or faster if chance alone finds as much (q above 5 %)."""
    if finding.q <= _MOST_Q or finding.verdict is Verdict.SAME:
        return finding
    return _as_undecided(
        finding, "chance", f"among this number of cases, chance alone produces such a change (q = {finding.q:.2g})"
    )


def _by_enough_processes(finding: Finding, least: int) -> Finding:
    """Return the finding, but undecided instead of slower or faster if a side has fewer than `least` ok processes."""
    before, after = finding.before.processes, finding.after.processes
    if min(before, after) >= least:
        return finding
    reason = f"{before} and {after} processes: with fewer than {LEAST_TO_FAIL} on a side no change is called slower"
    return _as_undecided(finding, "few-processes", f"{reason} or faster; measure with --replicates {LEAST_TO_FAIL}")


def _as_undecided(finding: Finding, cause: str, reason: str) -> Finding:
    """Return the finding as undecided for the given cause and reason if its verdict is slower or faster."""
    if finding.verdict not in (Verdict.SLOWER, Verdict.FASTER):
        return finding
    verdict = Verdict.SUSPECT if finding.verdict is Verdict.SLOWER else Verdict.INCONCLUSIVE
    return replace(finding, verdict=verdict, cause=cause, reason=reason)


def is_attributed(finding: Finding) -> bool:
    """Return whether the change of a finding is large enough to be split into its causes."""
    return abs(finding.observed_change) >= _ATTRIBUTED


def with_explanation(finding: Finding, grounds: Grounds, old: Side, new: Side) -> Finding:
    """Return the finding; if something other than the code may explain its change, with that as verdict and reason."""
    if finding.effect is None or finding.cause == NOISY:
        return finding
    is_change = finding.verdict not in (Verdict.SAME, Verdict.INCONCLUSIVE)
    objection = grounds.other_card(old, new, finding.effect) if is_change else None
    if objection is None:
        objection = grounds.explanation(old, new, finding.verdict, finding.threshold, finding.effect)
    if is_attributed(finding):
        finding = replace(finding, parts=grounds.by_clock(old, new))
    return (
        replace(finding, verdict=objection.verdict, cause=objection.cause, reason=objection.reason)
        if objection
        else finding
    )
