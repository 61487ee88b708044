"""Let ranks of a case, or threads, share flags, small numbers and data in host memory, with waits of limited time."""

import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpubench.base.errors import PeerDied
from gpubench.plugins.backend import OpenDevice

BEAT_S = 0.02
SILENT_S = 0.4  # 20 heartbeats; the case `patterns/death` observes how late the heartbeats of living ranks are
LINE_BYTES = 128  # two cache lines, because the prefetcher fetches pairs of lines
_WORD_BYTES, _PAGE_BYTES = 8, 4096
_LOOKS = 200  # looks at a flag before a wait lets another rank have the core, perhaps the awaited one
_NAP_S = 2e-5  # there may be more ranks with heartbeats than cores
_OWNER, _MET, _BEAT = "its process", "its meetings", "its heartbeat"


class RankLostError(RuntimeError):
    """A rank has had no heartbeat for SILENT_S; `rank` is its number, `noticed_s` when this rank found that out."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} has had no heartbeat for {SILENT_S} s")
        self.rank = rank
        self.noticed_s = time.perf_counter()


class StalledError(RuntimeError):
    """A wait has reached its time limit, although every rank is alive."""


class Board:
    """Named numbers of each rank and `room` (uint8) in host memory, for flags, heartbeats and data; see `Bench.board`.

    A number is an unsigned 64-bit word, zero at first, at the start of 128 bytes that hold nothing else; the word of
    rank r is 128 · r bytes behind the word of rank 0. Only its rank writes it. `members` are the ranks that waits and
    meetings count."""

    def __init__(
        self,
        device: OpenDevice,
        array: Any,
        slots: Sequence[str],
        rank: int = 0,
        world: int = 1,
        limit_s: float = 20.0,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Use `array`, zeroed memory of at least `head_bytes` bytes; `close` gives it back. Arguments as `Bench.board`.

        Raises RuntimeError if another process has this rank already."""
        self._device, self._array, self._give_back = device, array, close
        self.rank, self.members = rank, tuple(range(world))
        self._limit_s = limit_s
        numbers, step = memoryview(array[: self.head_bytes(slots, world)]).cast("Q"), LINE_BYTES // _WORD_BYTES
        self._rows = {
            slot: numbers[index * world * step : (index + 1) * world * step : step]
            for index, slot in enumerate((*slots, _OWNER, _MET, _BEAT))
        }
        self._address = int(array.ctypes.data)
        self._places = {slot: index * world for index, slot in enumerate(self._rows)}
        self.room: Any = array[self.head_bytes(slots, world) :]
        self._unregister: Callable[[], None] | None = None
        self._descriptors: dict[int, int] = {}  # rank → a descriptor that becomes readable when its process ends
        self._oldest_s = dict.fromkeys(self.members, 0.0)
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None
        self._naps = world == 1  # threads of a process also wait for each other at Python's lock
        self.expect_owned(0)
        self.post(_OWNER, os.getpid())

    @staticmethod
    def head_bytes(slots: Sequence[str], world: int) -> int:
        """Return the bytes in front of `room` for these slots: whole pages."""
        return -(-(len(slots) + 3) * world * LINE_BYTES // _PAGE_BYTES) * _PAGE_BYTES

    def expect_owned(self, *others: int) -> None:
        """Raise RuntimeError if the process with this rank is neither this one nor one of `others`."""
        if (owner := self.read(self.rank, _OWNER)) not in (os.getpid(), *others):
            raise RuntimeError(f"rank {self.rank} is process {owner}, so process {os.getpid()} cannot have it")

    def row(self, slot: str) -> memoryview:
        """Return the numbers of all ranks in `slot`, to read and to write in a loop; it is released by `close`."""
        return self._rows[slot]

    def address(self, slot: str, rank: int = 0) -> int:
        """Return the address of a rank's number, for compiled code and, after `register`, for kernels."""
        return self._address + (self._places[slot] + rank) * LINE_BYTES

    def register(self) -> None:
        """Page-lock the memory until `close`, so that the device reaches it. Raises Skip where that is impossible."""
        self._unregister = self._device.register(self._array)

    def post(self, slot: str, value: int) -> None:
        """Write this rank's number in `slot`."""
        self._rows[slot][self.rank] = value

    def read(self, rank: int, slot: str) -> int:
        """Return the number of a rank in `slot`."""
        return self._rows[slot][rank]

    def wait(self, is_over: Callable[[], object], ranks: Sequence[int] = ()) -> None:
        """Call `is_over` again and again until it is true, for at most the board's limit.

        Raises StalledError then, PeerDied if the process of one of `ranks` has ended (by default of any member), and,
        on a board with heartbeats, RankLostError instead if another member's heartbeat is older than 0.4 s."""
        deadline = time.monotonic() + self._limit_s
        looks = 0
        while not is_over():
            looks += 1
            if self._naps and looks > _LOOKS:
                time.sleep(_NAP_S)
            elif looks % _LOOKS:
                continue
            else:
                os.sched_yield()
            self.expect_alive(ranks)
            if time.monotonic() > deadline:
                raise StalledError(f"{_named(ranks or self.members)} made no progress for {self._limit_s:g} s")

    def wait_for(self, slot: str, value: int, ranks: Iterable[int]) -> None:
        """Wait until the number of each of `ranks` in `slot` is at least `value`.

        Raises the errors of `wait`."""
        row = self._rows[slot]
        for rank in ranks:
            if row[rank] < value:
                self.wait(lambda rank=rank: row[rank] >= value, (rank,))  # type: ignore[misc]

    def meet(self) -> None:
        """Wait until every member has called `meet` as often as this rank has. Raises the errors of `wait`."""
        row = self._rows[_MET]
        step = row[self.rank] + 1
        row[self.rank] = step
        self.wait_for(_MET, step, self.members)

    def regroup(self, members: Iterable[int]) -> None:
        """Continue with the ranks `members`; each must call it, and none may meet before all have.

        The members may have called `meet` differently often before."""
        self.members = tuple(members)
        self.post(_MET, max(self.read(rank, _MET) for rank in self.members))

    def start_heart(self) -> None:
        """Post the time of the monotonic clock, which all processes share, every 20 ms, until `stop_heart`."""
        self._beat()
        self._naps = True
        self._heart = threading.Thread(target=self._beat_on, daemon=True)
        self._heart.start()

    def stop_heart(self) -> None:
        """Post no more heartbeats, as if this process had ended."""
        self._stop.set()
        if self._heart is not None:
            self._heart.join(10 * BEAT_S + 1)

    def _beat(self) -> None:
        self.post(_BEAT, time.perf_counter_ns())

    def _beat_on(self) -> None:
        while not self._stop.wait(BEAT_S):
            self._beat()

    def oldest_beat_s(self) -> float:
        """Return the largest age of a member's heartbeat that a wait of this rank has seen, in seconds."""
        return max(self._oldest_s[rank] for rank in self.members)

    def expect_alive(self, ranks: Sequence[int] = ()) -> None:
        """Raise RankLostError or PeerDied if a rank has ended, as `wait` does."""
        if self._heart is None:
            if ended := [rank for rank in ranks or self.members if self._has_ended(rank)]:
                raise PeerDied(ended[0])
            return
        for rank in self.members:
            age_s = (time.perf_counter_ns() - self.read(rank, _BEAT)) * 1e-9
            if rank != self.rank and age_s > SILENT_S:
                raise RankLostError(rank)
            self._oldest_s[rank] = max(self._oldest_s[rank], age_s)

    def _has_ended(self, rank: int) -> bool:
        """Return whether the process of a rank has ended; a rank without a board yet has not."""
        owner = self.read(rank, _OWNER)
        if owner in (0, os.getpid()):
            return False
        if rank not in self._descriptors:
            try:
                self._descriptors[rank] = os.pidfd_open(owner)
            except ProcessLookupError:
                return True
        return bool(select.select([self._descriptors[rank]], [], [], 0)[0])

    def close(self) -> None:
        """Stop the heartbeat and give the memory back; arrays made of `room` must be gone."""
        self.stop_heart()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        for row in self._rows.values():
            row.release()
        if self._unregister is not None:
            self._unregister()
        self.room = self._array = None
        self._give_back()


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {tuple(ranks)}"
