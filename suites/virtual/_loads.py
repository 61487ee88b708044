"""Make the operations of programs that share a device: a victim, which waits for each operation, and an aggressor.

A victim's operations are short, like a service that answers requests. An aggressor's operations last about a
millisecond, so that a deep queue needs few calls. The result of every operation can be computed and compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import expect_pattern, pattern
from .._checks import CheckedCall, affine_power, in_turn
from .._stream import open_stream

CYCLES_PER_STEP = 4  # cycles per step of the chain of multiply-adds in sharing.cu, with few threads on the SM
SPIN_THREADS = 1024
# Cycles of a step with 2048 threads on the SM: 16 warps per scheduler, which issues one in two cycles.
_FULL_SM_CYCLES = 32
_FACTOR, _TERM = 1664525, 1013904223  # constants of the chain: Numerical Recipes, 2nd edition, §7.1
_RING_FACTOR, _RING_TERM = 6364136223846793005, 1442695040888963407  # Knuth, TAOCP 2, §3.3.4, line 26
_RING_LINE = 128
_WALK_STEPS = 1024
_DRAWN = 262139  # normal values that are drawn and repeated; the number is prime, so that no two rows are alike
_ROWS, _COLUMNS = 16, 256  # rows and columns of a product that are compared
_HOST_TO_DEVICE = 1  # cudaMemcpyHostToDevice
_MILLI = 1e-3
_PYTHON_LOOP = 20_000


def nothing() -> None:
    """Check nothing: the operation has no output."""


def address_of(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def steps_of(bench: gb.Bench, seconds: float) -> int:
    """Return about how many steps of the chain in sharing.cu last `seconds` on a nearly empty SM."""
    hertz = float(dict(bench.target.device.details).get("clock.sm_hz", 2e9))
    return round(seconds * hertz / CYCLES_PER_STEP)


def launch(bench: gb.Bench) -> CheckedCall:
    """Return the operation of launching an empty kernel."""
    kernel = bench.kernel("sharing.cu", "nothing")
    return CheckedCall(lambda: kernel((1,), (1,), ()), nothing)


def triad(bench: gb.Bench, size_bytes: int) -> CheckedCall:
    """Return STREAM triad in float32 over three arrays of `size_bytes` each, as a call with its check."""
    stream = open_stream(bench, size_bytes, "float32", 3)
    a, b, c, factor = stream.empty(), stream.drawn(), stream.drawn(), 0.5
    call = stream.call("triad", a, b.array, c.array, stream.count, stream.real(factor))
    return CheckedCall(call, stream.verifier(a, (b, c), (0, 1, factor)), (a,))


def tiled(xp: Any, drawn: Any, shift: int, n: int) -> Any:
    """Return an n × n view of the array module `xp` that repeats the flat `drawn` from index `shift` on, row by row."""
    repeated = xp.tile(xp.asarray(drawn), -(-(shift + n * n) // drawn.size))
    return repeated[shift : shift + n * n].reshape(n, n)


def gemm(bench: gb.Bench, n: int) -> CheckedCall:
    """Return an n × n product by the vendor's library, in float16 on a GPU, with its check of 16 × 256 numbers."""
    dtype, bits = (np.float16, 11) if bench.traits.is_gpu else (np.float32, 24)
    drawn = bench.rng.standard_normal(_DRAWN, dtype=np.float32).astype(dtype)
    a, b = (tiled(bench.xp, drawn, shift, n).copy() for shift in (0, _DRAWN // 2))
    c = bench.xp.zeros((n, n), dtype)
    rows, columns = (bench.rng.choice(n, min(count, n), replace=False) for count in (_ROWS, _COLUMNS))
    every = np.arange(n)
    first = drawn[(rows[:, None] * n + every) % _DRAWN].astype(np.float64)
    expected = first @ drawn[(every[:, None] * n + columns + _DRAWN // 2) % _DRAWN].astype(np.float64)
    tolerance = 4 * 2.0**-bits + math.sqrt(n) * 2.0**-24  # Higham 2002, §3.1: rounded inputs, and sums with 24 bits

    def check() -> None:
        result = bench.device.to_host(c)[rows][:, columns].astype(np.float64)
        error = float(np.linalg.norm(result - expected) / np.linalg.norm(expected))
        gb.expect(error <= tolerance, f"the relative error of the product is {error:.3g}, above {tolerance:.3g}")

    return CheckedCall(lambda: bench.xp.matmul(a, b, out=c), check, (c,))


def decode(bench: gb.Bench, layers: int, n: int) -> CheckedCall:
    """Return the products of `layers` n × n matrices with one vector (float32), as a decoding step, with its check."""
    drawn = bench.rng.standard_normal(_DRAWN, dtype=np.float32) / np.float32(math.sqrt(n))
    first = np.resize(drawn, n) * np.float32(math.sqrt(n))
    expected, exact = first.astype(np.float64), drawn.astype(np.float64)
    for layer in range(layers):
        expected = tiled(np, exact, 977 * layer, n) @ expected
    weights = [tiled(bench.xp, drawn, 977 * layer, n).copy() for layer in range(layers)]
    vectors = [bench.xp.asarray(first[:, None]), *(bench.xp.zeros((n, 1), np.float32) for _ in range(layers))]

    def call() -> None:
        for layer, matrix in enumerate(weights):
            bench.xp.matmul(matrix, vectors[layer], out=vectors[layer + 1])

    def check() -> None:
        error = np.linalg.norm(bench.device.to_host(vectors[-1])[:, 0] - expected) / np.linalg.norm(expected)
        tolerance = layers * math.sqrt(n) * 2.0**-24 * 4
        gb.expect(bool(error <= tolerance), f"the relative error of the vector is {error:.3g}, above {tolerance:.3g}")

    return CheckedCall(call, check, tuple(vectors[1:]))


class RingWalk:
    """Dependent loads around a ring of a power of two of bytes; each call continues where the previous one ended."""

    def __init__(self, bench: gb.Bench, size_bytes: int) -> None:
        bench.need(size_bytes)
        self._bench, self._lines, self._walked = bench, size_bytes // _RING_LINE, 0
        self._ring = bench.xp.empty(size_bytes, np.uint8)
        args = (self._ring, np.uint64(self._lines), np.uint64(_RING_FACTOR), np.uint64(_RING_TERM))
        bench.kernel("sharing.cu", "link_ring")((4096,), (256,), args)
        self._place = bench.xp.full(1, address_of(self._ring), np.uint64)
        self._walk = bench.kernel("sharing.cu", "walk_ring")

    def call(self) -> None:
        """Queue a walk of 1024 loads."""
        self._walk((1,), (1,), (self._place, np.uint32(_WALK_STEPS)))
        self._walked += _WALK_STEPS

    def check(self) -> None:
        """Raise WrongAnswer if the walk is not at the place that the ring's formula gives for the loads made so far."""
        line = affine_power(_RING_FACTOR, _RING_TERM, self._walked, self._lines)[1]
        place = int(self._bench.device.to_host(self._place)[0]) - address_of(self._ring)
        gb.expect(
            place == line * _RING_LINE, f"after {self._walked} loads the walk is at {place}, not at {line * _RING_LINE}"
        )


def chase(bench: gb.Bench, size_bytes: int) -> CheckedCall:
    walk = RingWalk(bench, size_bytes)
    return CheckedCall(walk.call, walk.check)


def to_device(bench: gb.Bench, size_bytes: int) -> CheckedCall:
    """Return a copy of `size_bytes` from page-locked memory to the device, in the current stream, with its check."""
    source, target = bench.device.pinned(size_bytes), bench.xp.empty(size_bytes, np.uint8)
    source[:] = pattern(size_bytes, bench.seed)
    cuda = bench.xp.cuda

    def call() -> None:
        stream = cuda.get_current_stream().ptr
        cuda.runtime.memcpyAsync(target.data.ptr, source.ctypes.data, size_bytes, _HOST_TO_DEVICE, stream)

    check = partial(expect_pattern, bench, target, bench.seed, "copied to the device")
    return CheckedCall(call, check, (target,))


def host_copy(bench: gb.Bench, size_bytes: int) -> CheckedCall:
    """Return a copy of `size_bytes` of host memory by one thread, as a call with its check."""
    source, target = pattern(size_bytes, bench.seed), np.zeros(size_bytes, np.uint8)

    def check() -> None:
        gb.expect(np.array_equal(source, target), "the copy differs from its source")

    return CheckedCall(lambda: np.copyto(target, source), check, (target,))


def spin(bench: gb.Bench, blocks: int, seconds: float = _MILLI) -> CheckedCall:
    """Return a kernel of `blocks` blocks of 1024 threads that compute; two fill an SM and last about `seconds`."""
    steps = max(round(steps_of(bench, seconds) * CYCLES_PER_STEP / _FULL_SM_CYCLES), 1)
    kernel = bench.kernel("sharing.cu", "spin")
    ends = bench.xp.zeros(blocks * SPIN_THREADS, np.uint32)
    product, total = affine_power(_FACTOR, _TERM, steps, 2**32)

    def check() -> None:
        first = np.arange(ends.size, dtype=np.uint64)
        expected = (first * np.uint64(product) + np.uint64(total)).astype(np.uint32)
        wrong = int(np.count_nonzero(bench.device.to_host(ends) != expected))
        gb.expect(not wrong, f"{wrong} of {ends.size} threads ended with a wrong number")

    return CheckedCall(lambda: kernel((blocks,), (SPIN_THREADS,), (np.uint32(steps), ends)), check, (ends,))


def host_spin(bench: gb.Bench) -> CheckedCall:
    """Return a sum of 20 000 numbers by the interpreter, as a call with its check; `bench` is ignored."""
    del bench
    sums: list[int] = []

    def call() -> None:
        sums[:] = [sum(range(_PYTHON_LOOP))]

    def check() -> None:
        gb.expect(sums == [_PYTHON_LOOP * (_PYTHON_LOOP - 1) // 2], f"the loop gave {sums}")

    return CheckedCall(call, check, poison=sums.clear)


def allocate(bench: gb.Bench, size_bytes: int) -> CheckedCall:
    """Return the allocation and release of `size_bytes` by cudaMalloc, or of touched memory of the host."""
    if not bench.traits.is_gpu:
        return CheckedCall(lambda: np.ones(size_bytes, np.uint8), nothing)
    runtime = bench.xp.cuda.runtime
    return CheckedCall(lambda: runtime.free(runtime.malloc(size_bytes)), nothing)


_GPU_VICTIMS: Mapping[str, Callable[[gb.Bench], CheckedCall]] = {
    "launch": launch,
    "triad": lambda bench: triad(bench, 2**26),
    "gemm": lambda bench: gemm(bench, 2048),
    "chase": lambda bench: chase(bench, 2**29),
    "h2d": lambda bench: to_device(bench, 2**23),
    "decode": lambda bench: decode(bench, 12, 2048),
}
_HOST_VICTIMS: Mapping[str, Callable[[gb.Bench], CheckedCall]] = {
    "triad": lambda bench: triad(bench, 2**22),
    "gemm": lambda bench: gemm(bench, 256),
    "decode": lambda bench: decode(bench, 4, 512),
}
_GPU_AGGRESSORS: Mapping[str, Callable[[gb.Bench], CheckedCall]] = {
    "triad": lambda bench: triad(bench, min(2**30, bench.target.device.memory_bytes // 32)),
    "gemm": lambda bench: gemm(bench, 8192),
    "spin": lambda bench: spin(bench, 2 * bench.target.device.units),
    "copy": lambda bench: to_device(bench, 2**26),
    "allocate": lambda bench: allocate(bench, 2**26),
}
_HOST_AGGRESSORS: Mapping[str, Callable[[gb.Bench], CheckedCall]] = {
    "triad": lambda bench: triad(bench, 2**24),
    "gemm": lambda bench: gemm(bench, 256),
    "spin": host_spin,
    "copy": lambda bench: host_copy(bench, 2**24),
    "allocate": lambda bench: allocate(bench, 2**22),
}
_SYNCHRONOUS = ("allocate",)  # synchronous on a GPU too: each call has ended when it returns


def victims(target: gb.Target) -> Mapping[str, Callable[[gb.Bench], CheckedCall]]:
    """Return the factory of each victim's operation on this device, by name."""
    return _HOST_VICTIMS if target.is_host else _GPU_VICTIMS


def aggressors(target: gb.Target) -> Mapping[str, Callable[[gb.Bench], CheckedCall]]:
    """Return the factory of each aggressor's operation on this device, by name."""
    return _HOST_AGGRESSORS if target.is_host else _GPU_AGGRESSORS


def is_queued(bench: gb.Bench, aggressor: str) -> bool:
    """Return whether calls of this aggressor return before their work has ended."""
    return bench.traits.is_gpu and aggressor not in _SYNCHRONOUS


def launch_queue(bench: gb.Bench, stream: Any = None) -> LaunchQueue:
    """Return the launch queue of `stream`, a CuPy stream, or the current one; on the host its functions do nothing."""
    if not bench.traits.is_gpu:
        return LaunchQueue(nothing, nothing)
    cuda = bench.xp.cuda
    device, chosen = cuda.Device(), cuda.get_current_stream() if stream is None else stream
    return LaunchQueue(in_turn(device.use, chosen.use), chosen.synchronize)


class LaunchQueue:
    """A queue of operations: `enter` makes its stream current in the calling thread, `wait` waits for all of them."""

    def __init__(self, enter: Callable[[], object], wait: Callable[[], object]) -> None:
        self.enter, self.wait = enter, wait
