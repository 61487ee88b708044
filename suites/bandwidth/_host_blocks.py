"""Copy many blocks in the memory of the host by functions that numba compiles: one thread in a loop, or all threads."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numba
import numpy as np
from numba import prange

from .._checks import in_turn
from .._host import parallel


def _scatter(pool: Any, packed: Any, places: Any) -> None:
    for i in prange(places.size):
        pool[places[i]] = packed[i]


def _gather(pool: Any, packed: Any, places: Any) -> None:
    for i in prange(places.size):
        packed[i] = pool[places[i]]


_LOOPS = {True: numba.njit(cache=True)(_scatter), False: numba.njit(cache=True)(_gather)}
_KERNELS = {True: parallel(_scatter), False: parallel(_gather)}


def copy(way: str, pool: Any, packed: Any, staging: Any, places: Any, is_scatter: bool) -> Callable[[], object]:
    """Return the copy of row i of `packed` to row places[i] of `pool` for all i, or back if not `is_scatter`.

    The three memories are uint64 arrays of shape (blocks, words)."""
    if way == "loop":
        return partial(_LOOPS[is_scatter], pool, packed, places)
    if way == "kernel":
        return partial(_KERNELS[is_scatter], pool, packed, places)
    kernel = partial(_KERNELS[is_scatter], pool, staging, places)
    if is_scatter:
        return in_turn(partial(np.copyto, staging, packed), kernel)
    return in_turn(kernel, partial(np.copyto, packed, staging))
