"""Measure six collectives of arrays of many sizes, by NCCL or RCCL, or on the host through shared memory."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._between import Params, RankMemory, fitting, rank_counts, ranks_of
from .._link import BOTH_WAYS, LIBRARY, LIMIT, ONE_WAY, WRITES, link
from ._nccl import NcclRank
from ._operations import COLLECTIVES, WORD_BYTES, Collective

_PATIENCE_S = 5.0
_HEAD_BYTES = 4096  # before the data stand this rank's last step and the last check for which it was late
_LATE_S = 1e-3
_OTHER_SEED = 2**32  # no rank's seed then equals another one's


def drawn(seed: int, first: int, count: int) -> npt.NDArray[np.float32]:
    """Return `count` words of a rank's data from word `first` on: random whole numbers below 2^20.

    Word i is the upper 20 bits of the known word i of `seed`, as in collectives.cu."""
    return (gb.random_words(seed, first, count) >> np.uint64(44)).astype(np.float32)


class HostRank:
    """One rank of the collective `operation` of `size_bytes` on the host: its shared memory, its call and its check.

    Every rank must create it, because each maps the memory of all others. Raises Skip without enough free memory."""

    notes: ClassVar[dict[str, str]] = {
        "algorithm": "every rank reads what it needs from the others; a barrier before and after"
    }

    def __init__(self, bench: gb.Bench, operation: Collective, size_bytes: int) -> None:
        bench.need(6 * size_bytes * bench.world)
        self._operation = operation
        self._world, self._rank = bench.world, bench.rank
        self._words = size_bytes // WORD_BYTES
        self._seed = int(bench.rng.integers(2**62, dtype=np.uint64))
        self._sends = operation.sends(self._words, bench.world)
        self._memory = RankMemory(bench, _HEAD_BYTES + self._sends * WORD_BYTES, self._fill)
        self._shared = self._memory.buffers
        self.received = np.empty(operation.receives(self._words, bench.world), np.float32)
        self._steps = 0
        self._checks = 0
        bench.barrier()

    def _fill(self, array: Any) -> None:
        """Write the words that this rank sends to its shared memory `array`."""
        array[_HEAD_BYTES:].view(np.float32)[:] = drawn(self._seed + self._rank, 0, self._sends)

    def redraw(self) -> None:
        """Send the words of a new seed, so that no call can have kept their answer."""
        self._seed += _OTHER_SEED
        self._fill(self._memory.local)

    def _sent(self, rank: int, first: int, count: int) -> Any:
        return self._shared[rank].array[_HEAD_BYTES:].view(np.float32)[first : first + count]

    def meet(self) -> None:
        """Wait until every rank has called this; raises WrongAnswer if a rank has not within 5 s."""
        self._steps += 1
        heads = [shared.array[:8].view(np.uint64) for shared in self._shared]
        heads[self._rank][0] = self._steps
        end = time.monotonic() + _PATIENCE_S
        for head in heads:
            while int(head[0]) < self._steps:
                gb.expect(time.monotonic() < end, f"another rank made no progress for {_PATIENCE_S} s")

    def call(self) -> None:
        """Make the collective between two barriers; every rank must call it."""
        self.meet()
        for segment in self._operation.segments(self._words, self._world, self._rank):
            part = self.received[segment.offset : segment.offset + segment.count]
            np.copyto(part, self._sent(segment.low, segment.first, segment.count))
            for rank in range(segment.low + 1, segment.high):
                np.add(part, self._sent(rank, segment.first, segment.count), out=part)
        self.meet()

    def check(self) -> None:
        """Raise WrongAnswer if a received word is wrong or a barrier is missing; every rank must call it.

        The expected words are sums of words that are drawn anew, not read again."""
        for segment in self._operation.segments(self._words, self._world, self._rank):
            ranks, (first, count) = range(segment.low, segment.high), (segment.first, segment.count)
            expected = sum(drawn(self._seed + rank, first, count) for rank in ranks)
            wrong = int(np.count_nonzero(self.received[segment.offset : segment.offset + count] != expected))
            gb.expect(wrong == 0, f"{wrong} of {count} received words are wrong on rank {self._rank}")
        self._expect_barrier()

    def _expect_barrier(self) -> None:
        """Call the collective while one rank comes 1 ms late; every rank must call it."""
        self._checks += 1
        late = self._checks % self._world
        last_late = self._shared[late].array[8:16].view(np.uint64)
        if self._rank == late:
            time.sleep(_LATE_S)
            last_late[0] = self._checks
        self.call()
        gb.expect(
            int(last_late[0]) == self._checks, f"rank {self._rank} finished a call that rank {late} had not begun"
        )

    def close(self) -> None:
        """Unmap the memory of the other ranks and free this rank's memory."""
        self._memory.close()
        self._memory.release()


_MEMORY, _NCCL, _RCCL = "memory", "nccl", "rccl"
_TAIL = 1000  # samples of single calls: ten lie beyond the 99th percentile
_TAIL_BYTES = 2**20  # up to this size, the calls of a tail take milliseconds
_GRAPH_BYTES = 2**16  # up to this size a call is so short that the gap between two launches is visible
_SMALLEST = 3  # the smallest size as a power of two
_PROTOCOL = "chosen by the library (LL, LL128 or Simple)"
_NAMES = tuple(COLLECTIVES)

topic = gb.Topic(
    views=[
        gb.View(
            "curve",
            "Collective bus bandwidth by message size",
            _NAMES,
            "size_bytes",
            by=("of",),
            series="hot",
            log_x=True,
        ),
        gb.View(
            "curve",
            "Collective call time by message size",
            _NAMES,
            "size_bytes",
            by=("of",),
            series="tail.each",
            log_x=True,
            log_y=True,
        ),
    ],
)


def _libraries(target: gb.Target) -> tuple[str, ...]:
    if target.is_host:
        return (_MEMORY,)
    return (_RCCL if target.device.id.startswith("rocm") else _NCCL,)


def _sizes(target: gb.Target) -> Any:
    if target.is_host:
        return gb.points((2**16,), smoke=(2**20,), full=gb.powers_of_two(_SMALLEST, 26))
    quick = (2**_SMALLEST, 2**20, 2**30)
    return gb.points(fitting(target, quick), smoke=(2**20,), full=fitting(target, gb.powers_of_two(_SMALLEST, 30)))


def _reduce_sizes(target: gb.Target) -> Any:
    """Return the axis of array sizes in bytes for `all_reduce`: `_sizes` with more points in `quick`."""
    common = _sizes(target)
    if target.is_host:
        return gb.points((2**_SMALLEST, 2**16, 2**22), common.smoke, common.full)
    quick = (2**_SMALLEST, 2**10, 2**13, 2**16, 2**18, 2**20, 2**22, 2**24, 2**28, 2**30)
    return gb.points(fitting(target, quick), common.smoke, common.full)


def _devices(params: Params) -> int:
    return 1 if params["by"] == _MEMORY else ranks_of(params)


def _collective(
    sizes: Callable[[gb.Target], Any] = _sizes, headline: Mapping[str, str] | None = None
) -> Callable[[Callable[..., gb.Task]], Callable[..., gb.Task]]:
    """Return the decorator that declares the case of a collective, with the axes `by`, `of` and `size_bytes`."""
    return topic.case(
        ranks=ranks_of, devices=_devices, headline=headline, by=_libraries, of=rank_counts, size_bytes=sizes
    )


@_collective(_reduce_sizes, headline={})
def all_reduce(bench: gb.Bench, by: str, of: int, size_bytes: int) -> gb.Task:
    """Bus bandwidth of an all-reduce: every one of `of` ranks receives the sum of all ranks' arrays of `size_bytes`."""
    return _task(bench, "all_reduce", by, of, size_bytes)


@_collective()
def all_gather(bench: gb.Bench, by: str, of: int, size_bytes: int) -> gb.Task:
    """Bus bandwidth of an all-gather: every one of `of` ranks receives the parts of all ranks, `size_bytes` in all."""
    return _task(bench, "all_gather", by, of, size_bytes)


@_collective()
def reduce_scatter(bench: gb.Bench, by: str, of: int, size_bytes: int) -> gb.Task:
    """Bus bandwidth of a reduce-scatter: every one of `of` ranks receives its part of the sum of all ranks' arrays."""
    return _task(bench, "reduce_scatter", by, of, size_bytes)


@_collective()
def broadcast(bench: gb.Bench, by: str, of: int, size_bytes: int) -> gb.Task:
    """Bus bandwidth of a broadcast: every one of `of` ranks receives the array of rank 0."""
    return _task(bench, "broadcast", by, of, size_bytes)


@_collective()
def all_to_all(bench: gb.Bench, by: str, of: int, size_bytes: int) -> gb.Task:
    """Bus bandwidth of an all-to-all: every one of `of` ranks receives one part of every rank's array."""
    return _task(bench, "all_to_all", by, of, size_bytes)


@_collective()
def send_recv(bench: gb.Bench, by: str, of: int, size_bytes: int) -> gb.Task:
    """Bus bandwidth of a ring: every one of `of` ranks sends its array to the next rank, all at the same time."""
    return _task(bench, "send_recv", by, of, size_bytes)


def _task(bench: gb.Bench, name: str, by: str, of: int, size_bytes: int) -> gb.Task:
    """Return this rank's task of the collective `name` of `size_bytes` over `of` ranks; every rank must call it."""
    operation = COLLECTIVES[name]
    is_host = by == _MEMORY
    rank = HostRank(bench, operation, size_bytes) if is_host else NcclRank(bench, operation, size_bytes)
    work = gb.Work(payload=round(size_bytes * operation.factor(of)), items=1)
    modes: tuple[gb.Mode, ...] = ("hot", "graph") if size_bytes <= _GRAPH_BYTES else ("hot",)
    also = {"algbw": gb.Work(payload=size_bytes, items=1)}
    tail = gb.POINT.with_tail(_TAIL if size_bytes <= _TAIL_BYTES else 0)
    limit = "" if is_host else LIMIT
    stage = partial(gb.Stage, rank.call, work, lead=rank.meet, outputs=(rank.received,), inputs=rank.redraw)
    stages = {
        "": stage("payload", limit, modes, also=also, effort=gb.POINT),
        "tail": stage("item", modes=("each",), effort=tail),
    }
    notes = {"devices": ", ".join(device.id for device in bench.devices), **rank.notes}
    if not is_host:
        direction = ONE_WAY if name == "broadcast" else BOTH_WAYS
        notes |= link(direction, LIBRARY, WRITES, counts=operation.counts, protocol=_PROTOCOL)
    return gb.Task(stages, rank.check, close=rank.close, notes=notes)
