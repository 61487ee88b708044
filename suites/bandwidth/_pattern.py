"""Describe which parts of an array a kernel accesses: words at a stride, or chunks in random order."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

ODD = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35)  # the factors of access.cu


@dataclass(frozen=True, slots=True)
class AccessPattern:
    """`count` accesses to an array of `size_bytes`, each of `width_bytes`.

    `order` is `strided` or `random`."""

    order: str
    width_bytes: int
    args: tuple[Any, ...]
    count: int
    payload: int
    moved: int
    size_bytes: int

    def places(self, accesses: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return the indices of the words that these accesses have, computed without the code that is timed."""
        if self.order == "strided":
            return accesses * np.uint64(self.args[0])
        bits, shift, turn = (np.uint64(number) for number in self.args)
        mask, half = np.uint64(2 ** int(bits) - 1), (bits + np.uint64(1)) // np.uint64(2)
        x = (accesses >> shift) + turn & mask
        for factor in ODD:
            x = x * np.uint64(factor) & mask
            x ^= x >> half
        return x << shift | accesses & (np.uint64(1) << shift) - np.uint64(1)
