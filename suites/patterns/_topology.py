"""Measure an all-gather of blocks over four topologies, and an incast, in which all ranks send to one."""

from typing import Any

from gpubench.api import suite as gb

from .._between import Params, fitting, rank_counts, ranks_of
from ._blocks import BlockExchange
from ._schedules import TOPOLOGIES, Schedule, incast, unfairness

MEMORY, PEER = "memory", "peer"  # shared memory of the host, or the memory of other GPUs
_MOST_HOST_RANKS = 4

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
        gb.View("curve", "Incast throughput by number of senders", ("incast",), "senders", by=("size_bytes",)),
    ],
)


def links(target: gb.Target) -> tuple[str, ...]:
    """Return the axis `by`: shared memory on the host, the memory of peers between GPUs."""
    return (MEMORY,) if target.is_host else (PEER,)


def _rank_counts(target: gb.Target) -> Any:
    return rank_counts(target, (2, _MOST_HOST_RANKS))


def _sizes(target: gb.Target) -> Any:
    """Return the points of the axis `size_bytes`, the size of a block."""
    if target.is_host:
        return gb.points((2**20,), smoke=(2**16,), full=gb.powers_of_two(12, 24, 4))
    return gb.points(fitting(target, (2**16, 2**26)), smoke=(2**20,), full=fitting(target, gb.powers_of_two(12, 28, 4)))


def _senders(target: gb.Target) -> Any:
    """Return the points of the axis `senders`: 1, for comparison, and all other ranks."""
    most = _MOST_HOST_RANKS if target.is_host else max(1 + len(target.device.peers), 2)
    return gb.points(tuple(dict.fromkeys((1, most - 1))), smoke=(1,), full=tuple(range(1, most)))


def devices(params: Params) -> int:
    """Return the number of devices of a case with one rank on each GPU; the host is one device."""
    return 1 if params["by"] == MEMORY else ranks_of(params)


def _incast_ranks(params: Params) -> int:
    return int(params["senders"]) + 1


@topic.case(ranks=ranks_of, devices=devices, by=links, topology=tuple(TOPOLOGIES), of=_rank_counts, size_bytes=_sizes)
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
    """One rank's steps of `schedule`, and the blocks of `size_bytes` that it exchanges; every rank must create it."""

    def __init__(self, bench: gb.Bench, schedule: Schedule, size_bytes: int) -> None:
        self._bench, self._size_bytes = bench, size_bytes
        self._blocks = BlockExchange(bench, size_bytes)
        self._steps = self._blocks.steps(schedule, size_bytes)
        self._received = sorted({delivery.block for delivery in schedule if delivery.target == bench.rank})
        self._work = gb.Work(payload=len(schedule) * size_bytes, items=len(schedule))
        self._unfairness = 1.0

    def call(self) -> float:
        """Exchange the blocks, and return the seconds from the first rank's beginning to the last rank's end.

        Every rank must call it, and all get the same result."""
        completions = self._blocks.completions(lambda: self._blocks.perform(self._steps))
        self._unfairness = unfairness(completions)
        return max(completions)

    def observed(self) -> gb.Observation:
        """Return the slowest rank's time over the mean."""
        return {"unfairness": gb.Observed(self._unfairness)}

    def poison(self) -> None:
        """Overwrite the received blocks, before any rank sends again."""
        self._blocks.poison(self._received)

    def check(self) -> None:
        """Raise WrongAnswer if a received block differs from the block that its rank owns.

        Every rank must call it, and waits for the others."""
        self._blocks.check(self._received, self._size_bytes)

    def close(self) -> None:
        """Unmap the memory of the other ranks."""
        self._steps = []  # drops the copies, which hold arrays of the peers' memory
        self._blocks.close()

    def task(self, by: str) -> gb.Task:
        """Return the task of this rank, with one stage that times the exchange; `by` is the case's axis `by`."""
        names = ", ".join(device.id for device in self._bench.devices)
        notes = {"devices": names if by == PEER else f"{self._bench.world} processes of {names}"}
        notes["transfer"] = "the sender writes into the receiver's memory, and then posts a flag in host memory"
        inputs = self._blocks.redraw
        stage = gb.Stage(
            self.call, self._work, "payload", clock="self", probe=self.observed, effort=gb.POINT, inputs=inputs
        )
        return gb.Task.of(
            stage,
            check=self.check,
            poison=self.poison,
            close=self.close,
            release=self._blocks.release,
            notes=notes,
        )
