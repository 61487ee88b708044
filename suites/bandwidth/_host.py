"""The host's kernels of the bandwidth suite beyond STREAM: the same meanings as in cache.cu and access.cu.

Importing this module imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import prange

from gpubench.api.suite import POINT, Bench, Observation, Stage, Task, Work, expect

from .._host import Compiled, parallel
from ._pattern import Pattern

_PASSED_BYTES = 2**27  # by one call, so that waking the threads does not show
_PARTS = 1024
_ODD = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35)  # the factors of access.cu
_ODD_0, _ODD_1, _ODD_2 = (np.uint64(factor) for factor in _ODD)
_ONE, _FIVE, _ALL = np.uint64(1), np.uint64(5), np.uint64(2**32 - 1)


def _xor_of(words: Any) -> Any:
    mine = np.uint64(0)
    for i in range(words.size):
        mine ^= words[i]
    return mine


_xor = numba.njit(_xor_of)


def _cached_read(rows: Any, passes: Any, parts: Any) -> None:
    for row in prange(rows.shape[0]):
        mine = np.uint64(0)
        for _ in range(passes):
            mine = mine * _FIVE + _xor(rows[row])
        parts[row] = mine


def _cached_copy(there: Any, back: Any, passes: Any) -> None:
    for row in prange(there.shape[0]):
        for turn in range(passes // 2):
            key = np.uint64(turn)  # or the compiler drops the passes: a copy of a copy is the same
            for i in range(there.shape[1]):
                there[row, i] = back[row, i] + key
            for i in range(there.shape[1]):
                back[row, i] = there[row, i] - key + _ONE


def _cached_write(rows: Any, passes: Any, value: Any) -> None:
    for row in prange(rows.shape[0]):
        for turn in range(passes):
            word = value + np.uint64(turn)
            for i in range(rows.shape[1]):
                rows[row, i] = word


def _shuffled_of(t: Any, bits: Any, turn: Any) -> Any:
    mask, half = _ALL >> (np.uint64(32) - bits), (bits + _ONE) // np.uint64(2)
    x = (t + turn) & mask
    x = (x * _ODD_0) & mask
    x ^= x >> half
    x = (x * _ODD_1) & mask
    x ^= x >> half
    x = (x * _ODD_2) & mask
    x ^= x >> half
    return x


_shuffled = numba.njit(inline="always")(_shuffled_of)


def _strided_read(words: Any, count: Any, stride: Any, parts: Any) -> None:
    each = count // parts.size
    for part in prange(parts.size):
        mine = np.uint32(0)
        for t in range(part * each, (part + 1) * each):
            mine ^= words[np.uint64(t) * stride]
        parts[part] = mine


def _random_read(chunks: Any, count: Any, bits: Any, turn: Any, parts: Any) -> None:
    each = count // parts.size
    for part in prange(parts.size):
        mine = np.uint32(0)
        for t in range(part * each, (part + 1) * each):
            chunk = _shuffled(np.uint64(t), bits, turn)
            for lane in range(chunks.shape[1]):
                mine ^= chunks[chunk, lane]
        parts[part] = mine


def _strided_write(words: Any, count: Any, stride: Any, key: Any) -> None:
    for t in prange(count):
        words[np.uint64(t) * stride] = np.uint32(t) ^ key


def _random_write(chunks: Any, count: Any, bits: Any, turn: Any, key: Any) -> None:
    for t in prange(count):
        chunk = _shuffled(np.uint64(t), bits, turn)
        for lane in range(chunks.shape[1]):
            chunks[chunk, lane] = np.uint32(t) ^ key


_READS = {"strided": parallel(_strided_read), "random": parallel(_random_read)}
_WRITES = {"strided": parallel(_strided_write), "random": parallel(_random_write)}
_read, _copy, _write = parallel(_cached_read), parallel(_cached_copy), parallel(_cached_write)


def working_set(bench: Bench, kernel: str, size_bytes: int) -> Task:
    """Passes over a working set that is split over the threads; a copy goes there and back."""
    threads = numba.get_num_threads()
    share = size_bytes // 8 // threads // (2 if kernel == "copy" else 1)
    rows = bench.rng.integers(2**64, size=(threads, share), dtype=np.uint64)
    passes = max(2, _PASSED_BYTES // rows.nbytes // 2 * 2)
    moved = passes * rows.nbytes * (2 if kernel == "copy" else 1)
    call, check, poison = {"read": _reading, "copy": _copying, "write": _writing}[kernel](rows, passes, bench)
    stage = Stage(call, Work(moved=moved, payload=passes * rows.nbytes), "moved", effort=POINT)
    return Task.of(stage, check=check, poison=poison)


_Rows = npt.NDArray[np.uint64]
_Built = tuple[Callable[[], None], Callable[[], Observation], Callable[[], None]]  # call, check, poison


def _reading(rows: _Rows, passes: int, bench: Bench) -> _Built:
    del bench
    parts = np.zeros(len(rows), np.uint64)
    factor = np.uint64((5**passes - 1) // 4 % 2**64)  # of x = 5·x + once, so many times from 0
    expected = np.bitwise_xor.reduce(rows, axis=1) * factor

    def check() -> Observation:
        expect(np.array_equal(parts, expected), "a thread's result is wrong")
        return {}

    return lambda: _read(rows, passes, parts), check, lambda: parts.fill(0)


def _copying(rows: _Rows, passes: int, bench: Bench) -> _Built:
    del bench
    there, back, half = np.zeros_like(rows), rows.copy(), np.uint64(passes // 2)

    def poison() -> None:
        there.fill(0)
        np.copyto(back, rows)

    def check() -> Observation:
        turns = back[0, :1] - rows[0, :1]  # one a call and turn of its passes
        expect(bool(turns > 0) and not turns % half, f"{turns} turns are no whole calls")
        last = rows + turns - _ONE + (half - _ONE)
        wrong = np.count_nonzero(back != rows + turns) + np.count_nonzero(there != last)
        expect(wrong == 0, f"{wrong} words are wrong")
        return {}

    return lambda: _copy(there, back, passes), check, poison


def _writing(rows: _Rows, passes: int, bench: Bench) -> _Built:
    value = np.uint64(bench.rng.integers(2**63))

    def check() -> Observation:
        wrong = np.count_nonzero(rows != value + np.uint64(passes - 1))
        expect(wrong == 0, f"{wrong} words are wrong")
        return {}

    return lambda: _write(rows, passes, value), check, lambda: rows.fill(0)


_Accesses = tuple[Callable[[], None], Callable[[], None], Callable[[], None]]  # call, check, poison


def accesses(bench: Bench, access: str, pattern: Pattern, size_bytes: int) -> _Accesses:
    """Reads or writes in the pattern's order, over all threads: call, check, poison."""
    words = bench.rng.integers(2**32, size=size_bytes // 4, dtype=np.uint32)
    order, _, _ = pattern.name.partition("_")
    if order == "strided":
        (stride,) = (int(each) for each in pattern.args)
        array, count, args = words, pattern.count, [np.uint64(stride)]
        places: Any = slice(0, count * stride, stride)
    else:
        bits, shift, turn = (int(each) for each in pattern.args)
        array, count, args = words.reshape(-1, 2**shift), pattern.count >> shift, [np.uint64(bits), np.uint64(turn)]
        places = _shuffle(count, bits, turn)
    if access == "write":
        return _putting(bench, _WRITES[order], array, places, (count, *args))
    return _taking(_READS[order], array, places, (count, *args))


def _taking(kernel: Compiled, array: Any, places: Any, args: tuple[Any, ...]) -> _Accesses:
    parts = np.zeros(_PARTS, np.uint32)
    expected = np.bitwise_xor.reduce(array[places].reshape(_PARTS, -1), axis=1)

    def check() -> None:
        wrong = np.count_nonzero(parts != expected)
        expect(wrong == 0, f"{wrong} of {_PARTS} partial results are wrong")

    return lambda: kernel(array, *args, parts), check, lambda: parts.fill(0)


def _putting(bench: Bench, kernel: Compiled, array: Any, places: Any, args: tuple[Any, ...]) -> _Accesses:
    key, count = np.uint32(bench.rng.integers(2**32, size=3)[2]), args[0]

    def check() -> None:
        right = np.arange(count, dtype=np.uint32) ^ key
        wrong = np.count_nonzero(array[places].reshape(count, -1) != right[:, None])
        expect(wrong == 0, f"{wrong} words are wrong")

    return lambda: kernel(array, *args, key), check, lambda: array.fill(0)


def _shuffle(count: int, bits: int, turn: int) -> npt.NDArray[np.uint64]:
    """Where each chunk of the random order is, by NumPy's own arithmetic."""
    mask, half = np.uint64(2**bits - 1), np.uint64((bits + 1) // 2)
    x = np.arange(count, dtype=np.uint64) + np.uint64(turn) & mask
    for factor in _ODD:
        x = x * np.uint64(factor) & mask
        x ^= x >> half
    return x
