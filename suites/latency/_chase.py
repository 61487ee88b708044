"""Measure memory latency over the working set, from 1 KiB to beyond the reach of caches and TLBs."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._ring import CACHES, HOST_MOST_BYTES, PAGE_BYTES, GpuRing, cache_bytes, host_walk, memory_bytes

_PAGES = 32  # fewer lines than this lie in a few slices of the cache, and would show only the latency of these slices
_LEAST_REACH = 2**23
_FIRST_BYTES = 2**10
_CACHES_FROM, _CACHES_TO = 2**13, 2**30  # smallest and largest capacity of the caches of GPUs and hosts
_DENSE = 8  # points per octave near the size of a cache: at most 12 % apart
# As a multiple of a reported size; a GPU's cache may have two partitions.
_GPU_AROUND, _HOST_AROUND = (0.4, 1.8), (0.6, 1.5)
_NEAR_STEPS, _STEPS, _FAR_STEPS = 2**16, 2**13, 2**12  # about a millisecond each
_FITS = 0.6  # as a share of twice the memory of an SM or CU: a ring of this size mostly hits the first cache

topic = gb.Topic(
    views=[
        gb.View(
            "staircase", "Memory latency by working set", ("chase",), "size_bytes", series="hot", log_x=True, log_y=True
        ),
        gb.View("staircase", "TLB latency by footprint", ("reach",), "reach_bytes", series="hot", log_x=True),
    ],
)


def _working_sets(target: gb.Target) -> Any:
    """Return the axis of ring sizes in bytes, from 1 KiB to three quarters of a GPU's memory, or on a host to 1 GiB."""
    memory = memory_bytes(target)
    room = target.device.memory_bytes * 3 // 4 or memory
    quick, full = (memory, min(room, HOST_MOST_BYTES)) if target.is_host else (max(memory, room),) * 2
    return gb.points(smoke=(2**14, memory), quick=_curve(target, quick, 1), full=_curve(target, max(memory, full), 2))


def _levels(target: gb.Target) -> list[int]:
    """Return the cache sizes that the facts report, in bytes, ascending; empty if they report none."""
    details = dict(target.device.details)
    sizes = [int(size) for name, size in details.items() if name.startswith("cache.l") or name == "shared.unit_bytes"]
    return sorted({*sizes, target.device.cache_bytes} - {0})


def _curve(target: gb.Target, last: int, times: int) -> tuple[int, ...]:
    """Return ascending ring sizes in bytes from 1 KiB to `last`: `times` per octave, and the largest that fits."""
    sizes = {*_grid(_FIRST_BYTES, last, times), *_grid(_CACHES_FROM, min(last, _CACHES_TO), 2 * times), _largest(last)}
    lowest, highest = _HOST_AROUND if target.is_host else _GPU_AROUND
    for level in _levels(target):
        around = max(_FIRST_BYTES, int(level * lowest)), min(last, int(level * highest))
        sizes |= set(_grid(*around, _DENSE * times))
    return tuple(sorted(sizes))


def _largest(room: int) -> int:
    """Return the largest of the sizes 2, 3, 4, 6, 8, 12, … bytes that is at most `room` bytes."""
    return max(_grid(room // 2, room, 2))


def _grid(first: int, last: int, octave: int) -> Iterable[int]:
    """Yield the sizes in bytes from `first` to `last`: `octave` sizes per octave, evenly spaced between powers of two.

    With `octave` of 8 these are 16, 18, 20, … 32 KiB.
    """
    for exponent in range(first.bit_length() - 1, last.bit_length()):
        sizes = ((1 << exponent) * (octave + step) // octave for step in range(octave))
        yield from (size for size in sizes if first <= size <= last)


def _reaches(target: gb.Target) -> Any:
    """Return the axis of footprints in bytes for `reach`: powers of two from 8 MiB, and the largest size that fits."""
    room = max(target.device.memory_bytes * 3 // 4, _LEAST_REACH)
    sizes = sorted({*_grid(_LEAST_REACH, room, 1), _largest(room)})
    return gb.points(
        smoke=sizes[:1], quick=[size for size in sizes if size >= _PAGES * PAGE_BYTES] or sizes, full=sizes
    )


@topic.case(version=2, size_bytes=_working_sets, headline={"size_bytes": 2**32})
def chase(bench: gb.Bench, size_bytes: int) -> gb.Task:
    """Seconds, and device cycles, of a dependent load from a ring of `size_bytes` in device memory."""
    if not bench.traits.is_gpu:
        bench.need(size_bytes)
        walk = host_walk(bench, np.empty(size_bytes // 8, np.uint64))
        return walk.task({"cycles": "unavailable: programs cannot read the core clock of a processor"})
    ring = GpuRing.linked(bench, size_bytes)
    near = 2 * int(dict(bench.target.device.details).get("shared.unit_bytes", 2**17))  # twice the memory of an SM or CU
    cache = cache_bytes(bench.target)
    if size_bytes <= near:  # sweep before every sample, because the first cache is empty when a kernel starts
        steps = _NEAR_STEPS if size_bytes <= _FITS * near else _STEPS
        return ring.walk(steps, sweep=True).task({"warm": "swept before each sample"})
    if size_bytes < CACHES * cache:
        ring.settle()
        steps = _STEPS if size_bytes <= cache // 2 else _FAR_STEPS
        return ring.walk(steps, sweep=False).task({"warm": "swept once before the first sample"})
    bench.device.flush()
    return ring.walk(_FAR_STEPS, sweep=False).task({"warm": "cache flushed before the first sample"})


@topic.case(when=gb.on_gpu, reach_bytes=_reaches)
def reach(bench: gb.Bench, reach_bytes: int) -> gb.Task:
    """Seconds of a dependent load of one line in each 2 MiB, past the first cache: the cost of address translation.

    The lines stay in the last-level cache; from some footprint `reach_bytes` on, their translations miss the TLB."""
    ring = GpuRing.linked(bench, reach_bytes, stride=PAGE_BYTES)
    for _ in range(2):
        ring.settle("chase_l2")
    walk = ring.walk(_STEPS, sweep=False, kernel="chase_l2")
    return walk.task({"pages": "2 MiB apart, one random line in each"})
