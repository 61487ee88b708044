"""Rings to walk: a random single cycle over lines, known without being stored.

The order of a ring is a keyed permutation of its nodes, so that a ring of any size is written in one pass, the
place of a walk after any number of steps is known to the host, and nothing has to be drawn, sorted or kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api.suite import TIER, Bench, Effort, Observation, Observed, Skip, Stage, Task, Work, expect

GPU_LINE_BYTES = 128  # of NVIDIA's L2 tags and of AMD's L2; LINE_BYTES in chase.cu
HOST_LINE_BYTES = 64
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # splitmix64, as gb_random
_WORD = 2**64 - 1
_THREADS = 256
_MOST_BLOCKS = 2**16
_FACTORS = 4  # of an order; with fewer of them neighbouring bits of successive nodes can be seen to depend
_BLOCK = 1024  # threads that put a ring into the caches; one of them walks it
_STATE = 8  # words
LIMIT_S = 0.25  # after which a kernel that waits gives up


def cycles_of(bench: Bench, seconds: float) -> np.uint64:
    """Seconds in cycles of the device's clock, as far as the facts tell."""
    return np.uint64(seconds * float(dict(bench.target.device.details).get("clock.sm_hz", 2e9)))


def host_kernel(name: str) -> Callable[..., Any]:
    """A kernel of `_host`; raises Skip where numba is missing."""
    try:
        from .. import _host
    except ImportError as error:
        raise Skip("needs numba: pip install 'gpubench-suite[host]'") from error
    return _host.KERNELS[name]


def random_word(seed: int, i: int) -> int:
    """gb_random of the prelude: word i of the random words of a seed."""
    x = (seed + i * _GOLDEN) & _WORD
    x = (x ^ (x >> 30)) * _FIRST & _WORD
    x = (x ^ (x >> 27)) * _SECOND & _WORD
    return x ^ (x >> 31)


def drawn_words(bench: Bench, nbytes: int, seed: int) -> Any:
    """An array of 64-bit words on a GPU: word i is random_word(seed, i)."""
    data = bench.xp.empty(nbytes // 8, bench.xp.uint64)
    blocks = min(nbytes // 8 // _THREADS, _MOST_BLOCKS)
    bench.kernel("units.cu", "draw")((blocks,), (_THREADS,), (data, np.uint64(data.size), np.uint64(seed)))
    return data


@dataclass(frozen=True, slots=True)
class Order:
    """A keyed pseudo-random permutation of the numbers below `nodes`: `at(i)` is the i-th node of the ring.

    It mixes the numbers below the next power of two among themselves, by steps that can be undone, until one is a
    node. `stride` is how many bytes the nodes are apart; one that is longer than a line has its nodes on random lines.
    """

    nodes: int
    add: int
    factors: tuple[int, ...]
    stride: int
    line: int

    @classmethod
    def drawn(cls, rng: np.random.Generator, nodes: int, stride: int, line: int) -> Order:
        """One of the permutations; `stride` is `line` times a power of two."""
        add, *factors = (int(rng.integers(2**64, dtype=np.uint64)) for _ in range(1 + _FACTORS))
        return cls(nodes, add, tuple(factor | 1 for factor in factors), stride, line)

    @property
    def mask(self) -> int:
        """The least power of two that no node reaches, less one."""
        return max((1 << (self.nodes - 1).bit_length()) - 1, 1)

    @property
    def shift(self) -> int:
        """Half the bits of the mask."""
        return (self.mask.bit_length() + 1) // 2

    def at(self, i: int) -> int:
        """The i-th node."""
        while True:
            i = (i + self.add) & self.mask
            for factor in self.factors:
                i = (i ^ i >> self.shift) * factor & self.mask
            i ^= i >> self.shift
            if i < self.nodes:
                return i

    def offset(self, i: int) -> int:
        """Where the i-th node lies, in bytes."""
        node = self.at(i)
        return node * self.stride + (random_word(self.add, node) & (self.stride // self.line - 1)) * self.line

    @property
    def keys(self) -> tuple[np.uint64, ...]:
        """What a kernel needs to find the i-th node."""
        numbers = (self.nodes, self.mask, self.shift, self.add, *self.factors)
        return tuple(np.uint64(number) for number in numbers)

    @property
    def words(self) -> tuple[np.uint64, ...]:
        """The arguments ORDER of chase.cu."""
        return (*self.keys, np.uint64(self.stride), np.uint64(self.stride // self.line - 1))


@dataclass(slots=True)
class Walk:
    """A walk round a ring, and where it should stand.

    `advance` walks `steps` on and leaves its byte offset in `state[0]`, its device cycles in `state[1]`. The number of
    nodes is odd and `steps` a power of two, so that no sample ends where it began. `expected` gives the offset after
    so many steps.
    """

    bench: Bench
    advance: Callable[[], object]
    expected: Callable[[int], int]
    state: Any
    steps: int
    each: int = 0  # steps of a call, where they are more than those that are timed
    walked: int = 0

    def call(self) -> None:
        """One sample: go on from where the last one ended."""
        self.advance()
        self.walked += self.each or self.steps

    def check(self) -> Observation:
        """The walk stands where its order says, or the ring or the loads were wrong."""
        expected, found = self.expected(self.walked), self.read(0)
        expect(found == expected, f"after {self.walked} loads the walk stands at {found}, not at {expected}")
        return {}

    def read(self, word: int) -> int:
        """A word of the state."""
        return int(self.bench.device.to_host(self.state)[word])

    def cycles(self) -> Observation:
        """Cycles per load of the last sample, by the device's clock in the kernel."""
        return {"cycles": Observed(self.read(1) / self.steps, "cycles")}

    def stage(self, effort: Effort = TIER) -> Stage:
        """The walk as a stage: on a GPU one launch a sample, its cycles beside it."""
        work = Work(items=self.steps)
        if not self.bench.traits.is_gpu:
            return Stage(self.call, work, "item", effort=effort)
        return Stage(self.call, work, "item", max_calls=1, probe=self.cycles, effort=effort)

    def task(self, effort: Effort = TIER, notes: Mapping[str, str] | None = None) -> Task:
        """The walk as a task that checks where it stands."""
        return Task.of(self.stage(effort), check=self.check, notes=notes)


def new_state(bench: Bench, offset: int) -> Any:
    """The state of a walk that stands at this offset."""
    return bench.xp.asarray(np.array([offset] + [0] * (_STATE - 1), np.uint64))


def pointer(memory: Any) -> Any:
    """What a kernel takes for this memory: with unified addressing the host's address is the device's too."""
    return np.uint64(memory.ctypes.data) if isinstance(memory, np.ndarray) else memory


@dataclass(frozen=True, slots=True)
class GpuRing:
    """A ring in memory that the GPU reaches: an array of its own, of a peer, or page-locked on the host."""

    bench: Bench
    memory: Any
    order: Order

    @classmethod
    def linked(cls, bench: Bench, memory: Any, nbytes: int, stride: int = GPU_LINE_BYTES) -> GpuRing:
        """A fresh ring over all of the memory but one node."""
        order = Order.drawn(bench.rng, nbytes // stride - 1, stride, GPU_LINE_BYTES)
        blocks = min(-(-4 * order.nodes // _THREADS), _MOST_BLOCKS)
        bench.kernel("chase.cu", "link")((blocks,), (_THREADS,), (pointer(memory), *order.words))
        return cls(bench, memory, order)

    def offset(self, walked: int) -> int:
        """The byte offset of a walk after so many steps."""
        return self.order.offset(walked % self.order.nodes)

    def state(self) -> Any:
        """The state of a walk that stands at the start."""
        return new_state(self.bench, self.offset(0))

    def walk(self, steps: int, *, sweep: bool, kernel: str = "chase") -> Walk:
        """A walk of so many timed steps a call; `sweep` goes round the whole ring before each, untimed."""
        run, state = self.bench.kernel("chase.cu", kernel), self.state()
        nodes = np.uint64(self.order.nodes if sweep else 0)
        args = (pointer(self.memory), *self.order.words, nodes, np.uint64(steps), state)
        return Walk(self.bench, lambda: run((1,), (_BLOCK,), args), self.offset, state, steps)

    def settle(self, kernel: str = "chase") -> None:
        """Go round the ring once, in its order, with all lanes of one block: the caches are as a walk leaves them."""
        args = (pointer(self.memory), *self.order.words, np.uint64(self.order.nodes), np.uint64(0), self.state())
        self.bench.kernel("chase.cu", kernel)((1,), (_BLOCK,), args)
