"""The same collectives between processes of the host: each reads what it needs from the others' shared memory."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api.suite import Bench, expect

from ._operations import WORD_BYTES, Collective

_PATIENCE_S = 5.0
_HEAD_BYTES = 4096  # before the data: how far this rank is
_GOLDEN, _FIRST, _SECOND = (np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def drawn(seed: int, first: int, count: int) -> npt.NDArray[np.float32]:
    """Words first … first + count - 1 of a rank's data: whole numbers below 2^20, as in collectives.cu."""
    x = np.uint64(seed) + np.arange(first, first + count, dtype=np.uint64) * _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(44)).astype(np.float32)


class HostRank:
    """One rank's memory, the others' as it maps them, and its call."""

    def __init__(self, bench: Bench, what: Collective, size_bytes: int) -> None:
        bench.need(6 * size_bytes * bench.world)
        self._what = what
        self._world, self._rank = bench.world, bench.rank
        self._words = size_bytes // WORD_BYTES
        self._seed = int(bench.rng.integers(2**62, dtype=np.uint64))
        nbytes = _HEAD_BYTES + what.sends(self._words, self._world) * WORD_BYTES
        own = bench.device.share(nbytes)
        own.array[_HEAD_BYTES:].view(np.float32)[:] = drawn(self._seed + self._rank, 0, self._words_of(own))
        handles = bench.exchange(own.handle)
        self._shared = [
            own if rank == self._rank else bench.device.open_shared(handle, nbytes)
            for rank, handle in enumerate(handles)
        ]
        self._received = np.empty(what.receives(self._words, self._world), np.float32)
        self._steps = 0
        bench.barrier()

    @staticmethod
    def _words_of(shared: Any) -> int:
        return int((shared.array.size - _HEAD_BYTES) // WORD_BYTES)

    @property
    def notes(self) -> dict[str, str]:
        """How it is done."""
        return {"algorithm": "every rank reads what it needs from the others; a barrier before and after"}

    def _sent(self, rank: int, first: int, count: int) -> Any:
        return self._shared[rank].array[_HEAD_BYTES:].view(np.float32)[first : first + count]

    def meet(self) -> None:
        """Wait until every rank is here."""
        self._steps += 1
        heads = [shared.array[:8].view(np.uint64) for shared in self._shared]
        heads[self._rank][0] = self._steps
        end = time.monotonic() + _PATIENCE_S
        for head in heads:
            while int(head[0]) < self._steps:
                expect(time.monotonic() < end, f"another rank stood still for {_PATIENCE_S} s")

    def call(self) -> None:
        """The collective, between two barriers."""
        self.meet()
        for each in self._what.segments(self._words, self._world, self._rank):
            part = self._received[each.offset : each.offset + each.count]
            np.copyto(part, self._sent(each.low, each.first, each.count))
            for rank in range(each.low + 1, each.high):
                np.add(part, self._sent(rank, each.first, each.count), out=part)
        self.meet()

    def poison(self) -> None:
        """Overwrite what was received."""
        self._received.fill(np.nan)

    def check(self) -> None:
        """Every received word is what the description says, exactly: drawn anew, not read from shared memory."""
        for each in self._what.segments(self._words, self._world, self._rank):
            expected = sum(drawn(self._seed + rank, each.first, each.count) for rank in range(each.low, each.high))
            wrong = int(np.count_nonzero(self._received[each.offset : each.offset + each.count] != expected))
            expect(wrong == 0, f"{wrong} of {each.count} received words are wrong on rank {self._rank}")

    def close(self) -> None:
        """Unmap everything."""
        for shared in self._shared:
            shared.close()
