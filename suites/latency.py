"""Latency of dependent loads: a pointer chase over working sets from the first cache to memory.

One active lane walks a ring: a uniformly random single cycle over cache lines, one node a line,
each holding where the next one is, so that the loop is a chain of loads and nothing else. Rings
that fit the last-level cache are walked whole, and warm. Larger ones begin flushed, and each
sample goes on where the last one ended, so that no line is met again before the whole ring has
passed: at four times the last-level cache or more this is the latency of memory. Address
translation is part of it. Seconds are counted per load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api import (
    Bench,
    Observation,
    Observed,
    Skip,
    Stage,
    Suite,
    Target,
    Task,
    View,
    Work,
    expect,
    points,
    powers_of_two,
    units,
)

suite = Suite(
    "latency of dependent loads, from the first cache to memory",
    views=[
        View("curve", "Latency over working set", ("chase",), "size_bytes", series="hot", log_x=True, log_y=True),
        View("bars", "Latency of shared memory and of a launch", ("shared", "launch"), series="hot"),
    ],
)

_GPU_LINE_BYTES = 128  # of NVIDIA's L2 tags and of AMD's L2
_HOST_LINE_BYTES = 64
_WORD_BYTES = 8  # of a node in global memory
_SHARED_WORD_BYTES = 4
_STEPS = 2**16
_NEAR_STEPS = 2**19  # a launch begins with an empty first cache: its misses must not show
_NEAR_BYTES = 2**17
_CACHES = 4  # a ring this many times the last-level cache is read from memory
_UNKNOWN_CACHE = 2**25
_HOST_MOST_BYTES = 2**30  # a larger ring would take seconds to draw
_THREADS = 256
_MOST_BLOCKS = 2**16


def _working_sets(target: Target) -> Any:
    """From 16 KiB to half the last-level cache, then memory: rings of at least four times that cache."""
    cache_bytes = target.device.cache_bytes or _UNKNOWN_CACHE
    half = (cache_bytes // 2).bit_length() - 1
    memory = (_CACHES * cache_bytes - 1).bit_length()
    if target.is_host:
        memory = min(memory, _HOST_MOST_BYTES.bit_length() - 1)
        return points((*powers_of_two(14, half, 2), 2**memory), (2**14, 2**memory), powers_of_two(13, memory))
    room = target.device.memory_bytes // 4 or 2**32
    far = tuple(size for size in powers_of_two(memory, memory + 4, 2) if size <= room)
    every = tuple(size for size in powers_of_two(13, memory + 4) if size <= room)
    return points((*powers_of_two(14, half, 2), *far), (2**14, *far[:1]), every)


@dataclass(slots=True)
class Walk:
    """A walk round a ring and where it should stand.

    `order` lists the nodes in the order of the ring, `node` is the unit in which `ring` and
    `state[0]` count them, `advance` walks `steps` on. The number of nodes is odd and `steps` is a power of two, so
    that no sample ends where it began.
    """

    bench: Bench
    advance: Callable[[], None]
    ring: Any
    order: Any
    state: Any
    node: int
    steps: int
    walked: int = 0

    def call(self) -> None:
        """One sample: go on from where the last one ended."""
        self.advance()
        self.walked += self.steps

    def check(self) -> Observation:
        """The walk stands where its order says, or the ring or the loads were wrong."""
        at = self.walked % len(self.order)
        expected = self.node * int(self._read(self.order[at : at + 1])[0])
        found = int(self._read(self.state)[0])
        expect(found == expected, f"after {self.walked} loads the walk stands at {found}, not at {expected}")
        return {}

    def cycles(self) -> Observation:
        """Cycles per load of the last sample, by the device's clock in the kernel."""
        return {"cycles": Observed(int(self._read(self.state)[1]) / self.steps, "cycles")}

    def _read(self, array: Any) -> Any:
        return self.bench.device.to_host(array)

    def task(self, **notes: str) -> Task:
        """The walk as a task, one launch a sample."""
        probe = self.cycles if self.bench.traits.is_gpu else None
        stage = Stage(self.call, Work(items=self.steps), "item", max_calls=1, probe=probe)
        return Task.of(stage, check=self.check, notes=notes)


def _steps(size_bytes: int, cache_bytes: int, line_bytes: int) -> int:
    """Loads a sample, a power of two: a whole ring where it fits the cache."""
    if size_bytes <= _NEAR_BYTES:
        return _NEAR_STEPS
    return max(_STEPS, size_bytes // line_bytes) if size_bytes <= cache_bytes else _STEPS


@suite.case(size_bytes=_working_sets, headline={})
def chase(bench: Bench, size_bytes: int) -> Task:
    """Dependent loads from a ring of `size_bytes` in device memory: seconds and device cycles per load."""
    if bench.traits.is_gpu:
        return _gpu_chase(bench, size_bytes)
    if bench.traits.kernels != "numba":
        raise Skip("needs numba: pip install 'gpubench-suite[host]'")
    return _host_chase(bench, size_bytes)


def _need(bench: Bench, nbytes: int) -> None:
    free = bench.device.free_bytes()
    if free < nbytes:
        raise Skip(f"needs {units.round_size(nbytes)} of memory, {units.round_size(free)} are free")


def _gpu_chase(bench: Bench, size_bytes: int) -> Task:
    """Nodes hold 64-bit addresses, `state` the byte offset of the walk and the cycles of a sample."""
    xp, nodes = bench.xp, size_bytes // _GPU_LINE_BYTES - 1
    _need(bench, size_bytes + 8 * nodes * _WORD_BYTES)
    order = _drawn_order(bench, nodes)
    ring = xp.empty(size_bytes, xp.uint8)
    line = np.uint64(_GPU_LINE_BYTES)
    _launch_over(bench, "link", nodes, (ring, order, np.uint64(nodes), line))
    first = int(bench.device.to_host(order[:1])[0])
    state = xp.asarray(np.array([first * _GPU_LINE_BYTES, 0], np.uint64))
    steps = _steps(size_bytes, bench.target.device.cache_bytes, _GPU_LINE_BYTES)
    kernel = bench.kernel("latency.cu", "chase")
    args = (ring, np.uint64(steps), state)
    bench.device.flush()
    return Walk(bench, lambda: kernel((1,), (1,), args), ring, order, state, _GPU_LINE_BYTES, steps).task()


def _drawn_order(bench: Bench, nodes: int) -> Any:
    """A random permutation, drawn and sorted on the device."""
    keys = bench.xp.empty(nodes, bench.xp.uint64)
    seed = np.uint64(bench.rng.integers(2**64, dtype=np.uint64))
    _launch_over(bench, "keys", nodes, (keys, np.uint64(nodes), seed))
    return bench.xp.argsort(keys)


def _launch_over(bench: Bench, name: str, items: int, args: tuple[Any, ...]) -> None:
    blocks = min(-(-items // _THREADS), _MOST_BLOCKS)
    bench.kernel("latency.cu", name)((blocks,), (_THREADS,), args)


def _host_chase(bench: Bench, size_bytes: int) -> Task:
    """Nodes hold unsigned word indices: a signed index costs instructions for negative ones."""
    from . import _host

    _need(bench, 2 * size_bytes)
    nodes, words = size_bytes // _HOST_LINE_BYTES - 1, _HOST_LINE_BYTES // _WORD_BYTES
    order = bench.rng.permutation(nodes)
    ring = np.empty(size_bytes // _WORD_BYTES, np.uint64)
    ring[order * words] = np.roll(order, -1) * words
    state = np.array([order[0] * words], np.uint64)
    steps = _steps(size_bytes, bench.target.device.cache_bytes, _HOST_LINE_BYTES)
    kernel = _host.KERNELS["chase"]
    bench.device.flush()
    walk = Walk(bench, lambda: kernel(ring, steps, state), ring, order, state, words, steps)
    return walk.task(cycles="a processor has no clock that a program can read in core cycles")


def _is_gpu(target: Target) -> bool:
    return not target.is_host


@suite.case(size_bytes=(2**14,), when=_is_gpu)
def shared(bench: Bench, size_bytes: int) -> Task:
    """Dependent loads from shared memory (LDS), a ring of 4-byte nodes: seconds and device cycles per load."""
    if not bench.traits.is_gpu:
        raise Skip("needs a GPU's shared memory")
    nodes = size_bytes // _SHARED_WORD_BYTES - 1
    order = bench.rng.permutation(nodes)
    ring = np.empty(nodes, np.uint32)
    ring[order] = np.roll(order, -1) * _SHARED_WORD_BYTES
    near = bench.xp.asarray(ring)
    state = bench.xp.asarray(np.array([order[0] * _SHARED_WORD_BYTES, 0], np.uint64))
    kernel = bench.kernel("latency.cu", "shared")
    args = (near, np.uint32(nodes), np.uint64(_NEAR_STEPS), state)

    def advance() -> None:
        kernel((1,), (_THREADS,), args, size_bytes)

    return Walk(bench, advance, near, order, state, _SHARED_WORD_BYTES, _NEAR_STEPS).task()


@suite.case(when=_is_gpu)
def launch(bench: Bench) -> Task:
    """An empty kernel: seconds a launch, queued back to back (hot) and as a replayed graph.

    It has no output; its check is that the device reports no error.
    """
    if not bench.traits.is_gpu:
        raise Skip("needs a GPU")
    kernel = bench.kernel("latency.cu", "empty")
    stage = Stage(lambda: kernel((1,), (1,), ()), Work(items=1), "item", modes=("hot", "graph"))

    def check() -> Observation:
        bench.device.synchronize()
        return {}

    return Task.of(stage, check=check)
