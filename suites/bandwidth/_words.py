"""Random 64-bit words in a GPU's memory, and the launches over them: data that a check can draw again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpubench.api.suite import Bench, Observation, expect

_THREADS = 256
_MOST_BLOCKS = 2**16
WORD_BYTES = 8


def blocks(items: int, threads: int) -> tuple[int]:
    """The grid of one thread an item."""
    return (max(1, -(-items // threads)),)


class Words:
    """An array whose 64-bit word i is `gb_random(seed, i)`; `array` is uint8, of a multiple of 8 bytes.

    Filling queues a kernel, and nothing is waited for.
    """

    def __init__(self, bench: Bench, size_bytes: int, draw: int = 0) -> None:
        self._bench = bench
        self._count = np.uint64(size_bytes // WORD_BYTES)
        self._grid = (min(blocks(size_bytes // WORD_BYTES, _THREADS)[0], _MOST_BLOCKS),)
        self.seed = np.uint64(bench.rng.integers(2**64, size=draw + 1, dtype=np.uint64)[draw])
        self.array = bench.xp.empty(size_bytes, np.uint8)
        self.fill(self.array)

    def fill(self, array: Any) -> None:
        """Write these words into an array."""
        self._bench.kernel("words.cu", "fill")(self._grid, (_THREADS,), (array, self._count, self.seed))

    def verifier(self, array: Any) -> Callable[[], Observation]:
        """A check that an array of the device holds these words, all of them."""
        kernel = self._bench.kernel("words.cu", "mistakes")
        wrong = self._bench.xp.zeros(1, np.uint64)

        def check() -> Observation:
            wrong.fill(0)
            kernel(self._grid, (_THREADS,), (array, self._count, self.seed, wrong))
            found = int(self._bench.device.to_host(wrong)[0])
            expect(found == 0, f"{found} of {self._count} words are wrong")
            return {}

        return check
