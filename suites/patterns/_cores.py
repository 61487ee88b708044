"""Bind ranks and threads to separate cores, as MPI launchers place them.

Two ranks that watch flags for each other on one core take turns: a flag then takes a scheduler's slice instead of a
microsecond, and chance decides which of the two happens."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from gpubench.api import suite as gb


def core_of(rank: int, cores: list[int]) -> int:
    """Return `cores[rank % len(cores)]`: ranks share cores if there are more ranks than cores."""
    return cores[rank % len(cores)]


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Bind the calling thread to `core` within the context.

    Afterwards the thread may use the cores that it used before."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def on_own_core(bench: gb.Bench) -> AbstractContextManager[None]:
    """Return a context that binds the calling thread to the core of its rank.

    It does nothing if there is only one rank, or on a GPU, whose driver needs its threads free."""
    if bench.world == 1 or bench.traits.is_gpu:
        return nullcontext()
    return on_core(core_of(bench.rank, sorted(os.sched_getaffinity(0))))
