"""Run a whole model with seeded weights on a GPU: a step of a batch over a KV cache, and the prefill of a prompt.

Products come from the suite gemm (gemv.cu, skinny.cu, the vendor's library), attention of a step from attention.cu,
experts from experts.cu, and the rest from chain.cu."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._matrix.formats import FORMATS
from .._matrix.vendor import alike
from .._models import Model
from ._attention import AttentionShape, launches, log2_scale
from ._eight import EIGHT_KINDS, NOT_ROUNDED, EightWeights, Rounded
from ._exact import CacheLayout, ExactChain, SampledToken, relative, rounding_bound, turns
from ._prefill_attention import Prompt, PromptShape, fastest
from ._weights import MODEL_KINDS, AnyWeights, ModelWeights, described

_HALF = FORMATS["float16"]
_THREADS = 256  # threads of most blocks, as in chain.cu
_NORM_THREADS = 1024  # most threads of a block that computes a norm
_LIKELY_LOGITS, _LIKELY_BLOCKS = 2048, 8  # logits that a block compares at least, and blocks of a compute unit
_SAMPLED = 2  # tokens of a prompt that are compared, besides the last one
_ALONE = 16  # sequences of a batch that are also computed one by one
_MOST_THREADS, _MOST_TOKENS = 1024, 64  # as in experts.cu


Call = Callable[[], None]


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """The keys and values of every layer of a model, as flat device arrays of halves in the layout `layout`."""

    layers: tuple[tuple[Any, Any], ...]
    layout: CacheLayout

    @classmethod
    def drawn(cls, weights: ModelWeights, slots: int, capacity: int) -> CacheMemory:
        """Return random keys and values, N(0, 1), of `capacity` tokens in each of `slots` sequences."""
        model, draw = weights.model, weights.make.drawn
        size = slots * model.kv_heads * capacity * model.dim
        layers = ((draw(_HALF, size, 2 * at + 1), draw(_HALF, size, 2 * at + 2)) for at in range(model.depth))
        return cls(tuple(layers), CacheLayout(capacity, model.kv_heads, model.dim))


class Chain:
    """The common part of a step and a prefill: `rows` tokens go through all layers together.

    `room` holds the outputs of one layer by name, which the next layer overwrites: flat device arrays of halves."""

    def __init__(
        self, bench: gb.Bench, weights: ModelWeights, rows: int, memory: CacheMemory, is_early: bool = False
    ) -> None:
        model, xp, layout = weights.model, bench.xp, memory.layout
        self.bench, self.weights, self.model, self.rows, self.layout = bench, weights, model, rows, layout
        self.rng, self.caches = bench.rng, memory.layers
        self.input = self.rng.integers(0, model.head.rows, rows).astype(np.uint32)
        self._other_input = (self.input + np.uint32(1)) % np.uint32(model.head.rows)
        self.device_input = xp.array(self.input)
        self.turns = xp.asarray(turns(layout.capacity, layout.dim).astype(np.float32))
        widths = {"normed": model.head.cols, "queries": model.heads * model.dim, "attended": model.heads * model.dim}
        is_rounded = (
            weights.kind in EIGHT_KINDS and model.is_gated
        )  # then no kernel writes the gate's results as halves
        widths |= {
            "gated": 0 if is_rounded else model.layer("down").cols,
            **{layer.name: layer.rows for layer in model.layers},
        }
        self.room = {name: xp.empty(rows * width, "uint16") for name, width in widths.items()}
        self.stream = xp.empty(rows * model.head.cols, "float32")
        self.outputs = (*self.room.values(), self.stream)
        self._kernels: dict[str, gb.Kernel] = {}
        self._is_early = is_early

    def redraw(self) -> None:
        """Put other tokens in place; a second call restores the first ones."""
        self.input, self._other_input = self._other_input, self.input
        self.bench.device.copy(self.device_input, self.input)

    def _kernel(self, name: str) -> gb.Kernel:
        """Return the kernel `name` of chain.cu, compiled at its first use for this model's norms."""
        if name not in self._kernels:
            vectors_a_thread, centred = -(-self.model.head.cols // (4 * _NORM_THREADS)), self.model.norm == "layer"
            self._kernels[name] = self.bench.kernel("chain.cu", name, HELD=vectors_a_thread, CENTRED=int(centred))
        return self._kernels[name]

    def launch(self, name: str, grid: int | tuple[int, ...], *args: Any, threads: int = _THREADS) -> Call:
        """Return the launch of the kernel `name` of chain.cu with the arguments `args`, early if the chain is.

        `grid` is the number of blocks, in one or several dimensions, and `threads` the size of a block."""
        kernel = self._kernel(name)
        blocks = (grid,) if isinstance(grid, int) else grid
        return partial(kernel.early if self._is_early else kernel, blocks, (threads,), args)

    def embed(self) -> Call:
        """Return the launch that writes the embedding of every token to the stream; it is never early."""
        cells = (self.weights.embedding, self.device_input, self.stream, np.uint32(self.model.head.cols))
        return partial(self._kernel("embed"), (self.rows,), (_THREADS,), cells)

    def rounded(self, weights: AnyWeights | None) -> Rounded:
        """Return where a kernel before the product of these weights writes X in eight bits, if the product takes it."""
        if not isinstance(weights, EightWeights):
            return NOT_ROUNDED
        return weights.rounded(self.rows, self.weights.eights)

    def products(self, name: str, x: str, y: str, is_gated: bool = False) -> list[Call]:
        """Return the product by the matrix `name` of every layer, from array `x` of the room to array `y`."""
        is_rounded = self.weights.kind in EIGHT_KINDS and (x == "normed" or (x == "gated" and self.model.is_gated))
        return self.weights.products(name, None if is_rounded else self.room[x], self.room[y], self.rows, is_gated)

    def norm(self, number: int, adds: str, before: AnyWeights | None = None) -> Call:
        """Return the launch that adds the output `adds` to the stream and writes the norm with the number `number`.

        `adds` is a key of `room`; if it is empty nothing is added. The norm is written to `normed` of `room`."""
        factors, shifts = self.weights.norms[number], self.weights.shifts[number]
        sizes = np.uint32(self.model.head.cols), np.uint32(bool(adds))
        cells = (self.stream, self.room[adds or "out"], factors, shifts, self.room["normed"], *sizes)
        groups, warp = -(-self.model.head.cols // 4), self.bench.traits.warp
        return self.launch(
            "add_norm", self.rows, *cells, *self.rounded(before), threads=min(_NORM_THREADS, -(-groups // warp) * warp)
        )

    def gate(self, before: AnyWeights | None = None) -> Call:
        """Return the launch that writes `gated` of `room` from `up`: the gate of the network, or GELU without one."""
        if not self.model.is_gated:
            count = self.room["up"].size // 8  # in vectors
            return self.launch("gelu", -(-count // _THREADS), self.room["up"], self.room["gated"], np.uint32(count))
        inner = self.model.layer("down").cols // 8  # in vectors
        count = self.rows * inner
        cells = (self.room["up"], self.room["gated"], np.uint32(count), np.uint32(inner), *self.rounded(before))
        return self.launch("gate", -(-count // _THREADS), *cells)

    def rotary(self, tokens: int, cache: tuple[Any, Any]) -> Call:
        """Return the launch that rotates queries and keys of the first tokens and stores keys and values in `cache`."""
        model, room = self.model, self.room
        sizes = (np.uint32(size) for size in (model.heads, model.kv_heads, model.dim // 8))  # in vectors of eight
        cells = (room["qkv"], self.turns, room["queries"], *cache, *sizes)
        return self.launch("rotary", tokens, *cells, np.float32(log2_scale(model.dim)))

    def most_likely(self, logits: Any, tokens: Any) -> Call:
        """Return the launch that writes the index of the largest logit of each row to `tokens`, uint32, shape (rows,).

        `logits` are (rows, vocabulary) as the bits of halves."""
        rows, vocabulary, xp = tokens.size, self.model.head.rows, self.bench.xp
        most = -(-vocabulary // _LIKELY_LOGITS)
        blocks = max(1, min(most, _LIKELY_BLOCKS * self.bench.device.device.units // rows))
        cells = (logits, tokens, np.uint32(vocabulary), xp.empty(rows * blocks, "uint64"), xp.zeros(rows, "uint32"))
        return self.launch("most_likely", (blocks, rows), *cells)

    def exact(self, routes: Any = None) -> ExactChain:
        """Return the chain in double precision; `routes` are the chosen experts of a mixture."""
        return ExactChain(self.weights, self.caches, self.layout, routes)

    def notes(self, kernels: str) -> Mapping[str, str]:
        """Return the notes on model, memory and data, and the text `kernels`, by name."""
        model, cached = self.model, sum(keys.nbytes + values.nbytes for keys, values in self.caches)
        return {
            "model": f"{model.size / 1e9:.2f}e9 weights in {self.weights.kind}, shapes of {model.source}",
            "memory": f"{self.weights.nbytes} bytes of weights, {cached} bytes of keys and values",
            "kernels": kernels,
            "data": "seeded, N(0, 1/columns)",
        }


class Experts:
    """The networks of a mixture of experts in all layers for `rows` tokens; `kind` names how weights are stored.

    Raises Skip for other weights than float16, and for more tokens or experts than the kernels take (64 and 1024)."""

    def __init__(self, bench: gb.Bench, model: Model, kind: str, rows: int) -> None:
        if kind != "float16":
            raise gb.Skip(f"the kernels of a mixture of experts take weights in float16, not {kind}")
        if rows > _MOST_TOKENS or model.experts > _MOST_THREADS:
            raise gb.Skip(
                f"the kernels of a mixture of experts take {_MOST_TOKENS} tokens and {_MOST_THREADS} experts at most"
            )
        self._bench, self._model, self._rows, xp = bench, model, rows, bench.xp
        self._pairs = rows * model.active
        self.chosen = xp.empty((model.depth, self._pairs), "uint32")
        self._ranks = xp.empty(rows * model.experts, "uint32")
        self._active, self._masks = xp.empty(model.experts, "uint32"), xp.empty(model.experts, "uint64")
        self._shares = xp.empty(self._pairs, "float32")
        self._gated = xp.empty(self._pairs * model.layer("down").cols, "uint16")
        self._parts = xp.empty(self._pairs * model.head.cols, "float32")
        self.outputs = (self.chosen, self._ranks, self._shares, self._gated, self._parts)
        names = ("choose", "expert_up", "expert_down", "join_experts")
        sizes = {"EXPERTS": model.experts, "ACTIVE": model.active}
        self._kernels = {name: bench.kernel("experts.cu", name, **sizes) for name in names}

    def calls(self, layer: int, weights: Mapping[str, AnyWeights], room: Mapping[str, Any]) -> list[Call]:
        """Return the calls of the network of the layer with the number `layer`, after the product of its router.

        `weights` are the layer's matrices by name, and `room` the device arrays of a Chain by name."""
        model, warps = self._model, _THREADS // self._bench.traits.warp
        hidden, inner = model.head.cols, model.layer("down").cols
        gathered = self._active, self._masks, self._ranks
        slots = min(model.experts, self._pairs)  # the largest number of experts that can have tokens
        lanes = _MOST_THREADS // model.experts * model.experts
        chosen = (room["router"], self.chosen[layer], self._shares, self._ranks, self._active, self._masks)
        up = (weights["up"].words, room["normed"], *gathered, self._gated)
        down = (weights["down"].words, self._gated, *gathered, self._shares, self._parts)
        return [
            self._launch("choose", (1,), chosen, self._rows, threads=lanes),
            self._launch("expert_up", (-(-inner // warps), slots), up, hidden, inner),
            self._launch("expert_down", (-(-hidden // warps), slots), down, inner, hidden),
            self._launch("join_experts", (-(-hidden // _THREADS), self._rows), (self._parts, room["down"]), hidden),
        ]

    def _launch(
        self, name: str, grid: tuple[int, ...], arrays: tuple[Any, ...], *numbers: int, threads: int = _THREADS
    ) -> Call:
        """Return the launch of the kernel `name` of experts.cu on these arrays and 32-bit numbers."""
        return partial(self._kernels[name], grid, (threads,), (*arrays, *map(np.uint32, numbers)))

    def routes(self) -> npt.NDArray[np.int64]:
        """Return the chosen experts of the last calls as a NumPy array, int64, shape (layers, tokens, ranks)."""
        chosen = self._bench.device.to_host(self.chosen)
        return np.asarray(chosen.reshape(self._model.depth, self._rows, -1).astype(np.int64))

    def touched(self) -> float:
        """Return the number of experts that have a token in the last calls, as the mean over the layers."""
        return float(np.mean([len(np.unique(layer)) for layer in self.routes()]))


class DecodeChain:
    """One step of `batch` sequences, which fill the first slots of the cache; `calls` are its calls in order.

    The first rows are a `chunk` of a prompt. `logits` and `tokens` belong to its last token and to all sequences."""

    def __init__(self, bench: gb.Bench, weights: ModelWeights, memory: CacheMemory, batch: int, chunk: int = 0) -> None:
        model, self._context, self.memory = weights.model, memory.layout.capacity, memory
        self._model, self._batch, self._chunk = model, batch, chunk
        shape = AttentionShape(batch, self._context, model.heads, model.kv_heads, model.dim)
        self._shape = shape.supported(bench.traits)
        self.chain = Chain(bench, weights, batch + chunk, memory, is_early=True)
        self.slots = bench.xp.asarray(np.arange(batch, dtype=np.uint32))
        self._scored = batch + (chunk > 0)  # the last rows, which have logits
        self.logits = bench.xp.empty(self._scored * model.head.rows, "uint16")
        self.tokens = bench.xp.empty(self._scored, "uint32")
        self._row = int(self.chain.rng.integers(batch))  # the sequence that the check compares
        self._exact: dict[tuple[int, int], ExactChain] = {}  # by the row of a token, and the token
        self._experts = Experts(bench, model, weights.kind, batch + chunk) if model.experts > 1 else None
        self._prompt = CacheMemory.drawn(weights, 1, chunk) if chunk else None
        weights.compile(batch + chunk)
        self.calls = tuple(self._all_calls())

    def _rows(self, name: str, count: int) -> Any:
        """Return the last `count` rows of the array `name` of the room."""
        array = self.chain.room[name]
        return array[(self.chain.rows - count) * (array.size // self.chain.rows) :]

    def _all_calls(self) -> list[Call]:
        """Return the calls of a step in their order."""
        chain, model = self.chain, self._model
        lengths = np.full(self._batch, self._context, np.uint32)
        attended, queries = (self._rows(name, self._batch) for name in ("attended", "qkv"))
        attend = launches(chain.bench, self._shape, lengths, queries, self.slots, chain.turns)
        qkv, out = chain.products("qkv", "normed", "qkv"), chain.products("out", "attended", "out")
        calls, networks, prompt = [chain.embed()], self._networks(), self._prompt_calls()
        for layer, weights in enumerate(chain.weights.layers):
            keys, values = chain.caches[layer]
            calls += [
                chain.norm(2 * layer, "down" if layer else "", weights["qkv"]),
                qkv[layer],
                *prompt[layer],
                attend(keys, values, attended),
                out[layer],
                chain.norm(2 * layer + 1, "out", weights["router" if self._experts else "up"]),
                *networks[layer],
            ]
        scored = self._rows("normed", self._scored)
        head = chain.weights.product(chain.weights.head, scored, self.logits, self._scored)
        last = chain.norm(2 * model.depth, adds="down")
        return [*calls, last, head, chain.most_likely(self.logits, self.tokens)]

    def _prompt_calls(self) -> list[list[Call]]:
        """Return the calls of each layer's attention of the chunk."""
        chain, model = self.chain, self._model
        if self._prompt is None:
            return [[] for _ in range(model.depth)]
        shape = PromptShape(self._chunk, model.heads, model.kv_heads, model.dim)
        self._attention = fastest(chain.bench, shape, chain.weights.workspace())
        return [
            [
                chain.rotary(self._chunk, cache),
                *self._attention.calls(Prompt(chain.room["queries"], *cache), chain.room["attended"]),
            ]
            for cache in self._prompt.layers
        ]

    def _networks(self) -> list[list[Call]]:
        """Return the calls of each layer's feed-forward network, which reads `normed` of the room and writes `down`."""
        chain, layers = self.chain, self.chain.weights.layers
        if self._experts:
            routers = enumerate(chain.products("router", "normed", "router"))
            return [[router, *self._experts.calls(layer, layers[layer], chain.room)] for layer, router in routers]
        down = chain.products("down", "gated", "down")
        if self._model.is_gated and not chain.weights.is_by_vendor(chain.rows):
            up = chain.products("up", "normed", "gated", is_gated=True)
            return [list(calls) for calls in zip(up, down, strict=True)]
        gates = [chain.gate(weights["down"]) for weights in layers]
        up = chain.products("up", "normed", "up")
        return [list(calls) for calls in zip(up, gates, down, strict=True)]

    @property
    def outputs(self) -> tuple[Any, ...]:
        """Every array that a step writes, and the keys and values that it appends."""
        places = (self._batch * self._model.kv_heads, self._context, self._model.dim)
        appended = [array.reshape(places)[:, -1] for cache in self.chain.caches for array in cache]
        if self._prompt:
            appended += [*(array for cache in self._prompt.layers for array in cache), *self._attention.outputs]
        experts = self._experts.outputs if self._experts else ()
        return (*self.chain.outputs, *experts, self.logits, self.tokens, *appended)

    def check(self) -> gb.Observation:
        """Compare a random sequence with double precision, and each token with the largest of its logits.

        Returns the relative error of the sequence's logits."""
        to_host = self.chain.bench.device.to_host
        logits = to_host(self.logits).view(np.float16).astype(np.float32).reshape(self._scored, -1)  # compares faster
        gb.expect(bool(np.isfinite(logits).all()), "logits are not written, NaN or infinite")
        tokens = to_host(self.tokens)
        gb.expect(bool((tokens == logits.argmax(axis=1)).all()), "a chosen token does not have the largest logit")
        rows = (self._scored - self._batch + self._row, *([0] if self._prompt else []))
        return {"error": gb.Observed(max(self._error(row, logits[row].astype(float)) for row in rows))}

    def _error(self, row: int, logits: Any) -> float:
        """Return the relative error of the logits of a row; row 0 of a step with a chunk is the chunk's last token."""
        key = row, int(self.chain.input[self.chain.rows - self._scored + row])
        if key in self._exact:
            exact = self._exact[key].again()
        else:
            self._exact[key], exact = self._expected(row)
        return _judged(logits, exact[-1], self.chain.weights)

    def differing(self, alone: DecodeChain) -> float:
        """Return the share of sequences whose token in this batch differs from the token in a batch of one.

        At most the first 16 sequences are compared."""
        rows = range(min(self._batch, _ALONE))
        tokens = self.chain.bench.device.to_host(self.tokens)
        return sum(alone.token_of(row, int(self.chain.input[row])) != int(tokens[row]) for row in rows) / len(rows)

    def token_of(self, slot: int, token: int) -> int:
        """Return the token that follows the sequence in `slot`, computed in a batch of one.

        `token` is the last token of the sequence, which must fill its slot. This chain must have the batch size 1."""
        device = self.chain.bench.device
        device.copy(self.slots, np.array([slot], np.uint32))
        device.copy(self.chain.device_input, np.array([token], np.uint32))
        for call in self.calls:
            call()
        return int(device.to_host(self.tokens)[0])

    def expected(self, row: int) -> Any:
        """Return the logits of one row in double precision."""
        return self._expected(row)[1][-1]

    def _expected(self, row: int) -> tuple[ExactChain, Any]:
        """Return the exact chain of the token in row `row` of the logits, and logits whose last row is its own."""
        chain, sequence = self.chain, row - (self._scored - self._batch)
        token = int(chain.input[chain.rows - self._scored + row])
        if sequence < 0 and self._prompt:
            exact = ExactChain(chain.weights, self._prompt.layers, self._prompt.layout)
            places = self._chunk // 2, self._chunk - 1
            return exact, exact.logits([SampledToken(0, place, int(chain.input[place])) for place in places])
        exact = chain.exact(self._experts.routes() if self._experts else None)
        return exact, exact.logits([SampledToken(sequence, self._context - 1, token)])

    def weight_bytes(self) -> float:
        """Return the bytes of the weights that a step reads; it runs a step if the model is a mixture of experts.

        In a mixture only experts that have a token count."""
        weights, model = self.chain.weights, self._model
        if not self._experts:
            return weights.nbytes
        for call in self.calls:
            call()
        idle = model.depth * (model.experts - self._experts.touched())
        return weights.nbytes - _HALF.itemsize * model.expert_size * idle


def _judged(logits: Any, exact: Any, weights: ModelWeights) -> float:
    """Return the relative error of logits, given their exact values, both (vocabulary,)."""
    error, bound = relative(logits, exact), rounding_bound(weights.model.depth, weights.roundoff)
    gb.expect(error <= bound, f"the relative error {error:.3g} of the logits is above {bound:.3g}")
    return error


def prefill_bytes(model: Model, tokens: int) -> float:
    """Return about how many bytes a prefill of `tokens` tokens needs beside the model's weights.

    They are the halves of all scores, of twice the inputs and outputs of a layer's products and of the largest
    matrix, and the KV cache."""
    outputs = tokens * sum(layer.rows + layer.cols for layer in model.layers)
    widest = max(layer.size for layer in model.layers)
    return 2.0 * (model.heads * tokens * tokens + 2 * outputs + widest) + tokens * model.cache_bytes()


class PrefillChain:
    """The prefill of one prompt, with the fastest attention at hand.

    `calls` are its calls in order, and `logits` the logits of the last token, the only one to which the head is
    applied."""

    def __init__(self, bench: gb.Bench, weights: ModelWeights, tokens: int) -> None:
        model = weights.model
        self._model, self._tokens = model, tokens
        widest = max(layer.size for layer in model.layers) if MODEL_KINDS[weights.kind].is_quantised else 0
        self.chain = Chain(bench, weights, tokens, CacheMemory.drawn(weights, 1, tokens))
        shape = PromptShape(tokens, model.heads, model.kv_heads, model.dim)
        self.attention = fastest(bench, shape, weights.workspace())
        self._halves = bench.xp.empty(widest, "uint16")
        self._exact: dict[int, ExactChain] = {}  # by the last token
        self.logits = bench.xp.empty(model.head.rows, "uint16")
        self.calls = tuple(self._all_calls())

    def _all_calls(self) -> list[Call]:
        chain, model, hidden = self.chain, self._model, self._model.head.cols
        qkv, out = self._products("qkv", "normed"), self._products("out", "attended")
        up, down = self._products("up", "normed"), self._products("down", "gated")
        calls = [chain.embed()]
        for layer, weights in enumerate(chain.weights.layers):
            calls += [
                chain.norm(2 * layer, "down" if layer else "", weights["qkv"]),
                *qkv[layer],
                chain.rotary(self._tokens, chain.caches[layer]),
                *self.attention.calls(Prompt(chain.room["queries"], *chain.caches[layer]), chain.room["attended"]),
                *out[layer],
                chain.norm(2 * layer + 1, "out", weights["up"]),
                *up[layer],
                chain.gate(weights["down"]),
                *down[layer],
            ]
        last = chain.room["normed"][(self._tokens - 1) * hidden :]
        head = chain.weights.product(chain.weights.head, last, self.logits, 1)
        return [*calls, chain.norm(2 * model.depth, adds="down"), head]

    def _products(self, name: str, x: str) -> list[list[Call]]:
        """Return the calls of the product by the matrix `name` of every layer, from array `x` of the room."""
        weights, room, rows = self.chain.weights, self.chain.room, self._tokens
        if weights.kind in EIGHT_KINDS:
            return [[call] for call in self.chain.products(name, x, name)]
        matrices = weights.of(name)
        if MODEL_KINDS[weights.kind].is_quantised:
            product = described(matrices[0], self._halves, room[x], room[name], rows)
            (call,) = alike(weights.bench, [product], weights.workspace())
            return [[partial(matrix.restore, self._halves), call] for matrix in matrices]
        products = [described(matrix, matrix.words, room[x], room[name], rows) for matrix in matrices]
        return [[call] for call in alike(weights.bench, products, weights.workspace())]

    @property
    def outputs(self) -> tuple[Any, ...]:
        """Every array that the prefill writes, with the keys and values."""
        cached = (part for cache in self.chain.caches for part in cache)
        return (*self.chain.outputs, *self.attention.outputs, self.logits, *cached)

    def check(self) -> gb.Observation:
        """Compare the logits, and random tokens' keys and values in every layer, with double precision.

        Later checks take the same tokens, whose results in double precision are stored."""
        logits = self.chain.bench.device.to_host(self.logits).view(np.float16).astype(float)
        gb.expect(bool(np.isfinite(logits).all()), "logits are not written, NaN or infinite")
        token = int(self.chain.input[-1])
        if token not in self._exact:
            drawn = self.chain.rng.integers(0, self._tokens, _SAMPLED)
            places = sorted({self._tokens - 1, *(int(place) for place in drawn)})
            sampled = [SampledToken(0, place, int(self.chain.input[place])) for place in places]
            self._exact[token] = self.chain.exact()
            exact = self._exact[token].logits(sampled)[-1]
        else:
            exact = self._exact[token].again()[-1]
        return {"error": gb.Observed(_judged(logits, exact, self.chain.weights))}
