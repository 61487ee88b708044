"""One simulated suite for all studies of the gate: noise, sessions, cards and changes of code, judged by the product.

Each world draws the medians of processes, on logarithms; judging, sessions and rounds are the product's own. A
`stored` baseline stays as it is while `gpubench gate --run` measures the suspects again; with no rounds, files are
judged once. `ab` measures both builds in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import scipy.stats
from _make import device, facts, manifest

from gpubench.judging.evidence import Evidence, Gathering, Kind, Process, Reading
from gpubench.judging.judge import CONFIRM, Finding, Judgement, judge
from gpubench.judging.rounds import ROUNDS, Sides, settle, settle_stored
from gpubench.model import Case, Manifest, Verdict

Logs = npt.NDArray[np.float64]  # shape (cases, processes)
Noise = Callable[[np.random.Generator, tuple[int, int]], Logs]
THRESHOLD = 0.02
MODE_SHARE = 0.2  # this share of the processes is in the slow mode
_LIMITS = ("dram", "tensor.float16", "l2", "")
_FOLLOWS_CLOCK = np.array([False, True, True, False])  # whether the clock of the compute units bounds these limits
_CLOCK_HZ = 1.98e9
_DEVICES = ("cuda:0",)
_KINDS = {limit: Kind(1, "hot", "s", "less", limit) for limit in _LIMITS}
_DAY = "2026-01-01"


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
class World:
    """Suites whose cases have a robust noise of `noise` (a fraction) between processes.

    `times` is the noise of the baseline and of the candidate in units of `noise`, `memory` the correlation of
    successive processes, AR(1). With `mode` one process in five is this much slower. `between` is the deviation between
    sessions by case, `common` the deviation that all cases of a session share with sensitivities from 0 to 2, `drift`
    the slow-down of everything from one process to the next, `bad` the share by which one process of each side is
    slower for `bad_cases` of the cases, `quantum` the resolution of the clock. `spread` draws the noise of each case
    between 0.1 and 8 %. With `other_card` the candidate and each session of the baseline have a card of their own.
    `throttled` slows the cases that follow the clock in the candidate's session; with `witness` the workers read the
    clock. The first `changed` of the cases are `slower` by a fraction in build B, and 80 % are `faster`."""

    noise: float = 0.01
    draw: Noise = normal
    times: tuple[float, float] = (1.0, 1.0)
    memory: float = 0.0
    mode: float = 0.0
    between: float = 0.0
    common: float = 0.0
    drift: float = 0.0
    bad: float = 0.0
    bad_cases: float = 0.0
    quantum: float = 0.0
    spread: bool = False
    other_card: bool = False
    throttled: float = 0.0
    witness: bool = False
    slower: float = 0.0
    changed: float = 0.1
    faster: float = 0.0
    sessions: int = 1
    baseline: int = 5  # number of processes
    candidate: int = 5
    cases: int = 100


@dataclass(frozen=True, slots=True)
class SessionState:
    """The state of a machine in one session: how much slower each case is, and by how much the clock is lower."""

    shifts: Logs
    throttled: float = 0.0


class SimulatedSuite:
    """One suite of a world: its cases, and measurements of two builds in sessions.

    `first` has the logarithms of both sides of the first measurement, and `asked_again` the number of cases that were
    measured again."""

    def __init__(self, world: World, seed: tuple[int, ...]) -> None:
        self.world = world
        self.rng = np.random.default_rng(seed)
        self.cases = _cases(world.cases)
        self.noise = np.full(world.cases, world.noise)
        if world.spread:
            self.noise = np.exp(self.rng.uniform(math.log(0.001), math.log(0.08), world.cases))
        self.sensitivity = self.rng.uniform(0, 2, world.cases)
        self.changed = [case.id for case in self.cases[: round(world.changed * world.cases)]]
        self.first: list[Logs] = []
        self.asked_again = 0

    def state(self, throttled: float = 0.0) -> SessionState:
        """Return the state of a new session."""
        world = self.world
        own = world.between * self.rng.standard_normal(world.cases)
        return SessionState(own + world.common * self.sensitivity * self.rng.standard_normal(), throttled)

    def measured(self, state: SessionState, builds: Sequence[int], turn: int = 0) -> list[tuple[Logs, Logs]]:
        """Return for builds 0 and 1 the logarithms of the medians and of the clocks of all cases.

        `builds` has the build of each process in the order measured; `turn` is the number of processes before them."""
        world, rng, build = self.world, self.rng, np.array(builds)
        shape = (world.cases, len(build))
        values = world.draw(rng, shape)
        if world.memory:
            innovation = math.sqrt(1 - world.memory**2)
            for place in range(1, len(build)):
                values[:, place] = world.memory * values[:, place - 1] + innovation * values[:, place]
        values = self.noise[:, None] * values * np.array(world.times)[build] + state.shifts[:, None]
        values += world.drift * (turn + np.arange(len(build)))
        if world.mode:
            values += math.log1p(world.mode) * (rng.random(shape) < MODE_SHARE)
        for side in set(builds) if world.bad else ():
            hit = rng.random(world.cases) < world.bad_cases
            values[hit, rng.choice(np.flatnonzero(build == side))] += math.log1p(world.bad)
        clocks = np.zeros(shape)
        if state.throttled:
            clocks -= state.throttled * (1 + 0.1 * rng.standard_normal(len(build)))
            values -= clocks * _FOLLOWS_CLOCK[np.arange(world.cases) % len(_LIMITS)][:, None]
        values[: len(self.changed)] += math.log1p(world.slower) * build
        values[: round(0.8 * world.cases)] -= world.faster * build
        if world.quantum:
            values = np.log(np.maximum(np.round(np.exp(values) / world.quantum), 1) * world.quantum)
        return [(values[:, build == side], clocks[:, build == side]) for side in (0, 1)]

    def reading(
        self, logs: tuple[Logs, Logs], numbers: Iterable[int] | None = None, started: str = "10:00", card: str = ""
    ) -> Reading:
        """Return a run file with the medians of these cases on a card."""
        medians = np.exp(logs[0]).tolist()
        hertz = (_CLOCK_HZ * np.exp(logs[1])).tolist() if self.world.witness else None
        results = {}
        for index in range(len(self.cases)) if numbers is None else numbers:
            case, kind = self.cases[index], _KINDS[_LIMITS[index % len(_LIMITS)]]
            clocks = hertz[index] if hertz else [math.nan] * len(medians[index])
            results[case.id, _DEVICES] = [
                (case, Process("ok", value, kind, clock_hz=clock))
                for value, clock in zip(medians[index], clocks, strict=True)
            ]
        return Reading(_manifest(started, card), Gathering(results))

    def stored(self, rounds: int = ROUNDS) -> Judgement:
        """Return the verdicts of `gpubench gate` against a stored baseline; with rounds the suspects are repeated."""
        world = self.world
        baselines = [self.measured(self.state(), [0] * world.baseline)[0] for _ in range(world.sessions)]
        state, turn = self.state(world.throttled), 0

        def candidate(numbers: Iterable[int] | None = None) -> Reading:
            nonlocal turn
            logs = self.measured(state, [1] * world.candidate, turn)[1]
            turn += world.candidate
            self.first = self.first or [baselines[0][0], logs[0]]
            return self.reading(logs, numbers, card="the candidate's" if world.other_card else "")

        def again(sides: Sides, findings: tuple[Finding, ...]) -> Sides:
            return Sides(sides.before, sides.after.with_repeats([candidate(self._repeated(findings))]))

        cards = [f"card {number}" if world.other_card else "" for number in range(world.sessions)]
        before = [[self.reading(logs, card=card)] for logs, card in zip(baselines, cards, strict=True)]
        sides = Sides(Evidence(before), Evidence([[candidate()]]))
        return settle_stored(sides, judged, again, rounds)

    def ab(self, rounds: int = ROUNDS, only: tuple[Finding, ...] = ()) -> Judgement:
        """Return the verdicts of `gpubench ab`: both builds in turn in one session, suspects again.

        `only` selects the cases of these findings, as the filters of a command do."""
        state, turn = self.state(), 0

        def both(numbers: Iterable[int] | None) -> list[list[Reading]]:
            """Return the run files of both builds, A B, B A, …: the first process of each build, then the others."""
            nonlocal turn
            count = self.world.candidate
            builds = [(turn + place // 2 + place) % 2 for place in range(2 * count)]
            sides = self.measured(state, builds, turn)
            turn += len(builds)
            self.first = self.first or [logs for logs, _ in sides]
            return [
                [
                    self.reading((logs[:, part], clocks[:, part]), numbers, f"{hour}:0{build}")
                    for hour, part in ((10, slice(1)), (11, slice(1, None)))
                ]
                for build, (logs, clocks) in enumerate(sides)
            ]

        def again(sides: Sides, findings: tuple[Finding, ...]) -> Sides:
            before, after = both(self._repeated(findings))
            return Sides(sides.before.with_repeats(before), sides.after.with_repeats(after))

        before, after = both(_numbers(only) if only else None)
        return settle(Sides(Evidence([before]), Evidence([after])), judged, again, rounds)

    def _repeated(self, findings: tuple[Finding, ...]) -> list[int]:
        self.asked_again += len(findings)
        return _numbers(findings)


def _numbers(findings: Iterable[Finding]) -> list[int]:
    return sorted(int(finding.case.name.removeprefix("case")) for finding in findings)


@cache
def _cases(count: int) -> list[Case]:
    return [Case("simulated", f"case{index}") for index in range(count)]


@cache
def _manifest(started: str, card: str) -> Manifest:
    return manifest(started=f"{_DAY}T{started}:00+00:00", facts=facts(device(uuid=card or "a card")))


def judged(sides: Sides) -> Judgement:
    return judge(sides.before, sides.after, lambda _: THRESHOLD)


def slower(judgement: Judgement) -> set[str]:
    """Return the ids of the cases that are called slower."""
    return {finding.case.id for finding in judgement.findings if finding.verdict is Verdict.SLOWER}


def flagged(judgement: Judgement) -> set[str]:
    """Return the ids of the cases that are called slower, or slower to be confirmed."""
    return slower(judgement) | {finding.case.id for finding in judgement.findings if finding.cause == CONFIRM}


# ---- the rules of other tools, each on both sides' logarithms: whether each case is called slower


def mann_whitney(before: Logs, after: Logs) -> npt.NDArray[np.bool_]:
    """Call a case slower if the two-sided p is below 0.05 and its median is 2 % slower."""
    p = scipy.stats.mannwhitneyu(before, after, axis=-1).pvalue
    return (p < 0.05) & (np.median(after, -1) - np.median(before, -1) > math.log1p(THRESHOLD))


def bootstrap(before: Logs, after: Logs, resamples: int = 200) -> npt.NDArray[np.bool_]:
    """Call a case slower if the 95 % bootstrap interval of the difference of the medians lies above zero."""
    rng = np.random.default_rng(0)
    medians = []
    for logs in (before, after):  # the median of a sample of ranks has the median rank
        ranks = np.sort(rng.integers(logs.shape[1], size=(resamples, logs.shape[1])), axis=1)
        middle = ranks[:, (logs.shape[1] - 1) // 2], ranks[:, logs.shape[1] // 2]
        ordered = np.sort(logs, axis=1)
        medians.append((ordered[:, middle[0]] + ordered[:, middle[1]]) / 2)
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
    with np.errstate(divide="ignore", invalid="ignore"):  # quantised values may not vary
        return (change / error > 7) & (change / old.mean(-1) >= THRESHOLD)


PEERS: dict[str, Callable[[Logs, Logs], npt.NDArray[np.bool_]]] = {
    "Mann-Whitney": mann_whitney,
    "bootstrap": bootstrap,
    "nvbench": nvbench,
    "Perfherder": perfherder,
}
