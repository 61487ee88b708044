"""Judge run files against a baseline, or measure first and then judge; suspects are measured again."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from gpubench.analysis.fingerprint import fingerprint
from gpubench.base.errors import CannotJudge, UsageError
from gpubench.judging.evidence import Evidence, Reading, by_session
from gpubench.judging.judge import Finding, Judgement, exit_status
from gpubench.judging.policy import Policy
from gpubench.judging.rounds import ROUNDS, Sides, settle, settle_stored
from gpubench.measuring.plan import Plan
from gpubench.measuring.progress import Observer
from gpubench.model import Manifest
from gpubench.plugins.gate import Gate
from gpubench.tools import session
from gpubench.tools.gating import ab
from gpubench.tools.gating.readings import garbage_collection_off, read_all


@dataclass(frozen=True, slots=True)
class GateResult:
    """A judgement, the run files of the candidate, and the manifests of both sides.

    `failed` is True if a case of the candidate failed, and `measured` if any of its cases has a figure."""

    judgement: Judgement
    files: tuple[Path, ...]
    failed: bool
    measured: bool
    manifests: tuple[Manifest, ...]

    @classmethod
    def of(cls, judgement: Judgement, files: Sequence[Path], sides: Sides) -> GateResult:
        """Return the result of the judgement of these sides; `files` are the run files of the candidate."""
        manifests = (reading.manifest for side in (sides.before, sides.after) for reading in side.readings)
        after = sides.after
        return cls(judgement, tuple(files), after.has_failed, after.has_figures, tuple(manifests))

    def exit_status(self, policy: Policy) -> int:
        """Return the gate's exit status: 3 failed, 1 slower, 4 cannot judge, 0 passed.

        A failed case of the candidate counts even without a baseline."""
        flags = policy.strict, policy.allow_missing, policy.allow_undecided
        return 3 if self.failed else exit_status(self.judgement, *flags)


@dataclass(frozen=True, slots=True)
class GateRequest:
    """The request to a gate: its policy, and how many times at most the suspects are measured again (`rounds`)."""

    gate: Gate
    policy: Policy
    rounds: int = ROUNDS

    def judge(self, sides: Sides) -> Judgement:
        """Return the gate's verdicts on the measurements so far; a case that may be slower is a suspect."""
        return self.gate.judge(sides.before, sides.after, self.policy)

    def settle(self, sides: Sides, measure_again: Callable[[Sides, tuple[Finding, ...]], Sides]) -> Judgement:
        """Return the verdicts after the suspects were measured again, in at most `rounds` rounds.

        A strict gate also measures inconclusive cases again."""
        return settle(sides, self.judge, measure_again, self.rounds, undecided=self.policy.strict)

    def settle_stored(
        self, sides: Sides, measure_again: Callable[[Sides, tuple[Finding, ...]], Sides], rounds: int | None = None
    ) -> Judgement:
        """Return the verdicts against a stored baseline, as `settle` does, but with reference cases in each round.

        `rounds` replaces the request's number of rounds if it is not None."""
        most = self.rounds if rounds is None else rounds
        if not sides.before.sides:  # the gate compares with floors and has no baseline
            return settle(sides, self.judge, measure_again, most, undecided=self.policy.strict)
        policy = self.policy
        return settle_stored(sides, self.judge, measure_again, most, policy.strict, policy.is_reference)


def read_evidence(paths: Sequence[Path]) -> Evidence:
    """Return the evidence in these run files, each of which counts once; files of one session are grouped.

    Raises FileError if a file cannot be read or is invalid."""
    return read_evidence_groups(paths)[0]


def read_evidence_groups(*groups: Sequence[Path]) -> list[Evidence]:
    """Return the evidence of each group of run files, as `read_evidence` does for one group.

    All files are read together, large ones by several processes."""
    distinct = [list({path.resolve(): path for path in paths}.values()) for paths in groups]
    readings = iter(read_all([path for paths in distinct for path in paths]))
    with garbage_collection_off():
        return [Evidence(by_session(islice(readings, len(paths)))) for paths in distinct]


def judge_files(request: GateRequest, baseline: Evidence, candidate: Evidence, files: Sequence[Path]) -> GateResult:
    """Return the result of the gate for run files that have been measured; a suspect counts as inconclusive.

    Nothing is measured again."""
    sides = Sides(baseline, candidate)
    with garbage_collection_off():
        judgement = request.settle_stored(sides, lambda now, _: now, rounds=0)
    return GateResult.of(judgement, files, sides)


def refuse_other_machines(plan: Plan, baseline: Evidence) -> None:
    """Raise CannotJudge if every run of the baseline is of another machine, driver or setting than the plan.

    Devices are compared by their fingerprints; a baseline without a device of the plan is not refused."""
    differences: list[tuple[str, ...]] = []
    for reading in baseline.readings:
        device_ids = {device.id for device in reading.manifest.facts.devices}
        for device in set(plan.settings.devices) & device_ids & set(reading.manifest.settings.devices):
            planned, measured = fingerprint(plan.facts, [device]), fingerprint(reading.manifest.facts, [device])
            differences.append(planned.differences(measured))
    if differences and all(differences):
        reasons_text = "; ".join(dict.fromkeys(reason for reasons in differences for reason in reasons))
        raise CannotJudge(
            f"the baseline is of another machine or setting: {reasons_text}; use --allow-mismatch to judge anyway"
        )


def refuse_other_methods(readings: Sequence[Reading]) -> None:
    """Raise UsageError if a run has another tier than the first, or one measured only the host and the other GPUs.

    Their figures differ by factors that say nothing about a change. Imported runs have no tier and are not refused."""
    first, *others = readings
    for other in others:
        pairs = [(reading.manifest.settings.tier, _kind(reading.manifest)) for reading in (first, other)]
        if all(tier for tier, _ in pairs) and pairs[0] != pairs[1]:
            (old_tier, old_kind), (tier, kind) = pairs
            raise UsageError(
                f"not comparable: {first.source} measured {old_kind} in the tier {old_tier}, {other.source} {kind} in "
                f"the tier {tier}; measure both on the same kind of device with the same --tier"
            )


def _kind(manifest: Manifest) -> str:
    devices = [device for device in manifest.facts.devices if device.id in manifest.settings.devices]
    return "the host" if all(device.backend == "host" for device in devices) else "a GPU"


def measure_and_judge(
    request: GateRequest, baseline: Evidence, plan: Plan, path: Path, argv: Sequence[str], watch: Observer
) -> GateResult:
    """Measure a plan into the run file `path`, judge it against a stored baseline, and return the result.

    Suspects and reference cases are measured again, in another order, into files beside `path`."""
    files = [path]
    first_reading = Reading.of(session.measure(plan, path, argv, watch), str(path))

    def measure_again(sides: Sides, findings: tuple[Finding, ...]) -> Sides:
        """Measure the cases of these findings into another file, and return the sides with the new measurements."""
        stem, suffix, packed = path.name.partition(".jsonl")
        files.append(path.with_name(f"{stem}-again{len(files)}{suffix}{packed}"))
        run = session.measure(_restricted_plan(plan, findings, len(files)), files[-1], argv, watch)
        return Sides(sides.before, sides.after.with_repeats([Reading.of(run, str(files[-1]))]))

    sides = Sides(baseline, Evidence([[first_reading]]))
    judgement = request.settle_stored(sides, measure_again)
    return GateResult.of(judgement, files, sides)


def _restricted_plan(plan: Plan, findings: Sequence[Finding], round_: int) -> Plan:
    """Return the plan with the jobs of these findings alone, ordered at random in each replicate."""
    wanted_keys = {finding.key for finding in findings}
    jobs = [job for job in plan.jobs if job.key[:2] in wanted_keys]
    random.Random(f"{plan.settings.seed}/again/{round_}").shuffle(jobs)
    jobs.sort(key=lambda job: job.replicate)
    ids = tuple(sorted({job.case.id for job in jobs}))
    return replace(plan, jobs=tuple(jobs), settings=replace(plan.settings, filters=ids))


def measure_and_judge_pair(request: GateRequest, pair: ab.BuildPair, replicates: int) -> GateResult:
    """Measure two builds in turn, judge the second against the first, and return the result.

    Suspects are measured again with both builds."""
    files: list[Path] = []
    turns = 0

    def measure_builds(filters: Sequence[str] = ()) -> tuple[list[Reading], list[Reading]]:
        """Measure `replicates` more processes of each build, and return the evidence in the run files of A and of B."""
        nonlocal turns
        before, after = pair.measure(turns + 1, replicates, filters)
        turns += replicates
        files.extend(after)
        return read_all(before), read_all(after)

    def measure_again(sides: Sides, suspects: tuple[Finding, ...]) -> Sides:
        """Measure the cases of these suspects with both builds, and return the sides with the new measurements."""
        before, after = measure_builds(sorted({finding.case.id for finding in suspects}))
        return Sides(sides.before.with_repeats(before), sides.after.with_repeats(after))

    with session.terminable(lambda: f"what was measured is in {pair.folder}"):
        before, after = measure_builds()
        sides = Sides(Evidence([before]), Evidence([after]))
        judgement = request.settle(sides, measure_again)
    return GateResult.of(judgement, files, sides)
