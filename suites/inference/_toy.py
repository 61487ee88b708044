"""Compute a language model of four layers with a KV cache in NumPy: the whole chain of a step and of a prefill.

The chain is Llama's: embedding, and in every layer norm, qkv, rotary embedding, KV append, attention, output, norm and
a gated feed-forward network; then a norm, the head and the most likely token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._models import Model, model

TOY = model(64, 128, 4, 2, 2, 4, 512, "this file")
_EPSILON = 1e-5  # epsilon of the norms, as in Llama's configurations
_ROTARY_BASE = 10_000.0
# Products with more multiplications than this are split: OpenBLAS starts threads for them (interface/gemm.c,
# SMP_THRESHOLD_MIN · GEMM_MULTITHREAD_THRESHOLD), and on a busy machine these threads wait for each other for
# milliseconds.
_MOST_MULTIPLICATIONS = 2**18

Array = npt.NDArray[Any]
Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The matrices of a layer, outputs by inputs, and the factors of its two norms."""

    qkv: Array
    out: Array
    up: Array
    down: Array
    before_attention: Array
    before_network: Array


@dataclass(frozen=True, slots=True)
class ToyWeights:
    """Seeded weights of a model: N(0, 1/columns), so that numbers keep their size from layer to layer.

    `shape` is the model; `embedding` and `head` have a row for each token of the vocabulary."""

    shape: Model
    embedding: Array
    layers: tuple[LayerWeights, ...]
    last_norm: Array
    head: Array

    @classmethod
    def drawn(cls, shape: Model, rng: np.random.Generator) -> ToyWeights:
        """Return seeded weights in float32 of the matrices of the model `shape`, drawn from `rng`."""

        def matrix(rows: int, cols: int, spread: float = 1.0) -> Array:
            return spread * rng.standard_normal((rows, cols), dtype=np.float32)

        def norm() -> Array:
            return (1 + 0.1 * rng.standard_normal(shape.head.cols)).astype(np.float32)

        def layer() -> LayerWeights:
            qkv, out, up, down = (
                matrix(layer_shape.rows, layer_shape.cols, layer_shape.cols**-0.5) for layer_shape in shape.layers
            )
            return LayerWeights(qkv, out, up, down, norm(), norm())

        layers = tuple(layer() for _ in range(shape.depth))
        head = matrix(shape.head.rows, shape.head.cols, shape.head.cols**-0.5)
        return cls(shape, matrix(shape.head.rows, shape.head.cols), layers, norm(), head)

    @property
    def nbytes(self) -> int:
        """The bytes of all matrices."""
        return self.head.nbytes + sum(w.qkv.nbytes + w.out.nbytes + w.up.nbytes + w.down.nbytes for w in self.layers)


class ToyModel:
    """The weights and a cache of `slots` sequences of at most `capacity` tokens, computed in `dtype`.

    The cache is full of NaN, so that a value that was never written shows in the logits."""

    def __init__(self, weights: ToyWeights, slots: int, capacity: int, dtype: type = np.float32) -> None:
        self.shape, self._weights, self._dtype = weights.shape, weights, dtype
        self._layers = [
            LayerWeights(*(getattr(layer, name).astype(dtype, copy=False) for name in LayerWeights.__slots__))
            for layer in weights.layers
        ]
        self._embedding: Array = weights.embedding.astype(dtype, copy=False)
        self._last_norm: Array = weights.last_norm.astype(dtype, copy=False)
        self._head: Array = weights.head.astype(dtype, copy=False)
        shape = (weights.shape.depth, slots, weights.shape.kv_heads, capacity, weights.shape.dim)
        self.keys: Array = np.full(shape, np.nan, dtype)
        self.values: Array = np.full(shape, np.nan, dtype)
        self.lengths = np.zeros(slots, np.int64)

    def prefill(self, slot: int, prompt: Tokens) -> Array:
        """Replace the sequence in a slot by `prompt`, and return the logits of the next token, shape (vocabulary,)."""
        self.keys[:, slot], self.values[:, slot] = np.nan, np.nan
        x = self._embedding[prompt]
        turns = self._turns(np.arange(len(prompt)))
        for layer in range(self.shape.depth):
            x = self._layer(layer, x, turns, lambda *qkv, layer=layer: self._attend_prompt(layer, slot, *qkv))
        self.lengths[slot] = len(prompt)
        return np.asarray(self._logits(x[-1:])[0])

    def step(self, slots: Tokens, tokens: Tokens) -> Array:
        """Append one of `tokens` to the sequence in each of `slots`, and return the logits of the tokens that follow.

        Their shape is (slots, vocabulary)."""
        x, places = self._embedding[tokens], self.lengths[slots]
        turns = self._turns(places)
        for layer in range(self.shape.depth):
            x = self._layer(layer, x, turns, lambda *qkv, layer=layer: self._attend_cache(layer, slots, places, *qkv))
        self.lengths[slots] = places + 1
        return self._logits(x)

    def _layer(self, layer: int, x: Array, turns: tuple[Array, Array], attend: Any) -> Array:
        """Return the tokens x, (tokens, hidden), after the layer with the number `layer`."""
        shape, weights, rows = self.shape, self._layers[layer], len(x)
        qkv = _product(_normed(x, weights.before_attention), weights.qkv)
        sizes = np.cumsum([shape.heads, shape.kv_heads]) * shape.dim
        query, key, value = (part.reshape(rows, -1, shape.dim) for part in np.split(qkv, sizes, axis=1))
        attended = attend(_rotated(query, turns), _rotated(key, turns), value)
        x = x + _product(attended.reshape(rows, -1), weights.out)
        gate, up = np.split(_product(_normed(x, weights.before_network), weights.up), 2, axis=1)
        return x + _product(gate / (1 + np.exp(-gate)) * up, weights.down)

    def _attend_prompt(self, layer: int, slot: int, query: Array, key: Array, value: Array) -> Array:
        """Store the keys and values of a prompt in `slot`, and return the attention of its tokens."""
        count, shape = len(query), self.shape
        self.keys[layer, slot, :, :count] = key.swapaxes(0, 1)
        self.values[layer, slot, :, :count] = value.swapaxes(0, 1)
        heads = query.reshape(count, shape.kv_heads, -1, shape.dim).transpose(1, 2, 0, 3)
        scores = heads @ key.transpose(1, 2, 0)[:, None] / math.sqrt(shape.dim)
        scores[..., np.triu(np.ones((count, count), bool), 1)] = -np.inf
        return (_softmax(scores) @ value.swapaxes(0, 1)[:, None]).transpose(2, 0, 1, 3)

    def _attend_cache(self, layer: int, slots: Tokens, places: Tokens, query: Array, key: Array, value: Array) -> Array:
        """Append a key and a value to the sequence in each of `slots`, and return the attention of the new tokens."""
        self.keys[layer, slots, :, places], self.values[layer, slots, :, places] = key, value
        out = np.empty_like(query)
        groups = query.reshape(len(query), self.shape.kv_heads, -1, self.shape.dim)
        for row, (slot, place) in enumerate(zip(slots, places, strict=True)):
            keys, values = (cache[layer, slot, :, : place + 1] for cache in (self.keys, self.values))
            powers = _softmax(groups[row] @ keys.swapaxes(1, 2) / math.sqrt(self.shape.dim))
            out[row] = (powers @ values).reshape(self.shape.heads, self.shape.dim)
        return out

    def _turns(self, places: Tokens) -> tuple[Array, Array]:
        """Return cosine and sine of the rotary embedding at these places of a sequence, each (places, 1, dim/2)."""
        half = self.shape.dim // 2
        angles = places[:, None] * _ROTARY_BASE ** (-np.arange(half) / half)
        return np.cos(angles)[:, None].astype(self._dtype), np.sin(angles)[:, None].astype(self._dtype)

    def _logits(self, x: Array) -> Array:
        return _product(_normed(x, self._last_norm), self._head)


def _product(x: Array, weights: Array) -> Array:
    """Return X·Wᵀ, multiplied a few rows at a time, so that the library uses one thread."""
    rows = max(1, _MOST_MULTIPLICATIONS // weights.size)
    return np.concatenate([x[first : first + rows] @ weights.T for first in range(0, len(x), rows)])


def _normed(x: Array, factors: Array) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + _EPSILON) * factors)


def _rotated(x: Array, turns: tuple[Array, Array]) -> Array:
    """Return x, (tokens, heads, dim), with elements i and i + dim/2 rotated by the angle of the token's place.

    `turns` are cosine and sine, from `_turns` (RoFormer, Su et al., 2021)."""
    cosine, sine = turns
    first, second = np.split(x, 2, axis=2)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=2)


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
