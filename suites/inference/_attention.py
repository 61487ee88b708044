"""Measure attention of one new token per sequence over its cached keys and values, by the kernels of attention.cu."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._checks import flipping

_FILE = "attention.cu"
_THREADS = (128, 256, 512)  # threads per block of attention.cu
# Threads on a compute unit, with up to 128 registers each; half as many if 8 heads share a KV head.
_RESIDENT_THREADS = 512
# Joining a part takes about this share of the time that a block needs for the tokens that it processes at once.
_JOIN_TURNS = 1 / 64
_WIDE_BLOCKS = 0.03  # blocks with twice as many threads must be faster by at least this share
_MOST_PARTS = 256  # parts per sequence, as in attention.cu
_RAGGED = 64  # sequences are up to this many tokens shorter than the context
_CHECKED = 6  # heads that are compared with double precision
_BOUND = 4 * 2.0**-11  # bound of the relative error, because results are stored as halves
_FILL_BLOCKS, _FILL_THREADS, _FILL_ELEMENTS = 2112, 256, 64  # elements per thread, if enough blocks exist

_HEADS = {
    "llama-3-8b": (32, 8),
    "llama-3-70b": (64, 8),
    "chatglm-6b": (32, 32),
}  # number of heads and of KV heads; all heads have 128 elements

topic = gb.Topic(
    views=[
        gb.View(
            "curve",
            "Decode attention: bandwidth by context",
            ("decode_attention",),
            x="context",
            by=("batch", "heads", "kv_heads"),
            log_x=True,
        ),
        gb.View("bars", "Decode attention: bandwidth of a paged KV cache", ("kv_pages",)),
    ],
)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """`batch` sequences of at most `context` tokens; `page` is 0 for a contiguous cache, else the tokens of a page.

    `heads` heads of `dim` elements share `kv_heads` heads of keys and values."""

    batch: int
    context: int
    heads: int
    kv_heads: int
    dim: int
    page: int = 0

    @property
    def capacity(self) -> int:
        """The tokens that the cache has room for in each sequence."""
        return self.context if not self.page else -(-self.context // self.page) * self.page

    @property
    def pages(self) -> int:
        """The pages of a sequence; 0 without pages."""
        return self.capacity // self.page if self.page else 0

    @property
    def cache_bytes(self) -> int:
        """The bytes of all keys and values that the cache has room for."""
        return 2 * 2 * self.batch * self.kv_heads * self.capacity * self.dim

    @property
    def defines(self) -> Mapping[str, int]:
        """The macros that attention.cu is built with."""
        return {"DIM": self.dim, "GROUP": self.heads // self.kv_heads, "PAGE": self.page}

    def plan(self, units: int) -> AttentionPlan:
        """Return the plan whose blocks take the shortest time on `units` compute units, by a model of their waves.

        A block of 128, 256 or 512 threads takes `stride` tokens in a turn."""
        group = self.heads // self.kv_heads
        resident = _RESIDENT_THREADS // (2 if group == 8 else 1)
        plans = []
        for threads in (size for size in _THREADS if size <= resident):
            stride, slots = self.stride(threads), resident // threads * max(1, units)
            for parts in range(1, min(_MOST_PARTS, -(-self.context // stride)) + 1):
                turns = -(-self.context // (parts * stride))
                waves = -(-self.batch * self.kv_heads * -(-self.context // (turns * stride)) // slots)
                cost = (waves * (turns + 1) + _JOIN_TURNS * parts) * (1 + _WIDE_BLOCKS * _THREADS.index(threads))
                plans.append((cost, threads, turns * stride))
        _, threads, chunk = min(plans)
        return AttentionPlan(threads, chunk, -(-self.context // chunk))

    def stride(self, threads: int) -> int:
        """Return the tokens that a block of this number of threads takes at once."""
        lanes = self.dim // 8
        return threads // lanes * min(4, lanes // (self.heads // self.kv_heads))


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How attention.cu is built and launched: threads of a block, tokens of a part, parts of a sequence."""

    threads: int
    chunk: int
    parts: int


Attend = Callable[[Any, Any, Any], Callable[[], None]]


def launches(
    bench: gb.Bench, shape: AttentionShape, lengths: Any, queries: Any, table: Any, turns: Any | None = None
) -> Attend:
    """Return a function of keys, values and results (flat device arrays) that returns the call of the attention.

    All calls share the memory of their parts."""
    plan, is_step = shape.plan(bench.device.device.units), turns is not None
    rows, grid = shape.batch * shape.heads, (plan.parts, shape.batch * shape.kv_heads)
    sums = bench.xp.empty(rows * plan.parts * shape.dim, "float32")
    scales = bench.xp.empty(rows * plan.parts * 2, "float32")
    arrived = bench.xp.zeros(grid[1], "uint32")
    kernel = bench.kernel(_FILE, "attend", **shape.defines, THREADS=plan.threads, ROTARY=int(is_step))
    numbers = tuple(map(np.uint32, (shape.kv_heads, shape.capacity, plan.chunk)))
    rotation = turns if is_step else np.uint64(0), np.float32(log2_scale(shape.dim))

    def attend(keys: Any, values: Any, out: Any) -> Callable[[], None]:
        args = (keys, values, table, lengths, queries, out, sums, scales, arrived, *rotation, *numbers)
        return partial(kernel.early if is_step else kernel, grid, (plan.threads,), args)

    return attend


def log2_scale(dim: int) -> float:
    """Return the factor of queries that makes the scores exponents of two."""
    return math.log2(math.e) / math.sqrt(dim)


@dataclass(frozen=True, slots=True)
class KeyValueCache:
    """The keys and values of one copy of the cache, and the results: flat device arrays, halves as uint16."""

    keys: Any
    values: Any
    out: Any


class DecodeAttention:
    """Seeded queries, keys and values in memory, in copies that together exceed the last-level cache.

    `order` of the pages is `ordered` or `shuffled`."""

    def __init__(self, bench: gb.Bench, shape: AttentionShape, order: str = "ordered") -> None:
        group = shape.heads // shape.kv_heads
        if shape.heads % shape.kv_heads or group not in (1, 2, 4, 8) or shape.dim not in (64, 128):
            heads = f"{shape.heads} heads of {shape.dim} elements over {shape.kv_heads} KV heads"
            raise gb.Skip(f"the kernel does not support {heads}")
        self._bench, self._shape = bench, shape
        copies = bench.copies(shape.cache_bytes)
        bench.need(1.1 * copies * shape.cache_bytes + 2**28)
        xp, rng = bench.xp, bench.rng
        self._lengths = np.maximum(1, shape.context - rng.integers(0, _RAGGED, shape.batch)).astype(np.uint32)
        table = np.arange(shape.batch * max(shape.pages, 1), dtype=np.uint32)
        self._table = (rng.permutation(table) if order == "shuffled" else table).astype(np.uint32)
        self._device_table, self._device_lengths = xp.asarray(self._table), xp.asarray(self._lengths)
        self._sampled = self._sample(rng)
        # The sampled heads in double precision with both inputs, after their first use.
        self._known: dict[tuple[int, int], npt.NDArray[np.float64]] = {}
        seeds = rng.integers(2**63, size=3)
        self._queries = self._drawn(shape.batch * shape.heads * shape.dim, seeds[0], log2_scale(shape.dim))
        self._negate = flipping(self._queries)
        size = shape.batch * shape.kv_heads * shape.capacity * shape.dim
        keys, values = self._drawn(size, seeds[1]), self._drawn(size, seeds[2])
        poison = bench.kernel(_FILE, "poison_beyond", **shape.defines)
        numbers = np.uint32(shape.kv_heads), np.uint32(shape.capacity)
        cells = (keys, values, self._device_table, self._device_lengths, *numbers)
        poison((shape.batch * shape.kv_heads,), (_FILL_THREADS,), cells)  # one block for each sequence and KV head
        results = [xp.empty(shape.batch * shape.heads * shape.dim, "uint16") for _ in range(copies)]
        self.caches = [
            KeyValueCache(keys if place == 0 else keys.copy(), values if place == 0 else values.copy(), out)
            for place, out in enumerate(results)
        ]

    def _sample(self, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Return up to six random pairs (sequence, head), and the first head of the longest and shortest sequence."""
        shape = self._shape
        ends = {(int(np.argmax(self._lengths)), 0), (int(np.argmin(self._lengths)), 0)}
        drawn = zip(rng.integers(0, shape.batch, _CHECKED), rng.integers(0, shape.heads, _CHECKED), strict=True)
        return sorted(ends | {(int(sequence), int(head)) for sequence, head in drawn})

    def _drawn(self, count: int, seed: Any, scale: float = 1.0) -> Any:
        """Return `count` seeded halves, uniform with variance 1, times `scale`: a device array, uint16."""
        out = self._bench.xp.empty(count, "uint16")
        draw = self._bench.kernel(_FILE, "draw", **self._shape.defines)
        blocks = min(_FILL_BLOCKS, -(-count // (_FILL_THREADS * _FILL_ELEMENTS)))
        draw((blocks,), (_FILL_THREADS,), (np.uint64(count), np.uint64(seed), np.float32(scale), out))
        return out

    @property
    def work(self) -> gb.Work:
        """The work of a call: 4 operations for each element of a head and each cached token.

        Keys and values count as read once, and the bytes of queries and results are added."""
        shape, tokens = self._shape, int(self._lengths.sum())
        moved = 2 * 2 * tokens * shape.kv_heads * shape.dim + 2 * 2 * shape.batch * shape.heads * shape.dim
        return gb.Work(moved=float(moved), flops=4.0 * shape.heads * shape.dim * tokens)

    @property
    def outputs(self) -> tuple[Any, ...]:
        """The results over each copy of the cache."""
        return tuple(cache.out for cache in self.caches)

    def calls(self) -> tuple[Callable[[], None], ...]:
        """Return the attention over each copy of the cache."""
        attend = launches(self._bench, self._shape, self._device_lengths, self._queries, self._device_table)
        return tuple(attend(cache.keys, cache.values, cache.out) for cache in self.caches)

    def redraw(self) -> None:
        """Negate the queries; a second call restores them."""
        self._negate()
        self._known = {place: exact[::-1] for place, exact in self._known.items()}

    def check(self) -> gb.Observation:
        """Compare sampled heads with double precision; every copy that was written must have the same results.

        Later checks take the same heads, whose double precision results are stored."""
        results = [self._bench.device.to_host(cache.out) for cache in self.caches]
        written = [result for result in results if not (result == 0xFFFF).all()]
        gb.expect(bool(written), "no copy of the cache has results")
        first = written[0].view(np.float16).astype(float)
        gb.expect(bool(np.isfinite(first).all()), "results are not written, NaN or infinite")
        differing = sum(int(np.count_nonzero(result != written[0])) for result in written[1:])
        gb.expect(differing == 0, f"{differing} results of {len(written)} copies differ from the first copy")
        rows = first.reshape(self._shape.batch, self._shape.heads, self._shape.dim)
        self._known = self._known or {place: self.expected(*place) for place in self._sampled}
        pairs = [(rows[place], exact[0]) for place, exact in self._known.items()]
        errors = [float(np.linalg.norm(row - exact) / np.linalg.norm(exact)) for row, exact in pairs]
        gb.expect(max(errors) <= _BOUND, f"the relative error {max(errors):.3g} of a head is above {_BOUND:.3g}")
        return {"error": gb.Observed(max(errors))}

    def expected(self, sequence: int, head: int) -> npt.NDArray[np.float64]:
        """Return the results of a head in double precision, of the queries and of their negatives: NumPy, (2, dim)."""
        shape, to_host = self._shape, self._bench.device.to_host
        first = (sequence * shape.heads + head) * shape.dim
        query = to_host(self._queries[first : first + shape.dim]).view(np.float16).astype(float)
        cache, kv_head = self.caches[0], head // (shape.heads // shape.kv_heads)
        keys, values = (self._rows(array, sequence, kv_head) for array in (cache.keys, cache.values))
        scores = keys @ query
        powers = np.exp2(np.stack([scores - scores.max(), scores.min() - scores]))
        return np.asarray(powers @ values / powers.sum(axis=1, keepdims=True))

    def _rows(self, array: Any, sequence: int, kv_head: int) -> npt.NDArray[np.float64]:
        """Return the keys or values of one KV head of a sequence in the order of its tokens, as NumPy doubles."""
        shape, length = self._shape, int(self._lengths[sequence])
        if shape.page:
            pages = self._table[sequence * shape.pages : (sequence + 1) * shape.pages]
            runs = array.reshape(-1, shape.kv_heads, shape.page * shape.dim)
            elements = np.concatenate([self._bench.device.to_host(runs[int(page), kv_head]) for page in pages])
        else:
            elements = self._bench.device.to_host(
                array.reshape(shape.batch, shape.kv_heads, -1)[int(self._table[sequence]), kv_head]
            )
        return np.asarray(elements.view(np.float16).astype(float).reshape(-1, shape.dim)[:length])

    def task(self) -> gb.Task:
        """Return the attention over each copy in turn as a task that is judged by the bytes that a call moves."""
        calls, shape = self.calls(), self._shape
        rest: dict[str, Any] = {"effort": gb.POINT, "outputs": self.outputs, "inputs": self.redraw}
        stage = gb.Stage(calls[0], self.work, "moved", "dram", modes=(), rotation=calls, **rest)
        plan = shape.plan(self._bench.device.device.units)
        layout = f"pages of {shape.page} tokens" if shape.page else "contiguous"
        notes = {
            "kernel": f"{_FILE}, parts of {plan.chunk} tokens by blocks of {plan.threads} threads",
            "cache": f"{shape.cache_bytes} bytes, {layout}, {len(calls)} copies in turn, NaN beyond each length",
            "data": f"seeded, uniform with variance 1; lengths {self._lengths.min()} to {self._lengths.max()}",
        }
        return gb.Task.of(stage, check=self.check, notes=notes)


def _is_a_model(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether a point is measured: a published model must have its numbers of heads and of KV heads."""
    del target
    return (params["heads"], params["kv_heads"]) in _HEADS.values()


@topic.case(
    batch=gb.points((1, 8, 32), (2,), (1, 8, 32, 64)),
    context=gb.points((4096,), (1024,), gb.powers_of_two(9, 15)),
    heads=gb.points((32,), full=(32, 64)),
    kv_heads=gb.points((8,), full=(8, 32)),
    dim=(128,),
    when=gb.on_gpu,
    where=_is_a_model,
)
def decode_attention(bench: gb.Bench, batch: int, context: int, heads: int, kv_heads: int, dim: int) -> gb.Task:
    """Bandwidth of attention of one new token per sequence over its cached keys and values (float16).

    The bytes of keys, values, queries and results count once each; copies of the cache are used in turn, so that they
    come from memory. The sequences have up to 63 tokens fewer than `context`."""
    return DecodeAttention(bench, AttentionShape(batch, context, heads, kv_heads, dim)).task()


@topic.case(
    # In the quick tier, compiling the kernels for pages takes longer than all attention cases.
    page=gb.points((), (16,), (16, 64, 256)),
    order=("ordered", "shuffled"),
    batch=gb.points((32,), (2,)),
    context=gb.points((4096,), (1024,)),
    when=gb.on_gpu,
)
def kv_pages(bench: gb.Bench, page: int, order: str, batch: int, context: int) -> gb.Task:
    """Bandwidth as in decode_attention, over a cache in pages of `page` tokens, which lie in order or shuffled.

    There are 32 heads over 8 KV heads of 128 elements."""
    return DecodeAttention(bench, AttentionShape(batch, context, 32, 8, 128, page), order).task()
