"""Build rings for pointer chasing: a ring is a random cycle over cache lines, computed by a formula instead of a table.

The order of a ring is a keyed permutation of its nodes. A ring of any size is written in one pass, the host knows
the position of a walk after any number of steps, and no table has to be drawn, sorted or kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._stream import NEEDS_NUMBA

GPU_LINE_BYTES = 128  # the line of NVIDIA's L2 tags and of AMD's L2; LINE_BYTES in chase.cu
MOST_CYCLES = 2**30  # of a single access: half a second; a larger number is no difference of two clocks
HOST_LINE_BYTES = 64
PAGE_BYTES = 2**21  # the large page of NVIDIA's GPUs and of most hosts
HOST_MOST_BYTES = 2**30  # writing a larger ring on the host takes seconds
CACHES = 4  # a ring of at least this many times the last-level cache is read from memory
LIMIT_S = 0.25  # a waiting kernel gives up after this time
_UNKNOWN_CACHE_BYTES = 2**25
_HOST_STEPS = ((2**20, 2**18), (2**25, 2**16))  # (largest ring in bytes, steps of a sample)
_HOST_FAR_STEPS = 2**14
_WORD = 2**64 - 1
_THREADS = 256
_MOST_BLOCKS = 2**16
# Factors that define an order; with fewer, neighbouring bits of successive nodes visibly depend on each other.
_FACTORS = 4
_BLOCK = 1024  # threads that load a ring into the caches; one of them walks the ring
_STATE = 8  # words of the state that a walk keeps


def cache_bytes(target: gb.Target) -> int:
    """Return the size of the last-level cache in bytes, or 32 MiB if the device does not report it."""
    return target.device.cache_bytes or _UNKNOWN_CACHE_BYTES


def memory_bytes(target: gb.Target) -> int:
    """Return the bytes of a ring that memory serves: the smallest power of two of at least four last-level caches.

    On the host it is at most 1 GiB."""
    size_bytes: int = 1 << (CACHES * cache_bytes(target) - 1).bit_length()
    return min(size_bytes, HOST_MOST_BYTES) if target.is_host else size_bytes


def device_count(params: Mapping[str, str | int | float]) -> int:
    """Return the number of devices that a case needs: 2 if its parameter `space` is `peer`, else 1."""
    return 2 if params["space"] == "peer" else 1


def remote_memory(bench: gb.Bench, space: str, size_bytes: int) -> Any:
    """Return new memory outside of the GPU, uint8 of shape (size_bytes,); None for spaces other than `host` and `peer`.

    `host` is page-locked host memory, a NumPy array; `peer` is the memory of the second device of the case, a CuPy
    array."""
    if space == "host":
        return bench.device.pinned(size_bytes)
    return bench.device.peer_memory(bench.devices[1], size_bytes) if space == "peer" else None


def cycles_of(bench: gb.Bench, seconds: float) -> np.uint64:
    """Return `seconds` as cycles of the device's clock, at the frequency `clock.sm_hz` of the facts, or else 2 GHz."""
    return np.uint64(seconds * float(dict(bench.target.device.details).get("clock.sm_hz", 2e9)))


def host_kernel(name: str) -> Callable[..., Any]:
    """Return the function `name` of suites/_host.py, compiled by numba; raises Skip if numba is unavailable."""
    try:
        from .. import _host
    except ImportError as error:
        raise gb.Skip(NEEDS_NUMBA) from error
    return _host.KERNELS[name]


@dataclass(frozen=True, slots=True)
class RingOrder:
    """A keyed pseudo-random permutation of the numbers below `nodes`: `at(i)` is the i-th node of the ring.

    Nodes are `stride` bytes apart."""

    nodes: int
    add: int
    factors: tuple[int, ...]
    stride: int
    line: int

    @classmethod
    def drawn(cls, rng: np.random.Generator, nodes: int, stride: int, line: int) -> RingOrder:
        """Return a random permutation of `nodes` nodes; `stride` is in bytes, `line` times a power of two."""
        add, *factors = (int(rng.integers(2**64, dtype=np.uint64)) for _ in range(1 + _FACTORS))
        return cls(nodes, add, tuple(factor | 1 for factor in factors), stride, line)

    @property
    def mask(self) -> int:
        """The smallest power of two that is not below the number of nodes, minus one."""
        return max((1 << (self.nodes - 1).bit_length()) - 1, 1)

    @property
    def shift(self) -> int:
        """Half the bits of the mask."""
        return (self.mask.bit_length() + 1) // 2

    def at(self, i: int) -> int:
        """Return the number of the i-th node, below `nodes`; `i` is from 0 to `nodes` − 1."""
        while True:
            i = (i + self.add) & self.mask
            for factor in self.factors:
                i = (i ^ i >> self.shift) * factor & self.mask
            i ^= i >> self.shift
            if i < self.nodes:
                return i

    def offset(self, i: int) -> int:
        """Return the bytes from the start of the ring's memory to the i-th node; `i` is from 0 to `nodes` − 1."""
        node = self.at(i)
        others = self.stride // self.line - 1
        return node * self.stride + (int(gb.random_words(self.add, node, 1)[0]) & others) * self.line

    @property
    def keys(self) -> tuple[np.uint64, ...]:
        """The numbers from which a kernel computes the i-th node: uint64, the factors last."""
        numbers = (self.nodes, self.mask, self.shift, self.add, *self.factors)
        return tuple(np.uint64(number) for number in numbers)

    @property
    def arguments(self) -> tuple[np.uint64, ...]:
        """The arguments that the macro ORDER of chase.cu declares."""
        return (*self.keys, np.uint64(self.stride), np.uint64(self.stride // self.line - 1))


@dataclass(slots=True)
class Walk:
    """A walk round a ring, and the position where it should stand.

    `advance` walks `steps` timed steps from the position that `state[0]` holds."""

    bench: gb.Bench
    advance: Callable[[], object]
    expected: Callable[[int], int]
    state: Any
    steps: int
    steps_per_call: int = 0  # non-zero if a call walks more steps than it times
    walked: int = 0

    def call(self) -> None:
        """Take one sample, which starts at the position where the previous one ended."""
        self.advance()
        self.walked += self.steps_per_call or self.steps

    def check(self) -> gb.Observation:
        """Raise WrongAnswer unless the walk stands where the ring's order says; a wrong ring or load leads elsewhere.

        Returns no observations."""
        expected, position = self.expected(self.walked), self.read(0)
        gb.expect(position == expected, f"after {self.walked} loads the walk is at {position}, not at {expected}")
        return {}

    def read(self, word: int) -> int:
        """Return the word of index `word` of the state, after the device has finished."""
        return int(self.bench.device.to_host(self.state)[word])

    def cycles(self) -> gb.Observation:
        """Return the observation `cycles`: device cycles per load of the last sample, as the kernel counted them."""
        return {"cycles": gb.Observed(self.read(1) / self.steps, "cycles")}

    def stage(self) -> gb.Stage:
        """Return the walk as a stage in seconds per load; on a GPU a sample is one launch, with `cycles` observed."""
        work = gb.Work(items=self.steps)
        if not self.bench.traits.is_gpu:
            return gb.Stage(self.call, work, "item", effort=gb.POINT)
        return gb.Stage(self.call, work, "item", max_calls=1, probe=self.cycles, effort=gb.POINT)

    def task(self, notes: Mapping[str, str] | None = None) -> gb.Task:
        """Return the walk as a task that checks its own position."""
        return gb.Task.of(self.stage(), check=self.check, notes=notes)


def new_state(bench: gb.Bench, offset: int) -> Any:
    """Return the state of a walk that stands at `offset` bytes: uint64 of shape (8,) on the device.

    The words after the first are zeros."""
    return bench.xp.asarray(np.array([offset] + [0] * (_STATE - 1), np.uint64))


def pointer(memory: Any) -> Any:
    """Return `memory` as an argument for a kernel: the address of a NumPy array, as uint64, and a CuPy array unchanged.

    With unified addressing the address of page-locked host memory is valid on the device."""
    return np.uint64(memory.ctypes.data) if isinstance(memory, np.ndarray) else memory


@dataclass(frozen=True, slots=True)
class GpuRing:
    """A ring in memory that the GPU reaches: its own memory, another GPU's, or page-locked host memory.

    `memory` is the CuPy or NumPy array that holds the ring, and `order` the order of its nodes."""

    bench: gb.Bench
    memory: Any
    order: RingOrder

    @classmethod
    def linked(cls, bench: gb.Bench, size_bytes: int, memory: Any = None, stride: int = GPU_LINE_BYTES) -> GpuRing:
        """Return a new ring of size_bytes / stride − 1 nodes, `stride` bytes apart, that a kernel writes into `memory`.

        `memory` is uint8 of shape (size_bytes,); with None, new memory of the device is allocated."""
        if memory is None:
            bench.need(size_bytes)
            memory = bench.xp.empty(size_bytes, bench.xp.uint8)
        order = RingOrder.drawn(bench.rng, size_bytes // stride - 1, stride, GPU_LINE_BYTES)
        blocks = min(-(-4 * order.nodes // _THREADS), _MOST_BLOCKS)
        bench.kernel("chase.cu", "link")((blocks,), (_THREADS,), (pointer(memory), *order.arguments))
        return cls(bench, memory, order)

    def offset(self, walked: int) -> int:
        """Return the byte offset at which a walk stands after `walked` steps from the start."""
        return self.order.offset(walked % self.order.nodes)

    def state(self) -> Any:
        """Return a new state of a walk that stands at the first node: uint64 of shape (8,), on the device."""
        return new_state(self.bench, self.offset(0))

    def walk(self, steps: int, *, sweep: bool, kernel: str = "chase") -> Walk:
        """Return a walk from the start with `steps` timed steps in each call, by the kernel `kernel` of chase.cu.

        With `sweep` each call first loads the whole ring once, untimed."""
        run, state = self.bench.kernel("chase.cu", kernel), self.state()
        nodes = np.uint64(self.order.nodes if sweep else 0)
        args = (pointer(self.memory), *self.order.arguments, nodes, np.uint64(steps), state)
        return Walk(self.bench, lambda: run((1,), (_BLOCK,), args), self.offset, state, steps)

    def settle(self, kernel: str = "chase") -> None:
        """Load the whole ring once in its order by a block of threads, so that the caches are as a walk leaves them.

        `kernel` is `chase`, which loads through the first cache, or `chase_l2`, which loads past it."""
        nodes = np.uint64(self.order.nodes)
        args = (pointer(self.memory), *self.order.arguments, nodes, np.uint64(0), self.state())
        self.bench.kernel("chase.cu", kernel)((1,), (_BLOCK,), args)


def host_walk(bench: gb.Bench, ring: Any) -> Walk:
    """Write a ring of 64-byte lines into `ring`, a NumPy array of uint64, and return a walk of one thread round it.

    Nodes hold unsigned word indices, because negative indices would cost instructions."""
    line_words = HOST_LINE_BYTES // 8
    order = RingOrder.drawn(bench.rng, ring.nbytes // HOST_LINE_BYTES - 1, HOST_LINE_BYTES, HOST_LINE_BYTES)
    host_kernel("link")(ring, order.keys, np.uint64(line_words))
    if ring.nbytes < CACHES * cache_bytes(bench.target):
        host_kernel("sweep")(ring, order.keys, np.uint64(line_words))
    steps = next((steps for most_bytes, steps in _HOST_STEPS if ring.nbytes <= most_bytes), _HOST_FAR_STEPS)
    run, state = host_kernel("chase"), np.array([order.at(0) * line_words], np.uint64)
    return Walk(bench, lambda: run(ring, steps, state), lambda i: order.at(i % order.nodes) * line_words, state, steps)
