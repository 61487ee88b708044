"""Describe which parts of an array a kernel accesses: words at a stride, or chunks in random order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AccessPattern:
    """`count` accesses to an array of `size_bytes`, each of `width_bytes`.

    `order` is `strided` or `random`. `args` are the arguments of the kernel that say where access t lies: the stride in
    words, or (the base-2 logarithm of the number of chunks in the array, that of the accesses per chunk, a random
    32-bit number that selects the order). `payload` counts the bytes that are asked for, `moved` the bytes of the
    sectors that hold them.
    """

    order: str
    width_bytes: int
    args: tuple[Any, ...]
    count: int
    payload: int
    moved: int
    size_bytes: int
