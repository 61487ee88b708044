"""Simulate whole gates in worlds of noise, sessions and changes: what alarms, what is to be confirmed, what is found.

    bash ci/study.sh verdict_worlds [SUITES [CASES]]        default 300 suites of 100 cases for each line

Each world draws the medians of processes; judging, sessions, rounds and references are the product's own. `files`
judges once against a baseline of one session, `stored` measures the suspects again, `ab` measures both builds in turn.
The columns are shares: suites of identical code that end with 1, that end *to be confirmed*, and that still alarm
after the `ab` which the gate recommends; cases of identical code that stay undecided; and cases 5 % slower that are
called slower by `ab`. The rules of other tools judge the same first measurement.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
from _make import device, facts, manifest
from gate_simulation import PEERS

from gpubench.judging.evidence import Evidence, Gathering, Kind, Process, Reading
from gpubench.judging.judge import CONFIRM, Finding, Judgement, exit_status, judge
from gpubench.judging.rounds import Sides, settle, settle_stored
from gpubench.model import Case, Manifest, Verdict

Logs = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, tuple[int, int]], Logs]
THRESHOLD = 0.02
_LIMITS = ("dram", "tensor.float16", "l2", "")
_DEVICES = ("cuda:0",)
_KINDS = {limit: Kind(1, "hot", "s", "less", limit) for limit in _LIMITS}
_START = "2026-01-01T10:00:00+00:00"


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> Logs:
    return rng.standard_normal(shape)


def student(rng: np.random.Generator, shape: tuple[int, int]) -> Logs:
    return rng.standard_t(2, shape)


def cauchy(rng: np.random.Generator, shape: tuple[int, int]) -> Logs:
    return rng.standard_cauchy(shape).clip(-700, 700)


def rare_modes(rng: np.random.Generator, shape: tuple[int, int]) -> Logs:
    """Return normal noise in which one process in twenty is five deviations slower."""
    return rng.standard_normal(shape) + 5 * (rng.random(shape) < 0.05)


@dataclass(frozen=True, slots=True)
class VerdictWorld:
    """Suites whose cases have a robust noise of `noise` (a fraction) between processes.

    `between` is the deviation between sessions by case, `common` the deviation that all cases of a session share with
    sensitivities from 0 to 2, `drift` the slow-down of everything from one process to the next, `bad` the share by
    which one process of each side is slower for `bad_cases` of the cases, `quantum` the resolution of the clock.
    `spread` draws the noise of each case between 0.1 and 8 %. With `other_card` the candidate has another UUID.
    `throttled` makes half of the cases slower together."""

    noise: float = 0.01
    draw: Noise = normal
    between: float = 0.0
    common: float = 0.0
    drift: float = 0.0
    bad: float = 0.0
    bad_cases: float = 0.0
    quantum: float = 0.0
    spread: bool = False
    other_card: bool = False
    throttled: float = 0.0
    slower: float = 0.0
    changed: float = 0.1
    faster: float = 0.0
    sessions: int = 1
    processes: int = 5
    cases: int = 100


WORLDS = {
    "independent 0.3 %": VerdictWorld(noise=0.003),
    "independent 1 %": VerdictWorld(),
    "t(2), 1 %": VerdictWorld(draw=student),
    "Cauchy, 0.5 %": VerdictWorld(noise=0.005, draw=cauchy),
    "rare modes": VerdictWorld(draw=rare_modes),
    "one bad replicate, all cases": VerdictWorld(noise=0.003, bad=0.2, bad_cases=1.0),
    "one bad replicate, a third": VerdictWorld(noise=0.003, bad=0.2, bad_cases=0.33),
    "day and night 1 %": VerdictWorld(noise=0.003, common=0.01),
    "drift": VerdictWorld(noise=0.003, drift=0.002),
    "sessions 1 %, baseline of 1": VerdictWorld(noise=0.003, between=0.01),
    "sessions 1 %, baseline of 2": VerdictWorld(noise=0.003, between=0.01, sessions=2),
    "sessions 1 %, baseline of 3": VerdictWorld(noise=0.003, between=0.01, sessions=3),
    "another card 1.5 %": VerdictWorld(noise=0.003, between=0.015, other_card=True),
    "quantised 1 %": VerdictWorld(noise=0.003, quantum=0.01),
    "0.1 to 8 % in a suite": VerdictWorld(spread=True),
    "half throttled 4 %": VerdictWorld(noise=0.003, throttled=0.04),
}


class WorldSuite:
    """One suite of a world: its cases, and measurements in sessions."""

    def __init__(self, world: VerdictWorld, seed: tuple[int, int]) -> None:
        self.world = world
        self.rng = np.random.default_rng(seed)
        self.cases = [Case("simulated", f"case{index}") for index in range(world.cases)]
        self.noise = np.full(world.cases, world.noise)
        if world.spread:
            self.noise = np.exp(self.rng.uniform(math.log(0.001), math.log(0.08), world.cases))
        self.sensitivity = self.rng.uniform(0, 2, world.cases)
        self.changed = frozenset(case.id for case in self.cases[: round(world.changed * world.cases)])

    def state(self) -> Logs:
        """Return the state of a session: how much slower each case is."""
        world = self.world
        own = world.between * self.rng.standard_normal(world.cases)
        shared = world.common * self.sensitivity * self.rng.standard_normal()
        return own + shared

    def logs(self, state: Logs, build: int, start: int = 0, step: int = 1) -> Logs:
        """Return the logarithms of one measurement of all cases, shape (cases, processes), for build 0 or 1."""
        world = self.world
        values = self.noise[:, None] * world.draw(self.rng, (world.cases, world.processes)) + state[:, None]
        values += world.drift * (start + step * np.arange(world.processes))
        if world.bad:
            hit = self.rng.random(world.cases) < world.bad_cases
            values[hit, self.rng.integers(world.processes)] += math.log1p(world.bad)
        if build:
            count = len(self.changed)
            values[:count] += math.log1p(world.slower)
            values[: round(0.8 * world.cases)] -= world.faster
        if world.quantum:
            values = np.log(np.maximum(np.round(np.exp(values) / world.quantum), 1) * world.quantum)
        return values

    def reading(
        self, logs: Logs, numbers: list[int] | None = None, started: str = _START, other: bool = False
    ) -> Reading:
        """Return a run file with the medians of these cases; with `other`, of another card."""
        results = {}
        for index in range(len(self.cases)) if numbers is None else numbers:
            case = self.cases[index]
            kind = _KINDS[_LIMITS[index % len(_LIMITS)]]
            results[case.id, _DEVICES] = [(case, Process("ok", value, kind)) for value in np.exp(logs[index]).tolist()]
        return Reading(_manifest(started, other), Gathering(results))

    def numbers(self, findings: tuple[Finding, ...]) -> list[int]:
        return sorted(int(finding.case.name.removeprefix("case")) for finding in findings)

    def stored(self, rounds: int) -> Judgement:
        """Return the verdicts of `gpubench gate` against a stored baseline; with rounds the suspects are repeated."""
        before = [[self.reading(self.logs(self.state(), 0))] for _ in range(self.world.sessions)]
        state = self.state()
        if self.world.throttled:
            state = state + self.world.throttled * (np.arange(self.world.cases) % 2)
        looks = 1

        def again(sides: Sides, findings: tuple[Finding, ...]) -> Sides:
            nonlocal looks
            more = self.reading(
                self.logs(state, 1, looks * self.world.processes), self.numbers(findings), other=self.world.other_card
            )
            looks += 1
            return Sides(sides.before, sides.after.with_repeats([more]))

        self.first = self.logs(state, 1)
        sides = Sides(Evidence(before), Evidence([[self.reading(self.first, other=self.world.other_card)]]))
        return settle_stored(sides, judged, again, rounds)

    def ab(self) -> Judgement:
        """Return the verdicts of `gpubench ab`: both builds in turn in one session, suspects again."""
        state, looks = self.state(), 0

        def both(numbers: list[int] | None = None) -> list[list[Reading]]:
            """Return the run files of both builds: the first process of each build, then the others."""
            nonlocal looks
            start = 2 * looks * self.world.processes
            looks += 1
            sides = []
            for build in (0, 1):
                logs = self.logs(state, build, start + build, 2)
                parts = (logs[:, :1], logs[:, 1:])
                sides.append(
                    [
                        self.reading(part, numbers, f"2026-01-01T1{turn}:0{build}:00+00:00")
                        for turn, part in enumerate(parts)
                    ]
                )
            return sides

        def again(sides: Sides, findings: tuple[Finding, ...]) -> Sides:
            before, after = both(self.numbers(findings))
            return Sides(sides.before.with_repeats(before), sides.after.with_repeats(after))

        before, after = both()
        return settle(Sides(Evidence([before]), Evidence([after])), judged, again)


@cache
def _manifest(started: str, other: bool) -> Manifest:
    card = device(uuid="another-card" if other else "a-card")
    return manifest(started=started, facts=facts(card))


def judged(sides: Sides) -> Judgement:
    return judge(sides.before, sides.after, lambda _: THRESHOLD)


def slower(judgement: Judgement) -> set[str]:
    """Return the ids of the cases that are called slower."""
    return {finding.case.id for finding in judgement.findings if finding.verdict is Verdict.SLOWER}


@dataclass(slots=True)
class Tally:
    """Numbers of suites, and of the cases of identical code and of changed code, by outcome."""

    alarmed: int = 0
    confirm: int = 0
    left: int = 0
    undecided: float = 0.0
    found: float = 0.0


def simulate_world(world: VerdictWorld, suites: int, design: str, seed: int = 0) -> Tally:
    """Judge `suites` suites of identical code by `design`, and as many with slow-downs of 5 % by `ab`."""
    tally = Tally()
    for number in range(suites):
        suite = WorldSuite(world, (seed, number))
        judgement = suite.ab() if design == "ab" else suite.stored(3 if design == "stored" else 0)
        causes = [finding.cause for finding in judgement.findings]
        ends_slower = exit_status(judgement) == 1
        to_confirm = not ends_slower and CONFIRM in causes
        tally.alarmed += ends_slower
        tally.confirm += to_confirm
        tally.left += to_confirm and bool(slower(WorldSuite(world, (seed, number)).ab()))
        tally.undecided += 1 - judgement.decided / world.cases
        changed = WorldSuite(replace(world, slower=0.05), (seed + 1, number))
        tally.found += len(slower(changed.ab()) & changed.changed) / len(changed.changed) if design == "ab" else 0
    return tally


def optimised(suites: int, cases: int) -> Iterator[str]:
    """Yield how often an optimisation of 80 % of the cases by 5 % makes the gate fail on the others."""
    for processes in (5, 10):
        world = VerdictWorld(noise=0.003, faster=0.05, processes=processes, cases=cases)
        alarms = sum(bool(slower(WorldSuite(world, (7, number)).stored(3))) for number in range(suites))
        yield f"80 % of the cases 5 % faster, {processes} processes: {alarms / suites:.1%} of suites end with 1"


def slowed(suites: int, cases: int) -> Iterator[str]:
    """Yield how often a slow-down of everything, or of 80 %, ends with 1 and with 0."""
    for share, by in ((1.0, 1.0), (1.0, 0.3), (0.8, 0.1), (1.0, 0.04)):
        world = VerdictWorld(noise=0.003, slower=by, changed=share, cases=cases)
        statuses = [exit_status(WorldSuite(world, (8, number)).stored(3)) for number in range(suites)]
        ends = ", ".join(f"{statuses.count(status) / suites:.0%} with {status}" for status in sorted(set(statuses)))
        yield f"{share:.0%} of the cases {by:.0%} slower: {ends}"


def main() -> None:
    """Print a line for each world, design and number of processes, then the rules of other tools."""
    suites = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    cases = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    lines = [*optimised(suites, cases), *slowed(suites, cases)]
    print(*lines, sep="\n", flush=True)  # noqa: T201
    print("| world | n | design | ends with 1 | to be confirmed | after ab | undecided | +5 % by ab |", *PEERS, "|")  # noqa: T201
    for name, plain in WORLDS.items():
        for processes in (3, 5, 10):
            world = replace(plain, processes=processes, cases=cases)
            for design in ("files", "stored", "ab"):
                tally = simulate_world(world, suites, design)
                shares = (tally.alarmed, tally.confirm, tally.left, tally.undecided, tally.found)
                cells = " | ".join(f"{share / suites:.1%}" for share in shares)
                print(f"| {name} | {processes} | {design} | {cells} |", *_peers(world, suites), flush=True)  # noqa: T201


def _peers(world: VerdictWorld, suites: int) -> Iterator[str]:
    """Yield for each rule of another tool the share of suites of identical code that it alarms."""
    if world.processes < 5:
        return
    drawn = [WorldSuite(world, (5, number)) for number in range(min(suites, 50))]
    pairs = [(suite.logs(suite.state(), 0), suite.logs(suite.state(), 1)) for suite in drawn]
    for rule in PEERS.values():
        yield f"{np.mean([bool(rule(*pair).any()) for pair in pairs]):.0%}"


if __name__ == "__main__":
    main()
