"""Verdicts: what an effect is called, given a threshold. Pure functions of evidence; docs/gate.md is the rule."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpubench import stats
from gpubench.base import units
from gpubench.judging import effect
from gpubench.judging.effect import Effect
from gpubench.judging.evidence import Evidence, Key, Side, paired
from gpubench.judging.noise import COARSE, percent
from gpubench.judging.objections import Grounds
from gpubench.model import Better, Case, Verdict

_WORST_FIRST = tuple(Verdict)
_QUIETER = "more processes, a quieter machine or a longer case would help"
_OTHER_CARDS = (
    "baseline and candidate were measured on different cards of one model, which differ by more than many changes do"
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

    `threshold` is on logarithms as the effect is, NaN where nothing was weighed, like `q`. A case that is not
    `required` changes no exit status unless it is slower or failed.
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
    """Findings, the worst first; the cases that only one side has, and what else is worth knowing, in words."""

    findings: tuple[Finding, ...]
    missing: tuple[Case, ...] = ()  # the baseline has an ok figure, the candidate has nothing
    new: tuple[Case, ...] = ()  # the candidate has it, the baseline no figure
    unmet: tuple[str, ...] = ()  # patterns of required cases that no case is called by
    notes: tuple[str, ...] = ()

    def counts(self) -> dict[Verdict, int]:
        """How many findings have each verdict that occurs, the worst first."""
        found = dict.fromkeys(_WORST_FIRST, 0)
        for finding in self.findings:
            found[finding.verdict] += 1
        return {verdict: count for verdict, count in found.items() if count}


def verdict_of(found: Effect, threshold: float) -> Verdict:
    """The verdict on an effect; both on logarithms.

    slower, faster: the whole interval, and the estimate with it, lie beyond the threshold; same: the whole
    interval lies within it. What is neither is a suspect where the estimate is beyond half the threshold.
    """
    if found.low > threshold and found.shift > threshold:
        return Verdict.SLOWER
    if found.high < -threshold and found.shift < -threshold:
        return Verdict.FASTER
    if -threshold <= found.low and found.high <= threshold:
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
    never below what noise leaves decidable (`Effect.least_threshold`). `noise` is an A/A of identical code,
    by default the baseline's own spread. `allow_mismatch` weighs what other machines or settings measured.
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
    findings += [_looked_into(finding, grounds, *sides) for finding, sides in zip(weighed, ready, strict=True)]
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
    all, and, if `strict`, where a required case is inconclusive.
    """
    silent = {Verdict.INVALID, Verdict.NOT_COMPARABLE, *([Verdict.INCONCLUSIVE, Verdict.SUSPECT] if strict else [])}
    required = [finding.verdict for finding in judgement.findings if finding.required]
    if any(finding.cause == "failed" for finding in judgement.findings):
        return 3
    if any(finding.verdict is Verdict.SLOWER for finding in judgement.findings):
        return 1
    return 4 if judgement.unmet or not judgement.findings or silent.intersection(required) else 0


def sentence(finding: Finding) -> str:
    """A finding in words: `+4.9 % (+4.1 % to +5.6 %), threshold 2.0 %; only the candidate is labelled loaded`."""
    why = explanation(finding)
    if finding.effect is None:
        return why
    low, high = interval(finding)
    threshold = percent(math.expm1(finding.threshold))
    return f"{signed(finding.change)} ({low} to {high}), threshold {threshold}" + (f"; {why}" if why else "")


def explanation(finding: Finding) -> str:
    """The reason of a finding; of one that could not be told, how many processes would be likely to tell."""
    undecided = finding.verdict in (Verdict.INCONCLUSIVE, Verdict.SUSPECT)
    if not finding.reason and undecided and (count := processes_needed(finding)):
        return f"about {count} processes on each side would tell"
    return finding.reason


def interval(finding: Finding) -> tuple[str, str]:
    """The ends of the 95 % interval of the change, as percentages."""
    low, high = finding.bounds
    return signed(low), signed(high)


def signed(change: float) -> str:
    """A change as a percentage with its sign: `−4.8 %`."""
    size = abs(change)
    return f"{'−' if change < 0 else '+'}{units.percent(size, 1 if size >= 0.001 or not size else 2)}"


def processes_needed(finding: Finding, most: int = 100) -> int:
    """About how many processes on each side would decide, were the estimate right; 0 where more than `most`.

    The interval shrinks with the root of their number, and with it a threshold that is noise's. The interval has to
    fit between the estimate and the threshold.
    """
    found = finding.effect
    if found is None or not found.reach:
        return 0
    size = abs(found.shift)
    if found.least_threshold >= finding.threshold:
        reach, room = found.reach + found.least_threshold, size
    else:
        reach, room = found.reach, abs(size - finding.threshold)
    present = min(finding.before.processes, finding.after.processes)
    needed = present * (reach / room) ** 2 if room else math.inf
    return max(math.ceil(needed), present + 1) if needed <= most else 0


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
    adjusted = stats.false_discovery([each.p for each in found]).tolist()
    weighed = []
    for (old, new), each, q in zip(pairs, found, adjusted, strict=True):
        asked = math.log1p(threshold(new.case.id))
        least = max(asked, each.least_threshold)
        plain = _finding(old, new, verdict_of(each, least))
        weighed.append(_not_too_coarse(replace(plain, effect=each, threshold=least, q=q), asked))
    return weighed


def _not_too_coarse(finding: Finding, asked: float) -> Finding:
    """Where noise alone makes the threshold one that real regressions stay below, `same` would say nothing."""
    if finding.verdict is not Verdict.SAME or finding.threshold <= max(asked, math.log1p(COARSE)):
        return finding
    reason = f"too noisy to gate: identical code differs here by more than changes that matter; {_QUIETER}"
    return replace(finding, verdict=Verdict.INCONCLUSIVE, cause="noise", reason=reason)


def _looked_into(finding: Finding, grounds: Grounds, old: Side, new: Side) -> Finding:
    """What looks slower or faster is asked for another explanation than the code; the clock may also hide a change."""
    if finding.effect is None:
        return finding
    is_change = finding.verdict not in (Verdict.SAME, Verdict.INCONCLUSIVE)
    found = grounds.other_card(old, new, finding.effect) if is_change else None
    if found is None:
        found = grounds.explanation(old, new, finding.verdict, finding.threshold)
    return replace(finding, verdict=found.verdict, cause=found.cause, reason=found.reason) if found else finding
