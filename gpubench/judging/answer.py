"""What a judgement says, in the order to read it: the verdict, why, and what to do next."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpubench.judging.canaries import CAUSE as MACHINE_STEP
from gpubench.judging.decidable import MOST_PROCESSES, deciding_threshold, processes_needed
from gpubench.judging.judge import Finding, Judgement
from gpubench.judging.noise import LEAST_TO_FAIL, percent
from gpubench.judging.words import UNDECIDED, explanation, first, plural
from gpubench.model import Verdict

AB, COMPARE = "gpubench ab", "gpubench compare"  # titles of commands whose next step is another one than a gate's
STATUS_WORDS = {0: "nothing is slower", 1: "a case is slower", 3: "a case failed", 4: "the gate cannot judge"}
PASSING = (Verdict.SAME, Verdict.FASTER)  # what nobody has to do anything about
_MOST_REASONS = 8
_MANY = 3  # cases that are undecided by noise: of more, one line says how noisy they are
_MOST_FILTERS = 3  # cases that a command names one by one; of more it names the suites
_MOST_WEIGHED = 200  # undecided cases, the worst, for which the processes that they need are worked out
_NOISE = ("", "chance", "few-processes")  # causes of an undecided case that more processes can decide


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do next, in words, and the command that does it where there is one."""

    words: str
    command: str = ""

    def __str__(self) -> str:
        return f"{self.words}: {self.command}" if self.command else self.words


@dataclass(frozen=True, slots=True)
class Answer:
    """What a gate found: `verdict` with its exit status, the reasons, and what to do next, each in plain sentences.

    `status` is the exit status; `title` names the command that judged.
    """

    title: str
    status: int
    verdict: str
    why: tuple[str, ...]
    next_steps: tuple[NextStep, ...]


def answer(judgement: Judgement, status: int, title: str) -> Answer:
    """Return the answer of a gate; it says only what the judgement says, so that it is as clean as that."""
    verdict = f"{_verdict(judgement, status)} (exit status {status}: {STATUS_WORDS[status]})"
    return Answer(title, status, verdict, reasons(judgement), next_steps(judgement, title))


def tally(judgement: Judgement) -> str:
    """Return how many cases have each verdict: `2 slower, 1 inconclusive, 90 same`."""
    counts = [f"{count} {verdict}" for verdict, count in judgement.counts().items()]
    missing = [f"{len(judgement.missing)} missing"] if judgement.missing else []
    return ", ".join([*counts, *missing]) or "nothing to judge"


def decided(judgement: Judgement) -> str:
    """Return how many cases are slower, faster or the same: `4 of 6 cases are decided`."""
    return f"{judgement.decided} of {plural(judgement.cases)} {'is' if judgement.cases == 1 else 'are'} decided"


def _verdict(judgement: Judgement, status: int) -> str:
    cases = plural(judgement.cases)
    if status == 3:
        failed = sum(finding.cause == "failed" for finding in judgement.findings)
        return f"FAILED: {failed} of {cases} failed" if failed else "FAILED: a case failed that has no baseline"
    if status == 1:
        slower = judgement.counts().get(Verdict.SLOWER, 0)
        return f"SLOWER: {slower} of {cases} {'is' if slower == 1 else 'are'} slower"
    if status == 4:
        return f"CANNOT JUDGE: {_obstacle(judgement)}"
    if not judgement.decided:
        return f"INCONCLUSIVE: {decided(judgement)}"
    if judgement.decided < judgement.cases:
        return f"INCOMPLETE: {decided(judgement)}, and none of these is slower"
    return f"PASSED: none of {cases} is slower"


def _obstacle(judgement: Judgement) -> str:
    """Return why a gate cannot judge."""
    if judgement.unmet:
        return f"no case matches the required pattern {judgement.unmet[0]}"
    if not judgement.findings:
        return "no case has a figure on both sides"
    return f"{decided(judgement)}: {tally(judgement)}"


def reasons(judgement: Judgement) -> tuple[str, ...]:
    """Return why the verdict is what it is: the counts, then each reason once with the cases that it holds for."""
    lines = [*_conditions(judgement), *_causes(judgement)]
    rest = len(lines) - _MOST_REASONS
    lines = lines[:_MOST_REASONS] + ([f"{plural(rest, 'more reason')}: --json has them all"] if rest > 0 else [])
    return (*lines, *judgement.notes)


def _conditions(judgement: Judgement) -> Iterator[str]:
    """Yield what all cases share: their counts, the device, the processes."""
    devices = {finding.devices for finding in judgement.findings if finding.devices}
    where = f" on {'+'.join(*devices)}" if len(devices) == 1 else ""
    weighed = [finding for finding in judgement.findings if finding.effect]
    sides = [sorted({getattr(each, side).processes for each in weighed}) for side in ("before", "after")]
    counts = [f"{found[0]} to {found[-1]}" if len(found) > 1 else f"{found[0]}" for found in sides if found]
    processes = f" ({' and '.join(counts)} processes)" if weighed else ""
    if judgement.findings or judgement.missing:
        yield tally(judgement) + where + processes


def _causes(judgement: Judgement) -> Iterator[str]:
    yield from (f"no case matches the required pattern {pattern}" for pattern in judgement.unmet)
    noisy = _by_noise(judgement.findings)
    told = {each.key for each in noisy} if len(noisy) > _MANY else set()
    found: dict[tuple[Verdict, str], list[str]] = {}
    for finding in judgement.findings:
        if finding.verdict not in PASSING and finding.key not in told and (why := explanation(finding)):
            found.setdefault((finding.verdict, why), []).append(finding.case.id)
    yield from (f"{verdict}: {first(ids)}: {why}" for (verdict, why), ids in found.items())
    if told:
        noises = sorted(math.expm1(finding.effect.between) for finding in noisy if finding.effect)
        varies = f"{percent(noises[0])} to {percent(noises[-1])}"
        yield (
            f"inconclusive: {first([each.case.id for each in noisy])}: their intervals reach across the threshold; "
            f"identical code varies by {varies} between processes"
        )
    if judgement.missing:
        yield f"missing: {first([case.id for case in judgement.missing])}: only the baseline has a figure"


def _by_noise(findings: Sequence[Finding]) -> list[Finding]:
    """Return the undecided cases that nothing but noise and the threshold keeps undecided."""
    return [each for each in findings if each.verdict in UNDECIDED and each.effect and each.cause in _NOISE]


def next_steps(judgement: Judgement, title: str) -> tuple[NextStep, ...]:
    """Return what to do next, with the numbers and commands that it takes; nothing where all cases pass."""
    causes: dict[str, list[Finding]] = {}
    for finding in judgement.findings:
        causes.setdefault(finding.cause, []).append(finding)
    steps: list[NextStep] = []
    if failed := causes.get("failed"):
        steps.append(NextStep("correct what failed, then measure again", f"gpubench run {selection(failed)}"))
    if title != COMPARE and (slower := [each for each in judgement.findings if each.verdict is Verdict.SLOWER]):
        steps.append(_look_into(slower, title))
    steps += _deciding(_by_noise(judgement.findings), title)
    if few := [each for each in causes.get("few-processes", ()) if not each.effect]:
        steps.append(_again(few, title, LEAST_TO_FAIL, "fewer processes do not show how much processes differ"))
    if moved := causes.get(MACHINE_STEP):
        steps.append(NextStep("measure both builds in turn, which tells the machine from the code", _in_turn(moved)))
    return (*steps, *_corrections(judgement, causes))


def _corrections(judgement: Judgement, causes: Mapping[str, Sequence[Finding]]) -> Iterator[NextStep]:
    """Yield what to change before the same cases can be compared."""
    if "contended" in causes:
        yield NextStep("measure again while no other work runs on the machine")
    if others := causes.get("machine"):
        command = f"gpubench gate --run {_suites(others)} --save-baseline NAME"
        yield NextStep("compare anyway with --allow-mismatch, or measure a baseline here", command)
    if "method" in causes:
        yield NextStep("measure a new baseline: the cases that are not comparable are now measured in another way")
    if judgement.unmet:
        yield NextStep("measure the required cases, or correct `required` in the policy")


def _look_into(slower: Sequence[Finding], title: str) -> NextStep:
    if title == AB:
        command = f"gpubench run {selection(slower[:1])} --print-profiler-command ncu"
        return NextStep("find the cause with a profiler", command)
    if _is_floor(slower):
        return NextStep("find what holds the device back", "gpubench doctor")
    return NextStep("confirm it with both builds measured in turn", _in_turn(slower))


def _is_floor(findings: Sequence[Finding]) -> bool:
    """Whether the baseline is what a model is known to reach, and no measurement."""
    return not any(finding.before.processes for finding in findings)


def _deciding(noisy: Sequence[Finding], title: str) -> Iterator[NextStep]:
    """Yield how many processes would decide the cases that noise keeps undecided, and which are hopeless."""
    weighed = noisy[:_MOST_WEIGHED]
    needed = {finding.key: processes_needed(finding) for finding in weighed}
    able = [finding for finding in weighed if needed[finding.key]]
    if able:
        counts = [needed[finding.key] for finding in able]
        most, half = max(counts), statistics.median_low(counts)
        which = plural(len(able), "inconclusive case")
        less = f", and {half} processes half of them" if half < most else ""
        yield _again(able, title, most, f"{most} processes per side decide {which} with a probability of 80 %{less}")
    if hopeless := [finding for finding in weighed if not needed[finding.key]]:
        names, enough = first([each.case.id for each in hopeless]), max(map(deciding_threshold, hopeless))
        yield NextStep(
            f"{names}: {MOST_PROCESSES} processes per side decide this with a probability below 80 %; "
            f"with --threshold {math.ceil(enough * 1000) / 10:g} the changes seen here are within the threshold"
        )


def _again(findings: Sequence[Finding], title: str, count: int, why: str) -> NextStep:
    """Return how to measure these cases again with as many processes."""
    if title == AB:
        return NextStep(f"repeat with {selection(findings)} --replicates {count}: {why}")
    if _is_floor(findings):
        return NextStep(f"measure with --replicates {count}: {why}")
    words = f"measure both sides in turn with --replicates {count}, because {why}"
    return NextStep(words, f"{_in_turn(findings)} --replicates {count}")


def _in_turn(findings: Sequence[Finding]) -> str:
    return f"gpubench ab --a BASELINE --b CANDIDATE {selection(findings)}"


def selection(findings: Sequence[Finding]) -> str:
    """Return the words that measure these cases alone; of many, those that measure their suites."""
    ids = list(dict.fromkeys(finding.case.id for finding in findings))
    filters = [f"--filter {shlex.quote(each)}" for each in ids] if len(ids) <= _MOST_FILTERS else []
    return " ".join([_suites(findings), *filters])


def _suites(findings: Sequence[Finding]) -> str:
    return " ".join(dict.fromkeys(shlex.quote(finding.case.suite) for finding in findings))


def warnings(judgement: Judgement) -> list[str]:
    """Return what a gate that ends with 0 must not pass over in silence, one line each."""
    names = [case.id for case in judgement.missing]
    few = [finding.case.id for finding in judgement.findings if finding.cause == "few-processes"]
    lines = [f"{first(names)}: the baseline has a figure, the candidate has none"] if names else []
    lines += [f"{first(few)}: too few processes to call a change slower or faster"] if few else []
    left = judgement.cases - judgement.decided
    return [*lines, f"{decided(judgement)}: the other {left} may be slower"] if left else lines
