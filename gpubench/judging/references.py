"""Tell a step of the machine from a change of the code by reference cases, which no change of the code can reach.

A stored baseline comes from another session. Between two sessions a machine can become slower as a whole, because of
its temperature, another load, or a setting that nobody records. The policy names cases that the user's code cannot
reach (`reference`); if they moved together, their shift is subtracted from the cases that look slower, and a case that
does not look slower never becomes slower. Without such a witness, what the machine may explain has a bound, and a
slow-down within it is to be confirmed if the baseline is of one session. docs/gate.md states the rule.

Shifts are on logarithms, signed so that more is worse, as in `judging.effect`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gpubench import stats
from gpubench.base import units
from gpubench.judging.evidence import Evidence, Key, Side, in_turn, paired
from gpubench.judging.judge import CONFIRM, Finding, Judgement, badness, verdict_of, with_explanation
from gpubench.judging.objections import Grounds
from gpubench.judging.sessions import LEAST_SHIFTS, UNKNOWN, resource, without_outlying_processes
from gpubench.model import Verdict

LEAST_REFERENCES = 3  # a median of fewer follows a single case
MOST_REFERENCES = 5  # at most this many are measured again with the suspects of one resource
_TOGETHER = 0.75  # the share of a group that has to agree before its median counts as a common shift
_ERRORS = 2.0  # a common shift counts if it exceeds this number of its standard errors
_RELEVANT = 0.1  # it must also exceed this share of a case's threshold; a smaller one changes no verdict
_LIKE = 0.5  # a case moved with the others if its shift differs from the common shift by at most this share
_UNLIKE = 3.0  # the cases' shifts differ by more than noise where their variance is this many times what noise gives
_MEDIAN_ERROR = math.sqrt(math.pi / 2)  # the standard error of a median over the standard error of a mean
_PAIRED_ERROR = math.sqrt(math.pi / 3)  # the same of the median of pairwise means (Hodges & Lehmann 1963)
_MOST_PAIRED = 200  # with more cases the plain median is precise enough, and the pairs would be too many
_ENOUGH_SESSIONS = 3  # a common step of a machine has been seen only once in fewer
_FIRST = frozenset({0})  # the candidate's first run file, which holds all its cases
_LOOKS_SLOWER = (Verdict.SLOWER, Verdict.SUSPECT)
_MOST_Q = 0.05  # beyond it a case that looks slower may be a chance find among all cases
_OPEN = ("", "chance", "contended")  # causes of a verdict that a step of the machine may explain as well
CAUSE = "machine-step"


@dataclass(frozen=True, slots=True)
class CommonShift:
    """The shift that cases have in common between baseline and candidate.

    `error` is the standard error of the shift."""

    shift: float
    error: float
    scatter: float = 0.0

    @classmethod
    def of(cls, shifts: Sequence[float], variances: Sequence[float]) -> CommonShift:
        """Return the common shift of at least two cases; `variances` has the variance of each shift.

        Its standard error comes from the scatter of the shifts or from `variances`, whichever is larger."""
        noise, total = statistics.fmean(variances), statistics.variance(shifts)
        error = math.sqrt(max(noise, total) / len(shifts))
        scatter = math.sqrt(total - noise) if total > _UNLIKE * noise else 0.0
        if len(shifts) > _MOST_PAIRED:
            return cls(statistics.median(shifts), _MEDIAN_ERROR * error, scatter)
        first, second = np.triu_indices(len(shifts))
        values = np.array(shifts)
        return cls(float(np.median(values[first] + values[second])) / 2, _PAIRED_ERROR * error, scatter)

    def is_step(self, threshold: float) -> bool:
        """Return whether the shift exceeds two of its standard errors and a tenth of `threshold`, a logarithm."""
        return abs(self.shift) > max(_ERRORS * self.error, _RELEVANT * threshold)

    @property
    def uncertainty(self) -> float:
        """The standard error of this shift when it is applied to one other case."""
        return math.hypot(self.error, self.scatter)

    def mixed(self, other: CommonShift, share: float) -> CommonShift:
        """Return the shift of a case for which this `share` of the processes was measured while `other` applied."""
        shift = (1 - share) * self.shift + share * other.shift
        error = math.hypot((1 - share) * self.error, share * other.error)
        return CommonShift(shift, error, (1 - share) * self.scatter + share * other.scatter)


@dataclass(frozen=True)
class CaseShift:
    """One judged case with the logarithms of its processes, signed so that more is worse.

    `before` are the logarithms of the baseline, and `first` the logarithms of the candidate's first run file."""

    finding: Finding
    before: tuple[float, ...]
    after: Side
    first: tuple[float, ...]

    @cached_property
    def moved(self) -> float:
        """The mean logarithm of the candidate's first measurement less the baseline's."""
        return statistics.fmean(self.first) - statistics.fmean(self.before)

    @cached_property
    def variance(self) -> float:
        """The variance of one process's logarithm, pooled over the baseline and the first measurement."""
        squares = sum(_squares(logs) for logs in (self.before, self.first))
        return squares / (len(self.before) + len(self.first) - 2)

    @property
    def error(self) -> float:
        """The standard error of `moved`."""
        return math.sqrt(self.variance * (1 / len(self.before) + 1 / len(self.first)))

    @property
    def room(self) -> float:
        """The distance from a common shift up to which the case agrees: half its threshold or two errors, if larger."""
        threshold = (
            self.finding.threshold if self.finding.effect else 0.0
        )  # identical figures have no effect and no threshold
        return max(threshold / 2, _ERRORS * self.error)

    @property
    def resource(self) -> str:
        """The resource that bounds the case; empty if the case names none."""
        return resource(self.after.kinds[0].limit)

    @property
    def repeat_readings(self) -> frozenset[int]:
        """The run files in which the case was measured again, as the indices in `Side.readings`."""
        return frozenset(self.after.readings) - _FIRST

    def repeated_shift(self, readings: frozenset[int], step: float) -> tuple[float, float] | None:
        """Return how far the case moved in the run files `readings` from its usual level, and the variance of this.

        The result is None if the run files do not contain the case."""
        logs = self.after.only(readings).logs
        if not logs:
            return None
        usual = len(self.before) + len(self.first)
        level = (sum(self.before) + sum(self.first) - step * len(self.first)) / usual
        return statistics.fmean(logs) - level, self.variance * (1 / len(logs) + 1 / usual)


class CaseGroup:
    """Cases on the same devices, bound by the same resource if `name` is not empty.

    `witnesses` are the members that moved together; it is empty if too few did. `middle` is the median shift."""

    def __init__(self, name: str, members: Sequence[CaseShift]) -> None:
        """Find the members that moved together: their shifts agree with the median shift of all members."""
        self.name = name
        self.members = members
        middle = statistics.median(case.moved for case in members)
        room = _LIKE * abs(middle)
        agreeing = [case for case in members if abs(case.moved - middle) <= max(case.room, room)]
        together = len(agreeing) >= max(LEAST_REFERENCES, _TOGETHER * len(members))
        self.witnesses = agreeing if together else []
        self.middle = middle
        self._repeated: dict[frozenset[int], CommonShift] = {}

    @cached_property
    def first(self) -> CommonShift:
        """The common shift of the first measurement."""
        return CommonShift.of([case.moved for case in self.witnesses], [case.error**2 for case in self.witnesses])

    def shift_of(self, case: CaseShift) -> CommonShift:
        """Return the common shift that applied while the processes of `case` were measured, at first and again.

        The common shifts of both measurements are weighted by the numbers of these processes."""
        if not case.repeat_readings:
            return self.first
        if case.repeat_readings not in self._repeated:
            self._repeated[case.repeat_readings] = self._repeated_common_shift(case.repeat_readings)
        share = 1 - len(case.first) / len(case.after.logs)
        return self.first.mixed(self._repeated[case.repeat_readings], share)

    def _repeated_common_shift(self, readings: frozenset[int]) -> CommonShift:
        """Return the common shift of the witnesses in the run files `readings`, or `first` with fewer than three."""
        moved = [shift for case in self.witnesses if (shift := case.repeated_shift(readings, self.first.shift))]
        if len(moved) < LEAST_REFERENCES:
            return self.first
        return CommonShift.of([shift for shift, _ in moved], [variance for _, variance in moved])

    def __str__(self) -> str:
        bound = f" bound by {self.name}" if self.name else ""
        return f"{len(self.witnesses)} of {len(self.members)} cases{bound}"


class MachineSteps:
    """The steps of the machine that the reference cases of a candidate show, and the references to measure again.

    A case is compared with the references that are bound by the same resource, or with all if these are too few."""

    def __init__(
        self, judgement: Judgement, before: Evidence, after: Evidence, is_reference: Callable[[str], bool]
    ) -> None:
        """Keep a judgement of a baseline and a candidate; most judgements need none of the groups below."""
        self._judgement = judgement
        self._evidence = before, after
        self._is_reference = is_reference

    @cached_property
    def _grounds(self) -> Grounds:
        before, after = (without_outlying_processes(side, "")[0] for side in self._evidence)
        return Grounds(before, after)

    @cached_property
    def _sides(self) -> dict[Key, tuple[Side, Side]]:
        """The sides of each case that baseline and candidate have, by the candidate's key."""
        return {
            (new.case.id, new.devices): (self._grounds.of_same_card(old, new), new)
            for old, new in paired(self._grounds.before, self._grounds.after)
            if old is not None and new is not None
        }

    @cached_property
    def _references(self) -> dict[tuple[tuple[str, ...], str], CaseGroup]:
        """The reference cases by their devices and the resource that bounds them, and all of the devices under ""."""
        references: dict[tuple[tuple[str, ...], str], list[CaseShift]] = {}
        for finding in self._judgement.findings:
            if self._is_reference(finding.case.id) and (case := self._cases.get(finding.key)):
                for name in dict.fromkeys(("", case.resource)):
                    references.setdefault((finding.devices, name), []).append(case)
        return {key: CaseGroup(key[1], cases) for key, cases in references.items()}

    @cached_property
    def _resources(self) -> dict[tuple[tuple[str, ...], str], CaseGroup]:
        """All judged cases by their devices and the resource that bounds them, and all of the devices under ""."""
        resources: dict[tuple[tuple[str, ...], str], list[CaseShift]] = {}
        for (_, devices), case in self._cases.items():
            for name in dict.fromkeys(("", case.resource)):
                resources.setdefault((devices, name), []).append(case)
        return {key: CaseGroup(key[1], cases) for key, cases in resources.items()}

    @cached_property
    def _cases(self) -> dict[Key, CaseShift]:
        """By key, the cases whose figures were compared and that have enough processes to show a shift."""
        cases = {}
        for finding in self._judgement.findings:
            if (finding.effect is not None or finding.cause == "identical") and finding.key in self._sides:
                old, new = self._sides[finding.key]
                case = CaseShift(finding, old.logs, new, new.only(_FIRST).logs)
                if min(len(case.before), len(case.first)) > 1:
                    cases[finding.key] = case
        return cases

    def references(self, suspects: Sequence[Finding]) -> tuple[Finding, ...]:
        """Return the cases to measure again with `suspects`: up to five references of each group, none a suspect.

        References that were already measured again come first, so that all rounds have the same, then the least noisy
        ones."""
        suspect_keys = {finding.key for finding in suspects}
        groups = {id(group): group for finding in suspects if (group := self._group(finding.key))}
        chosen: dict[Key, Finding] = {}
        for group in groups.values():
            candidates = [case for case in group.witnesses if case.finding.key not in suspect_keys]
            candidates.sort(key=lambda case: (-len(case.repeat_readings), case.variance, case.finding.case.id))
            chosen |= {case.finding.key: case.finding for case in candidates[:MOST_REFERENCES]}
        return tuple(chosen.values())

    def judgement(self) -> Judgement:
        """Return the judgement after the steps that references show are subtracted from the cases that look slower.

        A case is inconclusive if the step explains its slow-down. What may else explain it is tested again after the
        subtraction."""
        raw = self._judgement.findings
        steps = {finding.key: step for finding in raw if (step := self._step(finding))}
        if not steps:
            return self._judgement
        remaining = _without_steps([self._cases[key] for key in steps], list(steps.values()))
        findings = [
            self._finding_to_report(old, new, steps[old.key]) if old.key in steps else old
            for old, new in zip(raw, _with_q_values([remaining.get(old.key, old) for old in raw]), strict=True)
        ]
        groups = {str(group): group for key in steps if (group := self._group(key))}
        moved = ", ".join(f"{name} became {_shift_text(group.first)}" for name, group in groups.items())
        note = f"step of the machine: the reference cases, {moved}; it is subtracted from the cases that look slower"
        return replace(
            self._judgement, findings=tuple(sorted(findings, key=badness)), notes=(*self._judgement.notes, note)
        )

    def confirmed(self) -> Judgement:
        """Return the settled judgement, where slower cases have the doubt beside them.

        A slow-down within the bound of what the machine may explain is only to be confirmed if the baseline has one
        session of the case. A slow-down beyond it is slower. Sides that were measured in turn have no doubt."""
        if in_turn(*self._evidence):
            return self._judgement
        findings = [
            self._with_doubt(finding) if _is_slower(finding) else finding for finding in self._judgement.findings
        ]
        return replace(self._judgement, findings=tuple(sorted(findings, key=badness)))

    def _with_doubt(self, finding: Finding) -> Finding:
        """Return a slower finding with the doubt beside it, and as to be confirmed if the doubt may explain it."""
        old, new = self._sides[finding.key]
        allowance = self._grounds.card_allowance(old, new)
        bound = self._grounds.spreads.bound(old) + allowance
        most = units.percent(math.expm1(bound))
        assert finding.effect is not None  # `_is_slower` demands it
        case = self._cases.get(finding.key)
        group = self._resources.get((finding.devices, case.resource)) if case else None
        sessions = len(old.centres)
        if allowance or sessions < _ENOUGH_SESSIONS:
            shared = self._shared_step(finding, max(bound, UNKNOWN))  # two sessions show one common difference
            is_doubtful = allowance or sessions == 1 or shared
            left = finding.effect.low - shared - self._grounds.slowed_by_clock(old, new)
            own = max(bound, shared)  # a case may follow a common step twice as much as most
            if is_doubtful and left <= own:
                counted = "one session" if sessions == 1 else f"{sessions} sessions"
                what = "is of another card, and cards" if allowance else f"has {counted}, and sessions"
                beyond = f" beyond the {units.percent(math.expm1(shared))} by which most cases are slower"
                most = units.percent(math.expm1(own))
                reason = f"slower, but the baseline {what} may differ by {most}{beyond if shared else ''}"
                return replace(finding, verdict=Verdict.INCONCLUSIVE, cause=CONFIRM, reason=reason)
        if group is None or not group.witnesses or not group.first.is_step(finding.threshold):
            return finding
        doubt = f"{group} became {_shift_text(group.first)} together, of which the machine may explain {most}"
        return replace(finding, reason="; ".join(filter(None, (finding.reason, doubt))))

    def _shared_step(self, finding: Finding, bound: float) -> float:
        """Return the slow-down of half of the cases like this one if a machine may explain it, beyond noise; else 0."""
        case = self._cases.get(finding.key)
        groups = [self._resources[finding.devices, name] for name in (case.resource, "")] if case else []
        middle = next((group.middle for group in groups if len(group.members) >= LEAST_SHIFTS), 0.0)
        return middle if finding.user_threshold * _RELEVANT < middle <= bound else 0.0

    def _group(self, key: Key) -> CaseGroup | None:
        """Return the references that a case is compared with: the ones of its resource, or all."""
        case = self._cases.get(key) if self._references else None
        if case is None:
            return None
        groups = (self._references.get((key[1], name)) for name in (case.resource, ""))
        return next((group for group in groups if group and group.witnesses), None)

    def _step(self, finding: Finding) -> CommonShift | None:
        """Return the step to subtract from a finding: one that slowed the references of a case that looks slower."""
        group = self._group(finding.key)
        is_open = finding.verdict in _LOOKS_SLOWER and finding.effect is not None and finding.cause in _OPEN
        if group is None or not is_open:
            return None
        common = group.shift_of(self._cases[finding.key])
        return common if common.shift > 0 and common.is_step(finding.threshold) else None

    def _finding_to_report(self, raw: Finding, remaining: Finding, step: CommonShift) -> Finding:
        """Return the finding to report for a case with `step`; `raw` is its finding before the step is subtracted."""
        verdict = _verdict(remaining)
        moved = f"{self._group(raw.key)} became {_shift_text(step)} together"
        if verdict in _LOOKS_SLOWER:
            reason = f"{moved}; the change shown exceeds that"
            left = replace(remaining, verdict=verdict, cause="", reason=reason)
            return with_explanation(left, self._grounds, *self._sides[raw.key])
        reason = f"{moved}, and this case exceeds that by less than the threshold: the cause is the machine"
        return replace(raw, verdict=Verdict.INCONCLUSIVE, cause=CAUSE, reason=reason)


def _without_steps(cases: Sequence[CaseShift], steps: Sequence[CommonShift]) -> dict[Key, Finding]:
    """Return by key the findings of `cases` with the effects that remain after `steps`, one step for each case."""
    differences = [stats.welch(np.array(case.before), np.array(case.after.logs)) for case in cases]
    shifts, errors = (np.array([getattr(step, name) for step in steps]) for name in ("shift", "uncertainty"))
    difference, error, freedom = (
        np.array([getattr(welch, name) for welch in differences]) for name in ("difference", "error", "freedom")
    )
    chances = stats.Welch(difference - shifts, np.hypot(error, errors), freedom).p
    added = errors * stats.student_quantile(freedom)
    findings = {}
    for case, step, margin, p in zip(cases, steps, added.tolist(), chances.tolist(), strict=True):
        effect = case.finding.effect
        assert effect is not None  # only cases with an effect have a step
        centre, margin = (effect.low + effect.high) / 2 - step.shift, math.hypot(effect.margin, margin)
        without_step = replace(effect, shift=effect.shift - step.shift, low=centre - margin, high=centre + margin, p=p)
        findings[case.finding.key] = replace(case.finding, effect=without_step)
    return findings


def _squares(logs: Sequence[float]) -> float:
    """Return the sum of the squared deviations from the mean."""
    mean = sum(logs) / len(logs)
    return sum((value - mean) ** 2 for value in logs)


def _with_q_values(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings in order; findings with an effect get new q-values from the p-values of all effects."""
    with_effect = [finding for finding in findings if finding.effect is not None]
    adjusted = stats.false_discovery([finding.effect.p for finding in with_effect if finding.effect]).tolist()
    q = dict(zip((finding.key for finding in with_effect), adjusted, strict=True))
    return [replace(finding, q=q[finding.key]) if finding.key in q else finding for finding in findings]


def _verdict(finding: Finding) -> Verdict:
    """Return the verdict by the effect and the threshold alone, but `suspect` instead of `slower` if q is above 5 %."""
    assert finding.effect is not None
    verdict = verdict_of(finding.effect, finding.threshold)
    return Verdict.SUSPECT if verdict is Verdict.SLOWER and finding.q > _MOST_Q else verdict


def _is_slower(finding: Finding) -> bool:
    """Return whether the verdict is slower and rests on a measured effect."""
    return finding.verdict is Verdict.SLOWER and finding.effect is not None


def _shift_text(step: CommonShift) -> str:
    size = units.percent(abs(math.expm1(step.shift)), 1 if abs(step.shift) >= 0.001 else 2)
    return f"{size} {'slower' if step.shift > 0 else 'faster'}"
