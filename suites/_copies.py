"""A copy between two memories that one process reaches, in each way that the suites of links compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpubench.api.suite import Bench

WAYS = ("pull", "push", "load", "store")
ARRAYS = 3  # of a case: the shared one, its own, and on the host the pattern that it is compared with
_THREADS = 256
_FLIGHT = 4  # loads under way in a thread, as in copies.cu
_MOST_BLOCKS = 2**16  # a thread for every four vectors of 1 GiB: on an H200 better than fewer that go round
_VECTOR_BYTES = 16
_WORD_BYTES = 8

Call = Callable[[], object]


def copier(bench: Bench, target: Any, source: Any) -> Call:
    """A copy by a kernel, bound and ready to be called; on the host one over all threads."""
    nbytes = int(source.size)
    if not bench.traits.is_gpu:
        from . import _host

        words = nbytes // _WORD_BYTES
        a, b = target.view(np.uint64), source.view(np.uint64)
        return lambda: _host.KERNELS["copy"](a, b, words)
    kernel = bench.kernel("copies.cu", "copy")
    vectors = nbytes // _VECTOR_BYTES
    words = nbytes % _VECTOR_BYTES // _WORD_BYTES
    blocks = max(1, min(-(-vectors // (_THREADS * _FLIGHT)), _MOST_BLOCKS))
    args = (source, target, np.uint64(vectors), np.uint64(words))
    return lambda: kernel((blocks,), (_THREADS,), args)


def call_of(bench: Bench, way: str, near: Any, far: Any) -> Call:
    """The copy of that way between this process's memory and another's: pull and load read it, push and store write."""
    target, source = (near, far) if way in ("pull", "load") else (far, near)
    if way in ("load", "store"):
        return copier(bench, target, source)
    return lambda: bench.device.copy(target, source)
