"""Measure an all-gather of blocks over four topologies, and an incast, in which all ranks send to one.

Each topology does the same job: every rank begins with one block and ends with the block of every rank."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from gpubench.api import suite as gb

from .._between import (
    MEMORY,
    POISON,
    Params,
    RankMemory,
    expect_pattern,
    fill_pattern,
    fitting,
    gpus_of,
    need_shared_gpu,
    on_own_core,
    rank_counts,
    ranks_of,
)

_MOST_HOST_RANKS = 4
_PROGRESS, _BEGAN, _ENDED = "progress", "began", "ended"
_PATIENCE_S = 5.0
_OTHER_SEED = 2**63

topic = gb.Topic(
    views=[
        gb.View(
            "curve",
            "All-gather throughput by topology",
            ("topology",),
            "size_bytes",
            by=("topology", "of"),
            log_x=True,
        ),
        gb.View(
            "bars",
            "Unfairness ratio: the slowest completion over the mean",
            ("topology", "incast"),
            by=("of",),
            series="unfairness",
        ),
        gb.View("choice", "Topology of an all-gather", ("topology",), "size_bytes", by=("topology",)),
        gb.View(
            "scaling", "Time of collectives on more devices", ("incast", "topology"), "size_bytes", by=("topology",)
        ),
        gb.View("curve", "Incast throughput by number of senders", ("incast",), "senders", by=("size_bytes",)),
    ],
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One block that one rank sends to another one, in a step that begins when the steps before have ended."""

    step: int
    source: int
    target: int
    block: int


Schedule = tuple[Delivery, ...]


def ring(ranks: int) -> Schedule:
    """Return n − 1 steps in which every rank passes on to the next one the block that it received last."""
    steps = ((step, rank) for step in range(ranks - 1) for rank in range(ranks))
    return tuple(Delivery(step, rank, (rank + 1) % ranks, (rank - step) % ranks) for step, rank in steps)


def mesh(ranks: int) -> Schedule:
    """Return n − 1 steps in which every rank sends its own block to another rank, and receives from one other rank."""
    steps = ((step, rank) for step in range(ranks - 1) for rank in range(ranks))
    return tuple(Delivery(step, rank, (rank + step + 1) % ranks, rank) for step, rank in steps)


def star(ranks: int) -> Schedule:
    """Return two steps: every rank sends its block to rank 0, which then sends every other block to every rank."""
    back = ((target, block) for target in range(1, ranks) for block in range(ranks) if block != target)
    return incast(ranks) + tuple(Delivery(1, 0, target, block) for target, block in back)


def incast(ranks: int) -> Schedule:
    """Return one step: all ranks send their blocks to rank 0 at the same time."""
    return tuple(Delivery(0, rank, 0, rank) for rank in range(1, ranks))


def tree(ranks: int) -> Schedule:
    """Return the steps of a binomial tree: rank 0 gathers all blocks and then sends every rank its missing blocks.

    A rank whose number is a multiple of 2^k and not of 2^(k+1) is a child of the rank 2^k below it."""
    levels = (ranks - 1).bit_length()
    deliveries = []
    for level in range(levels):
        reach = 2**level
        children = range(reach, ranks, 2 * reach)
        for child in children:
            below = range(child, min(child + reach, ranks))
            others = (block for block in range(ranks) if block not in below)
            deliveries += [Delivery(level, child, child - reach, block) for block in below]
            deliveries += [Delivery(2 * levels - 1 - level, child - reach, child, block) for block in others]
    return tuple(sorted(deliveries, key=lambda delivery: delivery.step))


TOPOLOGIES: dict[str, Callable[[int], Schedule]] = {"ring": ring, "star": star, "mesh": mesh, "tree": tree}


def of_rank(schedule: Schedule, rank: int) -> list[tuple[Schedule, frozenset[int]]]:
    """Return for each step the deliveries that rank `rank` sends and the ranks from which it receives."""
    steps = 1 + max((delivery.step for delivery in schedule), default=-1)
    return [
        (
            tuple(delivery for delivery in schedule if (delivery.step, delivery.source) == (step, rank)),
            frozenset(delivery.source for delivery in schedule if (delivery.step, delivery.target) == (step, rank)),
        )
        for step in range(steps)
    ]


def unfairness(seconds: Sequence[float]) -> float:
    """Return the longest completion time over the mean of all ranks' times: 1 if all end at the same moment."""
    return max(seconds) * len(seconds) / sum(seconds)


def links(target: gb.Target) -> tuple[str, ...]:
    """Return the axis `by`: shared memory on the host, the memory of peers between GPUs."""
    return (MEMORY,) if target.is_host else ("peer",)


def _sizes(target: gb.Target) -> Any:
    """Return the points of the axis `size_bytes`, the size of a block."""
    if target.is_host:
        return gb.points((2**20,), smoke=(2**16,), full=gb.powers_of_two(12, 24, 4))
    return gb.points(fitting(target, (2**16, 2**26)), smoke=(2**20,), full=fitting(target, gb.powers_of_two(12, 28, 4)))


def _senders(target: gb.Target) -> Any:
    """Return the points of the axis `senders`: 1, for comparison, and all other ranks."""
    most = _MOST_HOST_RANKS if target.is_host else max(1 + len(target.device.peers), 2)
    return gb.points(tuple(dict.fromkeys((1, most - 1))), smoke=(1,), full=tuple(range(1, most)))


def _incast_ranks(params: Params) -> int:
    return int(params["senders"]) + 1


@topic.case(
    ranks=ranks_of,
    devices=gpus_of,
    by=links,
    topology=tuple(TOPOLOGIES),
    of=lambda target: rank_counts(target, (2, _MOST_HOST_RANKS)),
    size_bytes=_sizes,
)
def topology(bench: gb.Bench, by: str, topology: str, of: int, size_bytes: int) -> gb.Task:
    """An all-gather of one block per rank over a topology, until the last rank has every block.

    The payload counts every delivery."""
    return ScheduledRank(bench, TOPOLOGIES[topology](of), size_bytes).task(by)


@topic.case(
    ranks=_incast_ranks,
    devices=lambda params: 1 if params["by"] == MEMORY else _incast_ranks(params),
    by=links,
    senders=_senders,
    size_bytes=_sizes,
)
def incast_(bench: gb.Bench, by: str, senders: int, size_bytes: int) -> gb.Task:
    """All other ranks write a block into the memory of rank 0 at the same time: payload of all blocks."""
    return ScheduledRank(bench, incast(senders + 1), size_bytes).task(by)


class ScheduledRank:
    """One rank's part of `schedule`: its memory, with room for a block of every rank, and the memory of the others.

    A block has `size_bytes`. Every rank of the case must create its object at the same time."""

    def __init__(self, bench: gb.Bench, schedule: Schedule, size_bytes: int) -> None:
        need_shared_gpu(bench)
        bench.need((bench.world + 1) * size_bytes)
        self._bench, self._size_bytes, self._seed = bench, size_bytes, bench.seed
        self._board = bench.board(_PROGRESS, _BEGAN, _ENDED, limit_s=_PATIENCE_S)
        self._memory = RankMemory(bench, bench.world * size_bytes, self._fill)
        bench.barrier()
        self._steps = [
            ([self._sending(delivery) for delivery in deliveries], sources)
            for deliveries, sources in of_rank(schedule, bench.rank)
        ]
        self._received = sorted({delivery.block for delivery in schedule if delivery.target == bench.rank})
        self._work = gb.Work(payload=len(schedule) * size_bytes, items=len(schedule))
        self._progress, self._unfairness = 0, 1.0

    def _block(self, array: Any, block: int) -> Any:
        return array[block * self._size_bytes : (block + 1) * self._size_bytes]

    @property
    def own(self) -> Any:
        """The block of this rank, in its own memory: uint8."""
        return self._block(self._memory.local, self._bench.rank)

    def _fill(self, array: Any) -> None:
        """Overwrite `array`, this rank's memory (uint8), and write this rank's pattern into its own block."""
        array.fill(POISON)
        fill_pattern(self._bench, self._block(array, self._bench.rank), self._seed + self._bench.rank)

    def _redraw(self) -> None:
        """Put the other pattern of two into the block of this rank; every rank must call it."""
        self._seed ^= _OTHER_SEED
        self._fill(self._memory.local)

    def _sending(self, delivery: Delivery) -> Callable[[], None]:
        """Return a call that copies a block of this rank's memory into the memory of the delivery's target."""
        arrays = self._memory.arrays
        near, far = (self._block(arrays[rank], delivery.block) for rank in (delivery.source, delivery.target))
        return lambda: self._bench.device.copy(far, near)

    def _exchange(self) -> None:
        """Make this rank's copies of each step, and wait for the ranks from which it receives."""
        for sends, sources in self._steps:
            for send in sends:
                send()
            if sends:
                self._bench.device.synchronize()
            self._meet(sources)

    def _meet(self, members: Collection[int]) -> None:
        """Post this rank's progress, and wait until `members` have come as far."""
        self._progress += 1
        self._board.post(_PROGRESS, self._progress)
        self._board.wait_for(_PROGRESS, self._progress, members)

    def call(self) -> float:
        """Exchange the blocks, and return the seconds from the first rank's beginning to the last rank's end.

        Every rank must call it, and all get the same result."""
        board = self._board
        with on_own_core(self._bench):
            self._meet(board.members)
            began = time.monotonic_ns()
            self._exchange()
            ended = time.monotonic_ns()
            board.post(_BEGAN, began)
            board.post(_ENDED, ended)
            self._meet(board.members)
            first = min(board.row(_BEGAN))
            completions = [(end - first) * 1e-9 for end in board.row(_ENDED)]
            self._meet(board.members)  # no rank writes new times before all ranks have read these
        self._unfairness = unfairness(completions)
        return max(completions)

    def _poison(self) -> None:
        """Overwrite the received blocks, before any rank sends again."""
        for block in self._received:
            self._block(self._memory.local, block).fill(POISON)
        self._bench.device.synchronize()
        self._bench.barrier()

    def _check(self) -> None:
        """Raise WrongAnswer if a received block differs from the block that its rank owns; every rank must call it."""
        self._bench.barrier()
        for block in self._received:
            origin = f"of rank {block}, received by rank {self._bench.rank},"
            expect_pattern(self._bench, self._block(self._memory.local, block), self._seed + block, origin)
        self._bench.barrier()

    def _close(self) -> None:
        """Unmap the memory of the other ranks."""
        self._steps = []  # drops the copies, which hold arrays of the peers' memory
        self._memory.close()
        self._board.close()

    def task(self, by: str) -> gb.Task:
        """Return the task of this rank, with one stage that times the exchange; `by` is the case's axis `by`."""
        names = ", ".join(device.id for device in self._bench.devices)
        notes = {"devices": f"{self._bench.world} processes of {names}" if by == MEMORY else names}
        notes["transfer"] = "the sender writes into the receiver's memory, and then posts a flag in host memory"
        stage = gb.Stage(
            self.call,
            self._work,
            "payload",
            clock="self",
            probe=lambda: {"unfairness": gb.Observed(self._unfairness)},
            effort=gb.POINT,
            inputs=self._redraw,
        )
        return gb.Task.of(
            stage,
            check=self._check,
            poison=self._poison,
            close=self._close,
            release=self._memory.release,
            notes=notes,
        )
