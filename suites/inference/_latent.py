"""Measure attention over one latent vector per token (MLA of DeepSeek-V2): all heads read the same cached vectors.

A token has `LATENT` elements, which are its key and its value, and `ROTARY` more of its key. The up-projections are
absorbed into queries and results (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .. import _triton
from .._checks import flipping, in_turn
from .._matrix.data import Maker
from .._matrix.formats import FORMATS
from .._tensor_map import tensor_map

_LATENT, _ROTARY, _PAGE = 512, 64, 64  # elements of a token's latent vector and of its rotated part; tokens of a page
_WIDTH = _LATENT + _ROTARY
_ROWS, _WARPS, _STAGES = 64, 8, 2  # heads of a program or block; a program's warps and pages in flight
_THREADS = 384  # of a block: two warpgroups multiply, one copies
_CHECKED = 6  # heads that are compared with double precision
_BOUND = 4 * 2.0**-11  # bound of the relative error, because shares and results are stored as halves
_JOIN_THREADS = 128
_SHARED_BYTES = 28 * 64 * 64 * 2 + 1024  # latent.cu's tiles of queries, of two pages and of their powers, aligned
_SPARE_BYTES = 2**28

tl: Any = None  # triton.language, once a kernel is built

topic = gb.Topic(views=[gb.View("bars", "Attention over latent vectors: throughput", ("latent_attention",))])


def attend_latent(queries, cache, table, results, scales, context, chunk, HEADS, ROWS, PAGE, LATENT, ROTARY) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001, N803
    """Write the results of a part of a sequence for `ROWS` heads, and their largest scores and sums of powers."""
    blocks = HEADS // ROWS
    sequence, block, part = tl.program_id(0) // blocks, tl.program_id(0) % blocks, tl.program_id(1)
    parts = tl.num_programs(1)
    row, token, lane, turn = tl.arange(0, ROWS), tl.arange(0, PAGE), tl.arange(0, LATENT), tl.arange(0, ROTARY)
    line = (sequence * HEADS + block * ROWS + row)[:, None]
    query = tl.load(queries + line * (LATENT + ROTARY) + lane[None, :])
    rotated = tl.load(queries + line * (LATENT + ROTARY) + LATENT + turn[None, :])
    most = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, LATENT], tl.float32)
    pages = (context + PAGE - 1) // PAGE
    end = tl.minimum((part + 1) * chunk, pages)
    for page in range(part * chunk, end):
        place = tl.load(table + sequence * pages + page).to(tl.int64) * PAGE + token
        value = tl.load(cache + place[:, None] * (LATENT + ROTARY) + lane[None, :])
        key = tl.load(cache + place[None, :] * (LATENT + ROTARY) + LATENT + turn[:, None])
        score = tl.dot(query, tl.trans(value)) + tl.dot(rotated, key)
        score = tl.where((page * PAGE + token)[None, :] < context, score, -1.0e30)
        top = tl.maximum(most, tl.max(score, 1))
        share = tl.exp2(score - top[:, None])
        fade = tl.exp2(most - top)
        total = total * fade + tl.sum(share, 1)
        weighted = tl.dot(share.to(tl.float16), value, weighted * fade[:, None])
        most = top
    item = (line * parts + part).to(tl.int64)
    tl.store(results + item * LATENT + lane[None, :], (weighted / total[:, None]).to(tl.float16))
    head = (sequence * HEADS + block * ROWS + row) * parts + part
    tl.store(scales + 2 * head, most)
    tl.store(scales + 2 * head + 1, total)


def chunk_of(batch: int, pages: int, blocks: int, units: int) -> int:
    """Return the pages of a part with which programs fill whole waves of one program per compute unit.

    `blocks` programs share the heads of a sequence. A part costs about as much as two of its pages more."""

    def cost(chunk: int) -> int:
        waves = -(-batch * blocks * -(-pages // chunk) // max(1, units))
        return waves * (chunk + 2)

    return min(range(1, pages + 1), key=cost)


class LatentAttention:
    """Seeded queries, and a paged cache of latent vectors in copies that together exceed the last-level cache."""

    def __init__(self, bench: gb.Bench, batch: int, context: int, heads: int) -> None:
        if heads % (2 * _ROWS):
            raise gb.Skip(f"the kernels take a multiple of {2 * _ROWS} heads, not {heads}")
        xp, rng, pages = bench.xp, bench.rng, -(-context // _PAGE)
        self._bench, self._batch, self._context, self._heads = bench, batch, context, heads
        size = batch * pages * _PAGE * _WIDTH
        copies = bench.copies(2 * size)
        self._chunk = chunk_of(batch, pages, heads // _ROWS, bench.device.device.units)
        self._parts = -(-pages // self._chunk)
        rows = batch * heads
        bench.need(2 * size * copies + rows * self._parts * (2 * _LATENT + 8) + _SPARE_BYTES)
        self._make, self._rng = Maker(bench), rng
        seeds = [int(seed) for seed in rng.integers(2**63, size=2)]
        half = FORMATS["float16"]
        spread = math.log2(math.e) / math.sqrt(_WIDTH)
        self.queries = self._make.drawn(half, rows * _WIDTH, seeds[0], spread=spread)
        first = self._make.drawn(half, size, seeds[1])
        self.caches = [first, *(first.copy() for _ in range(copies - 1))]
        self._table = rng.permutation(batch * pages).astype(np.int32)
        self._device_table = xp.asarray(self._table)
        self._scales = xp.empty(rows * self._parts * 2, "float32")
        self.outs = tuple(xp.empty(rows * _LATENT, "uint16") for _ in range(copies))
        self._is_hopper = "wgmma" in bench.traits.features
        self._join = bench.kernel("latent.cu", "join_latent")
        self._library = "latent.cu"

    def calls(self) -> tuple[Any, ...]:
        """Return the attention over each copy of the cache, by latent.cu on Hopper and else by our kernel in Triton."""
        attend = self._by_wgmma if self._is_hopper else self._by_triton()
        if self._parts == 1:
            return tuple(attend(cache, out) for cache, out in zip(self.caches, self.outs, strict=True))
        rows, parts = self._batch * self._heads, np.uint32(self._parts)
        results = self._bench.xp.empty(rows * self._parts * _LATENT, "uint16")
        return tuple(
            in_turn(
                attend(cache, results),
                partial(self._join.early, (rows,), (_JOIN_THREADS,), (results, self._scales, out, parts)),
            )
            for cache, out in zip(self.caches, self.outs, strict=True)
        )

    def _by_wgmma(self, cache: Any, results: Any) -> Any:
        """Return the launch of latent.cu over a copy of the cache, which writes the results of all parts."""
        kernel = self._bench.kernel("latent.cu", "attend_latent")
        rows, tokens = self._batch * self._heads, cache.size // _WIDTH
        maps = (tensor_map(array, count, _WIDTH, _PAGE, 64) for array, count in ((self.queries, rows), (cache, tokens)))
        numbers = map(np.uint32, (self._heads // _ROWS, self._context, self._chunk))
        args = (*maps, self._device_table, results, self._scales, *numbers)
        return partial(kernel.early, (rows // _ROWS, self._parts), (_THREADS,), args, _SHARED_BYTES)

    def _by_triton(self) -> Any:
        """Return a function that returns the launch of our kernel in Triton over a copy of the cache."""
        halves, floats = dict.fromkeys(("queries", "cache"), "*fp16"), {"results": "*fp16", "scales": "*fp32"}
        types = {**halves, "table": "*i32", **floats, "context": "i32", "chunk": "i32"}
        sizes = {"HEADS": self._heads, "ROWS": _ROWS, "PAGE": _PAGE, "LATENT": _LATENT, "ROTARY": _ROTARY}
        kernel = _triton.BuiltKernel(self._bench, attend_latent, types, sizes, _WARPS, _STAGES)
        self._library = f"our kernel in Triton {kernel.version}"
        grid = (self._batch * self._heads // _ROWS, self._parts)
        numbers = np.int32(self._context), np.int32(self._chunk)
        return lambda cache, results: kernel.call(
            grid, self.queries, cache, self._device_table, results, self._scales, *numbers
        )

    @property
    def work(self) -> gb.Work:
        """The work of a call: latent vectors, queries and results are moved once."""
        tokens, rows = self._batch * self._context, self._batch * self._heads
        moved = 2.0 * (tokens * _WIDTH + rows * (_WIDTH + _LATENT))
        return gb.Work(moved=moved, flops=2.0 * self._heads * tokens * (_WIDTH + _LATENT))

    def check(self) -> gb.Observation:
        """Compare six random heads of the written copies with double precision; return the largest relative error."""
        to_host, rows = self._bench.device.to_host, self._batch * self._heads
        stored = [out for out in map(to_host, self.outs) if not (out == 0xFFFF).all()]
        gb.expect(bool(stored), "no copy of the cache has results")
        written = [out.view(np.float16).reshape(rows, -1).astype(float) for out in stored]
        gb.expect(all(np.isfinite(out).all() for out in written), "results are not written, NaN or infinite")
        errors = []
        for row in self._rng.integers(0, rows, _CHECKED).tolist():
            exact = self.expected(row)
            errors += [float(np.linalg.norm(result[row] - exact) / np.linalg.norm(exact)) for result in written]
        gb.expect(max(errors) <= _BOUND, f"the relative error {max(errors):.3g} of a head is above {_BOUND:.3g}")
        return {"error": gb.Observed(max(errors))}

    def expected(self, row: int) -> npt.NDArray[np.float64]:
        """Return the result of a head in double precision: NumPy, (512,)."""
        to_host, sequence, pages = self._bench.device.to_host, row // self._heads, -(-self._context // _PAGE)
        query = to_host(self.queries[row * _WIDTH : (row + 1) * _WIDTH]).view(np.float16).astype(float)
        places = self._table[sequence * pages : (sequence + 1) * pages]
        blocks = self.caches[0].reshape(-1, _PAGE * _WIDTH)
        stored = np.concatenate([to_host(blocks[int(place)]) for place in places])
        vectors = stored.view(np.float16).astype(float).reshape(-1, _WIDTH)[: self._context]
        scores = vectors @ query
        powers = np.exp2(scores - scores.max())
        return np.asarray(powers @ vectors[:, :_LATENT] / powers.sum())

    def task(self) -> gb.Task:
        """Return the attention over each copy in turn as a task that is judged by its operations."""
        calls = self.calls()
        rest: dict[str, Any] = {"effort": gb.POINT, "outputs": self.outs, "inputs": flipping(self.queries)}
        rest["buffers"] = self.caches
        stage = gb.Stage(calls[0], self.work, "flops", "tensor.float16", modes=(), rotation=calls, **rest)
        notes = {
            "library": f"{self._library}, {self._parts} parts of a sequence",
            "cache": f"pages of {_PAGE} tokens in random order, {len(calls)} copies in turn",
        }
        return gb.Task.of(stage, check=self.check, notes=notes)


@topic.case(
    batch=gb.points((), (1,), (16, 64)),
    context=gb.points((4096,), (256,)),
    heads=(128,),
    when=gb.on_gpu,
)
def latent_attention(bench: gb.Bench, batch: int, context: int, heads: int) -> gb.Task:
    """Operations of attention of one new token per sequence over cached latent vectors, as of DeepSeek-V3 (float16).

    The heads share vectors of 512 elements and 64 rotated ones; the cache has pages of 64 tokens in random order."""
    return LatentAttention(bench, batch, context, heads).task()
