"""Choose array sizes that memory serves and not a cache, and share other axes and curves of the topics."""

from functools import partial
from typing import Any

from gpubench.api import suite as gb

CACHES = 4  # an array this many times larger than the last-level cache is read from memory
_UNKNOWN_CACHE_BYTES = 2**25

WIDTHS = gb.points((4, 16), full=(4, 8, 16))  # bytes per access
log_curve = partial(gb.View, "curve", series="hot", log_x=True)


def cache_bytes(target: gb.Target) -> int:
    """Return the size of the last-level cache in bytes, or 32 MiB if the device does not report it."""
    return target.device.cache_bytes or _UNKNOWN_CACHE_BYTES


def is_cached(target: gb.Target, size_bytes: int) -> bool:
    """Return whether the last-level cache may serve part of an array of `size_bytes`: below four times its size."""
    return size_bytes < CACHES * cache_bytes(target)


def memory_limit(target: gb.Target, size_bytes: int) -> str:
    """Return the name of the peak with which an array of `size_bytes` is compared: `dram`, or empty if `is_cached`."""
    return "" if is_cached(target, size_bytes) else "dram"


def smallest_in_memory(target: gb.Target) -> int:
    """Return the smallest power of two, in bytes, of at least four last-level caches."""
    return 1 << (CACHES * cache_bytes(target) - 1).bit_length()


def fitting(target: gb.Target, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes in bytes of which three arrays fit into 80 % of the memory; if there are none, the first size.

    All sizes fit if the device does not report its memory."""
    limit = target.device.memory_bytes * 0.8 / 3
    return tuple(size for size in sizes if size <= limit or not limit) or sizes[:1]


def array_sizes(target: gb.Target) -> Any:
    """Return the axis of array sizes in bytes that memory serves: powers of two of at least four last-level caches.

    Three arrays of each size fit into the memory."""
    smallest = smallest_in_memory(target)
    if target.is_host:
        full = fitting(target, (smallest, CACHES * smallest))
        return gb.points(fitting(target, (smallest,)), smoke=(2**24,), full=full)
    quick = fitting(target, (max(smallest, 2**30),))
    return gb.points(quick, smoke=fitting(target, (smallest,)), full=fitting(target, gb.powers_of_two(26, 32, 2)))


def one_array_size(target: gb.Target) -> Any:
    """Return an axis of a single array size per tier, which memory serves, for curves over another axis."""
    sizes = array_sizes(target)
    return gb.points(sizes.quick[:1], sizes.smoke[:1], sizes.quick[:1])
