"""Measure attention of one new token per sequence over its cached keys and values, by the kernels of attention.cu."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._checks import flipping
from .._matrix.formats import FORMATS

_FILE = "attention.cu"
_THREADS = (128, 256, 512)  # threads per block of attention.cu, without matrix instructions
# Threads on a compute unit, with up to 128 registers each; half as many if 8 heads share a KV head.
_RESIDENT_THREADS = 512
# Joining a part takes about this share of the time that a block needs for the tokens that it processes at once.
_JOIN_TURNS, _MATRIX_JOIN_TURNS = 1 / 64, 1 / 16
_WIDE_BLOCKS = 0.03  # blocks with twice as many threads must be faster by at least this share
# Matrix instructions take this many rows of queries at a time, and blocks of 128 or 64 threads keep these tokens' sums.
_MATRIX_ROWS, _MATRIX_SUMS = 8, 4096
_RAGGED = 64  # sequences are up to this many tokens shorter than the context
_LARGE = 32  # sequences of the largest batch of the quick tier
_CHECKED = 6  # heads that are compared with double precision
_BOUND = 4 * 2.0**-11  # bound of the relative error, because results are stored as halves
_FILL_BLOCKS, _FILL_THREADS, _FILL_ELEMENTS = 2112, 256, 64  # elements per thread, if enough blocks exist

# Heads, KV heads and elements of a head.
_HEADS = {
    "llama-3-8b": (32, 8, 128),
    "llama-3-70b": (64, 8, 128),
    "chatglm-6b": (32, 32, 128),
    "qwen-2.5-32b": (40, 8, 128),
    "qwen-2.5-7b": (28, 4, 128),
    "gemma-2-9b": (16, 8, 256),
}

# The numbers of float8_e4m3 by their bytes (OCP 8-bit Floating Point Specification 1.0, table 1), without NaN.
_EXPONENT, _FRACTION = np.arange(128) // 8, np.arange(128) % 8
_MAGNITUDES = np.where(_EXPONENT > 0, np.ldexp(8.0 + _FRACTION, _EXPONENT - 10), np.ldexp(1.0 * _FRACTION, -9))
_EIGHT = np.concatenate([_MAGNITUDES, -_MAGNITUDES])

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
        gb.View(
            "bars",
            "Decode attention: bandwidth with several new tokens, float8 and unequal lengths",
            ("verify_attention", "float8_attention", "ragged_attention"),
        ),
    ],
)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """`batch` sequences of at most `context` tokens, the last `fresh` of which have queries; `heads` over `kv_heads`.

    `page` is 0 for a contiguous cache, else the tokens of a page; `cache` is float16 or float8_e4m3."""

    batch: int
    context: int
    heads: int
    kv_heads: int
    dim: int
    page: int = 0
    fresh: int = 1
    cache: str = "float16"
    is_matrix: bool = False

    @property
    def group(self) -> int:
        """The heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def rows(self) -> int:
        """The rows of queries that share a KV head."""
        return self.group * self.fresh

    @property
    def results(self) -> int:
        """The elements of all queries, and of all results."""
        return self.batch * self.heads * self.fresh * self.dim

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
        return 2 * self.itemsize * self.batch * self.kv_heads * self.capacity * self.dim

    @property
    def itemsize(self) -> int:
        """The bytes of an element of the cache."""
        return FORMATS[self.cache].itemsize

    @property
    def defines(self) -> Mapping[str, int]:
        """The macros that attention.cu is built with."""
        rest = {"MATRIX": 1, "FRESH": self.fresh, "EIGHT": int(self.itemsize == 1)} if self.is_matrix else {}
        return {"DIM": self.dim, "GROUP": self.group, "PAGE": self.page, **rest}

    def plan(self, units: int, lengths: npt.NDArray[np.uint32] | None = None) -> AttentionPlan:
        """Return the plan whose blocks take the shortest time on `units` compute units, by a model of their waves.

        `lengths` are the tokens of each sequence; without them all have `context` tokens.
        A block of 128, 256 or 512 threads takes `stride` tokens in a turn."""
        resident, most = self._resident(), 64 if self.rows > 16 else 256  # parts per sequence, as in attention.cu
        tokens = np.full(self.batch, self.context) if lengths is None else lengths.astype(int)
        plans, join = [], _MATRIX_JOIN_TURNS if self.is_matrix else _JOIN_TURNS
        for threads in (size for size in self._threads() if size <= resident):
            stride, slots = self.stride(threads), resident // threads * max(1, units)
            for parts in range(1, min(most, -(-self.context // stride)) + 1):
                turns = -(-self.context // (parts * stride))
                blocks = self.kv_heads * int((-(-tokens // (turns * stride))).sum())
                waves = -(-blocks // slots)
                cost = (waves * (turns + 1) + join * parts) * (1 + _WIDE_BLOCKS * (threads.bit_length() - 8))
                plans.append((cost, threads, turns * stride))
        _, threads, chunk = min(plans)
        return AttentionPlan(threads, chunk, tuple((-(-tokens // chunk)).tolist()))

    def _threads(self) -> tuple[int, ...]:
        """Return the sizes of a block from which the plan chooses."""
        if not self.is_matrix:
            return _THREADS
        return (128,) if 2 * self.rows * self.dim <= _MATRIX_SUMS else (64,)

    def _resident(self) -> int:
        """Return the threads that a compute unit holds, as in attention.cu."""
        if self.is_matrix:
            tiles = -(-self.rows // _MATRIX_ROWS)
            return 256 if tiles * self.dim > 128 else 768 if self.dim == 64 else 640 if self.itemsize == 1 else 512
        return _RESIDENT_THREADS // (2 if self.group == 8 else 1)

    def stride(self, threads: int) -> int:
        """Return the tokens that a block of this number of threads takes at once."""
        if self.is_matrix:
            return threads // 2
        lanes = self.dim // 8
        return threads // lanes * min(4, lanes // self.group)

    def supported(self, traits: gb.Traits) -> AttentionShape:
        """Return this shape as attention.cu computes it on such a device; raises Skip if it cannot."""
        is_matrix = traits.vendor == "nvidia" and "matrix" in traits.features
        if is_matrix:
            fits = self.dim in (64, 128, 256) and self.rows * self.dim <= _MATRIX_SUMS // max(1, self.dim // 128)
            fits &= self.itemsize == 2 or self.dim > 64
        else:
            fits = self.group in (1, 2, 4, 8) and self.fresh == 1 and self.dim in (64, 128) and self.itemsize == 2
        if self.itemsize == 1 and is_matrix and gb.Architecture.parse(traits.arch).capability < 89:
            raise gb.Skip(f"conversions of float8 need sm_89 or newer, not {traits.arch}")
        if self.heads % self.kv_heads or not fits:
            heads = f"{self.heads} heads of {self.dim} elements over {self.kv_heads} KV heads"
            raise gb.Skip(f"the kernel does not support {heads} for {self.fresh} new tokens on this device")
        return replace(self, is_matrix=is_matrix)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How attention.cu is built and launched: threads of a block, tokens of a part, parts of each sequence."""

    threads: int
    chunk: int
    parts: tuple[int, ...]

    @property
    def items(self) -> npt.NDArray[np.uint32]:
        """The parts of all sequences as attention.cu reads them: sequence, part, number of parts, 0."""
        rows = [(place, part, count, 0) for place, count in enumerate(self.parts) for part in range(count)]
        return np.array(rows, np.uint32)


Attend = Callable[[Any, Any, Any], Callable[[], None]]


def launches(
    bench: gb.Bench,
    shape: AttentionShape,
    lengths: npt.NDArray[np.uint32],
    queries: Any,
    table: Any,
    turns: Any | None = None,
) -> Attend:
    """Return a function of keys, values and results (flat device arrays) that returns the call of the attention.

    All calls share the memory of their parts. `lengths` are the tokens of each sequence."""
    xp, is_step = bench.xp, turns is not None
    plan = shape.plan(bench.device.device.units, lengths)
    items = xp.asarray(plan.items)
    rows, grid = len(items) * shape.kv_heads * shape.rows, (len(items), shape.kv_heads)
    sums, scales = xp.empty(rows * shape.dim, "float32"), xp.empty(rows * 2, "float32")
    arrived, tokens = xp.zeros(shape.batch * shape.kv_heads, "uint32"), xp.asarray(lengths)
    kernel = bench.kernel(_FILE, "attend", **shape.defines, THREADS=plan.threads, ROTARY=int(is_step))
    kernel.keep_cache(plan.threads)  # its loads need the cache, and products before it have much shared memory
    rotation = turns if is_step else np.uint64(0), np.float32(log2_scale(shape.dim))
    numbers = items, np.uint32(shape.capacity), np.uint32(plan.chunk)

    def attend(keys: Any, values: Any, out: Any) -> Callable[[], None]:
        args = (keys, values, table, tokens, queries, out, sums, scales, arrived, *rotation, *numbers)
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

    `order` of the pages is ordered or shuffled, `lengths` equal (to 63 tokens) or zipf; all share `prefix` tokens."""

    def __init__(
        self, bench: gb.Bench, shape: AttentionShape, order: str = "ordered", lengths: str = "equal", prefix: int = 0
    ) -> None:
        shape = shape.supported(bench.traits)
        self._bench, self._shape = bench, shape
        copies = bench.copies(shape.cache_bytes)
        bench.need(1.1 * copies * shape.cache_bytes + 2**28)
        xp, rng = bench.xp, bench.rng
        ranks = rng.permutation(shape.batch) + 1 if lengths == "zipf" else 1
        fewer = rng.integers(0, _RAGGED, shape.batch)
        self._lengths = np.maximum(shape.fresh, shape.context // ranks - fewer).astype(np.uint32)
        table = np.arange(shape.batch * max(shape.pages, 1), dtype=np.uint32)
        self._table = (rng.permutation(table) if order == "shuffled" else table).astype(np.uint32)
        self._prefix = prefix
        if prefix:
            pages = self._table.reshape(shape.batch, shape.pages)
            pages[:, : prefix // shape.page] = pages[0, : prefix // shape.page]
        self._device_table = xp.asarray(self._table)
        self._sampled = self._sample(rng)
        # The sampled heads in double precision with both inputs, after their first use.
        self._known: dict[tuple[int, int], npt.NDArray[np.float64]] = {}
        seeds = rng.integers(2**63, size=3)
        self._queries = self._drawn(shape.results, seeds[0], log2_scale(shape.dim))
        self._negate = flipping(self._queries)
        size = shape.batch * shape.kv_heads * shape.capacity * shape.dim
        keys, values = (self._cached(size, seed) for seed in seeds[1:])
        poison = bench.kernel(_FILE, "poison_beyond", **shape.defines)
        numbers = np.uint32(shape.kv_heads), np.uint32(shape.capacity)
        cells = (keys, values, self._device_table, xp.asarray(self._lengths), *numbers)
        poison((shape.batch * shape.kv_heads,), (_FILL_THREADS,), cells)  # one block for each sequence and KV head
        results = [xp.empty(shape.results, "uint16") for _ in range(copies)]
        self.caches = [
            KeyValueCache(keys if place == 0 else keys.copy(), values if place == 0 else values.copy(), out)
            for place, out in enumerate(results)
        ]

    def _sample(self, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Return up to six random pairs (sequence, row), and the first row of the longest and shortest sequence."""
        shape = self._shape
        ends = {(int(np.argmax(self._lengths)), 0), (int(np.argmin(self._lengths)), 0)}
        rows = shape.kv_heads * shape.rows
        drawn = zip(rng.integers(0, shape.batch, _CHECKED), rng.integers(0, rows, _CHECKED), strict=True)
        return sorted(ends | {(int(sequence), int(head)) for sequence, head in drawn})

    def _drawn(self, count: int, seed: Any, scale: float = 1.0) -> Any:
        """Return `count` seeded halves, uniform with variance 1, times `scale`: a device array, uint16."""
        out = self._bench.xp.empty(count, "uint16")
        draw = self._bench.kernel(_FILE, "draw", **self._shape.defines)
        blocks = min(_FILL_BLOCKS, -(-count // (_FILL_THREADS * _FILL_ELEMENTS)))
        draw((blocks,), (_FILL_THREADS,), (np.uint64(count), np.uint64(seed), np.float32(scale), out))
        return out

    def _cached(self, count: int, seed: Any) -> Any:
        """Return `count` seeded keys or values as the cache has them: a device array, uint16 or uint8."""
        if self._shape.itemsize == 2:
            return self._drawn(count, seed)
        out = self._bench.xp.empty(count, "uint8")
        draw = self._bench.kernel(_FILE, "draw_eight", **self._shape.defines)
        draw((_FILL_BLOCKS,), (_FILL_THREADS,), (np.uint64(count // 8), np.uint64(seed), out))
        return out

    @property
    def work(self) -> gb.Work:
        """The work of a call: 4 operations for each element of a head and each cached token.

        Keys and values count as read once, and the bytes of queries and results are added."""
        shape, tokens = self._shape, int(self._lengths.sum())
        read = tokens - (shape.batch - 1) * self._prefix
        moved = 2 * shape.itemsize * read * shape.kv_heads * shape.dim + 2 * 2 * shape.results
        flops = 4.0 * shape.heads * shape.fresh * shape.dim * tokens
        return gb.Work(moved=float(moved), flops=flops, items=float(tokens))

    @property
    def outputs(self) -> tuple[Any, ...]:
        """The results over each copy of the cache."""
        return tuple(cache.out for cache in self.caches)

    def calls(self) -> tuple[Callable[[], None], ...]:
        """Return the attention over each copy of the cache."""
        attend = launches(self._bench, self._shape, self._lengths, self._queries, self._device_table)
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
        rows = first.reshape(self._shape.batch, -1, self._shape.dim)
        self._known = self._known or {place: self.expected(*place) for place in self._sampled}
        pairs = [(rows[place], exact[0]) for place, exact in self._known.items()]
        errors = [float(np.linalg.norm(row - exact) / np.linalg.norm(exact)) for row, exact in pairs]
        gb.expect(max(errors) <= _BOUND, f"the relative error {max(errors):.3g} of a head is above {_BOUND:.3g}")
        return {"error": gb.Observed(max(errors))}

    def expected(self, sequence: int, row: int) -> npt.NDArray[np.float64]:
        """Return the results of a row of queries in double precision, of the queries and of their negatives: (2, dim).

        The rows of a sequence are its heads; with fresh tokens, the heads of a KV head token by token."""
        shape, to_host = self._shape, self._bench.device.to_host
        first = (sequence * shape.kv_heads * shape.rows + row) * shape.dim
        query = to_host(self._queries[first : first + shape.dim]).view(np.float16).astype(float)
        cache, (kv_head, place) = self.caches[0], divmod(row, shape.rows)
        seen = int(self._lengths[sequence]) - (shape.fresh - 1 - place // shape.group)
        keys, values = (self._rows(array, sequence, kv_head)[:seen] for array in (cache.keys, cache.values))
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
        numbers = elements.view(np.float16).astype(float) if shape.itemsize == 2 else _EIGHT[elements]
        return np.asarray(numbers.reshape(-1, shape.dim)[:length])

    def task(self) -> gb.Task:
        """Return the attention over each copy in turn as a task that is judged by the bytes that a call moves."""
        calls, shape = self.calls(), self._shape
        rest: dict[str, Any] = {"effort": gb.POINT, "outputs": self.outputs, "inputs": self.redraw, "item": "token"}
        rest["quantity"] = "items" if self._prefix else "moved"
        rest["buffers"] = [copy.keys for copy in self.caches]
        stage = gb.Stage(calls[0], self.work, limit="dram", modes=(), rotation=calls, **rest)
        plan = shape.plan(self._bench.device.device.units, self._lengths)
        layout = f"pages of {shape.page} tokens" if shape.page else "contiguous"
        notes = {
            "kernel": f"{_FILE}, parts of {plan.chunk} tokens by blocks of {plan.threads} threads",
            "cache": f"{shape.cache_bytes} bytes, {layout}, {len(calls)} copies in turn, NaN beyond each length",
            "data": f"seeded, uniform with variance 1; lengths {self._lengths.min()} to {self._lengths.max()}",
        }
        return gb.Task.of(stage, check=self.check, notes=notes)


def _is_a_model(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether a point is measured: only a published model's heads, and of most models one point."""
    heads = params["heads"], params["kv_heads"], params["dim"]
    if heads in list(_HEADS.values())[: 3 if target.tier == "full" else 1]:
        return True
    return heads in _HEADS.values() and params["batch"] == _LARGE and params["context"] == 4096


@topic.case(
    batch=gb.points((1, 8, _LARGE), (2,), (1, 8, _LARGE, 64)),
    context=gb.points((4096,), (1024,), gb.powers_of_two(9, 15)),
    heads=gb.points((32, 64), (32,), (16, 28, 32, 40, 64)),
    kv_heads=gb.points((8,), full=(4, 8, 32)),
    dim=gb.points((128,), full=(128, 256)),
    when=gb.on_gpu,
    where=_is_a_model,
)
def decode_attention(bench: gb.Bench, batch: int, context: int, heads: int, kv_heads: int, dim: int) -> gb.Task:
    """Bandwidth of attention of one new token per sequence over its cached keys and values (float16).

    The bytes of keys, values, queries and results count once each; copies of the cache are used in turn, so that they
    come from memory. The sequences have up to 63 tokens fewer than `context`."""
    return DecodeAttention(bench, AttentionShape(batch, context, heads, kv_heads, dim)).task()


_VARIANT: dict[str, Any] = {
    "batch": gb.points((), (2,), (_LARGE,)),
    "context": gb.points((4096,), (1024,)),
    "heads": gb.points((32, 64), (32,)),
    "kv_heads": (8,),
    "dim": (128,),
    "when": gb.on_gpu,
}


@topic.case(**_VARIANT, tokens=gb.points((2, 4), (2,)))
def verify_attention(
    bench: gb.Bench, batch: int, context: int, heads: int, kv_heads: int, dim: int, tokens: int
) -> gb.Task:
    """Bandwidth as in decode_attention, of `tokens` new tokens per sequence, as speculative decoding verifies them."""
    return DecodeAttention(bench, AttentionShape(batch, context, heads, kv_heads, dim, fresh=tokens)).task()


@topic.case(**_VARIANT)
def float8_attention(bench: gb.Bench, batch: int, context: int, heads: int, kv_heads: int, dim: int) -> gb.Task:
    """Bandwidth as in decode_attention, over a cache of float8_e4m3."""
    return DecodeAttention(bench, AttentionShape(batch, context, heads, kv_heads, dim, cache="float8_e4m3")).task()


@topic.case(**{**_VARIANT, "context": gb.points((32768,), (1024,))})
def ragged_attention(bench: gb.Bench, batch: int, context: int, heads: int, kv_heads: int, dim: int) -> gb.Task:
    """Bandwidth as in decode_attention, of sequences of unequal lengths: the k-th longest has `context`/k tokens."""
    return DecodeAttention(bench, AttentionShape(batch, context, heads, kv_heads, dim), lengths="zipf").task()


@topic.case(
    # In the quick tier, compiling the kernels for pages takes longer than all attention cases.
    page=gb.points((), (16,), (16, 64, 256)),
    order=("ordered", "shuffled"),
    batch=gb.points((_LARGE,), (2,)),
    context=gb.points((4096,), (1024,)),
    when=gb.on_gpu,
)
def kv_pages(bench: gb.Bench, page: int, order: str, batch: int, context: int) -> gb.Task:
    """Bandwidth as in decode_attention, over a cache in pages of `page` tokens, which lie in order or shuffled.

    There are 32 heads over 8 KV heads of 128 elements."""
    return DecodeAttention(bench, AttentionShape(batch, context, 32, 8, 128, page), order).task()


@topic.case(
    prefix=gb.points((), (512,), (0, 2048, 3584)),
    batch=gb.points((_LARGE,), (2,)),
    context=gb.points((4096,), (1024,)),
    when=gb.on_gpu,
)
def shared_prefix(bench: gb.Bench, prefix: int, batch: int, context: int) -> gb.Task:
    """Tokens attended to per second, where all sequences share the pages of their first `prefix` tokens.

    Pages have 64 tokens, and there are 32 heads over 8 KV heads of 128 elements. The bytes of shared pages count
    once."""
    return DecodeAttention(bench, AttentionShape(batch, context, 32, 8, 128, 64), prefix=prefix).task()
