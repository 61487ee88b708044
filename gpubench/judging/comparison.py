"""Compare runs: first the differences of their environments, then every case that they share, the worst first.

The functions are pure functions of readings, and the verdicts are the gate's (docs/gate.md). Unlike a gate, a
comparison also judges runs of different machines, drivers and settings, because the user asked for that; it names the
differences first."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpubench.base import units
from gpubench.base.errors import UsageError
from gpubench.judging.answer import COMPARE, GateAnswer, NextStep, decided, next_steps, reasons, selection, tally
from gpubench.judging.evidence import Evidence, Reading
from gpubench.judging.finding_text import signed
from gpubench.judging.judge import DECIDED, Finding, Judgement, badness, judge, settled
from gpubench.judging.noise import LEAST_REPLICATES, LEAST_TO_FAIL, percent
from gpubench.model import Device, Manifest, Run, Verdict

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NAMED = 3  # the most cases of only one side that are named, and the most differences in the first line
SMALL = 0.01  # cases that differ by less are not listed unless the difference is decided


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact about the environment that differs between the runs.

    `name` says which fact it is. `values` has its value in each run, in the order of the runs, empty where it is
    unknown."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Geomean:
    """The geometric mean of the ratios of a suite's figures: 1.02 means 2 % better, whatever the unit.

    `decided` is the number of cases that are slower, faster or the same. `direction` is 1 if the mean and all decided
    changes are for the better, -1 if they are for the worse, and otherwise 0."""

    suite: str
    ratio: float
    cases: int
    decided: int = 0
    direction: int = 0

    @property
    def text(self) -> str:
        """The mean as text: `2.0 % better`; if `direction` is 0 only `+2.0 %`, where + means better."""
        return better_or_worse(self.ratio) if self.direction else signed(self.ratio - 1)

    @property
    def counts(self) -> str:
        """The number of decided cases as text: `1 of 12 cases decided`."""
        return f"{self.decided} of {units.count(self.cases)} decided"


@dataclass(frozen=True, slots=True)
class RunComparison:
    """One run compared with the first run: its findings, the worst first, and the geometric mean of each suite.

    `name` is the name of the run, as in its `Column`."""

    name: str
    judgement: Judgement
    geomeans: tuple[Geomean, ...]

    @property
    def tally(self) -> str:
        """The number of cases with each verdict: `1 slower, 2 faster, 90 same`."""
        return tally(replace(self.judgement, missing=()))


@dataclass(frozen=True, slots=True)
class Column:
    """A run as a column of a table: its name, the names of its devices, when it started, and its number of results."""

    name: str
    devices: tuple[str, ...]
    started: str
    results: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The compared runs, the differences of their environments, and the comparison of each other run with the first.

    `against` is empty if the runs are only shown side by side. `runs` are the runs themselves, if they are at hand:
    then a page also shows their key figures and the columns of all cases."""

    columns: tuple[Column, ...]
    differences: tuple[Difference, ...]
    against: tuple[RunComparison, ...]
    runs: tuple[Run, ...] = ()


def letter(index: int) -> str:
    """Return the name of a run in a table: A, B, C and so on."""
    return _LETTERS[index] if index < len(_LETTERS) else f"run {index + 1}"


def one_sided_cases(comparison: Comparison, against: RunComparison) -> list[str]:
    """Return up to two sentences: on cases that only the first run has, and on cases that only `against` has.

    Each names up to three cases and the number of the others. `against` is one of `comparison.against`. A sentence is
    left out if there are no such cases."""
    first = comparison.columns[0].name
    cases_by_run = ((against.judgement.missing, first), (against.judgement.new, against.name))
    return [_only_text([case.id for case in cases], name) for cases, name in cases_by_run if cases]


def _only_text(ids: Sequence[str], name: str) -> str:
    """Return the sentence that names the cases of which only the run `name` has a figure."""
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return f"only {name} has a figure of {', '.join(ids[:_NAMED])}{more}"


def compare(readings: Sequence[Reading], threshold: Callable[[str], float]) -> Comparison:
    """Compare every run with the first one, case by case; `source` of a reading is the name of its run.

    `threshold` takes the id of a case and returns the smallest relevant change of the case as a fraction. Raises
    UsageError if the first run has no case in common with any other run."""
    comparison = beside(readings, threshold)
    if not comparison.against:
        raise UsageError(f"no case in common: {'; '.join(map(_suites_text, readings))}")
    return comparison


def beside(readings: Sequence[Reading], threshold: Callable[[str], float] | None) -> Comparison:
    """Return the runs side by side, judged as `compare` does unless `threshold` is None or no case is in common."""
    first, *others = readings
    against = tuple(_against(first, other, threshold) for other in others) if threshold else ()
    is_judged = any(compared.judgement.findings for compared in against)
    columns = tuple(map(_column, readings))
    different = tuple(differences([reading.manifest for reading in readings]))
    return Comparison(columns, different, against if is_judged else ())


def _against(first: Reading, other: Reading, threshold: Callable[[str], float]) -> RunComparison:
    """Return the comparison of the run `other` with the run `first`, its findings sorted with the worst first."""
    judgement = settled(judge(Evidence([[first]]), Evidence([[other]]), threshold, allow_mismatch=True))
    ordered = tuple(sorted(judgement.findings, key=_order))
    return RunComparison(other.source, replace(judgement, findings=ordered), tuple(_geomeans(ordered)))


def _order(finding: Finding) -> tuple[int, float, str]:
    """Return the sort key that puts the worst finding first: by verdict, then by `ratio`, then by case id."""
    place, _, case = badness(finding)
    worse = -math.log(times_as_good) if (times_as_good := ratio(finding)) > 0 else 0.0
    return place, -worse, case


def ratio(finding: Finding) -> float:
    """Return how many times as good the candidate's figure is as the baseline's: 1.02 is 2 % better.

    The result is NaN if the figures cannot be compared or their ratio is not positive and finite."""
    grown = 1 + finding.observed_change
    if not grown > 0 or not math.isfinite(grown):
        return math.nan
    return grown if finding.better == "more" else 1 / grown


def better_or_worse(times_as_good: float) -> str:
    """Return how much better or worse a figure is, whatever its unit: `2.0 % better`, `2.1 times as good`."""
    if times_as_good >= 2:  # as a percentage it would be hard to read
        return f"{times_as_good:.2g} times as good"
    return f"{percent(abs(times_as_good - 1))} {'better' if times_as_good >= 1 else 'worse'}"


def is_small(finding: Finding) -> bool:
    """Return whether a case differs by less than 1 %, and not in a decided way, or cannot be compared."""
    is_change = finding.verdict in (Verdict.SLOWER, Verdict.FASTER)
    times_as_good = ratio(finding)
    return not is_change and math.isfinite(times_as_good) and abs(times_as_good - 1) < SMALL


def answer(against: RunComparison, name: str) -> GateAnswer:
    """Return the answer of a comparison: the largest differences and their proof, reasons, next steps; status 0.

    `name` is the letter of the run that was compared with run A."""
    judgement = replace(against.judgement, missing=())  # `one_sided_cases` already lists the missing cases
    seen = [finding for finding in judgement.findings if ratio(finding) > 0 and not is_small(finding)]
    largest = sorted(seen, key=lambda finding: -abs(math.log(ratio(finding))))[:_NAMED]
    summary = ", ".join(f"{finding.case.id} {_difference_text(finding)}" for finding in largest)
    is_compared = any(ratio(finding) > 0 for finding in judgement.findings)
    nothing = "no case differs by 1 % or more" if is_compared else "no case can be compared"
    verdict = f"{name} against A: {summary or nothing}; {_proof(judgement)}"
    return GateAnswer(COMPARE, 0, verdict, reasons(judgement), _next_steps(judgement))


def _difference_text(finding: Finding) -> str:
    """Return `2.0 % better` for a decided difference; for an undecided one only `+2.0 %`, where + means better."""
    is_decided = finding.verdict in DECIDED
    return better_or_worse(ratio(finding)) if is_decided else f"{signed(ratio(finding) - 1)} (+ is better)"


def _proof(judgement: Judgement) -> str:
    """Return what the two runs prove, in words."""
    compared = [finding for finding in judgement.findings if ratio(finding) > 0]
    processes = [count for finding in compared for count in (finding.before.processes, finding.after.processes)]
    if processes and max(processes) < LEAST_REPLICATES:
        return "seen once, which proves nothing"
    if not judgement.decided:
        return f"nothing is proven ({decided(judgement)})"
    counts = judgement.counts()
    changes = [f"{counts[verdict]} {verdict}" for verdict in (Verdict.SLOWER, Verdict.FASTER) if verdict in counts]
    return f"proven: {', '.join(changes) or 'no change'} ({decided(judgement)})"


def _next_steps(judgement: Judgement) -> tuple[NextStep, ...]:
    """Return the next steps that two runs allow: several processes of each, or the steps of a gate."""
    few = [finding for finding in judgement.findings if finding.cause == "few-processes" and not finding.effect]
    if not few:
        return next_steps(judgement, COMPARE)
    command = f"gpubench run {selection(few)} --replicates {LEAST_TO_FAIL}"
    return (NextStep(f"measure each side in {LEAST_TO_FAIL} processes, then compare these two files", command),)


def _geomeans(findings: Sequence[Finding]) -> Iterator[Geomean]:
    """Yield the geometric mean of the ratios of each suite, over the findings whose `ratio` is not NaN."""
    suites: dict[str, list[Finding]] = {}
    for finding in findings:
        if ratio(finding) > 0:
            suites.setdefault(finding.case.suite, []).append(finding)
    for suite, suite_findings in suites.items():
        verdicts = [finding.verdict for finding in suite_findings]
        mean = math.exp(sum(math.log(ratio(finding)) for finding in suite_findings) / len(suite_findings))
        yield Geomean(
            suite,
            mean,
            len(suite_findings),
            sum(verdict in DECIDED for verdict in verdicts),
            _direction(mean, verdicts),
        )


def _direction(mean: float, verdicts: Sequence[Verdict]) -> int:
    """Return the direction of a suite: 1 if it is better, −1 if it is worse, and 0 if neither is certain."""
    ways = {Verdict.SLOWER, Verdict.FASTER}.intersection(verdicts)
    if ways == {Verdict.FASTER} and mean > 1:
        return 1
    return -1 if ways == {Verdict.SLOWER} and mean < 1 else 0


def _suites_text(reading: Reading) -> str:
    """Return a sentence that names the suites of a run."""
    suites = sorted({case_id.partition("/")[0] for case_id, _ in reading.gathered.results})
    return f"{reading.source} has {', '.join(suites) or 'no results'}"


def _column(reading: Reading) -> Column:
    """Return a run as a column, with the devices that its results used."""
    manifest = reading.manifest
    used = {device for _, devices in reading.gathered.results for device in devices}
    names = dict.fromkeys(device.name for device in manifest.facts.devices if device.id in used)
    return Column(reading.source, tuple(names), manifest.started, sum(map(len, reading.gathered.results.values())))


def differences(manifests: Sequence[Manifest]) -> Iterator[Difference]:
    """Yield the facts about the environment that differ between the runs, the facts about the devices first.

    The values of each difference are in the order of `manifests`."""
    environments = [dict(_environment(manifest)) for manifest in manifests]
    for name in dict.fromkeys(name for environment in environments for name in environment):
        values = tuple(environment.get(name, "") for environment in environments)
        if len(set(values)) > 1:
            yield Difference(name, values)


def _environment(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each fact and setting of a run that a comparison shows, the devices' facts first.

    The devices are all devices that the run measured, or all of the machine if the run measured none.
    """
    facts, settings = manifest.facts, manifest.settings
    measured = [device for device in facts.devices if device.id in settings.devices] or list(facts.devices)
    for number, device in enumerate(measured, 1):
        label = f"device {number}: " if len(measured) > 1 else ""
        yield from ((f"{label}{name}", value) for name, value in _device(device))
    yield from facts.versions
    yield from facts.host
    yield "tier", settings.tier
    yield "replicates", str(settings.replicates)
    yield "seed", str(settings.seed)


def _device(device: Device) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each fact about a device; the value is empty if it is unknown."""
    yield "model", device.name
    yield "architecture", device.arch
    yield "units", str(device.units) if device.units else ""
    yield "memory", units.round_size(device.memory_bytes) if device.memory_bytes else ""
    yield "last-level cache", units.round_size(device.cache_bytes) if device.cache_bytes else ""
    yield "board", device.uuid
    yield from device.details
