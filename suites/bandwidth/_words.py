"""Fill a GPU's memory with random 64-bit words, which a check computes again from their seed."""

from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

_WORD_BYTES = 8


def grid_of(items: int, threads: int) -> tuple[int]:
    """Return the grid that has at least one thread per item, in blocks of `threads` threads; at least one block."""
    return (max(1, -(-items // threads)),)


def random_words(bench: gb.Bench, size_bytes: int, draw: int = 0) -> gb.Words:
    """Return known words of `size_bytes`, a multiple of 8, whose seed is number `draw` of the case's random numbers."""
    seed = int(bench.rng.integers(2**64, size=draw + 1, dtype=np.uint64)[draw])
    return bench.words(size_bytes // _WORD_BYTES, seed)


def expect_words(known: gb.Words, array: Any) -> None:
    """Raise WrongAnswer unless `array`, in memory of the device, holds the words."""
    wrong = known.wrong(array)
    gb.expect(wrong == 0, f"{wrong} of {known.count} words are wrong")


class CopiedWords:
    """Random words in `array`, and a second array, `copied`, which must hold the same words after a copy.

    `check` raises WrongAnswer if the second array does not hold them, and `redraw` puts other words in the first."""

    def __init__(self, bench: gb.Bench, size_bytes: int, draw: int = 0) -> None:
        sent = random_words(bench, size_bytes, draw)
        self.array, self.copied = sent.array, bench.xp.zeros(size_bytes, np.uint8)
        self.check, self.redraw = partial(expect_words, sent, self.copied), partial(sent.redraw, sent.array)
