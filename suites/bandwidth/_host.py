"""Run kernels of the bandwidth suite on the host, beyond STREAM, with the same meanings as in cache.cu and access.cu.

Importing this module imports numba."""

from functools import partial
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import prange

from gpubench.api import suite as gb

from .._checks import CheckedCall, expect_equal, flipping
from .._host import Compiled, parallel, placed, xor_of
from ._pattern import ODD, AccessPattern

_PASSED_BYTES = 2**27  # bytes that one call moves, so that the time to wake the threads is negligible
_PARTS = 1024
_ODD_0, _ODD_1, _ODD_2 = (np.uint64(factor) for factor in ODD)
_ONE, _FIVE, _ALL = np.uint64(1), np.uint64(5), np.uint64(2**32 - 1)


def _cached_read(rows: Any, passes: Any, parts: Any) -> None:
    """Write to parts[row] the result of x = 5·x + (exclusive or of rows[row]), repeated `passes` times from x = 0."""
    for row in prange(rows.shape[0]):
        combined = np.uint64(0)
        for _ in range(passes):
            combined = combined * _FIVE + xor_of(rows[row])
        parts[row] = combined


def _cached_copy(there: Any, back: Any, passes: Any) -> None:
    """Copy each row of `back` to `there` and back again, `passes` / 2 times; both are uint64."""
    for row in prange(there.shape[0]):
        for turn in range(passes // 2):
            # differs in each pass; otherwise the compiler would drop passes, because a copy of a copy is the same
            key = np.uint64(turn)
            for i in range(there.shape[1]):
                there[row, i] = back[row, i] + key
            for i in range(there.shape[1]):
                back[row, i] = there[row, i] - key + _ONE


def _cached_write(rows: Any, passes: Any, value: Any) -> None:
    """Overwrite the words of `rows` (uint64) `passes` times; pass i writes value + i, and keeps word i of each row."""
    for row in prange(rows.shape[0]):
        for turn in range(passes):
            word, place = value + np.uint64(turn), turn % rows.shape[1]
            kept = rows[row, place]
            for i in range(rows.shape[1]):
                rows[row, i] = word
            rows[row, place] = kept


def _permute(t: Any, bits: Any, turn: Any) -> Any:
    """Return the place of access `t` in a pseudo-random permutation of the numbers below 2^`bits`, as in access.cu."""
    mask, half = _ALL >> (np.uint64(32) - bits), (bits + _ONE) // np.uint64(2)
    x = (t + turn) & mask
    x = (x * _ODD_0) & mask
    x ^= x >> half
    x = (x * _ODD_1) & mask
    x ^= x >> half
    x = (x * _ODD_2) & mask
    x ^= x >> half
    return x


_permuted = numba.njit(inline="always")(_permute)


def _strided_read(array: Any, count: Any, stride: Any, parts: Any) -> None:
    """Write to each element of `parts` the exclusive or of one share of `count` words of `array`."""
    share = count // parts.size
    for part in prange(parts.size):
        combined = np.uint32(0)
        for t in range(part * share, (part + 1) * share):
            combined ^= array[np.uint64(t) * stride]
        parts[part] = combined


def _random_read(chunks: Any, count: Any, bits: Any, turn: Any, parts: Any) -> None:
    """Write to each element of `parts` the exclusive or of one share of `count` chunks."""
    share = count // parts.size
    for part in prange(parts.size):
        combined = np.uint32(0)
        for t in range(part * share, (part + 1) * share):
            chunk = _permuted(np.uint64(t), bits, turn)
            for lane in range(chunks.shape[1]):
                combined ^= chunks[chunk, lane]
        parts[part] = combined


def _strided_write(array: Any, count: Any, stride: Any, key: Any) -> None:
    for t in prange(count):
        array[np.uint64(t) * stride] = np.uint32(t) ^ key


def _random_write(chunks: Any, count: Any, bits: Any, turn: Any, key: Any) -> None:
    for t in prange(count):
        chunk = _permuted(np.uint64(t), bits, turn)
        for lane in range(chunks.shape[1]):
            chunks[chunk, lane] = np.uint32(t) ^ key


_READS = {"strided": parallel(_strided_read), "random": parallel(_random_read)}
_WRITES = {"strided": parallel(_strided_write), "random": parallel(_random_write)}
_read, _copy, _write = parallel(_cached_read), parallel(_cached_copy), parallel(_cached_write)

_Rows = npt.NDArray[np.uint64]


def working_set(bench: gb.Bench, kernel: str, size_bytes: int) -> gb.Task:
    """Return the task of passes over a working set of `size_bytes`, in which each thread has its own part of the set.

    `kernel` is `read`, `write` or `copy`. A copy goes there and back, so that the passes differ."""
    threads = numba.get_num_threads()
    share = size_bytes // 8 // threads // (2 if kernel == "copy" else 1)
    rows = placed(bench.rng.integers(2**64, size=(threads, share), dtype=np.uint64))
    passes = max(2, _PASSED_BYTES // rows.nbytes // 2 * 2)
    if kernel == "read":
        checked = _read_passes(rows, passes)
    elif kernel == "copy":
        checked = _copy_passes(rows, passes)
    else:
        checked = _write_passes(rows, passes, np.uint64(bench.rng.integers(2**63)))
    moved = passes * rows.nbytes * (2 if kernel == "copy" else 1)
    work = gb.Work(moved=moved, payload=passes * rows.nbytes)
    return gb.Task.of(checked.stage(work), check=checked.check, poison=checked.poison)


def _read_passes(rows: _Rows, passes: int) -> CheckedCall:
    parts = np.zeros(len(rows), np.uint64)
    factor = np.uint64((5**passes - 1) // 4 % 2**64)  # closed form of `passes` times x = 5·x + xor of the row, from 0
    combined = np.bitwise_xor.reduce(rows, axis=1)
    redraw = flipping(rows[:, 0].view(np.int64), combined.view(np.int64))  # one word of each row changes its result

    def check() -> None:
        expect_equal(parts, combined * factor, "threads' results")

    doubled = partial(_read, rows, 2 * passes, parts)
    return CheckedCall(lambda: _read(rows, passes, parts), check, (parts,), inputs=redraw, doubled=doubled)


def _copy_passes(rows: _Rows, passes: int) -> CheckedCall:
    """Return the call that copies `rows` there and back, `passes` / 2 times each, with its check."""
    there, back, half = placed(np.zeros_like(rows)), placed(rows), np.uint64(passes // 2)

    def check() -> None:
        """Raise WrongAnswer unless the words counted whole calls and both arrays hold the last round trip's words."""
        turns = back[0, :1] - rows[0, :1]  # every call adds one for each copy there and back
        gb.expect(bool(turns > 0) and not turns % half, f"{turns[0]} turns are not a whole number of calls")
        last = rows + turns - _ONE + (half - _ONE)
        expect_equal(back, rows + turns, "words")
        expect_equal(there, last, "words")

    poison, doubled = partial(np.copyto, back, rows), partial(_copy, there, back, 2 * passes)
    return CheckedCall(lambda: _copy(there, back, passes), check, (there,), poison=poison, doubled=doubled)


def _write_passes(rows: _Rows, passes: int, value: np.uint64) -> CheckedCall:
    """Return the call that writes `rows` `passes` times, with its check for the words of the last two passes."""
    expected = np.full(rows.shape[1], value + np.uint64(passes - 1))
    expected[(passes - 1) % rows.shape[1]] -= _ONE  # by the pass before: none of two passes is left out
    check = partial(expect_equal, rows, expected, "words")
    doubled = partial(_write, rows, 2 * passes, value)
    return CheckedCall(lambda: _write(rows, passes, value), check, (rows,), doubled=doubled)


def accesses(bench: gb.Bench, access: str, pattern: AccessPattern) -> CheckedCall:
    """Return the reads or writes (`access`: `read` or `write`) of a pattern by all threads, with their check."""
    array = placed(bench.rng.integers(2**32, size=pattern.size_bytes // 4, dtype=np.uint32))
    if pattern.order == "strided":
        stride, count = pattern.args[0], pattern.count
        args: tuple[Any, ...] = (count, stride)
        places: Any = slice(0, count * int(stride), int(stride))
    else:
        bits, shift, turn = (int(number) for number in pattern.args)
        array, count = array.reshape(-1, 2**shift), pattern.count >> shift
        args = count, np.uint64(bits), np.uint64(turn)
        places = pattern.places(np.arange(count, dtype=np.uint64) << np.uint64(shift)) >> np.uint64(shift)
    if access == "read":
        return _read_places(_READS[pattern.order], array, places, args)
    key = np.uint32(bench.rng.integers(2**32, size=3)[2])
    return _write_places(_WRITES[pattern.order], array, places, (*args, key))


def _read_places(kernel: Compiled, array: Any, places: Any, args: tuple[Any, ...]) -> CheckedCall:
    parts = np.zeros(_PARTS, np.uint32)
    expected = np.bitwise_xor.reduce(array[places].reshape(_PARTS, -1), axis=1)
    check = partial(expect_equal, parts, expected, "partial results")
    first = array[:1] if isinstance(places, slice) else array[int(places[0]), :1]
    redraw = flipping(first.view(np.int32), expected[:1].view(np.int32))  # one word changes the result of its part
    return CheckedCall(lambda: kernel(array, *args, parts), check, (parts,), inputs=redraw)


def _write_places(kernel: Compiled, array: Any, places: Any, args: tuple[Any, ...]) -> CheckedCall:
    """Return the call that writes array[places], with its check: place i must hold i ^ key in each of its words."""
    count, *_, key = args

    def check() -> None:
        expected = np.arange(count, dtype=np.uint32) ^ key
        expect_equal(array[places].reshape(count, -1), expected[:, None], "words")

    return CheckedCall(lambda: kernel(array, *args), check, (array,))
