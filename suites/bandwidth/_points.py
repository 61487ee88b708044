"""The points of the bandwidth suite's axes by tier: pure functions of a Target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpubench.api.suite import POINT, TIER, Effort, Target, points, powers_of_two

CACHES = 4  # an array this many times the last-level cache comes from memory
UNKNOWN_CACHE = 2**25
_CACHED = 2**23  # both arrays of a copy fit the last-level cache of data-centre GPUs since the A100
_FLOOR_BYTES = 2**32
_PASSED = 4  # a set that is passed again and again is so many times larger than an array that is met once
_KERNELS = ("read", "write", "copy", "scale", "add", "triad", "dot")

DTYPES = points(("float32",), full=("float32", "float64"))
KERNELS = points(("read",), full=_KERNELS)
ACCESSES = points(("read",), full=("read", "write"))
WIDTHS = points((4, 16), full=(4, 8, 16))
STRIDES = points((4, 32, 128), (32,), powers_of_two(2, 12))  # of words of 4 bytes, up to one a page
CHUNKS = points((4, 32, 128), (32,), powers_of_two(2, 7))  # from a word to a line


def cache_bytes(target: Target) -> int:
    """The last-level cache, or a guess where the device does not tell."""
    return target.device.cache_bytes or UNKNOWN_CACHE


def least(target: Target) -> int:
    """The smallest power of two that is a memory figure on this device."""
    return 1 << (CACHES * cache_bytes(target) - 1).bit_length()


def _fitting(target: Target, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of which three arrays leave room; the smallest in any case."""
    room = target.device.memory_bytes * 0.8 / 3
    return tuple(size for size in sizes if size <= room or not room) or sizes[:1]


def sizes(target: Target) -> Any:
    """Arrays that come from memory."""
    smallest = least(target)
    if target.is_host:
        return points(
            _fitting(target, (smallest,)), smoke=(2**24,), full=_fitting(target, (smallest, CACHES * smallest))
        )
    quick = _fitting(target, (max(smallest, 2**30),))
    return points(quick, smoke=_fitting(target, (smallest,)), full=_fitting(target, powers_of_two(26, 32, 2)))


def two_sizes(target: Target) -> Any:
    """On a GPU also 8 MiB, which a cache holds, and 4 GiB, the figure that a floor stands on, in `quick`."""
    found = sizes(target)
    if target.is_host:
        return found
    return points(_fitting(target, (_CACHED, max(least(target), 2**30), 2**32)), found.smoke, found.full)


def copy_sizes(target: Target) -> Any:
    """On a GPU also a size that its last-level cache holds: hot, cold and rotated differ there."""
    found = sizes(target)
    return found if target.is_host else points((_CACHED, *found.quick), found.smoke, (_CACHED, *found.full))


def one_size(target: Target) -> Any:
    """One size that comes from memory: the curve is over something else."""
    found = sizes(target)
    return points(found.quick[:1], found.smoke[:1], found.quick[:1])


def effort(target: Target, floor: bool = False) -> Effort:
    """How long a case is sampled at the least: in `quick` as a point among many, but where a floor stands on it."""
    return POINT if target.tier == "quick" and not floor else TIER


def is_floor(target: Target, size_bytes: int) -> bool:
    """Whether floors of read and copy stand on arrays of that size: 4 GiB, on the host the one that is measured."""
    return target.is_host or size_bytes >= _FLOOR_BYTES


def sweeps(target: Target) -> Any:
    """The kernels over a working set."""
    return points(("read",) if target.is_host else ("read", "copy"), full=("read", "write", "copy"))


def threads(target: Target) -> Any:
    """Threads that stay on each multiprocessor of a GPU (1536 is what all of them since 2020 hold); the host's own."""
    if target.is_host:
        most = max(1, target.device.units)
        every = [*(count for count in powers_of_two(0, 10) if count < most), most]
        return points((every[0], every[-1]) if most > 1 else (1,), (1,), every)
    return points((128, 512, 1536), (512,), (64, 128, 256, 512, 1024, 1536))


def working_sets(target: Target) -> Any:
    """On a GPU from 2 MiB to beyond its last-level cache; on the host one within each level, and memory.

    A cache that replaces at random still holds some of a set of 4 times its size, pass after pass; of 16 times none.
    """
    if target.is_host:
        return _levels(target)
    half, far = (cache_bytes(target) // 2).bit_length() - 1, (_PASSED * least(target)).bit_length() - 1
    return points((2 ** (half - 2), 2**half, 2 ** (half + 1), 2**far), (2**half,), powers_of_two(20, far + 1))


def _levels(target: Target) -> Any:
    """Half of each cache, of all threads together where every core has its own; a power of two."""
    found, details = [], dict(target.device.details)
    for level, shared in (("cache.l1", False), ("cache.l2", False), ("cache.l3", True)):
        nbytes = int(details.get(level, 0)) * (1 if shared else max(1, target.device.units)) // 2
        if nbytes:
            found.append(1 << nbytes.bit_length() - 1)
    rising = tuple(size for index, size in enumerate(found) if size > max(found[:index], default=0))
    return points((*rising, least(target)), rising[:1] or (2**20,), powers_of_two(14, least(target).bit_length() - 1))


LINK_SIZES = points((8, 2**16, 2**20, 2**24, 2**28), smoke=(2**24,), full=powers_of_two(3, 30, 3))
LINK_MEMORY = points(
    ("pinned", "pageable", "zero-copy"), full=("pinned", "pageable", "registered", "write-combined", "zero-copy")
)
_TELLING = {
    "pinned": (8, 2**16, 2**20, 2**28),
    "pageable": (2**16, 2**20, 2**28),
    "zero-copy": (8, 2**20, 2**24),
}
DUPLEX_SIZES = points((2**26,), smoke=(2**24,), full=powers_of_two(12, 30, 3))
DUPLEX_MEMORY = points(("pinned",), full=("pinned", "registered", "write-combined", "zero-copy"))


def tells(target: Target, params: Mapping[str, Any]) -> bool:
    """Whether a point of the link is one of the few of `quick`."""
    return target.tier != "quick" or params["size_bytes"] in _TELLING[params["memory"]]


def engines(target: Target) -> Any:
    """Three in quick: the third is the newest way of its architecture; all in full."""
    if target.is_host:
        return ("load-store", "memcpy")
    every = ("load-store", "memcpy", "async-copy", "bulk-copy")
    return points(("load-store", "memcpy", _newest(target)), (_newest(target),), every)


def engines_beside(target: Target) -> Any:
    """In quick the one that every program calls: the newest has a case of its own, on some multiprocessors."""
    return points(("memcpy",), full=engines(target).full)


def kernel_engines(target: Target) -> Any:
    """Those of the engines that are kernels, and so run on as many multiprocessors as one likes."""
    newest = _newest(target)
    return points(("load-store", newest), (newest,), ("load-store", "async-copy", "bulk-copy"))


def few_units_engines(target: Target) -> Any:
    """In quick the one that leaves most of a multiprocessor's issue slots free."""
    newest = _newest(target)
    return points((newest,), full=("load-store", newest))


def _newest(target: Target) -> str:
    return "bulk-copy" if _capability(target) >= 90 else "async-copy"


def has_products(target: Target) -> bool:
    """Whether the device multiplies matrices of float16 by a library."""
    return not target.is_host and "float16" in target.device.dtypes


def _capability(target: Target) -> int:
    """90 of sm_90; 0 of another vendor's."""
    number = target.device.arch.removeprefix("sm_")
    return int(number) if number.isdigit() else 0


def engine_sizes(target: Target) -> Any:
    """From one word to 1 GiB; on the host from 4 KiB, of which its check looks at every element."""
    largest = engine_size(target)[0]
    if target.is_host:
        return points((2**12, 2**20, 2**26), (2**20,), powers_of_two(12, 28))
    return points((8, 2**20, 2**23, largest), (2**20,), _fitting(target, (8, *powers_of_two(4, 30, 2))))


def engine_size(target: Target) -> tuple[int, ...]:
    """One size that comes from memory."""
    return _fitting(target, (max(least(target), 2**28),))


def units(target: Target) -> Any:
    """Numbers of multiprocessors, all of them at last."""
    every = max(1, target.device.units)
    below = [count for count in (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128, 192, 256) if count < every]
    quick = [count for count in (4, 16, 48) if count < every]
    return points((*quick, every), (every,), (*below, every))


def few_units(target: Target) -> Any:
    """Numbers of multiprocessors that leave most to another kernel."""
    return points((16,), full=tuple(count for count in (4, 8, 16, 32) if count < max(5, target.device.units)))
