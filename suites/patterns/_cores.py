"""Ranks and threads bound to separate cores, as MPI launchers place them.

Two ranks that watch flags for each other on one core take turns: a flag then takes a scheduler's slice instead of a
microsecond, and chance decides which of the two happens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from gpubench.api.suite import Bench


def core_of(rank: int, cores: list[int]) -> int:
    """Return the core of a rank: ranks take turns on the cores if there are more ranks than cores."""
    return cores[rank % len(cores)]


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Bind the calling thread to a core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def on_own_core(bench: Bench) -> AbstractContextManager[None]:
    """Bind the calling thread to the core of its rank; beside a GPU it stays free, for the driver's threads."""
    if bench.world == 1 or bench.traits.is_gpu:
        return nullcontext()
    return on_core(core_of(bench.rank, sorted(os.sched_getaffinity(0))))
