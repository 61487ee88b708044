"""Set flags in host memory that processes share, and wait for them, by code that numba compiles.

The compiler neither moves nor drops these loads and stores. Every wait ends after a number of looks at the flag.
Importing this module imports numba."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_CLOCK_MONOTONIC = 1
_SECOND_NS = 1_000_000_000
_CLOCK_LOOKS = 1000

Compiled = Callable[..., Any]

# libc's function is found by name when the code is loaded, so that the machine code can be cached on disk.
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))


def _emit_load(typing: Any, address: Any) -> Any:
    """Return numba's signature and code generator for a load of the 64-bit word at an address (uint64)."""
    del typing, address

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        place = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(place, "acquire", 8)

    return types.uint64(types.uint64), emit


def _emit_store(typing: Any, address: Any, value: Any) -> Any:
    """Return numba's signature and code generator for a store of a uint64 word at an address (uint64)."""
    del typing, address, value

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del signature
        place = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store_atomic(args[1], place, "release", 8)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), emit


def _compiled(function: Compiled) -> Compiled:
    compiled: Compiled = numba.njit(cache=True)(function)
    return compiled


seen: Compiled = intrinsic(_emit_load)
post: Compiled = intrinsic(_emit_store)


def _read_clock(pair: Any) -> Any:
    """Return the nanoseconds of CLOCK_MONOTONIC; `pair` is room for the clock's two numbers, int64."""
    _clock_gettime(_CLOCK_MONOTONIC, pair.ctypes.data)
    return pair[0] * _SECOND_NS + pair[1]


def _wait_for_value(address: Any, value: Any, looks: Any) -> Any:
    """Return True as soon as the word at `address` is at least `value`, or False after `looks` reads."""
    left = looks
    while seen(address) < value:
        left -= 1
        if left == 0:
            return False
    return True


now = _compiled(_read_clock)
reaches = _compiled(_wait_for_value)


def _ping_pong(watched: Any, written: Any, serves: Any, start: Any, looks: Any, took: Any, pair: Any) -> Any:
    """Make the round trips of `ping_pong` for the same arguments with integers as uint64, and `pair` for the clock."""
    last = now(pair)
    for turn in range(took.size):
        value = np.uint64(start + np.uint64(turn + 1))
        if serves:
            post(written, value)
        if not reaches(watched, value, looks):
            return turn + 1
        if not serves:
            post(written, value)
        moment = now(pair)
        took[turn] = moment - last
        last = moment
    return 0


def _all_meet(flags: Any, step: Any, rank: Any, world: Any, start: Any, looks: Any, took: Any, pair: Any) -> Any:
    """Make the barriers of `all_meet` for the same arguments with integers as uint64, and `pair` for the clock."""
    last = now(pair)
    for turn in range(took.size):
        value = np.uint64(start + np.uint64(turn + 1))
        post(np.uint64(flags + rank * step), value)
        for other in range(world):
            if not reaches(np.uint64(flags + np.uint64(other) * step), value, looks):
                return turn + 1
        moment = now(pair)
        took[turn] = moment - last
        last = moment
    return 0


def _time_clock_reads(count: Any, pair: Any) -> Any:
    """Return the mean nanoseconds of `count` reads of CLOCK_MONOTONIC."""
    begin = end = now(pair)
    for _ in range(count):
        end = now(pair)
    return (end - begin) / count


def _clock_room() -> Any:
    """Return room for the clock's two numbers; compiled code that makes an array takes 0.4 s longer to compile."""
    return np.zeros(2, np.int64)


_compiled_ping_pong = _compiled(_ping_pong)
_compiled_all_meet = _compiled(_all_meet)
_compiled_time_clock_reads = _compiled(_time_clock_reads)


def ping_pong(watched: int, written: int, serves: bool, start: int, looks: int, took: Any) -> int:
    """Make `took.size` round trips with another process that calls this function too; exactly one of the two `serves`.

    Both write start + 1, start + 2, … as 64-bit words in shared memory, one value for each round trip."""
    return int(
        _compiled_ping_pong(
            np.uint64(watched), np.uint64(written), serves, np.uint64(start), looks, took, _clock_room()
        )
    )


def all_meet(flags: int, step: int, rank: int, world: int, start: int, looks: int, took: Any) -> int:
    """Make `took.size` barriers of `world` processes, each of which calls this function with its own `rank`, from 0.

    The 64-bit word of rank r is at the address flags + r · step, with `step` in bytes."""
    place = np.uint64(flags), np.uint64(step), np.uint64(rank)
    return int(_compiled_all_meet(*place, world, np.uint64(start), looks, took, _clock_room()))


def look_seconds() -> float:
    """Return the mean seconds of one read of the clock; every round of `ping_pong` and `all_meet` contains one read."""
    return float(_compiled_time_clock_reads(_CLOCK_LOOKS, _clock_room())) * 1e-9
