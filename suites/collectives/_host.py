"""Run the same collectives between processes of the host: each rank reads the other ranks' shared memory."""

import time
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._between import RankMemory
from ._operations import WORD_BYTES, Collective

_PATIENCE_S = 5.0
_HEAD_BYTES = 4096  # before the data stand this rank's last step and the last check for which it was late
_LATE_S = 1e-3


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
        sent = drawn(self._seed + bench.rank, 0, operation.sends(self._words, bench.world))

        def fill(array: Any) -> None:
            array[_HEAD_BYTES:].view(np.float32)[:] = sent

        self._memory = RankMemory(bench, _HEAD_BYTES + sent.nbytes, fill)
        self._shared = self._memory.buffers
        self.received = np.empty(operation.receives(self._words, bench.world), np.float32)
        self._steps = 0
        self._checks = 0
        bench.barrier()

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
