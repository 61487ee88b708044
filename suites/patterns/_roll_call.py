"""Let ranks register in a page of host memory, post their progress, and wait for each other for a limited time."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import shared_host_memory

_LINE_WORDS = 16  # 128 bytes, two cache lines, because the prefetcher fetches pairs of lines
_OWNER, _PROGRESS, _BEGAN, _ENDED = range(4)  # indices of the words in a rank's line
_LOOKS = 200  # polls of a flag before the core is yielded to another rank, perhaps the awaited one
PATIENCE_S = 5.0


class RankTwiceError(RuntimeError):
    """Two processes claim the same rank."""


class RollCall:
    """One line per rank: the process of the rank, the last step that it finished, and two moments.

    `page` is zeroed memory that all ranks map, with 128 bytes per rank. A wait ends after `patience_s` seconds."""

    def __init__(self, page: gb.SharedBuffer, rank: int, world: int, patience_s: float = PATIENCE_S) -> None:
        self._page, self._rank, self._world, self._patience_s = page, rank, world, patience_s
        self._lines: Any = page.array.view(np.uint64).reshape(-1, _LINE_WORDS)[:world]
        self._moments: Any = page.array.view(np.float64).reshape(-1, _LINE_WORDS)[:world]
        owner = int(self._lines[rank, _OWNER])
        if owner not in (0, os.getpid()):
            raise RankTwiceError(f"rank {rank} is process {owner} already, so process {os.getpid()} cannot have it")
        self._lines[rank, _OWNER] = os.getpid()
        self._processes: dict[int, int] = {}  # rank → a descriptor that becomes readable when its process ends

    @classmethod
    def of(cls, bench: gb.Bench) -> RollCall:
        """Return the roll call of all ranks of a case; every rank must call it.

        Raises RankTwiceError if two processes claim one rank."""
        nbytes = -(-bench.world * _LINE_WORDS * 8 // 4096) * 4096
        roll_call = cls(shared_host_memory(bench, nbytes), bench.rank, bench.world)
        bench.barrier()
        roll_call.expect_owned()
        return roll_call

    def expect_owned(self) -> None:
        """Raise RankTwiceError if another process has overwritten this process's claim of its rank."""
        owner = int(self._lines[self._rank, _OWNER])
        if owner != os.getpid():
            raise RankTwiceError(f"process {owner} claims rank {self._rank}, which process {os.getpid()} has")

    def post(self, progress: int) -> None:
        """Post that this rank has finished every step up to `progress`, a number that only grows."""
        self._lines[self._rank, _PROGRESS] = progress

    def await_progress(self, ranks: Iterable[int], progress: int) -> None:
        """Wait until each of `ranks` has posted at least `progress`.

        Raises PeerDied for a rank whose process has ended, and WrongAnswer for a rank that has not posted it after
        `patience_s` seconds."""
        end = time.monotonic() + self._patience_s
        for rank in ranks:
            looks = 0
            while int(self._lines[rank, _PROGRESS]) < progress:
                looks += 1
                if looks % _LOOKS:
                    continue
                os.sched_yield()
                self._expect_alive(rank)
                if time.monotonic() > end:
                    raise gb.WrongAnswer(f"rank {rank} made no progress for {self._patience_s:g} s")

    def _expect_alive(self, rank: int) -> None:
        """Raise PeerDied if the process of rank `rank` has ended."""
        owner = int(self._lines[rank, _OWNER])
        if owner and rank not in self._processes:
            try:
                self._processes[rank] = os.pidfd_open(owner)
            except ProcessLookupError as error:
                raise gb.PeerDied(rank) from error
        if owner and select.select([self._processes[rank]], [], [], 0)[0]:
            raise gb.PeerDied(rank)

    def meet(self, progress: int) -> None:
        """Post `progress`, and wait until every rank has posted at least `progress`.

        Raises PeerDied and WrongAnswer as `await_progress` does."""
        self.post(progress)
        self.await_progress(range(self._world), progress)

    def write_times(self, began: float, ended: float) -> None:
        """Write the moments at which this rank began and ended, in seconds of `time.monotonic`."""
        self._moments[self._rank, [_BEGAN, _ENDED]] = began, ended

    def completions(self) -> list[float]:
        """Return, in rank order, the seconds from the earliest beginning among all ranks to the end of each rank."""
        first = float(self._moments[:, _BEGAN].min())
        return [float(ended) - first for ended in self._moments[:, _ENDED]]

    def close(self) -> None:
        """Unmap the page, and close the descriptors of the other processes."""
        for descriptor in self._processes.values():
            os.close(descriptor)
        del self._lines, self._moments
        self._page.close()
