"""A whole model on a GPU, with seeded weights: one step of a batch over a KV cache, all its kernels in one graph.

Products are those of the suite gemm (gemv.cu, skinny.cu), attention is that of attention.cu, and chain.cu has the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api.suite import Bench, Kernel, Observation, Observed, Skip, Stage, Task, expect

from .._checks import in_turn
from .._models import Model
from ..gemm import _gemv
from ..gemm._data import Maker
from ..gemm._formats import FORMATS
from ..gemm._gemv import KINDS, Vectors, Weights, tensor_call, warp_call
from ._attention import AttentionShape, launches

_HALF, _SINGLE = FORMATS["float16"], FORMATS["float32"]
_THREADS = 256  # of a block, as in chain.cu
_ROTARY_BASE = 500_000.0  # rope_theta of meta-llama/Meta-Llama-3-8B, config.json
_ROUNDINGS = 8  # of a layer: norm, qkv, queries and keys, attention, out, norm, gate, down
_EPSILON = 1e-5  # of the norms, as in chain.cu

Call = Callable[[], None]
Doubles = npt.NDArray[np.float64]


def product_bench(bench: Bench) -> Bench:
    """Return the bench with which the kernels of the suite gemm are found."""
    return replace(bench, package=_gemv.__package__)


class ModelWeights:
    """The weights of a model in device memory, drawn at random so that numbers keep their size from layer to layer."""

    def __init__(self, bench: Bench, model: Model, kind: str, tiled: bool) -> None:
        self._bench, self.model, self.kind = product_bench(bench), model, kind
        self.make, self._rng, self._tiled = Maker(self._bench), bench.rng, tiled
        self.layers = [{layer.name: self._drawn(layer) for layer in model.layers} for _ in range(model.depth)]
        self.head = self._drawn(model.head)
        hidden = model.head.cols
        self.embedding = self.make.drawn(_HALF, model.head.size, self._seed())
        self.norms = bench.xp.asarray(self._rng.uniform(0.9, 1.1, (2 * model.depth + 1, hidden)).astype(np.float32))
        self.nbytes = self.head.nbytes + sum(weights.nbytes for layer in self.layers for weights in layer.values())

    def _seed(self) -> int:
        return int(self._rng.integers(2**63))

    def _drawn(self, layer: Any) -> Weights:
        return Weights(self.make, self.kind, layer.rows, layer.cols, self._seed(), layer.cols**-0.5, self._tiled)

    def product(self, weights: Weights, x: Any, y: Any, tokens: int) -> Call:
        """Return the call of Y = X·Wᵀ by the kernel that serves these weights and this number of tokens."""
        if self._tiled or tokens > 1:
            return tensor_call(self._bench, weights, Vectors(x, y), tokens)
        return warp_call(self._bench, weights, Vectors(x, y))


def need(bench: Bench, model: Model, kind: str, cache_bytes: float) -> None:
    """Raise Skip where the model, its embedding and its cache need more memory than is free."""
    weights = model.size * (KINDS[kind].bits / 8 + (2 / _gemv.GROUP if KINDS[kind].is_quantised else 0))
    bench.need(1.05 * weights + _HALF.itemsize * model.head.size + cache_bytes + 2**31)


class DecodeChain:
    """One step: `batch` sequences, each of which has `context` tokens in the cache after it."""

    def __init__(self, bench: Bench, model: Model, kind: str, batch: int, context: int) -> None:
        if model.layer("up").rows != 2 * model.layer("down").cols:
            raise Skip("the chain needs a gated feed-forward network")
        self._bench, self._model, self._batch, self._context = bench, model, batch, context
        self._attention = AttentionShape(batch, context, model.heads, model.kv_heads, model.dim)
        need(bench, model, kind, model.depth * self._attention.cache_bytes)
        by_tensor = KINDS[kind].is_quantised and "matrix" in bench.traits.features
        self.weights = ModelWeights(bench, model, kind, by_tensor)
        xp, self._rng = bench.xp, bench.rng
        size = batch * model.kv_heads * context * model.dim
        draw = self.weights.make.drawn
        self.caches = [
            (draw(_HALF, size, 2 * layer + 1), draw(_HALF, size, 2 * layer + 2)) for layer in range(model.depth)
        ]
        self._tokens = self._rng.integers(0, model.head.rows, batch).astype(np.uint32)
        self._device_tokens, self._lengths = xp.asarray(self._tokens), xp.full(batch, context, "uint32")
        self._turns = turns(context, model.dim)
        sizes = {"normed": model.head.cols, "queries": model.heads * model.dim, "gated": model.layer("down").cols}
        sizes |= {layer.name: layer.rows for layer in (*model.layers, model.head)}
        self._room = {name: xp.empty(batch * width, "uint16") for name, width in sizes.items()}
        self._room["attended"] = xp.empty_like(self._room["queries"])
        self._stream = xp.empty(batch * model.head.cols, "float32")
        self.tokens = xp.empty(batch, "uint32")
        self._kernels: dict[str, Kernel] = {}
        self.calls = tuple(self._all_calls())

    def _launch(self, name: str, grid: int, *args: Any) -> Call:
        if name not in self._kernels:
            self._kernels[name] = self._bench.kernel("chain.cu", name)
        return partial(self._kernels[name], (grid,), (_THREADS,), args)

    def _all_calls(self) -> list[Call]:
        """Return the calls of a step in their order."""
        model, room, batch = self._model, self._room, self._batch
        hidden = np.uint32(model.head.cols)
        embed = (self.weights.embedding, self._device_tokens, self._stream, hidden)
        calls = [self._launch("embed", batch, *embed)]
        turns = self._bench.xp.asarray(self._turns.astype(np.float32))
        attend = launches(self._bench, self._attention, self._lengths, room["queries"])
        for layer, weights in enumerate(self.weights.layers):
            keys, values = self.caches[layer]
            calls += [
                self._norm(2 * layer, adds="down" if layer else ""),
                self._product(weights["qkv"], "normed", "qkv"),
                self._rotary(turns, keys, values),
                attend(keys, values, room["attended"]),
                self._product(weights["out"], "attended", "out"),
                self._norm(2 * layer + 1, adds="out"),
                self._product(weights["up"], "normed", "up"),
                self._gate(),
                self._product(weights["down"], "gated", "down"),
            ]
        likely = (room["head"], self.tokens, np.uint32(model.head.rows))
        calls += [self._norm(2 * model.depth, adds="down"), self._product(self.weights.head, "normed", "head")]
        return [*calls, self._launch("most_likely", batch, *likely)]

    def _norm(self, number: int, adds: str) -> Call:
        """Add the output of a product to the stream, if one is named, and write the norm of that number."""
        room, hidden = self._room, np.uint32(self._model.head.cols)
        cells = (
            self._stream,
            room[adds or "out"],
            self.weights.norms[number],
            room["normed"],
            hidden,
            np.uint32(bool(adds)),
        )
        return self._launch("add_norm", self._batch, *cells)

    def _product(self, weights: Weights, x: str, y: str) -> Call:
        return self.weights.product(weights, self._room[x], self._room[y], self._batch)

    def _rotary(self, turns: Any, keys: Any, values: Any) -> Call:
        model, room = self._model, self._room
        sizes = (np.uint32(size) for size in (model.heads, model.kv_heads, model.dim, self._context))
        cells = (room["qkv"], turns, self._lengths, room["queries"], keys, values, *sizes)
        return self._launch("rotary_append", self._batch, *cells, np.float32(query_scale(model.dim)), np.uint32(0))

    def _gate(self) -> Call:
        inner, room = self._model.layer("down").cols, self._room
        count = self._batch * inner
        return self._launch(
            "gate", -(-count // _THREADS), room["up"], room["gated"], np.uint64(count), np.uint32(inner)
        )

    def poison(self) -> None:
        """Overwrite every output with NaN, and the keys and values that the step appends."""
        for array in (*self._room.values(), self._stream, self.tokens):
            array.view("uint8").fill(0xFF)
        places = (self._batch * self._model.kv_heads, self._context, self._model.dim)
        for cache in self.caches:
            for array in cache:
                array.view("uint16").reshape(places)[:, -1].fill(0xFFFF)

    def check(self) -> Observation:
        """Compare the logits of a random sequence with double precision, and every token with its logits."""
        logits = self._bench.device.to_host(self._room["head"]).view(np.float16).reshape(self._batch, -1)
        expect(bool(np.isfinite(logits).all()), "logits are not written, NaN or infinite")
        tokens = self._bench.device.to_host(self.tokens)
        expect(bool((tokens == logits.argmax(axis=1)).all()), "a token is not the most likely one")
        row = int(self._rng.integers(self._batch))
        exact = self.expected(row)
        error = float(np.linalg.norm(logits[row].astype(float) - exact) / np.linalg.norm(exact))
        bound = 4 * 2.0**-11 * math.sqrt(_ROUNDINGS * self._model.depth)
        expect(error <= bound, f"the relative error {error:.3g} of the logits is above {bound:.3g}")
        return {"error": Observed(error)}

    def expected(self, row: int) -> Doubles:
        """Return the logits of one sequence in double precision, from the stored weights and the cache."""
        weights, model = self.weights, self._model
        to_host, xp, hidden = self._bench.device.to_host, self._bench.xp, model.head.cols
        first = int(self._tokens[row]) * hidden
        x = to_host(weights.embedding[first : first + hidden]).view(np.float16).astype(float)
        norms = to_host(weights.norms).astype(float)

        def product(of: Weights, vector: Doubles) -> Doubles:
            return np.asarray(to_host(of.product(xp.asarray(vector[None])))[0])

        for layer, matrices in enumerate(weights.layers):
            qkv = product(matrices["qkv"], normed(x, norms[2 * layer])).reshape(-1, model.dim)
            x = x + product(matrices["out"], self._attended(layer, row, qkv))
            gate, up = np.split(product(matrices["up"], normed(x, norms[2 * layer + 1])), 2)
            x = x + product(matrices["down"], gate / (1 + np.exp(-gate)) * up)
        return product(weights.head, normed(x, norms[-1]))

    def _attended(self, layer: int, row: int, qkv: Doubles) -> Doubles:
        """Return what the heads of a sequence attend to, from its cache and its own query, key and value."""
        model, context = self._model, self._context
        group = model.heads // model.kv_heads
        turned = rotated(qkv[: model.heads + model.kv_heads], self._turns[-1])
        queries = turned[: model.heads].reshape(model.kv_heads, group, model.dim)
        keys, values = (self._doubles(array, row) for array in self.caches[layer])
        xp, to_host = self._bench.xp, self._bench.device.to_host
        keys[:, -1], values[:, -1] = xp.asarray(turned[model.heads :]), xp.asarray(qkv[-model.kv_heads :])
        scores = to_host(xp.matmul(xp.asarray(queries), keys.transpose(0, 2, 1))) / math.sqrt(model.dim)
        powers = np.exp(scores - scores.max(axis=2, keepdims=True))
        shares = xp.asarray(powers / powers.sum(axis=2, keepdims=True))
        expect(scores.shape == (model.kv_heads, group, context), "the scores have another shape")
        return np.asarray(to_host(xp.matmul(shares, values))).ravel()

    def _doubles(self, array: Any, row: int) -> Any:
        """Return the keys or values of a sequence as (KV heads, context, dim) doubles on the device."""
        model, size = self._model, self._model.kv_heads * self._context * self._model.dim
        part, lines = array[row * size : (row + 1) * size], model.kv_heads * self._context
        wide = self.weights.make.widened(part, _HALF, lines, model.dim, (model.dim, 1))
        return wide.reshape(model.kv_heads, self._context, model.dim)

    def task(self) -> Task:
        """Return the step as a task that is judged by its tokens."""
        work = self._model.step(self._batch, self._context, self.weights.nbytes)
        stage = Stage(in_turn(*self.calls), work, "items", "dram", modes=("graph",), max_calls=2, item="token")
        return Task.of(stage, check=self.check, poison=self.poison, notes=self._notes())

    def _notes(self) -> Mapping[str, str]:
        model, cached = self._model, self._model.depth * self._attention.cache_bytes
        return {
            "model": f"{model.size / 1e9:.2f}e9 weights in {self.weights.kind}, shapes of {model.source}",
            "memory": f"{self.weights.nbytes} bytes of weights, {cached} bytes of keys and values",
            "kernels": f"{len(self.calls)} calls in a graph: gemv.cu, skinny.cu, attention.cu, chain.cu",
            "data": "seeded, N(0, 1/columns); keys and values N(0, 1)",
        }


def query_scale(dim: int) -> float:
    """Return the factor of queries with which scores are exponents of two."""
    return math.log2(math.e) / math.sqrt(dim)


def turns(places: int, dim: int) -> Doubles:
    """Return cosine and sine of the rotary embedding: (places, dim/2, 2)."""
    half = dim // 2
    angles = np.arange(places)[:, None] * _ROTARY_BASE ** (-np.arange(half) / half)
    return np.stack([np.cos(angles), np.sin(angles)], axis=2)


def rotated(x: Doubles, turn: Doubles) -> Doubles:
    """Rotate the elements i and i + dim/2 of each row by the turns (dim/2, 2) of its place."""
    first, second = np.split(x, 2, axis=-1)
    cosine, sine = turn[..., 0], turn[..., 1]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def normed(x: Doubles, factors: Doubles) -> Doubles:
    """Return x over its root mean square, times the factors."""
    return np.asarray(x / math.sqrt(np.mean(x * x) + _EPSILON) * factors)
