"""An all-gather of blocks over four topologies, and all ranks that send to one (incast): host processes and GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpubench.api.suite import (
    POINT,
    Bench,
    KeyFigure,
    Observation,
    Observed,
    Stage,
    Target,
    Task,
    Topic,
    View,
    Work,
    points,
    powers_of_two,
)

from .._between import (
    SPOILED,
    Params,
    RankMemory,
    exclusive,
    expect_pattern,
    fill_pattern,
    fitting,
    rank_counts,
    ranks_of,
)
from ._cores import on_own_core
from ._roll_call import RollCall
from ._schedules import TOPOLOGIES, Schedule, incast, of_rank, unfairness

_MEMORY, _PEER = "memory", "peer"  # shared memory of the host, or the memory of other GPUs
_MOST_HOST_RANKS = 4

topic = Topic(
    views=[
        View(
            "curve",
            "All-gather throughput by topology",
            ("topology",),
            "size_bytes",
            by=("topology", "of"),
            log_x=True,
        ),
        View(
            "bars",
            "Unfairness ratio: the slowest completion over the mean",
            ("topology", "incast"),
            by=("of",),
            series="unfairness",
        ),
        View("curve", "Incast throughput by number of senders", ("incast",), "senders", by=("size_bytes",)),
    ],
    key_figures=[KeyFigure("All-gather over a ring", "topology", (("topology", "ring"),))],
)


def _links(target: Target) -> tuple[str, ...]:
    return (_MEMORY,) if target.is_host else (_PEER,)


def _rank_counts(target: Target) -> Any:
    return rank_counts(target, (2, _MOST_HOST_RANKS))


def _sizes(target: Target) -> Any:
    """Return block sizes in bytes: every rank starts with one block and ends with all."""
    if target.is_host:
        return points((2**20,), smoke=(2**16,), full=powers_of_two(12, 24, 4))
    return points(fitting(target, (2**16, 2**26)), smoke=(2**20,), full=fitting(target, powers_of_two(12, 28, 4)))


def _senders(target: Target) -> Any:
    """Return numbers of senders: one, for comparison, and as many as there are."""
    most = _MOST_HOST_RANKS if target.is_host else max(1 + len(target.device.peers), 2)
    return points(tuple(dict.fromkeys((1, most - 1))), smoke=(1,), full=tuple(range(1, most)))


def _devices(params: Params) -> int:
    return 1 if params["by"] == _MEMORY else ranks_of(params)


def _incast_ranks(params: Params) -> int:
    return int(params["senders"]) + 1


def _incast_devices(params: Params) -> int:
    return 1 if params["by"] == _MEMORY else _incast_ranks(params)


@topic.case(ranks=ranks_of, devices=_devices, by=_links, topology=tuple(TOPOLOGIES), of=_rank_counts, size_bytes=_sizes)
def topology(bench: Bench, by: str, topology: str, of: int, size_bytes: int) -> Task:
    """Every rank has the block of every rank: payload of all deliveries until the last rank has all blocks."""
    return ScheduledRank(bench, TOPOLOGIES[topology](of), size_bytes).task(by)


@topic.case(ranks=_incast_ranks, devices=_incast_devices, by=_links, senders=_senders, size_bytes=_sizes)
def incast_(bench: Bench, by: str, senders: int, size_bytes: int) -> Task:
    """All other ranks write a block into the memory of rank 0 at the same time: payload of all blocks."""
    return ScheduledRank(bench, incast(senders + 1), size_bytes).task(by)


class ScheduledRank:
    """One rank's blocks, the memory of the other ranks, and its part of a schedule."""

    def __init__(self, bench: Bench, schedule: Schedule, size_bytes: int) -> None:
        exclusive(bench)
        bench.need((bench.world + 1) * size_bytes)
        self._bench, self._size_bytes = bench, size_bytes
        self._roll_call = RollCall.of(bench)
        self._memory = RankMemory(bench, bench.world * size_bytes, self._fill)
        self._received = sorted({delivery.block for delivery in schedule if delivery.target == bench.rank})
        self._steps = [
            (tuple(self._send(delivery.target, delivery.block) for delivery in sends), sources)
            for sends, sources in of_rank(schedule, bench.rank)
        ]
        self._work = Work(payload=len(schedule) * size_bytes, items=len(schedule))
        self._progress = 0
        self._unfairness = 1.0
        bench.barrier()

    def _block(self, array: Any, block: int) -> Any:
        return array[block * self._size_bytes : (block + 1) * self._size_bytes]

    def _fill(self, array: Any) -> None:
        array.fill(SPOILED)
        fill_pattern(self._bench, self._block(array, self._bench.rank), self._bench.seed + self._bench.rank)

    def _send(self, target: int, block: int) -> Callable[[], None]:
        """Return the copy of a block of this rank's memory to its place in another rank's memory."""
        near, far = (self._block(self._memory.arrays[rank], block) for rank in (self._bench.rank, target))
        return lambda: self._bench.device.copy(far, near)

    def call(self) -> float:
        """Return the seconds from the first rank's beginning to the last rank's end."""
        with on_own_core(self._bench):
            return self._completion_s()

    def _completion_s(self) -> float:
        self._meet()
        began = time.monotonic()
        for sends, sources in self._steps:
            for send in sends:
                send()
            if sends:
                self._bench.device.synchronize()
            self._progress += 1
            self._roll_call.post(self._progress)
            self._roll_call.await_progress(sources, self._progress)
        self._roll_call.write_times(began, time.monotonic())
        self._meet()
        completions = self._roll_call.completions()
        self._meet()  # no rank leaves new times before all have read these
        self._unfairness = unfairness(completions)
        return max(completions)

    def _meet(self) -> None:
        self._progress += 1
        self._roll_call.meet(self._progress)

    def observed(self) -> Observation:
        """Return the slowest rank's time over the mean."""
        return {"unfairness": Observed(self._unfairness)}

    def poison(self) -> None:
        """Overwrite what this rank received, before any rank sends again."""
        for block in self._received:
            self._block(self._memory.mine, block).fill(SPOILED)
        self._bench.device.synchronize()
        self._bench.barrier()

    def check(self) -> None:
        """Raise WrongAnswer if a block is not its rank's; no rank sends while another one checks."""
        self._bench.barrier()
        for block in self._received:
            received = self._block(self._memory.mine, block)
            origin = f"of rank {block}, received by rank {self._bench.rank},"
            expect_pattern(self._bench, received, self._bench.seed + block, origin)
        self._bench.barrier()

    def close(self) -> None:
        """Unmap the memory of the other ranks."""
        self._steps.clear()  # the copies hold arrays of that memory
        self._memory.close()
        self._roll_call.close()

    def task(self, by: str) -> Task:
        """Return the task of this rank."""
        names = ", ".join(device.id for device in self._bench.devices)
        notes = {"devices": names if by == _PEER else f"{self._bench.world} processes of {names}"}
        notes["transfer"] = "the sender writes into the receiver's memory, and then posts a flag in host memory"
        stage = Stage(self.call, self._work, "payload", clock="self", probe=self.observed, effort=POINT)
        return Task.of(
            stage,
            check=self.check,
            poison=self.poison,
            close=self.close,
            release=self._memory.release,
            notes=notes,
        )
