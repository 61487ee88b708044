"""STREAM kernels on device memory, in every shape, and the runtime's copy within it.

Counting is STREAM's: every array that the kernel names, once for each element read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gpubench.api.suite import TIER, Bench, Effort, Observation, Stage, Task, Work, expect, units

from .._stream import BEST, Call, Shape, Stream, open_stream
from ._points import CACHES, cache_bytes

_FACTOR = 0.5  # a power of two: products are exact, so every result has one right value


@dataclass(frozen=True, slots=True)
class _Written:
    """A kernel that leaves a = k + kb·b + kc·c in its first array; `flops` are those of an element."""

    factors: tuple[float, float, float]
    scalars: tuple[float, ...] = ()
    flops: int = 0


_WRITTEN = {
    "copy": _Written((0, 1, 0)),
    "scale": _Written((0, _FACTOR, 0), (_FACTOR,), 1),
    "add": _Written((0, 1, 1), flops=1),
    "triad": _Written((0, 1, _FACTOR), (_FACTOR,), 2),
}


def is_cached(bench: Bench, size_bytes: int) -> bool:
    """Whether an array of that size may be served by the last-level cache in part."""
    return size_bytes < CACHES * cache_bytes(bench.target)


def memory_limit(bench: Bench, size_bytes: int) -> str:
    """`dram`, the peak that an array of that size is held against; nothing where a cache may serve it."""
    return "" if is_cached(bench, size_bytes) else "dram"


def notes(bench: Bench, size_bytes: int, found: Mapping[str, str]) -> Mapping[str, str]:
    """Notes, and that a cache may serve the arrays where it may."""
    if not is_cached(bench, size_bytes):
        return found
    largest = units.size(cache_bytes(bench.target))
    return {**found, "cache": f"arrays below {CACHES} × the last-level cache of {largest}"}


def _stage(bench: Bench, call: Call, work: Work, size_bytes: int, effort: Effort) -> Stage:
    """Hot, and cold where a GPU's cache holds something: a flush changes nothing for arrays four caches long."""
    modes: Any = ("hot", "cold") if bench.traits.is_gpu and is_cached(bench, size_bytes) else ("hot",)
    return Stage(call, work, "moved", memory_limit(bench, size_bytes), modes, effort=effort)


def kernel(
    bench: Bench, name: str, size_bytes: int, dtype: str = "float32", shape: Shape = BEST, effort: Effort = TIER
) -> Task:
    """One of the STREAM kernels, on arrays of `size_bytes` each."""
    build = {"read": _reading, "dot": _summing, "write": _filling}.get(name, partial(_writing, name))
    arrays = {"read": 1, "write": 1, "add": 3, "triad": 3}.get(name, 2)
    stream = open_stream(bench, size_bytes, dtype, arrays, shape)
    call, check, poison, flops = build(bench, stream)
    work = Work(moved=arrays * size_bytes, payload=_payload(name) * size_bytes, flops=flops * float(stream.count))
    stage = _stage(bench, call, work, size_bytes, effort)
    return Task.of(stage, check=check, poison=poison, notes=notes(bench, size_bytes, stream.notes))


def _payload(name: str) -> int:
    return 2 if name == "dot" else 1


_Built = tuple[Call, Callable[[], Observation], Call, int]  # call, check, poison, operations an element


def _writing(name: str, bench: Bench, stream: Stream) -> _Built:
    del bench
    what = _WRITTEN[name]
    a, inputs = stream.empty(), tuple(stream.drawn() for factor in what.factors[1:] if factor)
    scalars = (stream.real(scalar) for scalar in what.scalars)
    call = stream.call(name, a, *(drawn.array for drawn in inputs), stream.count, *scalars)
    return call, stream.verifier(a, inputs, what.factors), stream.poison(a), what.flops


def _filling(bench: Bench, stream: Stream) -> _Built:
    a, value = stream.empty(), 0.5 + bench.rng.random() / 2
    call = stream.call("write", a, stream.count, stream.real(value))
    return call, stream.verifier(a, (), (value, 0, 0)), stream.poison(a), 0


def _reading(bench: Bench, stream: Stream) -> _Built:
    b, parts = stream.drawn(), stream.partial(np.uint64)

    def check() -> Observation:
        wrong = np.count_nonzero(bench.device.to_host(parts) != stream.expected_xor(b))
        expect(wrong == 0, f"{wrong} of {stream.parts} partial results are wrong")
        return {}

    return stream.call("read", b.array, stream.count, parts), check, lambda: parts.fill(0), 0


def _summing(bench: Bench, stream: Stream) -> _Built:
    b, c, parts = stream.drawn(), stream.drawn(), stream.partial(np.float64)

    def check() -> Observation:
        error = float(np.max(np.abs(bench.device.to_host(parts) - stream.expected_dot(b, c))))
        expect(error <= stream.bound(), f"a partial sum is off by {error:.3g}, more than {stream.bound():.3g}")
        return {}

    return stream.call("dot", b.array, c.array, stream.count, parts), check, lambda: parts.fill(0), 2


def memcpy(bench: Bench, size_bytes: int, effort: Effort = TIER) -> Task:
    """The runtime's own copy within device memory; one thread's on the host."""
    stream = open_stream(bench, size_bytes, "float32", 2)
    a, b = stream.empty(), stream.drawn()
    work = Work(moved=2 * size_bytes, payload=size_bytes)
    stage = _stage(bench, lambda: bench.device.copy(a, b.array), work, size_bytes, effort)
    return Task.of(
        replace(stage, rotation=_rotation(bench, a, b.array)),
        check=stream.verifier(a, (b,), (0, 1, 0)),
        poison=stream.poison(a),
        notes=notes(bench, size_bytes, {}),
    )


def _rotation(bench: Bench, a: Any, b: Any) -> tuple[Callable[[], None], ...]:
    """Copies between pairs of arrays that together outgrow the cache; none where one pair does."""
    if not bench.traits.is_gpu or not is_cached(bench, a.nbytes):
        return ()
    pairs = [(a, b)] + [(bench.xp.empty_like(a), b.copy()) for _ in range(bench.copies(2 * a.nbytes) - 1)]
    return tuple(partial(bench.device.copy, target, source) for target, source in pairs)
