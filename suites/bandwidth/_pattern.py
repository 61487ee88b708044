"""Strided and random accesses, as the kernels of the GPU and of the host both take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Pattern:
    """Accesses, `count` of them, that ask for `payload` bytes in `moved` bytes of sectors.

    `name` is of the kernels, `args` what says where access t is.
    """

    name: str
    count: int
    args: tuple[Any, ...]
    payload: int
    moved: int
