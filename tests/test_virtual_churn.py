"""The allocations of a training step, the arena that serves them, and checks that find an allocator's mistakes."""

import errno
import random
import types

import numpy as np
import pytest
from _host_space import HostMalloc, HostSpace
from _modules import suite_module
from _poison import expect_unwritten
from test_virtual_memory import host_bench, task_of

from gpubench.api.libraries import DriverCallError
from gpubench.base.errors import WrongAnswer

CHURN = suite_module("virtual", "_churn")
THROUGH = suite_module("virtual", "_through")
PEAK = 2**24


@pytest.fixture(scope="module")
def trace():
    return CHURN.training_trace(3, 1000, PEAK)


def test_a_trace_takes_and_gives_back_each_block_and_peaks_at_the_memory_asked_for(trace):
    taken = [operation.block for operation in trace if operation.nbytes]
    given = [operation.block for operation in trace if not operation.nbytes]
    assert taken == list(range(1000))
    assert sorted(given) == taken
    for block in taken:
        places = [place for place, operation in enumerate(trace) if operation.block == block]
        assert trace[places[0]].nbytes > 0
        assert trace[places[1]].nbytes == 0
    assert CHURN.peak(trace)[1] == pytest.approx(PEAK, rel=0.01)
    assert CHURN.training_trace(3, 1000, PEAK) == trace
    assert CHURN.training_trace(4, 1000, PEAK) != trace
    assert all(operation.nbytes % 512 == 0 for operation in trace)


def test_blocks_of_an_arena_never_overlap_and_join_when_they_are_given_back():
    draws, arena, live = random.Random(8), CHURN.OffsetArena(), {}
    for _ in range(1500):
        if live and draws.random() < 0.5:
            offset = draws.choice(list(live))
            del live[offset]
            arena.give(offset)
            continue
        nbytes = draws.randrange(1, 5000)
        if missing := arena.missing_bytes(nbytes):
            arena.grow(-(-missing // 4096) * 4096)
        offset = arena.take(nbytes)
        assert all(offset + nbytes <= start or start + size <= offset for start, size in live.items())
        assert offset + nbytes <= arena.nbytes
        live[offset] = nbytes
    for offset in live:
        arena.give(offset)
    assert arena.missing_bytes(arena.nbytes) == 0  # there is one free range again


@pytest.mark.parametrize("allocator", ["malloc", "vmm"])
def test_an_allocator_serves_a_trace_and_its_blocks_keep_what_was_written(monkeypatch, allocator, trace):
    monkeypatch.setattr(CHURN, "GpuSpace", HostSpace)
    monkeypatch.setattr(CHURN, "RuntimeMalloc", HostMalloc)
    run = CHURN.Churn(host_bench(), allocator, trace, PEAK)
    assert len(run.seconds()) == len(trace)
    assert run.check()["first failure"].value == len(trace)


class OverlappingArena:
    def __init__(self, bench):
        self._inner, self._given = HostMalloc(bench), []

    def take(self, nbytes):
        """Return an address; the third block gets that of the second."""
        if len(self._given) == 2:
            self._given.append(0)
            return self._given[1]
        self._given.append(self._inner.take(nbytes))
        return self._given[-1]

    def give(self, address):
        pass

    def close(self):
        pass


def test_an_allocator_that_gives_the_same_memory_twice_is_found(monkeypatch, trace):
    monkeypatch.setattr(CHURN, "open_allocator", lambda bench, *_: OverlappingArena(bench))
    with pytest.raises(WrongAnswer, match=r"block 2 of .* overlaps a block that is still in use"):
        CHURN.Churn(host_bench(), "malloc", trace, PEAK).check()


class SmallAllocator(HostMalloc):
    room = PEAK // 4

    def __init__(self, bench):
        super().__init__(bench)
        self._sizes = {}

    def take(self, nbytes):
        if sum(self._sizes.values()) + nbytes > self.room:
            raise MemoryError("full")
        address = super().take(nbytes)
        self._sizes[address] = nbytes
        return address

    def give(self, address):
        del self._sizes[address]
        super().give(address)


def test_the_operation_that_fails_first_is_observed_where_memory_is_tight(monkeypatch, trace):
    made = []
    monkeypatch.setattr(CHURN, "open_allocator", lambda bench, *_: made.append(SmallAllocator(bench)) or made[-1])
    tight = CHURN.Churn(host_bench(), "malloc", trace, PEAK, may_fail=True)
    failed = int(tight.check()["first failure"].value)
    assert 0 < failed < len(trace)
    assert len(tight.seconds()) == failed
    assert not any(allocator._sizes for allocator in made)  # every allocation was given back
    with pytest.raises(WrongAnswer, match=f"operation {failed} failed, although there is room for it"):
        CHURN.Churn(host_bench(), "malloc", trace, PEAK).check()


class RuntimeStatusError(RuntimeError):
    """An error of the CUDA runtime as CuPy raises it."""

    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status = status


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOSPC, "full"), True),
        (OSError(errno.EPERM, "no"), False),
        (RuntimeStatusError(2), True),
        (RuntimeStatusError(700), False),
        (DriverCallError("CUDA_ERROR_OUT_OF_MEMORY from cuMemCreate"), True),
        (DriverCallError("CUDA_ERROR_ILLEGAL_ADDRESS from cuMemCreate"), False),
    ],
)
def test_only_exhausted_memory_counts_as_a_first_failure(error, is_full):
    def take(nbytes):
        raise error

    if is_full:
        assert CHURN.allocate_or_none(take, 1) is None
    else:
        with pytest.raises(type(error)):
            CHURN.allocate_or_none(take, 1)


class HostRing:
    @classmethod
    def linked(cls, bench, _size_bytes, memory):
        walk = suite_module("latency", "_ring").host_walk(bench, memory.view(np.uint64))
        return types.SimpleNamespace(walk=lambda _steps, sweep: walk)


def test_bandwidth_and_latency_through_many_handles_are_checked(monkeypatch):
    monkeypatch.setattr(THROUGH, "GpuSpace", HostSpace)
    monkeypatch.setattr(THROUGH, "GpuRing", HostRing)
    for piece in ("malloc", "2MiB"):
        for access, stage in (("triad", "triad"), ("chase", "chase")):
            task = task_of("mapped", piece=piece, size_bytes=2**22, access=access)
            if access == "triad":
                expect_unwritten(task)
            task.stages[stage].call()
            task.check()
            task.close()
