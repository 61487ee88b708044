"""Simulate the gate's whole procedure on suites: how often it raises false alarms and how often it finds a slow-down.

    bash ci/study.sh gate_simulation [SUITES]        default 400 for each line of the tables

A process's median is its case's true value times a log-normal noise; effects, verdicts and rounds are the product's
own. Three designs: `files` are judged once; a `stored` baseline stays as it is while `gpubench gate --run` measures the
candidate's suspects again; `ab` measures both sides again. The rules of other tools judge the first measurement.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice

import numpy as np
import numpy.typing as npt
import scipy.stats

from gpubench.judging.effect import Effect, SidePair, effects
from gpubench.judging.judge import Finding, Judgement, decide
from gpubench.judging.rounds import ROUNDS, settle
from gpubench.model import Case, Verdict

THRESHOLD = 0.02
MODE = 0.03  # bimodal noise: the slow mode is this much slower
MODE_SHARE = 0.2  # bimodal noise: this share of the processes is in the slow mode
DESIGNS = ("files", "stored", "ab")
Logs = npt.NDArray[np.float64]  # shape (cases, processes)


@dataclass(frozen=True, slots=True)
class World:
    """Suites of `cases` cases, `changed` of them slower by the fraction `slower`.

    `noise` is the standard deviation between processes, on logarithms; `memory` the correlation of successive ones,
    AR(1).
    """

    slower: float = 0.0
    changed: int = 10
    cases: int = 100
    noise: float = 0.01
    bimodal: bool = False
    times: tuple[float, float] = (1.0, 1.0)  # the noise of the baseline and of the candidate, in units of `noise`
    memory: float = 0.0
    baseline: int = 5  # number of processes in the baseline
    candidate: int = 5
    design: str = "ab"
    rounds: int = ROUNDS


class SimulatedSuite:
    """One suite of a world: the medians of all its processes, and the effects that the gate has seen."""

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        """Draw the times of all processes of both sides; the first `world.changed` cases are slower."""
        self.world = world
        self.asked_again = 0
        looks = 1 if world.design == "files" else world.rounds + 1
        olds = world.baseline * (looks if world.design == "ab" else 1)
        self.before, self.after = self._drawn(rng, olds, world.candidate * looks)
        self.after[: world.changed] += math.log1p(world.slower)
        self._looks = [1] * world.cases
        self.effects: list[Effect] = []  # the effect of each case as measured so far

    def _drawn(self, rng: np.random.Generator, before: int, after: int) -> tuple[Logs, Logs]:
        """Both sides; those of `ab` take turns, A B B A, so that what successive processes share meets both."""
        world = self.world
        logs = rng.standard_normal((world.cases, before + after))
        if world.memory:
            self._remember(logs, starts=[0] if world.design == "ab" else [0, before])
        is_before = np.arange(before + after) < before
        if world.design == "ab":
            is_before = np.isin(np.arange(before + after) % 4, (0, 3))
        logs *= world.noise * np.where(is_before, *world.times)
        if world.bimodal:
            logs += math.log1p(MODE) * (rng.random(logs.shape) < MODE_SHARE)
        return logs[:, is_before], logs[:, ~is_before]

    def _remember(self, logs: Logs, starts: list[int]) -> None:
        """Make each process resemble the one before it, but for the first of each measurement."""
        innovation = math.sqrt(1 - self.world.memory**2)
        for place in range(1, logs.shape[1]):
            if place not in starts:
                logs[:, place] = self.world.memory * logs[:, place - 1] + innovation * logs[:, place]

    def pairs(self, numbers: Iterable[int]) -> list[SidePair]:
        """Both sides of these cases, as far as they have been measured."""
        return [self._pair(number, self._looks[number]) for number in numbers]

    def _pair(self, number: int, looks: int) -> SidePair:
        """Return the medians of case `number` after `looks` measurements of it."""
        olds = self.world.baseline * (looks if self.world.design == "ab" else 1)
        news = self.world.candidate * looks
        return SidePair(tuple(self.before[number, :olds].tolist()), tuple(self.after[number, :news].tolist()))

    def judged(self, _: object = None) -> Judgement:
        """Return the verdicts on the effects measured so far."""
        return Judgement(tuple(decide(_plain(self.world.cases), self.effects, lambda _: THRESHOLD)))

    def again(self, sides: object, suspects: tuple[Finding, ...]) -> object:
        """Measure each suspect in as many further processes as before."""
        numbers = [int(finding.case.name.removeprefix("case")) for finding in suspects]
        self.asked_again += len(numbers)
        for number in numbers:
            self._looks[number] += 1
        for number, estimate in zip(numbers, effects(self.pairs(numbers)), strict=True):
            self.effects[number] = estimate
        return sides


@cache
def _plain(cases: int) -> list[Finding]:
    return [Finding(Case("simulated", f"case{number}"), ("cuda:0",), Verdict.INCONCLUSIVE) for number in range(cases)]


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """Of a number of suites: how many had an unchanged case called slower; the share of the changed cases that were
    found, of all cases that were called the same, and of those that were measured again.
    """

    suites: int
    alarmed: int
    detected: float
    same: float
    asked_again: float

    @property
    def alarms(self) -> float:
        """Return the share of the suites with an alarm."""
        return self.alarmed / self.suites


def simulate(world: World, suites: int, seed: int = 0) -> GateOutcome:
    """Judge a number of suites of a world."""
    alarmed = detected = same = again = 0
    changed = {finding.case for finding in _plain(world.cases)[: world.changed]} if world.slower else set()
    for suite in measured(world, suites, seed):
        rounds = 0 if world.design == "files" else world.rounds
        findings = settle(suite, suite.judged, suite.again, rounds).findings
        slower = {finding.case for finding in findings if finding.verdict is Verdict.SLOWER}
        alarmed += bool(slower - changed)
        detected += len(slower & changed)
        same += sum(finding.verdict is Verdict.SAME for finding in findings)
        again += suite.asked_again
    cases = suites * world.cases
    return GateOutcome(suites, alarmed, detected / max(suites * len(changed), 1), same / cases, again / cases)


def measured(world: World, suites: int, seed: int = 0) -> list[SimulatedSuite]:
    """Return suites after their first measurement, judged together."""
    drawn = [SimulatedSuite(world, np.random.default_rng((seed, number))) for number in range(suites)]
    first = iter(effects([pair for suite in drawn for pair in suite.pairs(range(world.cases))]))
    for suite in drawn:
        suite.effects = list(islice(first, world.cases))
    return drawn


# ---- the rules of other tools, each on both sides' logarithms: whether each case is called slower


def mann_whitney(before: Logs, after: Logs) -> npt.NDArray[np.bool_]:
    """Call a case slower if the two-sided p is below 0.05 and its median is 2 % slower."""
    p = scipy.stats.mannwhitneyu(before, after, axis=-1).pvalue
    return (p < 0.05) & (np.median(after, -1) - np.median(before, -1) > math.log1p(THRESHOLD))


def bootstrap(before: Logs, after: Logs, resamples: int = 200) -> npt.NDArray[np.bool_]:
    """Call a case slower if the 95 % bootstrap interval of the difference of the medians lies above zero."""
    rng = np.random.default_rng(0)
    medians = [
        np.median(logs[:, rng.integers(logs.shape[1], size=(resamples, logs.shape[1]))], axis=-1)
        for logs in (before, after)
    ]
    return np.quantile(medians[1] - medians[0], 0.025, axis=-1) > 0


def nvbench(before: Logs, after: Logs) -> npt.NDArray[np.bool_]:
    """Decide as nvbench_compare.py: the means differ by more than the smaller relative standard deviation."""
    old, new = np.exp(before), np.exp(after)
    noise = np.minimum(*(side.std(axis=-1, ddof=1) / side.mean(axis=-1) for side in (old, new)))
    return new.mean(-1) / old.mean(-1) - 1 > noise


def perfherder(before: Logs, after: Logs) -> npt.NDArray[np.bool_]:
    """Decide as Mozilla's alerts: t of the means above 7, and a change of 2 % or more."""
    old, new = np.exp(before), np.exp(after)
    error = np.sqrt(sum(side.var(axis=-1, ddof=1) / side.shape[-1] for side in (old, new)))
    change = new.mean(-1) - old.mean(-1)
    return (change / error > 7) & (change / old.mean(-1) >= THRESHOLD)


PEERS: dict[str, Callable[[Logs, Logs], npt.NDArray[np.bool_]]] = {
    "Mann-Whitney": mann_whitney,
    "bootstrap": bootstrap,
    "nvbench": nvbench,
    "Perfherder": perfherder,
}


def peers(world: World, suites: int, seed: int = 0) -> Iterator[tuple[str, float, float]]:
    """Return, for each other rule, the share of suites with an alarm and the share of changed cases that it finds."""
    drawn = [
        SimulatedSuite(replace(world, design="files"), np.random.default_rng((seed, number)))
        for number in range(suites)
    ]
    for name, rule in PEERS.items():
        slower = np.array([rule(suite.before, suite.after) for suite in drawn])
        unchanged = slower[:, world.changed :] if world.slower else slower
        yield name, float(unchanged.any(axis=-1).mean()), float(slower[:, : world.changed].mean())


# ---- the tables of docs/gate.md

WORLDS = {
    "0.3 %": World(noise=0.003),
    "1 %": World(),
    "3 %": World(noise=0.03),
    "0.3 %, bimodal": World(noise=0.003, bimodal=True),
    "1 %, bimodal": World(bimodal=True),
    "3 %, bimodal": World(noise=0.03, bimodal=True),
    "3 %, the candidate 9 %": World(noise=0.03, times=(1.0, 3.0)),
    "3 %, the baseline 9 %": World(noise=0.03, times=(3.0, 1.0)),
    "1 %, AR(1) 0.5": World(memory=0.5),
    "3 %, AR(1) 0.5": World(noise=0.03, memory=0.5),
    "1 %, AR(1) 0.8": World(memory=0.8),
    "3 %, AR(1) 0.8": World(noise=0.03, memory=0.8),
}


def alarms(suites: int) -> Iterator[str]:
    """Yield the table of alarmed suites of identical code: a line for each noise and number of processes."""
    yield _row("noise between processes", "processes", *DESIGNS, *PEERS)
    yield "|---" * (2 + len(DESIGNS) + len(PEERS)) + "|"
    for name, plain in WORLDS.items():
        for count in (5, 10):
            world = replace(plain, baseline=count, candidate=count)
            ours = [simulate(replace(world, design=design), suites).alarms for design in DESIGNS]
            others = [alarmed for _, alarmed, _ in peers(world, suites)]
            yield _row(name, f"{count} and {count}", *(f"{share:.1%}" for share in (*ours, *others)))


def power(suites: int) -> Iterator[str]:
    """Yield the table of what is found at 1 % of noise, where ten cases in a hundred are slower."""
    yield _row("design", "rounds", "same", "measured again", "+3 % found", "+5 % found")
    yield "|---" * 6 + "|"
    lines = [("ab", 5, rounds) for rounds in range(ROUNDS + 1)]
    lines += [("stored", count, ROUNDS) for count in (5, 10, 20)]
    for design, baseline, rounds in lines:
        world = World(design=design, baseline=baseline, rounds=rounds)
        equal = simulate(world, suites)
        shares = [simulate(replace(world, slower=slower), suites).detected for slower in (0.03, 0.05)]
        cells = (f"{share:.0%}" for share in (equal.same, equal.asked_again, *shares))
        yield _row(f"{design}, baseline of {baseline}", str(rounds), *cells)
    for count in (5, 10):
        world = World(baseline=count, candidate=count)
        three, five = (peers(replace(world, slower=slower), suites) for slower in (0.03, 0.05))
        for (name, _, small), (_, _, large) in zip(three, five, strict=True):
            yield _row(f"{name}, {count} and {count}", "", "", "", f"{small:.0%}", f"{large:.0%}")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the tables of docs/gate.md."""
    suites = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    print(f"{suites} suites of 100 cases a line, threshold {THRESHOLD:.0%}; suites of identical code alarmed:")  # noqa: T201
    for table in (alarms, power):
        for line in table(suites):
            print(line, flush=True)  # noqa: T201
        print()  # noqa: T201


if __name__ == "__main__":
    main()
