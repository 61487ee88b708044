"""Describe which parts of an array a kernel accesses: words at a stride, or chunks in random order."""

from dataclasses import dataclass
from typing import Any


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
