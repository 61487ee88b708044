"""Plant faults in calls and print which checks find them: the host's suites, and calls of arithmetic time.

    bash ci/study.sh mutations [SEEDS]      default 3 runs of each fault, with other random places

A fault is found if the case fails its check or is invalid. The table says by what.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from _mutants import CLOCKWORK_FAULTS, HOST_MUTATIONS, HostMutation, clockwork_task

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import SuiteError, Untrustworthy, WrongAnswer
from gpubench.measuring.answers import agree_alone
from gpubench.measuring.engine import Engine
from gpubench.measuring.plan import load_suite
from gpubench.measuring.stopping import POLICIES
from gpubench.model import Case, Facts

QUICK = POLICIES["quick"]
SURVIVES = "not found"


class ThreadRanks:
    """Ranks of one case as threads of this process, which exchange values as worker processes do."""

    def __init__(self, world: int) -> None:
        self._barrier = threading.Barrier(world, timeout=20)
        self._values: list[Any] = [None] * world

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """Give a value, return every rank's."""
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values

    def leave(self) -> None:
        """Let the other ranks fail too."""
        self._barrier.abort()


def outcome_of(measure: Callable[[], object]) -> str:
    """Return what found the fault, or that nothing did."""
    try:
        measure()
    except WrongAnswer as finding:
        return f"wrong answer: {finding}"
    except Untrustworthy as finding:
        return f"{finding.cause}: {finding}"
    except SuiteError as mistake:
        return f"suite: {mistake}"
    return SURVIVES


def clockwork_outcome(fault: str, seed: int = 0) -> str:
    """Measure a call of arithmetic time with one fault."""
    backend = plugins.load("backends", "clockwork")
    device = backend.open(backend.devices()[0])
    task = clockwork_task(device, fault)
    engine = Engine(device, QUICK, rng=np.random.default_rng(seed))
    return outcome_of(lambda: engine.measure(task))


def host_outcome(mutation: HostMutation, seed: int = 0) -> str:
    """Build a case of a suite on the host with a mutation planted, and measure it."""
    with planted(mutation):
        return _find_by(mutation, seed)


@contextlib.contextmanager
def planted(mutation: HostMutation) -> Iterator[None]:
    """Replace one function by a mutant of it."""
    owner, name = mutation.place()
    if isinstance(owner, dict):
        original = owner[name]
        owner[name] = mutation.mutant(original)
    else:
        original = getattr(owner, name)
        setattr(owner, name, mutation.mutant(original))
    try:
        yield
    finally:
        if isinstance(owner, dict):
            owner[name] = original
        else:
            setattr(owner, name, original)


def _find_by(mutation: HostMutation, seed: int) -> str:
    """Return which check found a mutation of a host suite, or SURVIVES."""
    backend = plugins.load("backends", "host")
    host = backend.devices()[0]
    target = Target(Facts((host,)), host, "smoke")
    suite = load_suite(mutation.suite)
    case = next(case for case in suite.cases(target) if case.id.startswith(f"{mutation.suite}/{mutation.case}"))
    ranks = ThreadRanks(mutation.world)
    outcomes: list[str] = []

    def work(rank: int) -> None:
        def exchange(value: Any) -> list[Any]:
            return ranks.exchange(rank, value)

        try:
            outcomes.append(
                outcome_of(lambda: _measure_rank(backend.open(host), suite, case, target, seed, rank, exchange))
            )
        except threading.BrokenBarrierError:
            return
        if outcomes[-1] != SURVIVES:
            ranks.leave()

    def _measure_rank(device: Any, suite: Any, case: Case, target: Target, seed: int, rank: int, exchange: Any) -> None:
        world = mutation.world
        peers = (host,) * world
        bench = Bench(device, case, target, suite.package, seed, rank, world, peers, (host,), exchange)
        task = suite.build(bench)
        agree = (lambda value: exchange(value)[0]) if world > 1 else agree_alone
        try:
            Engine(device, QUICK, agree, rank, (), bench.rng).measure(task)
        finally:
            with contextlib.suppress(BufferError):  # the traceback of a finding holds views of the memory
                task.close()

    if mutation.world == 1:
        work(0)
    else:
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(mutation.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return next((outcome for outcome in outcomes if outcome != SURVIVES), SURVIVES)


def _print_table(names: Sequence[tuple[str, str, Callable[[int], str]]], seeds: int) -> None:
    """Print for each mutation how many seeds found it and what the check said."""
    seen = 0
    for case, name, measure in names:
        counts = Counter(measure(seed) for seed in range(seeds))
        missed = counts.pop(SURVIVES, 0)
        seen += not missed
        by = counts.most_common(1)[0][0] if counts else SURVIVES
        print(f"{case:34} {name:52} {seeds - missed}/{seeds}  {by[:90]}", flush=True)  # noqa: T201
    print(f"found each time: {seen} of {len(names)}\n", flush=True)  # noqa: T201


if __name__ == "__main__":
    count = int(sys.argv[1]) if sys.argv[1:] else 3
    _print_table(
        [("clockwork", fault, lambda seed, fault=fault: clockwork_outcome(fault, seed)) for fault in CLOCKWORK_FAULTS],
        count,
    )
    _print_table(
        [(f"{m.suite}/{m.case}", m.name, lambda seed, m=m: host_outcome(m, seed)) for m in HOST_MUTATIONS],
        count,
    )
