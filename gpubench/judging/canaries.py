"""Tell a step of the machine from a change of the code by canaries: other cases that became slower at the same time.

A stored baseline comes from another session. Between two sessions a machine can become slower as a whole, because of
its temperature, another load, or a setting that nobody records. Cases that move together are the sign of such a step,
because a change of the code rarely slows all cases alike. docs/gate.md ("A step of the machine") states the rule.

Shifts are on logarithms, signed so that more is worse, as in `judging.effect`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gpubench import stats
from gpubench.base import units
from gpubench.judging.evidence import Evidence, Key, Side, paired
from gpubench.judging.judge import Finding, Judgement, badness, verdict_of
from gpubench.judging.objections import Grounds
from gpubench.model import Verdict

LEAST_CANARIES = 3  # a median of fewer follows a single case
MOST_CANARIES = 5  # at most this many are measured again with the suspects of one resource
_TOGETHER = 0.75  # the share of a group that has to agree before its median counts as a common shift
_ERRORS = 2.0  # a common shift counts if it exceeds this number of its standard errors
_RELEVANT = 0.1  # it must also exceed this share of a case's threshold; a smaller one changes no verdict
_LIKE = 0.5  # a case moved with the others if its shift differs from the common shift by at most this share
_UNLIKE = 3.0  # the cases' shifts differ by more than noise where their variance is this many times what noise gives
_MEDIAN_ERROR = math.sqrt(math.pi / 2)  # the standard error of a median over the standard error of a mean
_PAIRED_ERROR = math.sqrt(math.pi / 3)  # the same of the median of pairwise means (Hodges & Lehmann 1963)
_MOST_PAIRED = 200  # with more cases the plain median is precise enough, and the pairs would be too many
_FIRST = frozenset({0})  # the candidate's first run file, which holds all its cases
_LOOKS_SLOWER = (Verdict.SLOWER, Verdict.SUSPECT)
_MOST_Q = 0.05  # beyond it a case that looks slower may be a chance find among all cases
_OPEN = ("", "chance")  # causes of a verdict that is about the figures alone
CAUSE = "machine-step"


def resource(limit: str) -> str:
    """Return the part of a machine that a limit belongs to: `tensor` of `tensor.float16`. Links are kept apart."""
    return limit if limit.startswith("link.") else limit.partition(".")[0]


@dataclass(frozen=True, slots=True)
class CommonShift:
    """The shift that the canaries have in common between baseline and candidate.

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

    `canaries` are the members that moved together; it is empty if too few did."""

    def __init__(self, name: str, members: Sequence[CaseShift]) -> None:
        """Find the members that moved together: their shifts agree with the median shift of all members."""
        self.name = name
        self.members = members
        middle = statistics.median(case.moved for case in members)
        room = _LIKE * abs(middle)
        agreeing = [case for case in members if abs(case.moved - middle) <= max(case.room, room)]
        together = len(agreeing) >= max(LEAST_CANARIES, _TOGETHER * len(members))
        self.canaries = agreeing if together else []
        self._keys = frozenset(case.finding.key for case in self.canaries)
        self._repeated: dict[frozenset[int], CommonShift] = {}

    def can_judge(self, case: CaseShift) -> bool:
        """Return whether enough canaries other than the case itself moved together."""
        return len(self._keys - {case.finding.key}) >= LEAST_CANARIES

    @cached_property
    def first(self) -> CommonShift:
        """The common shift of the first measurement."""
        return CommonShift.of([case.moved for case in self.canaries], [case.error**2 for case in self.canaries])

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
        """Return the common shift of the canaries in the run files `readings`, or `first` with fewer than three."""
        moved = [shift for case in self.canaries if (shift := case.repeated_shift(readings, self.first.shift))]
        if len(moved) < LEAST_CANARIES:
            return self.first
        return CommonShift.of([shift for shift, _ in moved], [variance for _, variance in moved])

    def __str__(self) -> str:
        bound = f" bound by {self.name}" if self.name else ""
        return f"{len(self.canaries)} of {len(self.members)} cases{bound}"


class MachineSteps:
    """The steps of the machine that the canaries of a candidate show, and the canaries to measure again.

    A case is compared with the cases that are bound by the same resource."""

    def __init__(self, judgement: Judgement, before: Evidence, after: Evidence) -> None:
        """Group the judged cases of a baseline and a candidate by their devices and the resource that bounds them."""
        self._judgement = judgement
        self._cases = _case_shifts(judgement, before, after)
        members: dict[tuple[tuple[str, ...], str], list[CaseShift]] = {}
        for key, case in self._cases.items():
            for name in dict.fromkeys(("", case.resource)):
                members.setdefault((key[1], name), []).append(case)
        self._groups = {key: CaseGroup(key[1], cases) for key, cases in members.items()}

    def canaries(self, suspects: Sequence[Finding]) -> tuple[Finding, ...]:
        """Return the cases to measure again with `suspects`: up to five canaries of each group, none of them a suspect.

        Canaries that were already measured again come first, so that all rounds have the same, then the least noisy
        ones."""
        suspect_keys = {finding.key for finding in suspects}
        groups = {id(group): group for finding in suspects if (group := self._group(finding.key))}
        chosen: dict[Key, Finding] = {}
        for group in groups.values():
            candidates = [case for case in group.canaries if case.finding.key not in suspect_keys]
            candidates.sort(key=lambda case: (-len(case.repeat_readings), case.variance, case.finding.case.id))
            chosen |= {case.finding.key: case.finding for case in candidates[:MOST_CANARIES]}
        return tuple(chosen.values())

    def judgement(self) -> Judgement:
        """Return the judgement after the steps of the machine are subtracted from the cases that look slower.

        A case is inconclusive if the shift of its canaries explains its slowdown."""
        raw = self._judgement.findings
        steps = {finding.key: step for finding in raw if (step := self._step(finding))}
        if not steps:
            return replace(self._judgement, notes=(*self._judgement.notes, *self._unguarded_notes(raw)))
        remaining = _without_steps([self._cases[key] for key in steps], list(steps.values()))
        findings = [
            self._finding_to_report(old, new, steps[old.key]) if old.key in steps else old
            for old, new in zip(raw, _with_q_values([remaining.get(old.key, old) for old in raw]), strict=True)
        ]
        notes = (*self._judgement.notes, *self._step_notes(raw, findings), *self._unguarded_notes(findings))
        return replace(self._judgement, findings=tuple(sorted(findings, key=badness)), notes=notes)

    def _group(self, key: Key) -> CaseGroup | None:
        """Return the group that a case is compared with: the cases of its resource."""
        case = self._cases.get(key)
        if case is None:
            return None
        groups = (self._groups[key[1], name] for name in (case.resource, ""))
        return next((group for group in groups if group.can_judge(case)), None)

    def _step(self, finding: Finding) -> CommonShift | None:
        """Return the step of the machine that a finding contains; None if no group can judge it or it is too small."""
        group = self._group(finding.key)
        if group is None or finding.effect is None or finding.cause not in _OPEN:
            return None
        common = group.shift_of(self._cases[finding.key])
        return common if common.is_step(finding.threshold) and (common.shift > 0 or group.name) else None

    def _finding_to_report(self, raw: Finding, remaining: Finding, step: CommonShift) -> Finding:
        """Return the finding to report for a case with `step`; `raw` is its finding before the step is subtracted."""
        verdict = _verdict(remaining)
        moved = f"{self._group(raw.key)} became {_shift_text(step)} together"
        if verdict in _LOOKS_SLOWER:
            return replace(remaining, verdict=verdict, cause="", reason=f"{moved}; the change shown exceeds that")
        if raw.verdict not in _LOOKS_SLOWER:
            return raw
        reason = (
            f"{moved}, and this case exceeds that by less than the threshold: the cause is the machine or common to all"
        )
        return replace(raw, verdict=Verdict.INCONCLUSIVE, cause=CAUSE, reason=reason)

    def _step_notes(self, raw: Sequence[Finding], findings: Sequence[Finding]) -> list[str]:
        """Return a list of one note about the steps that changed a finding, or an empty list if none did."""
        changed = [old.key for old, new in zip(raw, findings, strict=True) if old is not new]
        groups = {str(group): group for key in changed if (group := self._group(key))}
        if not groups:
            return []
        moved = ", ".join(f"{name} became {_shift_text(group.first)}" for name, group in groups.items())
        return [f"step of the machine or common cause: {moved}; `gpubench ab` measures both builds in turn to decide"]

    def _unguarded_notes(self, findings: Sequence[Finding]) -> list[str]:
        """Return one note if any of `findings` is slower and no canaries could test it for a step of the machine."""
        alone = [finding.case.id for finding in findings if _is_slower(finding) and not self._group(finding.key)]
        if not alone:
            return []
        more = f" and {len(alone) - 1} more" if len(alone) > 1 else ""
        missing = (
            f"no {LEAST_CANARIES} other cases moved together that could show a step of the machine since the baseline"
        )
        return [f"{alone[0]}{more}: slower, but {missing}; `gpubench ab` tells the machine from the code"]


def _case_shifts(judgement: Judgement, before: Evidence, after: Evidence) -> dict[Key, CaseShift]:
    """Return by key the cases whose figures were compared and that have enough processes to show a shift."""
    grounds = Grounds(before, after)
    sides = {
        (new.case.id, new.devices): (grounds.of_same_card(old, new), new)
        for old, new in paired(before, after)
        if old is not None and new is not None
    }
    cases = {}
    for finding in judgement.findings:
        is_figured = finding.effect is not None or finding.cause == "identical"
        if not is_figured or finding.key not in sides:
            continue
        old, new = sides[finding.key]
        case = CaseShift(finding, old.logs, new, new.only(_FIRST).logs)
        if min(len(case.before), len(case.first)) > 1:
            cases[finding.key] = case
    return cases


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
