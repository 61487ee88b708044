"""Compute a transformer layer on one rank or split over ranks in four ways; at the end every rank has the whole output.

The layer: X → Y = X + attention(X·Wqkv)·Wo → Y + relu(Y·W1)·W2, with heads of 64 numbers and no mask."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from gpubench.api import suite as gb

from ._numbers import Normals
from ._parallel import DATA, PIPELINE, SEQUENCE, TENSOR, UNSPLIT, LayerShape

HEAD = 64
# Rows and columns, as multiples of the width.
_MATRICES = {"q": (1, 1), "k": (1, 1), "v": (1, 1), "out": (1, 1), "up": (1, 4), "down": (4, 1)}
_SEED = 10

Weights = dict[str, Any]


class Collectives(Protocol):
    """The methods of a group of ranks that a split uses (see _group.py)."""

    @property
    def sent(self) -> Any: ...
    @property
    def received(self) -> Any: ...
    def all_reduce(self, first: int, count: int) -> None: ...
    def all_gather(self, first: int, count: int) -> None: ...
    def send(self, target: int, first: int, count: int) -> None: ...
    def receive(self, source: int, first: int, count: int) -> None: ...


class Silent:
    """Collectives that do nothing: with them a split shows the time of its computation alone."""

    def __init__(self, group: Any) -> None:
        """Use the arrays of a group."""
        self.sent, self.received = group.sent, group.received

    def all_reduce(self, first: int, count: int) -> None:
        """Do nothing."""

    def all_gather(self, first: int, count: int) -> None:
        """Do nothing."""

    def send(self, target: int, first: int, count: int) -> None:
        """Do nothing."""

    def receive(self, source: int, first: int, count: int) -> None:
        """Do nothing."""


class TransformerLayer:
    """The input and the weights of a layer, which every rank has, and the computation of each split.

    All arrays are of the device: float16 (CuPy) on GPUs, float32 (NumPy) on the host."""

    def __init__(self, bench: gb.Bench, shape: LayerShape) -> None:
        normals, width = Normals(bench), shape.width
        self.xp, self.shape, self.rank, self.world = bench.xp, shape, bench.rank, bench.world
        self.input = normals.matrix(shape.tokens, width, _SEED)
        self.weights: Weights = {
            name: normals.matrix(rows * width, cols * width, _SEED + 1 + index, 1 / math.sqrt(rows * width))
            for index, (name, (rows, cols)) in enumerate(_MATRICES.items())
        }
        self._whole = self._concatenate_qkv(self.weights)
        self._column_row = self._concatenate_qkv(self._slices()) if shape.heads % self.world == 0 else {}

    def _concatenate_qkv(self, weights: Weights) -> Weights:
        """Return `weights` with one matrix `qkv` in place of `q`, `k` and `v`, which are concatenated by columns."""
        queries = self.xp.concatenate([weights[name] for name in "qkv"], axis=1)
        return {"qkv": queries, **{name: weights[name] for name in ("out", "up", "down")}}

    def _slices(self) -> Weights:
        """Return this rank's part of the weights, for a tensor split (Megatron-LM, 2019), by name.

        It has an equal part of the columns of `q`, `k`, `v` and `up`, and of the rows of `out` and `down`."""
        sliced = {}
        for name, matrix in self.weights.items():
            axis = 0 if name in ("out", "down") else 1
            size = matrix.shape[axis] // self.world
            part = slice(self.rank * size, (self.rank + 1) * size)
            sliced[name] = self.xp.ascontiguousarray(matrix[part] if axis == 0 else matrix[:, part])
        return sliced

    def attended(self, queries: Any, keys: Any, values: Any) -> Any:
        """Return attention without a mask, softmax(Q·Kᵀ / √64)·V, computed for each head.

        Keys and values may have another length than queries."""

        def by_head(array: Any) -> Any:
            """Return a contiguous copy of `array` with shape (batch, heads, length, 64)."""
            batch, length, numbers = array.shape
            return self.xp.ascontiguousarray(array.reshape(batch, length, numbers // HEAD, HEAD).transpose(0, 2, 1, 3))

        scores = self.xp.matmul(by_head(queries), by_head(keys).transpose(0, 1, 3, 2))
        scores *= scores.dtype.type(1 / math.sqrt(HEAD))
        scores -= scores.max(axis=-1, keepdims=True)
        self.xp.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = self.xp.matmul(scores, by_head(values)).transpose(0, 2, 1, 3)
        return self.xp.ascontiguousarray(mixed).reshape(queries.shape)

    def _attention(self, tokens: Any, batch: int, weights: Weights, out: Any) -> None:
        """Write attention(X·Wqkv)·Wo to `out`, shape (tokens, width), where X is `tokens`: `batch` whole sequences."""
        queries, keys, values = self._qkv(tokens, batch, weights)
        mixed = self.attended(queries, keys, values)
        self.xp.matmul(mixed.reshape(len(tokens), -1), weights["out"], out=out)

    def _qkv(self, tokens: Any, batch: int, weights: Weights) -> Any:
        """Return the queries, keys and values of `tokens`, each of shape (batch, length, heads · 64)."""
        projected = self.xp.matmul(tokens, weights["qkv"])
        return self.xp.split(projected.reshape(batch, len(tokens) // batch, -1), 3, axis=2)

    def _network(self, tokens: Any, weights: Weights, out: Any) -> None:
        """Write relu(X·W1)·W2 to `out`, where X is `tokens`, W1 is `weights["up"]` and W2 is `weights["down"]`."""
        hidden = self.xp.matmul(tokens, weights["up"])
        self.xp.maximum(hidden, 0, out=hidden)
        self.xp.matmul(hidden, weights["down"], out=out)

    def whole(self, tokens: Any, batch: int, out: Any) -> None:
        """Write the output of the whole layer to `out`; `tokens` are `batch` whole sequences, of the shape of `out`."""
        middle = self.xp.empty_like(tokens)
        self._attention(tokens, batch, self._whole, middle)
        middle += tokens
        self._network(middle, self._whole, out)
        out += middle

    def call(self, split: str, group: Collectives) -> Callable[[], Any]:
        """Return a call that computes the layer in the way `split`, an element of SPLITS, with collectives of `group`.

        The call returns the output, shape (tokens, width), which lies in the group's memory or in new memory."""
        calls = {
            UNSPLIT: self._unsplit,
            DATA: self._data,
            TENSOR: self._tensor,
            SEQUENCE: self._sequence,
            PIPELINE: self._pipeline,
        }
        return lambda: calls[split](group)

    def _arrived(self, group: Collectives) -> Any:
        return group.received[: self.shape.numbers].reshape(self.shape.tokens, self.shape.width)

    def _unsplit(self, group: Collectives) -> Any:
        """Compute the whole layer on this rank, without communication, and return the output."""
        out = self._arrived(group)
        self.whole(self.input, self.shape.batch, out)
        return out

    def _data(self, group: Collectives) -> Any:
        """Compute this rank's sequences, gather all ranks' sequences, and return them; every rank must call it."""
        tokens, numbers = self.shape.tokens // self.world, self.shape.numbers // self.world
        out = group.sent[:numbers].reshape(tokens, self.shape.width)
        own_sequences = self.input[self.rank * tokens : (self.rank + 1) * tokens]
        self.whole(own_sequences, self.shape.batch // self.world, out)
        group.all_gather(0, numbers)
        return self._arrived(group)

    def _tensor(self, group: Collectives) -> Any:
        """Compute the layer with this rank's columns and rows of the weights, sum over ranks, and return the output."""
        numbers, out = self.shape.numbers, self._arrived(group)
        partial = group.sent[:numbers].reshape(self.shape.tokens, self.shape.width)
        self._attention(self.input, self.shape.batch, self._column_row, partial)
        group.all_reduce(0, numbers)
        middle = out + self.input
        self._network(middle, self._column_row, partial)
        group.all_reduce(0, numbers)
        out += middle
        return out

    def _sequence(self, group: Collectives) -> Any:
        """Compute this rank's tokens of every sequence, gather the output of all ranks, and return it."""
        batch, width, part = self.shape.batch, self.shape.width, self.shape.length // self.world
        tokens = self.input.reshape(batch, self.shape.length, width)[:, self.rank * part : (self.rank + 1) * part]
        own_tokens = self.xp.ascontiguousarray(tokens).reshape(batch * part, width)
        queries, keys, values = self._qkv(own_tokens, batch, self._whole)
        count = batch * part * width
        pairs = group.sent[: 2 * count].reshape(2, batch, part, width)
        pairs[0], pairs[1] = keys, values
        group.all_gather(0, 2 * count)
        every = group.received[: 2 * count * self.world].reshape(self.world, 2, batch, part, width)
        every = self.xp.ascontiguousarray(every.transpose(1, 2, 0, 3, 4)).reshape(2, batch, self.shape.length, width)
        mixed = self.attended(queries, every[0], every[1])
        middle = self.xp.matmul(mixed.reshape(batch * part, width), self._whole["out"])
        middle += own_tokens
        out = group.sent[:count].reshape(batch * part, width)
        self._network(middle, self._whole, out)
        out += middle
        group.all_gather(0, count)
        gathered = group.received[: count * self.world].reshape(self.world, batch, part, width)
        return self.xp.ascontiguousarray(gathered.transpose(1, 0, 2, 3)).reshape(self.shape.tokens, width)

    def _pipeline(self, group: Collectives) -> Any:
        """Compute attention on rank 0 and the network on rank 1, one sequence after another, and return the output."""
        length, width = self.shape.length, self.shape.width
        count, numbers = length * width, self.shape.numbers
        for index in range(self.shape.batch):
            part = slice(index * count, (index + 1) * count)
            if self.rank == 0:
                out = group.sent[part].reshape(length, width)
                tokens = self.input[index * length : (index + 1) * length]
                self._attention(tokens, 1, self._whole, out)
                out += tokens
                group.send(1, part.start, count)
            else:
                group.receive(0, part.start, count)
                middle = group.received[part].reshape(length, width)
                out = group.sent[part].reshape(length, width)
                self._network(middle, self._whole, out)
                out += middle
        if self.rank == 0:
            group.receive(1, 0, numbers)
            return self._arrived(group)
        group.send(0, 0, numbers)
        return group.sent[:numbers].reshape(self.shape.tokens, width)


def in_double(weights: dict[str, Any], tokens: Any, rows: Any) -> Any:
    """Return the layer's output for the tokens number `rows` of one sequence: float64, shape (len(rows), width).

    `weights` are the weights of a TransformerLayer."""
    q, k, v, out, up, down = (weights[name].astype(np.float64) for name in _MATRICES)
    tokens = tokens.astype(np.float64)
    queries, keys, values = tokens[rows] @ q, tokens @ k, tokens @ v
    mixed = np.empty_like(queries)
    for first in range(0, tokens.shape[1], HEAD):
        head = slice(first, first + HEAD)
        scores = np.exp(queries[:, head] @ keys[:, head].T / math.sqrt(HEAD))
        mixed[:, head] = scores / scores.sum(axis=1, keepdims=True) @ values[:, head]
    middle = tokens[rows] + mixed @ out
    return middle + np.maximum(middle @ up, 0) @ down
