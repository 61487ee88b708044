"""Measure how soon ranks of an NCCL all-reduce continue after one of them dies: a spare rank takes its place.

A kernel of NCCL waits for a dead rank for ever. The survivors notice the missing heartbeat on the host, abort the
communicator, which ends the kernel, and make a new one with a process that stood by on the dead rank's GPU."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import Params, need_shared_gpu, ranks_of
from ..collectives._nccl import library
from ._failure import DIED, die, expect_death, once

_VICTIM = 0
_CALLS = 10
_SPARE_BYTES = 2**28
_WORD_BYTES = 4
_BELOW = 1000  # bounds places and terms, so that sums of their products over 16 ranks are exact in float32
_WAIT_S = 0.01  # after this time the other ranks' kernels have begun

topic = gb.Topic(
    views=[
        gb.View(
            "bars",
            "Time to continue all-reduces after the death of a rank",
            ("abort",),
            by=("of",),
            series="rebuild.self",
        ),
    ]
)


def _gpus(target: gb.Target) -> Any:
    """Return the numbers of GPUs, the axis `of`: 2, and in the tier `full` also all that reach each other."""
    return gb.points((2,), full=tuple(sorted({2, 1 + len(target.device.peers)})))


def _ranks(params: Params) -> int:
    """Return the number of ranks of a case: one per GPU, and a spare on the GPU of rank 0, which dies."""
    return ranks_of(params) + 1


@topic.case(
    ranks=_ranks,
    devices=ranks_of,
    when=lambda target: gb.on_gpu(target) and gb.beyond_quick(target) and bool(target.device.peers),
    where=lambda target, _params: target.tier == "full",  # the ranks take seconds to open their GPUs
    of=_gpus,
    size_bytes=(2**26,),
)
def abort(bench: gb.Bench, of: int, size_bytes: int) -> gb.Task:
    """Seconds from the death of a rank in an NCCL all-reduce until the survivors detect it.

    `abort` is the time to abort the communicator, so that the GPU is free again. `rebuild` also contains the new
    communicator and its first all-reduce, which is compared with the exact sum."""
    need_shared_gpu(bench)
    bench.need(3 * size_bytes + _SPARE_BYTES)
    group = NcclGroup(bench, size_bytes)
    if bench.rank < of:
        before = group.joined(range(of))
        group.bytes_per_s(before)  # the first calls set up channels
        group.rates["before"] = group.bytes_per_s(before)
        group.board.meet()
        if bench.rank == _VICTIM:
            time.sleep(_WAIT_S)
            die(group.board)
        _survive(group, before)
    else:
        group.joined(())  # joins the exchanges in which the other ranks meet
        group.board.meet()
    return _continued(bench, group)


def _survive(group: NcclGroup, communicator: Any) -> None:
    """Begin an all-reduce that cannot end because rank 0 is dead, notice the death, and abort `communicator`."""
    done = group.begin(communicator)
    try:
        group.board.wait(lambda: bool(done.done))
    except gb.RankLostError as lost:
        group.noticed_s = lost.noticed_s
    gb.expect(group.noticed_s > 0, "an all-reduce completed although a dead rank had not joined it")
    communicator.abort()
    group.bench.device.synchronize()
    group.seconds["abort"] = time.perf_counter() - group.noticed_s


def _continued(bench: gb.Bench, group: NcclGroup) -> gb.Task:
    """Make a communicator of the survivors and the spare rank, check it, and return this rank's task."""
    expect_death(bench, _VICTIM)
    communicator = group.joined(range(1, bench.world))
    group.verify_all_reduce(communicator)
    if group.noticed_s:
        group.seconds["rebuild"] = time.perf_counter() - group.noticed_s
        group.seconds["detect"] = group.noticed_s - group.board.read(_VICTIM, DIED) * 1e-9
    measured = [seconds for seconds in bench.exchange(group.seconds) if seconds]
    if not group.noticed_s:  # the spare rank reports the times of the survivor that took longest
        group.seconds = max(measured, key=lambda seconds: seconds["rebuild"])
    group.rates["after"] = group.bytes_per_s(communicator)
    return group.task(communicator)


class NcclGroup:
    """One rank's send and receive buffers, `size_bytes` of float32 each, and the communicators that it joins in turn.

    `seconds` maps `detect`, `abort` and `rebuild` to seconds. `rates` maps `before` and `after` to bytes per second."""

    def __init__(self, bench: gb.Bench, size_bytes: int) -> None:
        self.bench = bench
        self._nccl = library()
        self._words = size_bytes // _WORD_BYTES
        rng = np.random.default_rng(bench.seed)
        self._terms = rng.integers(1, _BELOW, bench.world)  # the terms of all ranks: a word is its place times a term
        places = bench.xp.arange(self._words, dtype=bench.xp.float32) % _BELOW
        self._places = places
        self._sent = places * np.float32(self._terms[bench.rank])
        self._received = bench.xp.empty_like(self._sent)
        self._stream = int(bench.xp.cuda.get_current_stream().ptr)
        self._members: tuple[int, ...] = ()
        self.seconds: dict[str, float] = {}
        self.rates: dict[str, float] = {}
        self.noticed_s = 0.0
        self.board = bench.board(DIED, has_beats=True)

    def joined(self, members: Any) -> Any:
        """Return a new NCCL communicator of the ranks `members`, in their order, or None if `members` is empty."""
        self._members = tuple(members)
        leader = self._members[0] if self._members else -1
        leaders = self.bench.exchange(leader)
        first = max(rank for rank in leaders if rank is not None)
        token = self._nccl.get_unique_id() if self.bench.rank == first else b""
        token = self.bench.exchange(token)[first]
        if not self._members:
            return None
        return self._nccl.NcclCommunicator(len(self._members), token, self._members.index(self.bench.rank))

    def begin(self, communicator: Any) -> Any:
        """Queue an all-reduce of this rank's words (sum, float32) on the current stream; every member must call it."""
        word, total = self._nccl.NCCL_FLOAT32, self._nccl.NCCL_SUM
        addresses = int(self._sent.data.ptr), int(self._received.data.ptr)
        communicator.allReduce(*addresses, self._words, word, total, self._stream)
        event = self.bench.xp.cuda.Event(disable_timing=True)
        event.record()
        return event

    def bytes_per_s(self, communicator: Any) -> float:
        """Return this rank's bytes per second in 10 all-reduces; every member must call it."""
        start = time.perf_counter()
        for _ in range(_CALLS):
            self.begin(communicator)
        self.bench.device.synchronize()
        return _CALLS * self._words * _WORD_BYTES / (time.perf_counter() - start)

    def verify_all_reduce(self, communicator: Any) -> None:
        """Poison the receive buffer, run one all-reduce and check it on this rank; every member must call it."""
        self._received.fill(np.nan)
        self.begin(communicator)
        self.bench.device.synchronize()
        total = np.float32(self._terms[list(self._members)].sum())
        for name, array, factor in (
            ("received", self._received, total),
            ("own", self._sent, np.float32(self._terms[self.bench.rank])),
        ):
            wrong = int((array != self._places * factor).sum())
            gb.expect(wrong == 0, f"{wrong} of {self._words} {name} words are wrong on rank {self.bench.rank}")

    def task(self, communicator: Any) -> gb.Task:
        """Return this rank's task, whose check makes another all-reduce and returns both rates."""

        def check() -> gb.Observation:
            self.verify_all_reduce(communicator)
            return {name: gb.Observed(rate, "B/s", "more") for name, rate in self.rates.items()}

        def close() -> None:
            communicator.abort()
            self.board.close()

        notes = {"devices": ", ".join(device.id for device in self.bench.devices), "spare": "on the dead rank's GPU"}
        seconds = self.seconds
        stages = {"": once(seconds["detect"]), "abort": once(seconds["abort"]), "rebuild": once(seconds["rebuild"])}
        return gb.Task(stages, check, close=close, notes=notes)
