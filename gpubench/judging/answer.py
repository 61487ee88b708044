"""Compose the answer of a gate to its user: the verdict first, then the reasons, then the next steps."""

import math
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpubench.base import units
from gpubench.judging.decidable import MOST_PROCESSES, deciding_threshold, processes_needed
from gpubench.judging.finding_text import UNDECIDED, explanation, first, verdict_text
from gpubench.judging.judge import CONFIRM, NOISY, Finding, Judgement
from gpubench.judging.noise import HOPELESS, LEAST_TO_FAIL, percent
from gpubench.judging.references import CAUSE as MACHINE_STEP
from gpubench.model import Verdict

AB, COMPARE = "gpubench ab", "gpubench compare"  # these commands recommend other next steps than a gate
STATUS_TEXTS = {0: "the gate passes", 1: "a case is slower", 3: "a case failed", 4: "the gate cannot judge"}
PASSING = (Verdict.SAME, Verdict.FASTER)  # verdicts that need no action
_MOST_REASONS = 8
_MANY = 3  # if noise leaves more cases than this undecided, one line summarises their noise
MOST_FILTERS = 3  # a command names at most this many cases; beyond that it names their suites
_MOST_ESTIMATED = 200  # the undecided cases, the worst first, whose number of processes is estimated, which takes time
_NOISE = ("", "chance", "few-processes")  # causes of an undecided case that more processes can decide


@dataclass(frozen=True, slots=True)
class NextStep:
    """A recommended next step.

    `text` is a sentence without a full stop. `command` is the command that performs the step, empty if there is none.
    """

    text: str
    command: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.command}" if self.command else self.text


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """The answer of a gate: the verdict with its exit status, the reasons, and the next steps, all in plain sentences.

    `title` names the command that judged, such as `gpubench gate`; `status` is its exit status."""

    title: str
    status: int
    verdict: str
    reasons: tuple[str, ...]
    next_steps: tuple[NextStep, ...]


def answer(judgement: Judgement, status: int, title: str) -> GateAnswer:
    """Return the answer of a gate: one sentence with the verdict and the exit status, the reasons, and the next steps.

    `status` is the exit status of the gate, a key of `STATUS_TEXTS`. `title` is the command that judged."""
    verdict = f"{_verdict(judgement, status)} (exit status {status}: {STATUS_TEXTS[status]})"
    return GateAnswer(title, status, verdict, reasons(judgement), next_steps(judgement, title))


def tally(judgement: Judgement) -> str:
    """Return the number of cases with each verdict, the worst first: `2 slower, 90 same, 1 missing`.

    Missing cases come last. If there are neither findings nor missing cases, the text is `nothing to judge`."""
    counts = [f"{count} {verdict}" for verdict, count in judgement.counts().items()]
    if confirm := len(judgement.to_confirm):
        left = judgement.counts()[Verdict.INCONCLUSIVE] - confirm
        replaced = [f"{confirm} to be confirmed", *([f"{left} {Verdict.INCONCLUSIVE}"] if left else [])]
        counts = [text for count in counts for text in (replaced if count.endswith(Verdict.INCONCLUSIVE) else [count])]
    missing = [f"{len(judgement.missing)} missing"] if judgement.missing else []
    return ", ".join([*counts, *missing]) or "nothing to judge"


def decided(judgement: Judgement) -> str:
    """Return the number of cases that are slower, faster or the same as a sentence: `4 of 6 cases are decided`."""
    return f"{judgement.decided} of {units.count(judgement.cases)} {'is' if judgement.cases == 1 else 'are'} decided"


def _verdict(judgement: Judgement, status: int) -> str:
    """Return the verdict on all cases as a clause that begins in capitals: `SLOWER: 1 of 9 cases is slower`."""
    cases = units.count(judgement.cases)
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
    """Return why a gate cannot judge (exit status 4), as a clause."""
    if judgement.unmet:
        return f"no case matches the required pattern {judgement.unmet[0]}"
    if not judgement.findings:
        return "no case has a figure on both sides"
    if judgement.to_confirm:
        count = len(judgement.to_confirm)
        return f"{units.count(count)} of {judgement.cases} {'is' if count == 1 else 'are'} slower, to be confirmed"
    if judgement.undecided_suites:
        return f"nothing is decided in {', '.join(judgement.undecided_suites)}: {tally(judgement)}"
    if judgement.missing:
        return f"{units.count(len(judgement.missing))} vanished: {tally(judgement)}"
    if judgement.partial:
        return f"the candidate is a partial run: {tally(judgement)}"
    return f"{decided(judgement)}: {tally(judgement)}"


def reasons(judgement: Judgement) -> tuple[str, ...]:
    """Return the lines that justify the verdict: the tally, each reason with its cases, and the notes of the judgement.

    If the tally and the reasons make more than eight lines, the further ones are replaced by a line with their
    number."""
    lines = [*_tally_line(judgement), *_reason_lines(judgement)]
    rest = len(lines) - _MOST_REASONS
    lines = lines[:_MOST_REASONS] + ([f"{units.count(rest, 'more reason')}: --json has them all"] if rest > 0 else [])
    return (*lines, *judgement.notes)


def _tally_line(judgement: Judgement) -> Iterator[str]:
    """Yield one line with the tally, devices and numbers of processes: `2 slower on cuda:0 (5 and 5 processes)`."""
    devices = {finding.devices for finding in judgement.findings if finding.devices}
    where = f" on {'+'.join(*devices)}" if len(devices) == 1 else ""
    compared = [finding for finding in judgement.findings if finding.effect]
    sides = [sorted({getattr(finding, side).processes for finding in compared}) for side in ("before", "after")]
    counts = [
        f"{counts_of_processes[0]} to {counts_of_processes[-1]}"
        if len(counts_of_processes) > 1
        else f"{counts_of_processes[0]}"
        for counts_of_processes in sides
        if counts_of_processes
    ]
    processes = f" ({' and '.join(counts)} processes)" if compared else ""
    if judgement.findings or judgement.missing:
        yield tally(judgement) + where + processes


def _reason_lines(judgement: Judgement) -> Iterator[str]:
    """Yield a line for each reason why the gate does not pass, with the cases that the reason holds for."""
    yield from (f"no case matches the required pattern {pattern}" for pattern in judgement.unmet)
    noisy = _undecided_by_noise(judgement.findings)
    summarised = {finding.key for finding in noisy} if len(noisy) > _MANY else set()
    cases_by_reason: dict[tuple[str, str], list[str]] = {}
    for finding in judgement.findings:
        if finding.verdict not in PASSING and finding.key not in summarised and (reason := explanation(finding)):
            cases_by_reason.setdefault((verdict_text(finding), reason), []).append(finding.case.id)
    yield from (f"{verdict}: {first(ids)}: {reason}" for (verdict, reason), ids in cases_by_reason.items())
    if summarised:
        noises = sorted(math.expm1(finding.effect.between) for finding in noisy if finding.effect)
        varies = f"{percent(noises[0])} to {percent(noises[-1])}"
        yield (
            f"inconclusive: {first([finding.case.id for finding in noisy])}: "
            f"their intervals reach across the threshold; identical code varies by {varies} between processes"
        )
    if judgement.missing:
        yield f"missing: {first([case.id for case in judgement.missing])}: only the baseline has a figure"


def _undecided_by_noise(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that are inconclusive or suspects, have an effect, and have no other cause than noise."""
    return [
        finding for finding in findings if finding.verdict in UNDECIDED and finding.effect and finding.cause in _NOISE
    ]


def next_steps(judgement: Judgement, title: str) -> tuple[NextStep, ...]:
    """Return the next steps with the commands and the numbers of processes; empty if there is nothing to do.

    They are for failed, slower, undecided, moved and incomparable cases, in this order."""
    causes: dict[str, list[Finding]] = {}
    for finding in judgement.findings:
        causes.setdefault(finding.cause, []).append(finding)
    steps: list[NextStep] = []
    if confirm := causes.get(CONFIRM):
        steps.append(NextStep("confirm or refute it with both builds measured in turn", _ab_command(confirm)))
    if failed := causes.get("failed"):
        steps.append(NextStep("correct the failed cases, then measure again", f"gpubench run {selection(failed)}"))
    if title != COMPARE and (
        slower := [finding for finding in judgement.findings if finding.verdict is Verdict.SLOWER]
    ):
        steps.append(_step_for_slower(slower, title))
    steps += _deciding_steps(_undecided_by_noise(judgement.findings), title)
    if few := [finding for finding in causes.get("few-processes", ()) if not finding.effect]:
        steps.append(_measure_again(few, title, LEAST_TO_FAIL, "fewer processes do not show how much processes differ"))
    if moved := causes.get(MACHINE_STEP):
        steps.append(NextStep("measure both builds in turn, which tells the machine from the code", _ab_command(moved)))
    return (*steps, *_corrections(judgement, causes))


def _corrections(judgement: Judgement, causes: Mapping[str, Sequence[Finding]]) -> Iterator[NextStep]:
    """Yield the next steps for disturbed cases, other machines, other methods, and required cases that do not exist."""
    if "contended" in causes or NOISY in causes:
        yield NextStep("measure again while no other work runs on the machine; `gpubench doctor --noise` measures it")
    if judgement.missing:
        yield NextStep("measure the cases that vanished, or pass --allow-missing")
    if judgement.partial:
        yield NextStep("complete the candidate with `gpubench run --resume`, or pass --allow-undecided")
    if others := causes.get("machine"):
        command = f"gpubench gate --run {_suites(others)} --save-baseline NAME"
        yield NextStep("compare anyway with --allow-mismatch, or measure a baseline here", command)
    if "method" in causes:
        yield NextStep("measure a new baseline: the cases that are not comparable are now measured in another way")
    if judgement.unmet:
        yield NextStep("measure the required cases, or correct `required` in the policy")


def _step_for_slower(slower: Sequence[Finding], title: str) -> NextStep:
    """Return the next step for slower cases; `title` is the command that judged."""
    if title == AB:
        command = f"gpubench run {selection(slower[:1])} --print-profiler-command ncu"
        return NextStep("find the cause with a profiler", command)
    if _is_floor(slower):
        return NextStep("find out why the device is slow", "gpubench doctor")
    return NextStep("confirm it with both builds measured in turn", _ab_command(slower))


def _is_floor(findings: Sequence[Finding]) -> bool:
    """Return whether the baseline is a published floor of the device's model instead of a measurement."""
    return not any(finding.before.processes for finding in findings)


def _deciding_steps(noisy: Sequence[Finding], title: str) -> Iterator[NextStep]:
    """Yield the next steps for cases that noise leaves undecided: `noisy`, the worst first."""
    estimated = noisy[:_MOST_ESTIMATED]
    needed = {finding.key: processes_needed(finding) for finding in estimated}
    decidable = [finding for finding in estimated if needed[finding.key]]
    if decidable:
        counts = [needed[finding.key] for finding in decidable]
        most, half = max(counts), statistics.median_low(counts)
        which = units.count(len(decidable), "inconclusive case")
        less = f", and {half} processes half of them" if half < most else ""
        yield _measure_again(
            decidable, title, most, f"{most} processes per side decide {which} with a probability of 80 %{less}"
        )
    if hopeless := [finding for finding in estimated if not needed[finding.key]]:
        names, enough = first([finding.case.id for finding in hopeless]), max(map(deciding_threshold, hopeless))
        advice = f"with --threshold {math.ceil(enough * 1000) / 10:g} the changes seen here are within the threshold"
        if enough > HOPELESS:
            advice = "measure on a quieter machine, since no useful threshold would decide it"
        yield NextStep(
            f"{names}: {MOST_PROCESSES} processes per side decide this with a probability below 80 %; {advice}"
        )


def _measure_again(findings: Sequence[Finding], title: str, count: int, reason: str) -> NextStep:
    """Return the next step that measures the cases of `findings` again with `count` processes per side."""
    if title == AB:
        return NextStep(f"repeat with {selection(findings)} --replicates {count}: {reason}")
    if _is_floor(findings):
        return NextStep(f"measure with --replicates {count}: {reason}")
    advice = f"measure both sides in turn with --replicates {count}, because {reason}"
    return NextStep(advice, f"{_ab_command(findings)} --replicates {count}")


def _ab_command(findings: Sequence[Finding]) -> str:
    """Return the command that measures baseline and candidate in turn."""
    return f"gpubench ab --a BASELINE --b CANDIDATE {selection(findings)}"


def selection(findings: Sequence[Finding]) -> str:
    """Return the command-line arguments that select the cases of `findings`: the suites, and a filter for each case.

    For more than three cases there are no filters, so that the whole suites are selected."""
    ids = list(dict.fromkeys(finding.case.id for finding in findings))
    filters = [f"--filter {shlex.quote(case_id)}" for case_id in ids] if len(ids) <= MOST_FILTERS else []
    return " ".join([_suites(findings), *filters])


def _suites(findings: Sequence[Finding]) -> str:
    """Return the suites of the findings as command-line arguments, each once."""
    return " ".join(dict.fromkeys(shlex.quote(finding.case.suite) for finding in findings))


def warnings(judgement: Judgement) -> list[str]:
    """Return the warnings that a gate prints even if it ends with status 0, one line each.

    They are about missing cases, cases with too few processes, and the number of cases that are not decided."""
    names = [case.id for case in judgement.missing]
    few = [finding.case.id for finding in judgement.findings if finding.cause == "few-processes"]
    lines = [f"{first(names)}: the baseline has a figure, the candidate has none"] if names else []
    lines += [f"{first(few)}: too few processes to call a change slower or faster"] if few else []
    left = judgement.cases - judgement.decided
    return [*lines, f"{decided(judgement)}: the other {left} may be slower"] if left else lines
