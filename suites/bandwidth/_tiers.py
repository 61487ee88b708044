"""Measure where a set that is used again stays fast beside passing data, shared memory of clusters, and atomics."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from .._checks import affine_power, expect_equal
from ._sizes import cache_bytes

_SOURCE = "tiers.cu"
_THREADS, _VECTOR_BYTES = 512, 16  # as in tiers.cu
_GRAIN_BYTES = 2**15  # of a block's share: two batches of loads, or two bulk prefetches
_PARTS = 4  # of the passing data, one per round in turn, each as large as the last-level cache
_STATIC_SHARED_BYTES = 4096  # of the kernel beside its dynamic shared memory, rounded up
_STEPS = 32  # dependent loads per round of the launch that shows the latency
# Ways to keep the set: the TIER of tiers.cu, and the oldest architecture that has it.
_TIERS = {"plain": (0, ""), "window": (0, "sm_80"), "shared": (1, ""), "evict_first": (2, "sm_80")}
_TIERS |= {"evict_last": (3, "sm_80"), "prefetch": (4, "sm_75"), "bulk_prefetch": (5, "sm_90")}
_READERS, _WORDS, _GOLDEN = 1024, 4, 0x9E3779B1  # as in tiers.cu
_CLUSTER_BYTES = 2**26  # bytes that a block reads from its cluster in one call
_ADDERS, _TURNS, _ADDING_BLOCKS = 256, 16, 8  # threads per block; additions per round; blocks per compute unit

topic = gb.Topic(
    views=[
        gb.View("curve", "Bandwidth of a set in use beside passing data", ("tiers",), x="size_bytes", by=("tier",)),
        gb.View(
            "curve",
            "Latency of a set in use beside passing data",
            ("tiers",),
            x="size_bytes",
            by=("tier",),
            series="latency",
        ),
        gb.View("choice", "Tier of a set in use by its size", ("tiers",), "size_bytes", by=("tier",)),
        gb.View("curve", "Distributed shared memory bandwidth by cluster size", ("cluster_shared",), x="blocks"),
        gb.View(
            "curve", "Atomic addition throughput by number of cells", ("atomics",), x="cells", by=("space",), log_x=True
        ),
    ]
)


def _sizes(target: gb.Target) -> Any:
    """Return the axis of sizes of the set in bytes, in grains of every block: from 4 to 100 MiB on an H200."""
    grain = max(1, target.device.units) * _GRAIN_BYTES
    return gb.points(*(tuple(n * grain for n in grains) for grains in ((6, 10), (2,), (1, 2, 4, 6, 8, 12, 16, 24))))


@dataclass(frozen=True, slots=True)
class _Window:
    """The part of the stream's accesses that the driver keeps in the second-level cache (accessPolicyWindow)."""

    driver: lib.Driver
    stream: Any

    @classmethod
    def over(cls, bench: gb.Bench, array: Any) -> tuple["_Window", int]:
        """Keep as much of `array` as the cache's carve-out holds; return the window and the bytes of the carve-out.

        Raises Skip if the device or the driver keeps nothing."""
        driver = lib.Driver()
        window = cls(driver, driver.bindings.CUstream(bench.device.stream))
        attributes = driver.bindings.CUdevice_attribute
        most, longest = (
            int(driver("cuDeviceGetAttribute", getattr(attributes, f"CU_DEVICE_ATTRIBUTE_MAX_{name}"), device))
            for device in (driver("cuCtxGetDevice"),)
            for name in ("PERSISTING_L2_CACHE_SIZE", "ACCESS_POLICY_WINDOW_SIZE")
        )
        if not most or not longest:
            raise gb.Skip("the device has no carve-out of its second-level cache for persisting accesses")
        try:
            driver("cuCtxSetLimit", driver.bindings.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, most)
            window.set(int(array.data.ptr), min(array.nbytes, longest), min(1.0, most / array.nbytes))
        except lib.DriverCallError as error:
            raise gb.Skip(f"the driver refuses persisting accesses (MIG does): {error}") from error
        return window, most

    def set(self, address: int, nbytes: int, share: float) -> None:
        """Let a random `share` of the accesses to these bytes persist in the cache; 0 bytes end it."""
        bindings = self.driver.bindings
        policy, value = bindings.CUaccessPolicyWindow(), bindings.CUstreamAttrValue()
        policy.base_ptr, policy.num_bytes, policy.hitRatio = address, nbytes, share
        policy.hitProp = bindings.CUaccessProperty.CU_ACCESS_PROPERTY_PERSISTING
        policy.missProp = bindings.CUaccessProperty.CU_ACCESS_PROPERTY_STREAMING
        value.accessPolicyWindow = policy
        attribute = bindings.CUstreamAttrID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
        self.driver("cuStreamSetAttribute", self.stream, attribute, value)

    def close(self) -> None:
        """Let all accesses be ordinary ones again, and give the carve-out back."""
        self.set(0, 0, 0.0)
        self.driver("cuCtxResetPersistingL2Cache")
        self.driver("cuCtxSetLimit", self.driver.bindings.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0)


def _kernel(bench: gb.Bench, tier: str, share_bytes: int) -> gb.Kernel:
    """Return the kernel `reused` for a tier; raises Skip if the device does not have it, or no room for a share."""
    number, since = _TIERS[tier]
    traits = bench.traits
    if since and (traits.vendor != "nvidia" or traits.architecture < gb.Architecture.parse(since)):
        raise gb.Skip(f"needs an NVIDIA GPU from {since} on")
    room = traits.max_shared_bytes - _STATIC_SHARED_BYTES
    if tier == "shared" and share_bytes > room:
        raise gb.Skip(f"a block's share of the set, {share_bytes} bytes, exceeds its {room} bytes of shared memory")
    return bench.kernel(_SOURCE, "reused", TIER=number)


@topic.case(
    when=gb.on_gpu,
    size_bytes=_sizes,
    tier=gb.points(("plain", "shared", "window", "evict_last"), ("plain", "shared"), tuple(_TIERS)),
    reuse=gb.points((16,), full=(4, 16)),  # used once, a set's rate would depend on the launch before
)
def tiers(bench: gb.Bench, size_bytes: int, tier: str, reuse: int) -> gb.Task:
    """Bandwidth of a set that a launch uses `reuse` times; before each use, data as large as the cache are read once.

    `tier` says how the set is kept: `plain` by ordinary loads; `shared` in shared memory, filled in each launch;
    `window` by the stream's accessPolicyWindow with the largest carve-out; `evict_last` and `evict_first` by the
    priority of the set, or of the passing data; `prefetch` and `bulk_prefetch` by prefetches before the passing data.
    The figure counts both. `per_clock` is the median over the blocks, one per SM, of the bytes of the set that a block
    reads per clock. `latency` is the median of the cycles of a dependent load from the set, in a separate launch."""
    blocks, xp = max(1, bench.target.device.units), bench.xp
    share_bytes = size_bytes // blocks
    part_bytes = max(1, round(cache_bytes(bench.target) / blocks / _GRAIN_BYTES)) * _GRAIN_BYTES
    passing_bytes = blocks * part_bytes * _PARTS
    bench.need(size_bytes + passing_bytes)
    kernel, compute = _kernel(bench, tier, share_bytes), bench.kernel(_SOURCE, "reused_expected")
    rng = bench.rng
    reused, passing = (bench.words(n // 8, int(rng.integers(2**63))) for n in (size_bytes, passing_bytes))
    numbers, first = tuple(np.uint32(n) for n in (part_bytes // _VECTOR_BYTES, _PARTS)), 0
    share = np.uint32(share_bytes // _VECTOR_BYTES)
    expected = xp.zeros(blocks, np.uint64)
    timed, walked = ((xp.zeros(blocks, np.uint64), xp.zeros((blocks, 2), np.uint64)) for _ in range(2))
    shared_bytes = share_bytes if tier == "shared" else 0
    notes, close = {}, None
    if tier == "window":
        window, carved = _Window.over(bench, reused.array)
        notes, close = {"carve-out": f"{carved} bytes"}, window.close

    def call(steps: int = 0, outputs: tuple[Any, Any] = timed) -> None:
        nonlocal first  # other data pass than in the call before
        first = (first + 1) % _PARTS
        args = (reused.array, share, passing.array, *numbers, *map(np.uint32, (first, reuse, steps)), *outputs)
        kernel((blocks,), (_THREADS,), args, shared_bytes)

    def cycles_of(steps: int, outputs: tuple[Any, Any]) -> Any:
        """Return the median cycles of the blocks' readings and walks, after their results are compared."""
        seeds = (np.uint64(reused.seed), share, np.uint64(passing.seed))
        compute((blocks,), (_THREADS,), (*seeds, *numbers, *map(np.uint32, (first, reuse, steps)), expected))
        results, cycles = map(bench.device.to_host, outputs)
        expect_equal(results, bench.device.to_host(expected), "blocks' results")
        return np.median(cycles, axis=0)

    def check() -> gb.Observation:
        per_clock = reuse * share_bytes / cycles_of(0, timed)[0]
        call(_STEPS, walked)
        latency = cycles_of(_STEPS, walked)[1] / (reuse * _STEPS)
        return {
            "per_clock": gb.Observed(float(per_clock), "B/clock", "more"),
            "latency": gb.Observed(float(latency), "cycles", "less"),
        }

    work = gb.Work(moved=reuse * (size_bytes + blocks * part_bytes), payload=reuse * size_bytes)
    redraw = partial(reused.redraw, reused.array)
    stage = gb.Stage(call, work, "moved", effort=gb.POINT, outputs=timed[:1], inputs=redraw)
    return gb.Task.of(stage, check=check, notes=notes, close=close or (lambda: None))


def cluster_results(data: npt.NDArray[np.uint32], blocks: int, passes: int) -> npt.NDArray[np.uint32]:
    """Return the word that each thread of a cluster should leave: uint32, shape (blocks, 1024).

    `data` are the words that every block fills its shared memory with, before it adds its rank's number to each."""
    filled = data.reshape(_WORDS, _READERS, 4).astype(np.uint64)
    _, total = affine_power(pow(5, blocks - 1, 2**32), 1, passes, 2**32)
    results = np.zeros((blocks, _READERS), np.uint32)
    for rank in range(blocks):
        sums = np.zeros_like(filled)
        for peer in range(1, blocks):
            sums = sums * np.uint64(5) + filled + np.uint64((rank + peer) % blocks * _GOLDEN % 2**32)
        for turn in (sums * np.uint64(total)).astype(np.uint32):
            for lane in turn.T:
                results[rank] = (results[rank] << np.uint32(5) | results[rank] >> np.uint32(27)) ^ lane
    return results


@topic.case(when=gb.on_gpu, blocks=gb.points((2, 8), (2,), (2, 4, 8, 16)))
def cluster_shared(bench: gb.Bench, blocks: int) -> gb.Task:
    """Bandwidth of distributed shared memory: each block reads the arrays of the other blocks of its cluster in turn.

    A cluster has `blocks` blocks of 1024 threads; more than 8 is a size that each GPU may refuse. `per_clock` is the
    median over the blocks of the bytes that one receives per clock."""
    if "clusters" not in bench.traits.features:
        raise gb.Skip("needs blocks that reach each other's shared memory (NVIDIA, sm_90 or newer)")
    xp, array_bytes = bench.xp, _WORDS * _READERS * _VECTOR_BYTES
    grid, passes = 2 * (bench.target.device.units // blocks) * blocks, _CLUSTER_BYTES // array_bytes // (blocks - 1)
    drawn = bench.rng.integers(2**32, size=array_bytes // 4, dtype=np.uint32)
    data, results = xp.asarray(drawn), xp.zeros((grid // blocks, blocks, _READERS), np.uint32)
    cycles = xp.zeros(grid, np.uint64)
    kernel = bench.kernel(_SOURCE, "cluster_read", CLUSTER=blocks)
    if blocks > 8:
        kernel.allow_large_clusters()

    def call(count: int = passes) -> None:
        kernel((grid,), (_READERS,), (data, np.uint32(count), np.uint32(0), results, cycles), array_bytes)

    def redraw() -> None:
        """Turn the order of the words round."""
        drawn[:] = drawn[::-1]
        data[:] = xp.asarray(drawn)

    def check() -> gb.Observation:
        received = bench.device.to_host(results)
        expected = np.broadcast_to(cluster_results(drawn, blocks, passes), received.shape)
        expect_equal(received, expected, "threads' results")
        per_clock = passes * (blocks - 1) * array_bytes / np.median(bench.device.to_host(cycles))
        return {"per_clock": gb.Observed(float(per_clock), "B/clock", "more")}

    try:
        call()
        bench.device.synchronize()
    except RuntimeError as error:
        raise gb.Skip(f"the device refuses clusters of {blocks} blocks: {error}") from error
    work = gb.Work(moved=grid * passes * (blocks - 1) * array_bytes)
    twice = partial(call, 2 * passes)
    stage = gb.Stage(call, work, "moved", "shared", effort=gb.POINT, outputs=(results,), inputs=redraw, doubled=twice)
    return gb.Task.of(stage, check=check)


def added(threads: int, cells: int) -> npt.NDArray[np.uint64]:
    """Return what all threads together add to each cell in one round: uint64, shape (cells,)."""
    sums, t = np.zeros(cells), np.arange(threads)
    for turn in range(_TURNS):
        sums += np.bincount((t + turn) % cells, t % 7 + turn, cells)
    return sums.astype(np.uint64)


def _in_shared(_: gb.Target, params: Mapping[str, Any]) -> bool:
    return params["space"] == "global" or int(params["cells"]) <= 2**10


@topic.case(
    when=gb.on_gpu,
    where=_in_shared,
    space=("global", "shared"),
    cells=gb.points((1, 2**10, 2**20), (2**10,), gb.powers_of_two(0, 20, 2)),
)
def atomics(bench: gb.Bench, space: str, cells: int) -> gb.Task:
    """Atomic additions per second of all threads together, to `cells` cells that neighbouring threads share in turn.

    In `global` memory a cell has 64 bits; in `shared` memory it has 32 bits, and each block has its own cells."""
    blocks, rounds = max(1, bench.target.device.units) * _ADDING_BLOCKS, 1 if cells < 2**10 else 8
    threads, sums = blocks * _ADDERS, bench.xp.zeros(cells, np.uint64)
    kernel = bench.kernel(_SOURCE, "atomic_global" if space == "global" else "atomic_shared_rate")
    args = (sums, np.uint32(cells - 1), np.uint32(rounds))
    once, calls = added(threads, cells) * np.uint64(rounds), 0

    def call() -> None:
        nonlocal calls
        calls += 1
        kernel((blocks,), (_ADDERS,), args, 0 if space == "global" else 4 * cells)

    def check() -> None:
        expect_equal(bench.device.to_host(sums), once * np.uint64(calls), "cells")

    work = gb.Work(items=threads * _TURNS * rounds)
    return gb.Task.of(gb.Stage(call, work, "items", item="addition", effort=gb.POINT), check=check)
