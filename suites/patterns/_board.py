"""Let ranks exchange heartbeats, barriers and numbers through host memory that all of them map.

A heartbeat is the time of the system's monotonic clock, which all processes of a machine share. A thread of each
rank writes it. A rank whose heartbeat is old is taken for dead, and every wait for others looks at their heartbeats."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from gpubench.api import suite as gb

from .._between import shared_host_memory

BEAT_S = 0.02
SILENT_S = 0.4  # 20 heartbeats; the case `death` observes how late the heartbeats of living ranks are
_PATIENCE_S = 20.0  # limit of a wait for a living rank; a phase of a case ends after 60 s
_LINE_WORDS = 8  # 64-bit words of a cache line, so that no two numbers of a row share a line
BEAT, STEP, DIED, NUMBER = range(4)  # the fields of a row
_FIELDS = 4
_PAGE_BYTES = 4096
_SPINS, _NAP_S = 200, 2e-5  # a wait yields to other processes, because there may be more ranks than processors


class RankLostError(RuntimeError):
    """A rank has had no heartbeat for SILENT_S; `rank` is its number, `noticed_s` when this rank found that out."""

    def __init__(self, rank: int) -> None:
        """Keep the rank and the time."""
        super().__init__(f"rank {rank} has had no heartbeat for {SILENT_S} s")
        self.rank = rank
        self.noticed_s = time.perf_counter()


class StalledError(RuntimeError):
    """A rank with a heartbeat made no progress in time."""


class RankBoard:
    """A row of numbers for each rank, and `room_bytes` of shared memory (`room`, uint8) for the ranks' data.

    Every rank of the case must create it at the same time. The heartbeat starts at once and ends with `close`."""

    def __init__(self, bench: gb.Bench, room_bytes: int = 0) -> None:
        """Allocate the memory in rank 0 and map it in all ranks."""
        size = bench.world * _FIELDS * _LINE_WORDS
        head_bytes = -(-size * 8 // _PAGE_BYTES) * _PAGE_BYTES
        self._shared: gb.SharedBuffer = shared_host_memory(bench, head_bytes + room_bytes)
        rows = self._shared.array[: size * 8].view(np.int64).reshape(bench.world, _FIELDS, _LINE_WORDS)
        self._fields: Any = rows[:, :, 0]
        self.room: Any = self._shared.array[head_bytes:]
        self.rank = bench.rank
        self.members: tuple[int, ...] = tuple(range(bench.world))
        self._oldest_s = dict.fromkeys(self.members, 0.0)
        self._stop = threading.Event()
        self._beat()
        self._heart = threading.Thread(target=self._beat_on, daemon=True)
        self._heart.start()
        bench.barrier()  # no rank looks for a heartbeat before the first one is written

    def _beat(self) -> None:
        self._fields[self.rank, BEAT] = time.perf_counter_ns()

    def _beat_on(self) -> None:
        while not self._stop.wait(BEAT_S):
            self._beat()

    def post(self, field: int, value: int) -> None:
        """Write a number of this rank's row."""
        self._fields[self.rank, field] = value

    def read(self, rank: int, field: int) -> int:
        """Return a number of a rank's row."""
        return int(self._fields[rank, field])

    def oldest_beat_s(self) -> float:
        """Return the largest age of a member's heartbeat that a wait of this rank has seen, in seconds."""
        return max(self._oldest_s[rank] for rank in self.members)

    def _age_s(self, rank: int) -> float:
        return (time.perf_counter_ns() - self.read(rank, BEAT)) * 1e-9

    def expect_heartbeats(self) -> None:
        """Raise RankLostError if another member's heartbeat is older than 0.4 s."""
        for rank in self.members:
            age_s = self._age_s(rank)
            if rank != self.rank and age_s > SILENT_S:
                raise RankLostError(rank)
            self._oldest_s[rank] = max(self._oldest_s[rank], age_s)

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Call `is_over` again and again until it returns True.

        Raises RankLostError if another member's heartbeat is older than 0.4 s, and StalledError after 20 s."""
        deadline = time.monotonic() + _PATIENCE_S
        looks = 0
        while not is_over():
            looks += 1
            if looks > _SPINS:
                time.sleep(_NAP_S)
                self.expect_heartbeats()
                if time.monotonic() > deadline:
                    raise StalledError(f"ranks {self.members} made no progress for {_PATIENCE_S} s")

    def meet(self) -> None:
        """Wait until every member has called `meet` as often as this rank has.

        Raises RankLostError and StalledError as `wait` does."""
        step = self.read(self.rank, STEP) + 1
        self.post(STEP, step)
        steps = self._fields[:, STEP]
        others = list(self.members)
        self.wait(lambda: bool((steps[others] >= step).all()))

    def regroup(self, members: Iterable[int], steps: Sequence[int]) -> None:
        """Continue with the ranks `members`, for which `meet` and `wait` then look.

        `steps` are the numbers of barriers that the members have reached, in any order."""
        self.members = tuple(members)
        self.post(STEP, max(steps))

    def die(self) -> NoReturn:
        """Write the time of death to this rank's row, and kill this process by SIGKILL, without clean-up.

        Raises AssertionError if SIGKILL does not end the process."""
        self.post(DIED, time.perf_counter_ns())
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL did not end this process")

    def died_s(self, rank: int) -> float:
        """Return when rank `rank` called `die`, in seconds of `time.perf_counter`, or 0 if it did not."""
        return self.read(rank, DIED) * 1e-9

    def close(self) -> None:
        """Stop the heartbeat and unmap the memory; arrays made of `room` must be gone."""
        self._stop.set()
        self._heart.join(10 * BEAT_S + 1)
        del self._fields, self.room
        self._shared.close()


def expect_death(bench: gb.Bench, rank: int) -> None:
    """Consume the runner's message that rank `rank` has ended; every living rank must call it.

    Raises Untrustworthy if another rank or none has ended: on a busy machine a living rank may be late with its
    heartbeat, which makes the case invalid, not wrong."""
    try:
        bench.exchange(None)
    except gb.PeerDied as event:
        if event.rank != rank:
            reason = f"rank {rank} was late with its heartbeat, and rank {event.rank} has ended"
            raise gb.Untrustworthy("disturbed", reason) from event
    else:
        raise gb.Untrustworthy(
            "disturbed", f"rank {rank} was late with its heartbeat, but it is alive; measure again on an idle machine"
        )
