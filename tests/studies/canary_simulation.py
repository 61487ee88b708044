"""Simulate a step of the machine between two sessions: a gate with a stored baseline, without and with canaries.

    bash ci/study.sh canary_simulation [SUITES [PROCESSES…]]        default 200, for 5, 10 and 20 processes

Each suite has 100 cases, a quarter of them bound by each of four resources, and 1 % of noise between processes. Between
the baseline's session and the candidate's, all cases or those of one resource become slower or faster by the step.
Judging, rounds and canaries are the product's own. The slow-downs to find are in two cases of each resource.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from _make import manifest

from gpubench.judging.evidence import Evidence, Gathering, Kind, Process, Reading
from gpubench.judging.judge import Finding, Judgement, judge
from gpubench.judging.rounds import Sides, settle, settle_beside_canaries
from gpubench.model import Case, Verdict

REPLICATES = 5
THRESHOLD = 0.02
NOISE = 0.01  # standard deviation between processes, of logarithms
LIMITS = ("dram", "tensor.float16", "l2", "")  # each is the limit of a quarter of the cases
_DEVICES = ("cuda:0",)
_KINDS = {limit: Kind(1, "hot", "s", "less", limit) for limit in LIMITS}
_MANIFEST = manifest()


@dataclass(frozen=True, slots=True)
class SteppedWorld:
    """Suites whose candidate's session is slower by `step`, and two cases of each resource by `slower` in addition.

    `stepped` names the limits of the cases that the step concerns. With `late` the step comes after the first
    measurement, so that only what is measured again meets it.
    """

    step: float = 0.0
    stepped: tuple[str, ...] = LIMITS
    slower: float = 0.0
    baseline: int = 20  # number of processes
    cases: int = 100
    late: bool = False
    changed: int = 2 * len(LIMITS)  # number of cases that are made slower


class SteppedSuite:
    """One suite of a world: its first measurement and its repeated measurements."""

    def __init__(self, world: SteppedWorld, rng: np.random.Generator) -> None:
        """Prepare a suite whose first `world.changed` cases are slower, if the world is slower at all."""
        self.world = world
        self.measured_again = 0
        self._rng = rng
        self._cases = [Case("simulated", f"case{index}") for index in range(world.cases)]
        self._limits = {case.id: LIMITS[index % len(LIMITS)] for index, case in enumerate(self._cases)}
        self.changed = frozenset(case.id for case in self._cases[: world.changed * bool(world.slower)])

    def sides(self) -> Sides:
        """Return the stored baseline and the candidate's first measurement."""
        before = self._reading(self._cases, self.world.baseline, candidate=False)
        step = 0.0 if self.world.late else self.world.step
        return Sides(Evidence([[before]]), Evidence([[self._reading(self._cases, REPLICATES, True, step)]]))

    def again(self, sides: Sides, findings: tuple[Finding, ...]) -> Sides:
        """Five processes more of the candidate."""
        self.measured_again += len(findings)
        more = self._reading([finding.case for finding in findings], REPLICATES, True, self.world.step)
        return Sides(sides.before, sides.after.with_repeats([more]))

    def judgement(self, canaries: bool) -> Judgement:
        """What the gate says in the end."""
        if canaries:
            return settle_beside_canaries(self.sides(), judged, self.again)
        return settle(self.sides(), judged, self.again)

    def _reading(self, cases: list[Case], processes: int, candidate: bool, step: float = 0.0) -> Reading:
        """Return a reading of these cases by `processes` processes; a candidate also has the machine's `step`."""
        shifts = [self._shift(case, step) if candidate else 0.0 for case in cases]
        logs = np.array(shifts)[:, None] + NOISE * self._rng.standard_normal((len(cases), processes))
        results = {
            (case.id, _DEVICES): [(case, Process("ok", value, _KINDS[self._limits[case.id]])) for value in values]
            for case, values in zip(cases, np.exp(logs).tolist(), strict=True)
        }
        return Reading(_MANIFEST, Gathering(results))

    def _shift(self, case: Case, step: float) -> float:
        is_stepped = self._limits[case.id] in self.world.stepped
        return math.log1p(step if is_stepped else 0.0) + math.log1p(self.world.slower * (case.id in self.changed))


def judged(sides: Sides) -> Judgement:
    """Return the judgement by the rule of the gate."""
    return judge(sides.before, sides.after, lambda _: THRESHOLD)


@dataclass(frozen=True, slots=True)
class SteppedOutcome:
    """Shares: of suites with an unchanged case called slower, of changed cases found, of cases measured again."""

    alarmed: float
    detected: float
    measured_again: float


def simulate_steps(world: SteppedWorld, suites: int, canaries: bool = True, seed: int = 0) -> SteppedOutcome:
    """Judge this many suites of a world, by default as the gate does, else without canaries."""
    alarmed = detected = changed = again = 0
    for number in range(suites):
        suite = SteppedSuite(world, np.random.default_rng((seed, number)))
        findings = suite.judgement(canaries).findings
        slower = {finding.case.id for finding in findings if finding.verdict is Verdict.SLOWER}
        alarmed += bool(slower - suite.changed)
        detected += len(slower & suite.changed)
        changed += len(suite.changed)
        again += suite.measured_again
    return SteppedOutcome(alarmed / suites, detected / max(changed, 1), again / suites / world.cases)


def rows(baselines: tuple[int, ...], suites: int) -> Iterator[str]:
    """Yield the table of docs/gate.md, a line for each baseline and step: without canaries → with them."""
    yield "| baseline | step | alarmed suites | +3 % found | +5 % found | measured again |"
    yield "|---|---|---|---|---|---|"
    steps = [(step, LIMITS) for step in (0.0, 0.015, 0.03, -0.015, -0.03)] + [(0.03, LIMITS[:1])]
    for baseline in baselines:
        for step, stepped in steps:
            same, three, five = (
                _pair(SteppedWorld(step, stepped, size, baseline), suites) for size in (0.0, 0.03, 0.05)
            )
            name = f"{step:+.1%} {'all' if stepped == LIMITS else stepped[0]}" if step else "none"
            yield (
                f"| {baseline} | {name} | {same[0].alarmed:.1%} → {same[1].alarmed:.1%} "
                f"| {three[0].detected:.0%} → {three[1].detected:.0%} "
                f"| {five[0].detected:.0%} → {five[1].detected:.0%} "
                f"| {same[0].measured_again:.0%} → {same[1].measured_again:.0%} |"
            )


def _pair(world: SteppedWorld, suites: int) -> list[SteppedOutcome]:
    count = max(suites // 4, 5) if world.slower else suites  # each suite has eight changed cases
    return [simulate_steps(world, count, canaries) for canaries in (False, True)]


def main() -> None:
    """Print the table."""
    suites = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    baselines = tuple(map(int, sys.argv[2:])) or (5, 10, 20)
    print(f"{suites} suites of 100 cases, {NOISE:.0%} noise between processes, threshold {THRESHOLD:.0%}")  # noqa: T201
    for line in rows(baselines, suites):
        print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
