"""Real slow-downs: kernels that do LONGER_PERCENT per cent more work than they declare.

A gate has to find them, in the same case on two sides. `told` is for tests of the procedure: its times are arithmetic.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpubench.api.suite import Bench, Observation, Stage, Suite, Task, Work, expect

suite = Suite("kernels that can be made longer")

PERCENT = "LONGER_PERCENT"
_THREADS = 256
_BLOCKS = 132 * 16
_CHECKED = 2**20  # the last elements are checked, which only a longer case has

_TRIAD = """
extern "C" __global__ void triad(float* a, const float* b, const float* c, unsigned long long count) {
    unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        a[i] = b[i] + 3.0f * c[i];
}
"""
_CHASE = """
extern "C" __global__ void chase(const unsigned* next, unsigned start, unsigned steps, unsigned* end) {
    unsigned at = start;
    for (unsigned i = 0; i < steps; i++) at = next[at];
    *end = at;
}
"""


def longer(count: int, multiple: int = 1) -> int:
    """Return the count plus LONGER_PERCENT per cent, rounded to a multiple of `multiple`."""
    return round(count * (1 + float(os.environ.get(PERCENT, "0")) / 100) / multiple) * multiple


@suite.case(headline={})
def triad(bench: Bench) -> Task:
    """a = b + 3·c over more elements than declared: bound by memory."""
    counted = 2**25 if bench.traits.is_gpu else 2**23
    count = longer(counted, 1024)
    b, c = (bench.rng.random(count, dtype=np.float32) for _ in range(2))
    expected = b[-_CHECKED:] + np.float32(3) * c[-_CHECKED:]
    a = bench.xp.empty(count, np.float32)
    arrays = a, bench.xp.asarray(b), bench.xp.asarray(c)
    call = _kernel(bench, _TRIAD, "triad", (*arrays, np.uint64(count))) if bench.traits.is_gpu else _on_host(*arrays)

    def check() -> Observation:
        got = bench.device.to_host(a[-_CHECKED:])
        expect(bool(np.allclose(got, expected, rtol=1e-6)), "the triad is wrong")
        return {}

    stage = Stage(call, Work(moved=3 * 4 * counted), "moved")
    return Task.of(stage, check=check, poison=lambda: a.fill(np.nan))


def _on_host(a: Any, b: Any, c: Any) -> Callable[[], object]:
    """Return the call of a triad by NumPy."""

    def call() -> None:
        np.multiply(c, np.float32(3), out=a)
        np.add(a, b, out=a)

    return call


@suite.case()
def chase(bench: Bench) -> Task:
    """More dependent loads through a random cycle than declared: bound by latency."""
    counted = 2**14 if bench.traits.is_gpu else 2**16
    steps, nodes = longer(counted), 2**23
    order = bench.rng.permutation(nodes).astype(np.uint32)
    ring = np.empty(nodes, np.uint32)
    ring[order] = np.roll(order, -1)
    expected = int(order[steps % nodes])
    end = bench.xp.zeros(1, np.uint32)
    arguments = (bench.xp.asarray(ring), np.uint32(order[0]), np.uint32(steps), end)
    call = _kernel(bench, _CHASE, "chase", arguments, 1, 1) if bench.traits.is_gpu else _walk(*arguments)

    def check() -> Observation:
        expect(int(bench.device.to_host(end)[0]) == expected, "the walk ends elsewhere")
        return {}

    return Task.of(Stage(call, Work(items=counted), "item"), check=check, poison=lambda: end.fill(0xFFFFFFFF))


def _walk(ring: Any, start: Any, steps: Any, end: Any) -> Callable[[], object]:
    """Return the call of a walk round a ring, compiled by numba."""
    import numba

    @numba.njit
    def walk(ring: Any, at: int, steps: int) -> int:
        for _ in range(steps):
            at = ring[at]
        return at

    def call() -> None:
        end[0] = walk(ring, np.uint64(start), np.uint64(steps))

    return call


@suite.case()
def product(bench: Bench) -> Task:
    """A matrix product with a longer inner size than declared: bound by arithmetic."""
    outer, counted = (2048, 6400) if bench.traits.is_gpu else (512, 6400)
    inner = longer(counted, 64)  # sizes for which the libraries are equally efficient
    dtype = np.float16 if bench.traits.is_gpu else np.float32
    first, second = (
        bench.rng.standard_normal(shape, np.float32).astype(dtype) for shape in ((outer, inner), (inner, outer))
    )
    left, right = bench.xp.asarray(first), bench.xp.asarray(second)
    out = bench.xp.empty((outer, outer), dtype)
    expected = first[:8].astype(np.float64) @ second.astype(np.float64)

    def check() -> Observation:
        error = np.linalg.norm(bench.device.to_host(out[:8]).astype(np.float64) - expected) / np.linalg.norm(expected)
        expect(bool(error < 0.02), f"the product is off by {error:.2g}")
        return {}

    stage = Stage(lambda: bench.xp.matmul(left, right, out=out), Work(flops=2 * outer * outer * counted), "flops")
    return Task.of(stage, check=check, poison=lambda: out.fill(np.nan))


@suite.case()
def told(bench: Bench) -> Task:
    """An arithmetic time: a millisecond plus LONGER_PERCENT per cent, with 0.1 % of noise between processes."""
    noise = np.random.default_rng(time.time_ns()).standard_normal()
    seconds = 1e-3 * (1 + float(os.environ.get(PERCENT, "0")) / 100) * float(np.exp(1e-3 * noise))
    return Task.of(Stage(lambda: seconds, Work(items=1), "item", clock="self"), check=dict)


def _kernel(
    bench: Bench, source: str, name: str, arguments: Any, blocks: int = _BLOCKS, threads: int = _THREADS
) -> Any:
    """Return a call that launches the kernel with `arguments`."""
    kernel = bench.device.kernel(source, name, {})
    return lambda: kernel((blocks,), (threads,), arguments)
