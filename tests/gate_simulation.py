"""How often the gate cries wolf, and how often it finds one: simulated suites through the whole procedure.

    .venv/bin/python tests/gate_simulation.py [SUITES]        default 300 for each line of the table

A process's median is its case's true value times a log-normal noise, independent from process to process; judge,
rounds and thresholds are the product's own. `both` is what `gpubench ab` does (each side is measured again), a
number is a stored baseline of so many processes, to which `gpubench gate --run` cannot add.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from _make import manifest

from gpubench.judging.evidence import Evidence, Gathering, Kind, Process, Reading
from gpubench.judging.judge import Finding, judge
from gpubench.judging.rounds import ROUNDS, Sides, settle
from gpubench.model import Case, Verdict

REPLICATES = 5
THRESHOLD = 0.02
_KIND = Kind(1, "hot", "s", "less")
_MANIFEST = manifest()


@dataclass(frozen=True, slots=True)
class World:
    """Suites of `cases` cases, `slower` of them by this fraction, with this noise between processes (on logarithms)."""

    slower: float = 0.0
    cases: int = 100
    noise: float = 0.01
    baseline: int = REPLICATES  # processes of the baseline
    both: bool = True  # whether the baseline can be measured again
    rounds: int = ROUNDS


@dataclass(slots=True)
class Suite:
    """One suite of a world: its first measurement, and what measuring again gives."""

    world: World
    rng: np.random.Generator
    asked_again: int = 0

    def sides(self) -> Sides:
        """The first measurement of both sides."""
        cases = [Case("simulated", f"case{index}") for index in range(self.world.cases)]
        before = self.reading(cases, 0.0, self.world.baseline)
        return Sides(Evidence([[before]]), Evidence([[self.reading(cases, self.world.slower, REPLICATES)]]))

    def again(self, sides: Sides, suspects: tuple[Finding, ...]) -> Sides:
        """Five processes more of each suspect, on the sides that can be measured."""
        cases = [finding.case for finding in suspects]
        self.asked_again += len(cases)
        before = sides.before
        if self.world.both:
            before = before.and_again([self.reading(cases, 0.0, REPLICATES)])
        return Sides(before, sides.after.and_again([self.reading(cases, self.world.slower, REPLICATES)]))

    def reading(self, cases: list[Case], slower: float, processes: int) -> Reading:
        """A run file of these cases."""
        logs = math.log1p(slower) + self.world.noise * self.rng.standard_normal((len(cases), processes))
        results = {
            (case.id, ("cuda:0",)): [(case, Process("ok", value, _KIND)) for value in values]
            for case, values in zip(cases, np.exp(logs).tolist(), strict=True)
        }
        return Reading(_MANIFEST, Gathering(results))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a number of suites: how many had a case called slower, and the share of cases so called and asked again."""

    alarmed: int
    found: float
    same: float
    asked_again: float


def simulate(world: World, suites: int, seed: int = 0) -> Outcome:
    """Judge so many suites of a world."""
    alarmed = found = same = again = 0
    for counts, asked in _judged(world, suites, seed):
        slower = counts.get(Verdict.SLOWER, 0)
        alarmed += slower > 0
        found += slower
        same += counts.get(Verdict.SAME, 0)
        again += asked
    cases = suites * world.cases
    return Outcome(alarmed, found / cases, same / cases, again / cases)


def _judged(world: World, suites: int, seed: int) -> Iterator[tuple[dict[Verdict, int], int]]:
    for number in range(suites):
        suite = Suite(world, np.random.default_rng((seed, number)))
        judgement = settle(
            suite.sides(),
            lambda sides: judge(sides.before, sides.after, lambda _: THRESHOLD),
            suite.again,
            world.rounds,
        )
        yield judgement.counts(), suite.asked_again


def main() -> None:
    """Print the table of docs/gate.md."""
    suites = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    print(f"{suites} suites of 100 cases, 1 % noise between processes, threshold {THRESHOLD:.0%}")  # noqa: T201
    print("baseline  rounds  alarmed A/A suites  same   asked again  +3 % found  +5 % found")  # noqa: T201
    for baseline, both in ((5, True), (5, False), (10, False), (20, False)):
        for rounds in (0, 1, 2, 3):
            world = World(baseline=baseline, both=both, rounds=rounds)
            equal = simulate(world, suites)
            three, five = (
                simulate(World(slower, baseline=baseline, both=both, rounds=rounds), max(suites // 20, 5))
                for slower in (0.03, 0.05)
            )
            name = f"{baseline} both" if both else str(baseline)
            print(  # noqa: T201
                f"{name:8}  {rounds:6}  {equal.alarmed:18}  {equal.same:5.1%}  {equal.asked_again:10.1%}"
                f"  {three.found:10.1%}  {five.found:10.1%}"
            )


if __name__ == "__main__":
    main()
