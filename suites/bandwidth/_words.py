"""Fill a GPU's memory with random 64-bit words, which a check computes again from their seed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import expect_no_mistakes

_THREADS = 256
_MOST_BLOCKS = 2**16
_WORD_BYTES = 8


def grid_of(items: int, threads: int) -> tuple[int]:
    """Return the grid that has at least one thread per item, in blocks of `threads` threads; at least one block."""
    return (max(1, -(-items // threads)),)


class RandomWords:
    """An array of random words on a GPU, filled by a kernel that is queued and not waited for.

    `array` is uint8 of shape (size_bytes,), a multiple of 8 bytes; its 64-bit word i is `gb_random(seed, i)`."""

    def __init__(self, bench: gb.Bench, size_bytes: int, draw: int = 0) -> None:
        self._bench = bench
        self._count = np.uint64(size_bytes // _WORD_BYTES)
        self._grid = (min(grid_of(size_bytes // _WORD_BYTES, _THREADS)[0], _MOST_BLOCKS),)
        self.seed = np.uint64(bench.rng.integers(2**64, size=draw + 1, dtype=np.uint64)[draw])
        self.array = bench.xp.empty(size_bytes, np.uint8)
        bench.kernel("words.cu", "fill")(self._grid, (_THREADS,), (self.array, self._count, self.seed))

    def verifier(self, array: Any) -> Callable[[], None]:
        """Return a check that raises WrongAnswer unless `array`, on the device, holds the words of this array."""
        kernel = self._bench.kernel("words.cu", "mistakes")
        mistakes = self._bench.xp.zeros(1, np.uint64)
        args = (array, self._count, self.seed, mistakes)
        count = partial(kernel, self._grid, (_THREADS,), args)
        return partial(expect_no_mistakes, self._bench, count, mistakes, int(self._count), "words")


class CopiedWords(RandomWords):
    """Random words in `array`, and a second array, `copied`, which must hold the same words after a copy.

    `check` raises WrongAnswer if the second array does not hold them."""

    def __init__(self, bench: gb.Bench, size_bytes: int, draw: int = 0) -> None:
        super().__init__(bench, size_bytes, draw)
        self.copied = bench.xp.zeros(size_bytes, np.uint8)
        self.check = self.verifier(self.copied)
