"""The curve: a walk over working sets from 1 KiB to beyond what caches and page tables reach; host pages."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api.suite import POINT, Bench, Skip, Target, Task, points

from ._ring import HOST_LINE_BYTES, GpuRing, Order, Walk, host_kernel

CACHES = 4  # a ring this many times the last-level cache is read from memory
_PAGES = 32  # fewer lines than so many show the few slices of the cache that they lie in
_LEAST_REACH = 2**23
PAGE_BYTES = 2**21  # the large page of NVIDIA's GPUs and of most hosts
_UNKNOWN_CACHE = 2**25
_FIRST_BYTES = 2**10
_CACHES_FROM, _CACHES_TO = 2**13, 2**30  # where caches of GPUs and of hosts end
_HOST_MOST = 2**30  # a larger ring takes seconds to write
_DENSE = 8  # points an octave where a level is looked for: at most 12 % apart
_GPU_AROUND, _HOST_AROUND = (0.4, 1.8), (0.6, 1.5)  # of a reported size: a GPU's cache may be of two parts
_NEAR_STEPS, _STEPS, _FAR_STEPS = 2**16, 2**13, 2**12  # a millisecond or so each
_FITS = 0.6  # of twice what a unit can hold: such a ring mostly hits the first cache
_HOST_STEPS = ((2**20, 2**18), (2**25, 2**16))  # steps of rings up to so many bytes


def cache_bytes(target: Target) -> int:
    """The last-level cache, or a guess where nobody says."""
    return target.device.cache_bytes or _UNKNOWN_CACHE


def memory_bytes(target: Target) -> int:
    """A power of two of at least four times the last-level cache: a ring of it is read from memory."""
    enough: int = 1 << (CACHES * cache_bytes(target) - 1).bit_length()
    return min(enough, _HOST_MOST) if target.is_host else enough


def near_bytes(target: Target) -> int:
    """Rings up to here are put into the first cache before each sample: twice what one unit can hold."""
    return 2 * int(dict(target.device.details).get("shared.unit_bytes", 2**17))


def working_sets(target: Target) -> Any:
    """A point an octave, two from 8 KiB to 1 GiB, eight where the facts suggest a level; in full twice as many.

    smoke: one in the first cache, one in memory.
    """
    memory = memory_bytes(target)
    room = target.device.memory_bytes * 3 // 4 or memory
    quick, full = (memory, min(room, _HOST_MOST)) if target.is_host else (max(memory, room),) * 2
    return points(smoke=(2**14, memory), quick=_curve(target, quick, 1), full=_curve(target, max(memory, full), 2))


def _levels(target: Target) -> list[int]:
    """Sizes of caches as the facts have them: hints where to look closely, no more."""
    details = dict(target.device.details)
    caches = [int(size) for name, size in details.items() if name.startswith("cache.l")]
    unit = [int(details["shared.unit_bytes"])] if "shared.unit_bytes" in details else []
    return sorted({*caches, *unit, target.device.cache_bytes} - {0})


def _curve(target: Target, last: int, times: int) -> tuple[int, ...]:
    """Sizes from 1 KiB to `last`, so many times a point an octave, more where caches end, most round each level."""
    found = {*_grid(_FIRST_BYTES, last, times), *_grid(_CACHES_FROM, min(last, _CACHES_TO), 2 * times), largest(last)}
    lowest, highest = _HOST_AROUND if target.is_host else _GPU_AROUND
    for level in _levels(target):
        around = max(_FIRST_BYTES, int(level * lowest)), min(last, int(level * highest))
        found |= set(_grid(*around, _DENSE * times))
    return tuple(sorted(found))


def largest(room: int) -> int:
    """The largest of 2, 3, 4, 6, 8, 12, … bytes that fits: what translations do not reach must be in the curve."""
    return max(_grid(room // 2, room, 2))


def _grid(first: int, last: int, octave: int) -> Iterable[int]:
    """So many sizes an octave, evenly between its powers of two: 16, 18, 20, … 32 KiB."""
    for exponent in range(first.bit_length() - 1, last.bit_length()):
        sizes = ((1 << exponent) * (octave + step) // octave for step in range(octave))
        yield from (size for size in sizes if first <= size <= last)


def chase(bench: Bench, size_bytes: int) -> Task:
    """The walk on this device."""
    if bench.traits.is_gpu:
        return _gpu_chase(bench, size_bytes)
    return host_walk(bench, _array(bench, size_bytes), size_bytes).task(
        POINT, {"cycles": "a processor has no clock that a program can read in core cycles"}
    )


def _gpu_chase(bench: Bench, size_bytes: int) -> Task:
    """The nearest rings are swept before every sample, since a launch begins with an empty first cache."""
    bench.need(size_bytes)
    near, last = near_bytes(bench.target), cache_bytes(bench.target)
    ring = GpuRing.linked(bench, bench.xp.empty(size_bytes, bench.xp.uint8), size_bytes)
    if size_bytes <= near:
        steps = _NEAR_STEPS if size_bytes <= _FITS * near else _STEPS
        return ring.walk(steps, sweep=True).task(POINT, {"warm": "swept before each sample"})
    if size_bytes < CACHES * last:
        ring.settle()
        steps = _STEPS if size_bytes <= last // 2 else _FAR_STEPS
        return ring.walk(steps, sweep=False).task(POINT, {"warm": "swept once, then walked on"})
    bench.device.flush()
    return ring.walk(_FAR_STEPS, sweep=False).task(POINT, {"warm": "flushed, then walked on"})


def reaches(target: Target) -> Any:
    """How much memory the walk by pages spreads over: powers of two, and the largest that three quarters hold."""
    room = max(target.device.memory_bytes * 3 // 4, _LEAST_REACH)
    every = sorted({*_grid(_LEAST_REACH, room, 1), largest(room)})
    return points(smoke=every[:1], quick=[size for size in every if size >= _PAGES * PAGE_BYTES] or every, full=every)


def reach(bench: Bench, reach_bytes: int) -> Task:
    """One line a page: the lines stay in the last-level cache, the translations do not."""
    bench.need(reach_bytes)
    ring = GpuRing.linked(bench, bench.xp.empty(reach_bytes, bench.xp.uint8), reach_bytes, PAGE_BYTES)
    for _ in range(2):
        ring.settle("chase_l2")
    return ring.walk(_STEPS, sweep=False, kernel="chase_l2").task(
        POINT, {"pages": "2 MiB apart, a random line of each"}
    )


def _array(bench: Bench, size_bytes: int) -> Any:
    bench.need(size_bytes)
    return np.empty(size_bytes // 8, np.uint64)


def host_walk(bench: Bench, ring: Any, size_bytes: int) -> Walk:
    """A walk by one thread; nodes hold unsigned word indices: a signed one costs instructions for negative ones.

    The ring is written in its own order, so that what is met first was written longest ago; one of less than four
    times the last-level cache is then read in its order too, by the thread that walks it.
    """
    words = HOST_LINE_BYTES // 8
    order = Order.drawn(bench.rng, size_bytes // HOST_LINE_BYTES - 1, HOST_LINE_BYTES, HOST_LINE_BYTES)
    host_kernel("link")(ring, order.keys, np.uint64(words))
    if size_bytes < CACHES * cache_bytes(bench.target):
        host_kernel("sweep")(ring, order.keys, np.uint64(words))
    state = np.array([order.at(0) * words], np.uint64)
    steps = next((steps for most, steps in _HOST_STEPS if size_bytes <= most), 2**14)
    kernel = host_kernel("chase")
    return Walk(bench, lambda: kernel(ring, steps, state), lambda i: order.at(i % order.nodes) * words, state, steps)


def page_sizes(target: Target) -> Any:
    """A ring that is read from memory; in full larger ones too."""
    memory = memory_bytes(target)
    return points(smoke=(2**23,), quick=(memory,), full=sorted({2**24, memory, _HOST_MOST}))


def pages(bench: Bench, page: str, size_bytes: int) -> Task:
    """A ring in memory of large pages or of small ones, asked for by madvise(2)."""
    bench.need(size_bytes)
    area = mmap.mmap(-1, size_bytes + PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE if page == "2MiB" else mmap.MADV_NOHUGEPAGE)
    every = np.frombuffer(area, np.uint8)
    ring = every[-every.ctypes.data % PAGE_BYTES :][:size_bytes].view(np.uint64)
    walk = host_walk(bench, ring, size_bytes)
    huge = _huge_bytes(every.ctypes.data)
    if page == "2MiB" and huge < size_bytes // 2:
        raise Skip("the kernel gave no large pages; see /sys/kernel/mm/transparent_hugepage/enabled")
    return walk.task(POINT, {"pages": f"{huge} of {size_bytes} B in large pages"})


def _huge_bytes(address: int) -> int:
    """How much of the mapping at this address is in transparent huge pages: AnonHugePages of proc(5), smaps."""
    text = Path("/proc/self/smaps").read_text()
    for entry in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.MULTILINE)[1:]:
        first, last = (int(end, 16) for end in entry.split(None, 1)[0].split("-"))
        if first <= address < last:
            found = re.search(r"^AnonHugePages:\s*(\d+) kB", entry, re.MULTILINE)
            return int(found[1]) * 2**10 if found else 0
    return 0
