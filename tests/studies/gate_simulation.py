"""Simulate the gate's whole procedure on suites: how often it raises false alarms and how often it finds a slow-down.

    bash ci/study.sh gate_simulation [SUITES]        default 400 for each line of the tables

Three designs: `files` are judged once; a `stored` baseline stays as it is while `gpubench gate --run` measures the
candidate's suspects again; `ab` measures both sides again. `verdict_worlds` simulates sessions, cards and drifts.
Found are the slower cases that are called slower, against a baseline also slower to be confirmed. The rules of other
tools judge the first measurement.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from _simulated import PEERS, THRESHOLD, SimulatedSuite, World, flagged, slower

from gpubench.judging.rounds import ROUNDS
from gpubench.model import Verdict

DESIGNS = ("files", "stored", "ab")


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """Of a number of suites: how many had an unchanged case called slower; the share of the changed cases that were
    found, of all cases that were called the same, and of those that were measured again.
    """

    suites: int
    alarmed: int
    found: float
    same: float
    asked_again: float

    @property
    def alarms(self) -> float:
        """Return the share of the suites with an alarm."""
        return self.alarmed / self.suites


def simulate(world: World, suites: int, design: str = "ab", rounds: int = ROUNDS, seed: int = 0) -> GateOutcome:
    """Judge a number of suites of a world by one design."""
    alarmed = found = same = again = 0
    for number in range(suites):
        suite = SimulatedSuite(world, (seed, number))
        judgement = suite.ab(rounds) if design == "ab" else suite.stored(rounds if design == "stored" else 0)
        changed = set(suite.changed) if world.slower else set()
        alarmed += bool(slower(judgement) - changed)
        found += len(flagged(judgement) & changed)
        same += judgement.counts().get(Verdict.SAME, 0)
        again += suite.asked_again
    cases = suites * world.cases
    return GateOutcome(suites, alarmed, found / max(cases * world.changed, 1), same / cases, again / cases)


def peers(world: World, suites: int, seed: int = 0) -> Iterator[tuple[str, float, float]]:
    """Return, for each other rule, the share of suites with an alarm and the share of changed cases that it finds."""
    alarmed, found = dict.fromkeys(PEERS, 0), dict.fromkeys(PEERS, 0.0)
    for number in range(suites):
        suite = SimulatedSuite(world, (seed, number))
        before, after = (suite.measured(suite.state(), [build] * world.candidate)[build][0] for build in (0, 1))
        changed = len(suite.changed) if world.slower else 0
        for name, rule in PEERS.items():
            cases = rule(before, after)
            alarmed[name] += bool(cases[changed:].any())
            found[name] += cases[: len(suite.changed)].mean()
    return ((name, alarmed[name] / suites, found[name] / suites) for name in PEERS)


WORLDS = {
    "0.3 %": World(noise=0.003),
    "1 %": World(),
    "3 %": World(noise=0.03),
    "0.3 %, bimodal": World(noise=0.003, mode=0.03),
    "1 %, bimodal": World(mode=0.03),
    "3 %, bimodal": World(noise=0.03, mode=0.03),
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
            ours = [simulate(world, suites, design).alarms for design in DESIGNS]
            others = [alarmed for _, alarmed, _ in peers(world, suites)]
            yield _row(name, f"{count} and {count}", *(f"{share:.1%}" for share in (*ours, *others)))


def power(suites: int) -> Iterator[str]:
    """Yield the table of what is found at 1 % of noise, where ten cases in a hundred are slower."""
    yield _row("design", "rounds", "same", "measured again", "+3 % found", "+5 % found")
    yield "|---" * 6 + "|"
    lines = [("ab", 5, rounds) for rounds in range(ROUNDS + 1)]
    lines += [("stored", count, ROUNDS) for count in (5, 10, 20)]
    for design, baseline, rounds in lines:
        world = World(baseline=baseline)
        equal = simulate(world, suites, design, rounds)
        shares = [simulate(replace(world, slower=slower), suites, design, rounds).found for slower in (0.03, 0.05)]
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
