"""Simulate whole gates in worlds of noise, sessions and changes: what alarms, what is to be confirmed, what is found.

    bash ci/study.sh verdict_worlds [--world TEXT…] [--cases N…] [--processes N…] [--suites N] [--jobs N] [--json FILE]

A line is a cell: a world, the processes per side and the cases of a suite, with shares of
- suites of identical code against a `stored` baseline that end with 1; that end *to be confirmed*; and of which the
  `ab` that the gate then prints does not end with 0; and suites of identical code that end with 1 by `ab`;
- cases of identical code that stay undecided, by both designs;
- cases 5 % and 10 % slower (in every other suite, a tenth of its cases, of which the noise is at most 1 %) that the
  stored gate calls slower, if only to be confirmed, and cases 5 % slower that `ab` calls slower;
- suites of identical code that each other tool alarms, and cases 5 % slower that it finds, in the first measurement.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import groupby, product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from _simulated import PEERS, SimulatedSuite, World, cauchy, flagged, rare_modes, slower, student

from gpubench.judging.answer import MOST_FILTERS
from gpubench.judging.judge import exit_status

WORLDS = {
    "independent 0.3 %": World(noise=0.003),
    "independent 1 %": World(),
    "t(2), 1 %": World(draw=student),
    "Cauchy, 0.5 %": World(noise=0.005, draw=cauchy),
    "rare modes, 1 %": World(draw=rare_modes),
    "one bad replicate, all cases": World(noise=0.003, bad=0.2, bad_cases=1.0),
    "one bad replicate, a third": World(noise=0.003, bad=0.2, bad_cases=0.33),
    "day and night 1 %, baseline of 1": World(noise=0.003, common=0.01),
    "day and night 1 %, baseline of 2": World(noise=0.003, common=0.01, sessions=2),
    "drift": World(noise=0.003, drift=0.002),
    "sessions 1 %, baseline of 1": World(noise=0.003, between=0.01),
    "sessions 1 %, baseline of 2": World(noise=0.003, between=0.01, sessions=2),
    "sessions 1 %, baseline of 3": World(noise=0.003, between=0.01, sessions=3),
    "another card 1.5 %": World(noise=0.003, between=0.015, other_card=True),
    "another card 1.5 %, baseline of 3 cards": World(noise=0.003, between=0.015, other_card=True, sessions=3),
    "quantised 1 %": World(noise=0.003, quantum=0.01),
    "0.1 to 8 % in a suite": World(spread=True),
    "half throttled 4 %": World(noise=0.003, throttled=0.04, witness=True),
    "half 4 % slower, no clock": World(noise=0.003, throttled=0.04),
}
COLUMNS = ("ends with 1", "to be confirmed", "after ab", "ab ends with 1", "undecided", "undecided by ab")
FOUND = ("+5% stored", "+10% stored", "+5% ab")
_QUIET = 0.01  # cases of at most this noise count for what is found
_CHUNK = 2000  # cases that one task of a process pool simulates


class Cell(NamedTuple):
    """A line of the table: the world's name, the processes per side, and the cases of a suite."""

    name: str
    processes: int
    cases: int

    @property
    def world(self) -> World:
        return replace(WORLDS[self.name], baseline=self.processes, candidate=self.processes, cases=self.cases)


def simulate_suite(world: World, seed: int) -> dict[str, float]:
    """Return the outcomes of one suite by column, 0 or 1 for the suite, or a share of cases."""
    suite = SimulatedSuite(world, (0, seed))
    stored, both = suite.stored(), SimulatedSuite(world, (1, seed)).ab()
    to_confirm = stored.to_confirm if exit_status(stored) != 1 else ()
    outcomes: dict[str, float] = {
        "ends with 1": exit_status(stored) == 1,
        "to be confirmed": bool(to_confirm),
        "after ab": 0.0,
        "ab ends with 1": exit_status(both) == 1,
        "undecided": 1 - stored.decided / world.cases,
        "undecided by ab": 1 - both.decided / world.cases,
    }
    if to_confirm:
        printed = to_confirm if len(to_confirm) <= MOST_FILTERS else ()
        outcomes["after ab"] = exit_status(SimulatedSuite(world, (2, seed)).ab(only=printed)) != 0
    by = 0.05 if seed % 2 else 0.1
    changed, in_turn = (SimulatedSuite(replace(world, slower=slower_by), (3, seed)) for slower_by in (by, 0.05))
    quiet = changed.noise[: len(suite.changed)] <= _QUIET
    cases = {case for case, is_quiet in zip(suite.changed, quiet, strict=True) if is_quiet}
    found = {f"+{by:.0%} stored": flagged(changed.stored()), "+5% ab": slower(in_turn.ab())}
    outcomes |= {column: len(called_slower & cases) / len(cases) for column, called_slower in found.items() if cases}
    for name, rule in PEERS.items():
        outcomes[name] = bool(rule(*suite.first).any())
        if by == 0.05 and cases:
            outcomes[f"{name} +5%"] = rule(*changed.first)[: len(quiet)][quiet].mean()
    return outcomes


def simulate_chunk(cell: Cell, seeds: range) -> tuple[list[dict[str, float]], float]:
    """Return the outcomes of the suites with these seeds, and the processor's time."""
    gc.disable()  # as the product does: there are no reference cycles
    started = time.process_time()
    return [simulate_suite(cell.world, seed) for seed in seeds], time.process_time() - started


def simulate_cells(cells: Sequence[Cell], suites: int, jobs: int) -> Iterator[tuple[Cell, dict[str, float]]]:
    """Yield each cell with the means of its columns, and with the seconds of a core that it took."""
    steps = {cell: max(_CHUNK // cell.cases, 1) for cell in cells}
    tasks = [(cell, range(suites)[at : at + step]) for cell, step in steps.items() for at in range(0, suites, step)]
    with ProcessPoolExecutor(jobs) as pool:
        results = zip(tasks, pool.map(simulate_chunk, *zip(*tasks, strict=True)), strict=True)
        for cell, parts in groupby(results, lambda result: result[0][0]):
            chunks = [chunk for _, chunk in parts]
            rows = [row for chunk, _ in chunks for row in chunk]
            values = {column: [row[column] for row in rows if column in row] for row in rows for column in row}
            means = {column: fmean(of_suites) for column, of_suites in values.items()}
            yield cell, means | {"suites": suites, "core seconds": round(sum(seconds for _, seconds in chunks), 1)}


def line(cell: Cell, means: Mapping[str, float]) -> str:
    """Return a row of the table: shares in per cent."""
    shares = [f"{means[column]:.1%}" for column in (*COLUMNS, *FOUND)]
    others = [f"{means[name]:.0%} · {means[f'{name} +5%']:.0%}" for name in PEERS]
    return f"| {' | '.join([*map(str, cell), *shares, *others, str(means['core seconds'])])} |"


def simulate_changes(suites: int, cases: int) -> Iterator[str]:
    """Yield how gates end against a stored baseline if everything, or 80 %, becomes slower or faster together."""
    for share, by in ((1.0, 1.0), (1.0, 0.3), (0.8, 0.1), (1.0, 0.06), (1.0, 0.04), (0.8, -0.05)):
        world = World(noise=0.003, slower=by, changed=share, cases=cases)
        statuses = [exit_status(SimulatedSuite(world, (8, number)).stored()) for number in range(suites)]
        ends = ", ".join(f"{statuses.count(status) / suites:.0%} with {status}" for status in sorted(set(statuses)))
        yield f"{share:.0%} of the cases {by:+.0%}: {ends}"


def main() -> None:
    """Print a line for each cell as soon as it is done, and write all cells as JSON if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--world", nargs="+", default=[""], help="simulate the worlds whose names contain one of these")
    parser.add_argument("--cases", type=int, nargs="+", default=[100])
    parser.add_argument("--processes", type=int, nargs="+", default=[3, 5, 10])
    parser.add_argument("--suites", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    names = [name for name in WORLDS if any(text in name for text in asked.world)]
    cells = [Cell(*values) for values in product(names, asked.processes, asked.cases)]
    heads = ("world", "processes", "cases", *COLUMNS, *FOUND, *PEERS, "core seconds")
    print(f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", sep="\n", flush=True)  # noqa: T201
    done = []
    for cell, means in simulate_cells(cells, asked.suites, asked.jobs):
        print(line(cell, means), flush=True)  # noqa: T201
        done.append(cell._asdict() | means)
        if asked.json:
            asked.json.write_text(json.dumps(done, indent=1))
    if asked.world == [""]:
        print("", *simulate_changes(min(asked.suites, 100), asked.cases[0]), sep="\n")  # noqa: T201


if __name__ == "__main__":
    main()
