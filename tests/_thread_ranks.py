"""Ranks of a case as threads of this process with shared memory, for tests that need several ranks and no death."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from _modules import suite_module

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.measuring import plan as planning
from gpubench.model import Case, Facts

_PATIENCE_S = 20.0


class ThreadExchange:
    def __init__(self, world):
        self._values = [None] * world
        self._barrier = threading.Barrier(world, timeout=_PATIENCE_S)

    def exchange(self, rank, value):
        """Return the values of all ranks as soon as each has given its own."""
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


part = partial(suite_module, "patterns")


def benches(world, **params):
    backend = plugins.load("backends", "host")
    device = backend.devices()[0]
    target, meeting = Target(Facts((device,)), device, "smoke"), ThreadExchange(world)
    case = Case("patterns", "threads", tuple(params.items()))
    package = planning.load_suite("patterns").package
    return [
        Bench(
            backend.open(device),
            case,
            target,
            package,
            seed=7,
            rank=rank,
            world=world,
            peers=(device,) * world,
            exchange=lambda value, rank=rank: meeting.exchange(rank, value),
        )
        for rank in range(world)
    ]


def together(world, body, **params):
    """Call `body` with the bench of each rank, in threads, and return the results; raise the first error."""
    with ThreadPoolExecutor(world) as pool:
        futures = [pool.submit(body, bench) for bench in benches(world, **params)]
        return [future.result() for future in futures]
