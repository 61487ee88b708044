"""Measure a transformer layer whole, and split over ranks in each way that divides it evenly.

The layer is X → Y = X + attention(X·Wqkv)·Wo → Y + relu(Y·W1)·W2, without a mask; at the end
every rank has the whole output."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .. import inference
from .._between import gpus_of, rank_counts, ranks_of
from ..inference._prefill_attention import Prompt, PromptShape, Unfused
from ._gradients import has_ranks, libraries
from ._group import RankGroup, group_of
from ._products import Normals, Products, expect_close, type_of, use_one_thread, width_of

UNSPLIT, DATA, TENSOR, SEQUENCE, PIPELINE = "unsplit", "data", "tensor", "sequence", "pipeline"
_SMALL, _WIDE, _NARROW = 64, 128, 1024  # numbers of a head: of layers up to 1024 wide, and as in Llama-3-8B of others
# Rows and columns, as multiples of the width.
_MATRICES = {"q": (1, 1), "k": (1, 1), "v": (1, 1), "out": (1, 1), "up": (1, 4), "down": (4, 1)}
_SEED = 10

Weights = dict[str, Any]
_TRIES, _GPU_TRIES = 12, 5  # calls of each split; below the full tier a GPU, which runs nothing else, needs fewer
_BUFFERS = 16
_CHECKED = 8
_PERCENT = 100

topic = gb.Topic(
    views=[
        gb.View("bars", "Throughput of the unsplit layer", ("layer",), by=("of", "batch", "length")),
        gb.View("choice", "Split of a layer and number of ranks", ("layer",), "batch", by=("of",), series="*"),
    ],
)


@dataclass(frozen=True, slots=True)
class LayerShape:
    """A transformer layer of `width` numbers on `batch` sequences of `length` tokens; the hidden layer is 4 × wide."""

    batch: int
    length: int
    width: int
    heads: int

    @property
    def dim(self) -> int:
        """The numbers of a head."""
        return self.width // self.heads

    @property
    def tokens(self) -> int:
        """The tokens of all sequences."""
        return self.batch * self.length

    @property
    def numbers(self) -> int:
        """The numbers of the input, and of the output."""
        return self.tokens * self.width

    @property
    def flops(self) -> float:
        """All operations: 24 · width per number in products, 4 · length per number in attention without a mask."""
        return 4.0 * self.numbers * (6 * self.width + self.length)


def possible_splits(shape: LayerShape, ranks: int) -> tuple[str, ...]:
    """Return the splits that divide the layer evenly over `ranks`, first `unsplit`; a pipeline has two stages."""
    fits = {
        UNSPLIT: True,
        DATA: shape.batch % ranks == 0,
        TENSOR: shape.heads % ranks == 0,
        SEQUENCE: shape.length % ranks == 0,
        PIPELINE: ranks == 2,
    }
    return tuple(split for split, is_possible in fits.items() if is_possible)


class TransformerLayer:
    """The input and the weights of a layer, which every rank has, and the computation of each split."""

    def __init__(self, bench: gb.Bench, shape: LayerShape) -> None:
        normals, width = Normals(bench), shape.width
        self.xp, self.shape, self.rank, self.world = bench.xp, shape, bench.rank, bench.world
        self._bench, self._is_gpu, self._multiply = bench, bench.traits.is_gpu, Products(bench)
        self._rooms: dict[tuple[str | int, ...], Any] = {}
        self._attentions: dict[tuple[int, ...], list[Callable[[], None]]] = {}
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
        """Return this rank's columns of `q`, `k`, `v` and `up`, and rows of `out` and `down` (Megatron-LM, 2019)."""
        sliced = {}
        for name, matrix in self.weights.items():
            axis = 0 if name in ("out", "down") else 1
            size = matrix.shape[axis] // self.world
            part = slice(self.rank * size, (self.rank + 1) * size)
            sliced[name] = self.xp.ascontiguousarray(matrix[part] if axis == 0 else matrix[:, part])
        return sliced

    def attended(self, queries: Any, keys: Any, values: Any) -> Any:
        """Return attention without a mask, softmax(Q·Kᵀ / √dim)·V, computed for each head, of the shape of `queries`.

        On a GPU it takes two products of the vendor's library and the softmax of the suite inference."""
        batch, length, numbers = queries.shape
        heads, places = numbers // self.shape.dim, keys.shape[1]
        by_head = [
            self._room(name, batch, heads, array.shape[1], self.shape.dim)
            for name, array in (("queries", queries), ("keys", keys), ("values", values))
        ]
        scale = (math.log2(math.e) if self._is_gpu else 1) / math.sqrt(self.shape.dim)
        for room, array, factor in zip(by_head, (queries, keys, values), (scale, 1.0, 1.0), strict=True):
            split = array.reshape(batch, array.shape[1], heads, self.shape.dim).transpose(0, 2, 1, 3)
            self.xp.multiply(split, split.dtype.type(factor), out=room)
        mixed = self._room("mixed", batch, length, numbers)
        if self._is_gpu:
            for call in self._attention(by_head, mixed, places):
                call()
            return mixed
        scores = self.xp.matmul(by_head[0], by_head[1].transpose(0, 1, 3, 2))
        scores -= scores.max(axis=-1, keepdims=True)
        self.xp.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        of_heads = mixed.reshape(batch, length, heads, self.shape.dim).transpose(0, 2, 1, 3)
        self.xp.matmul(scores, by_head[2], out=of_heads)
        return mixed

    def _attention(self, by_head: list[Any], mixed: Any, places: int) -> list[Callable[[], None]]:
        """Return the calls that write the attention of each sequence to `mixed`, described at their first use."""
        batch, heads, length, dim = by_head[0].shape
        key = batch, heads, length, places
        if key not in self._attentions:
            shape = PromptShape(length, heads, heads, dim)
            unfused = Unfused(replace(self._bench, package=inference.__name__), shape, self._multiply.workspace, places)
            flat = [room.view("uint16").reshape(batch, -1) for room in (*by_head, mixed)]
            self._attentions[key] = [
                call for *prompt, out in zip(*flat, strict=True) for call in unfused.calls(Prompt(*prompt), out)
            ]
        return self._attentions[key]

    def _room(self, name: str, *shape: int) -> Any:
        """Return memory for an intermediate result, the same at each call."""
        if (name, *shape) not in self._rooms:
            self._rooms[name, *shape] = self.xp.empty(shape, type_of(self._bench))
        return self._rooms[name, *shape]

    def _attend(self, tokens: Any, batch: int, weights: Weights, out: Any) -> None:
        """Write attention(X·Wqkv)·Wo to `out`, shape (tokens, width), where X is `tokens`: `batch` whole sequences."""
        queries, keys, values = self._qkv(tokens, batch, weights)
        mixed = self.attended(queries, keys, values)
        self._multiply(mixed.reshape(len(tokens), -1), weights["out"], out)

    def _qkv(self, tokens: Any, batch: int, weights: Weights) -> Any:
        """Return the queries, keys and values of `tokens`, each of shape (batch, length, heads · dim)."""
        projected = self._room("qkv", len(tokens), weights["qkv"].shape[1])
        self._multiply(tokens, weights["qkv"], projected)
        return self.xp.split(projected.reshape(batch, len(tokens) // batch, -1), 3, axis=2)

    def _network(self, tokens: Any, weights: Weights, out: Any) -> None:
        """Write relu(X·W1)·W2 to `out`, where X is `tokens`, W1 is `weights["up"]` and W2 is `weights["down"]`."""
        hidden = self._room("hidden", len(tokens), weights["up"].shape[1])
        self._multiply(tokens, weights["up"], hidden)
        self.xp.maximum(hidden, 0, out=hidden)
        self._multiply(hidden, weights["down"], out)

    def whole(self, tokens: Any, batch: int, out: Any) -> None:
        """Write the output of the whole layer to `out`; `tokens` are `batch` whole sequences, of the shape of `out`."""
        middle = self._room("middle", *tokens.shape)
        self._attend(tokens, batch, self._whole, middle)
        middle += tokens
        self._network(middle, self._whole, out)
        out += middle

    def call(self, split: str, group: RankGroup) -> Any:
        """Compute the layer in the way `split` and return its output, shape (tokens, width)."""
        calls = {
            UNSPLIT: self._unsplit,
            DATA: self._data,
            TENSOR: self._tensor,
            SEQUENCE: self._sequence,
            PIPELINE: self._pipeline,
        }
        return calls[split](group)

    def _arrived(self, group: RankGroup) -> Any:
        return group.received[: self.shape.numbers].reshape(self.shape.tokens, self.shape.width)

    def _unsplit(self, group: RankGroup) -> Any:
        """Compute the whole layer on this rank, without communication, and return the output."""
        out = self._arrived(group)
        self.whole(self.input, self.shape.batch, out)
        return out

    def _data(self, group: RankGroup) -> Any:
        """Compute this rank's sequences, gather all ranks' sequences, and return them; every rank must call it."""
        tokens, numbers = self.shape.tokens // self.world, self.shape.numbers // self.world
        out = group.sent[:numbers].reshape(tokens, self.shape.width)
        own_sequences = self.input[self.rank * tokens : (self.rank + 1) * tokens]
        self.whole(own_sequences, self.shape.batch // self.world, out)
        group.all_gather(0, numbers)
        return self._arrived(group)

    def _tensor(self, group: RankGroup) -> Any:
        """Compute the layer with this rank's columns and rows of the weights, sum over ranks, and return the output."""
        numbers, out = self.shape.numbers, self._arrived(group)
        partial = group.sent[:numbers].reshape(self.shape.tokens, self.shape.width)
        self._attend(self.input, self.shape.batch, self._column_row, partial)
        group.all_reduce(0, numbers)
        middle = self.xp.add(out, self.input, out=self._room("middle", *out.shape))
        self._network(middle, self._column_row, partial)
        group.all_reduce(0, numbers)
        out += middle
        return out

    def _sequence(self, group: RankGroup) -> Any:
        """Compute this rank's tokens of every sequence, gather the output of all ranks, and return it."""
        batch, width, part = self.shape.batch, self.shape.width, self.shape.length // self.world
        tokens = self.input.reshape(batch, self.shape.length, width)[:, self.rank * part : (self.rank + 1) * part]
        own_tokens = self._room("own", batch * part, width)
        own_tokens.reshape(tokens.shape)[:] = tokens
        queries, keys, values = self._qkv(own_tokens, batch, self._whole)
        count = batch * part * width
        pairs = group.sent[: 2 * count].reshape(2, batch, part, width)
        pairs[0], pairs[1] = keys, values
        group.all_gather(0, 2 * count)
        every = group.received[: 2 * count * self.world].reshape(self.world, 2, batch, part, width)
        every = self.xp.ascontiguousarray(every.transpose(1, 2, 0, 3, 4)).reshape(2, batch, self.shape.length, width)
        mixed = self.attended(queries, every[0], every[1])
        middle = self._room("middle", batch * part, width)
        self._multiply(mixed.reshape(batch * part, width), self._whole["out"], middle)
        middle += own_tokens
        out = group.sent[:count].reshape(batch * part, width)
        self._network(middle, self._whole, out)
        out += middle
        group.all_gather(0, count)
        gathered = group.received[: count * self.world].reshape(self.world, batch, part, width)
        return self.xp.ascontiguousarray(gathered.transpose(1, 0, 2, 3)).reshape(self.shape.tokens, width)

    def _pipeline(self, group: RankGroup) -> Any:
        """Compute attention on rank 0 and the network on rank 1, one sequence after another, and return the output."""
        length, width = self.shape.length, self.shape.width
        count, numbers = length * width, self.shape.numbers
        for index in range(self.shape.batch):
            part = slice(index * count, (index + 1) * count)
            if self.rank == 0:
                out = group.sent[part].reshape(length, width)
                tokens = self.input[index * length : (index + 1) * length]
                self._attend(tokens, 1, self._whole, out)
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


def in_double(weights: dict[str, Any], tokens: Any, rows: Any, dim: int) -> Any:
    """Return the layer's output for the tokens number `rows` of one sequence: float64, shape (len(rows), width).

    Heads have `dim` numbers."""
    q, k, v, out, up, down = (weights[name].astype(np.float64) for name in _MATRICES)
    tokens = tokens.astype(np.float64)
    queries, keys, values = tokens[rows] @ q, tokens @ k, tokens @ v
    mixed = np.empty_like(queries)
    for first in range(0, tokens.shape[1], dim):
        head = slice(first, first + dim)
        scores = np.exp(queries[:, head] @ keys[:, head].T / math.sqrt(dim))
        mixed[:, head] = scores / scores.sum(axis=1, keepdims=True) @ values[:, head]
    middle = tokens[rows] + mixed @ out
    return middle + np.maximum(middle @ up, 0) @ down


def _lengths(target: gb.Target) -> Any:
    if target.is_host:
        return gb.points((64,), smoke=(32,), full=(16, 64, 128))
    return gb.points((1024,), smoke=(64,), full=(128, 1024, 4096))


@topic.case(
    version=2,
    ranks=ranks_of,
    devices=gpus_of,
    when=has_ranks,
    by=libraries,
    of=rank_counts,
    batch=gb.points((4,), smoke=(2,), full=(1, 4, 16)),
    length=_lengths,
)
def layer(bench: gb.Bench, by: str, of: int, batch: int, length: int) -> gb.Task:
    """A transformer layer of 24·T·d² + 4·T·length·d operations, whole and split over the ranks in each possible way.

    Each split reports its efficiency: the unsplit time over ranks times the time of the split."""
    del by, of
    width = width_of(bench)
    shape = LayerShape(batch, length, width, width // (_WIDE if width > _NARROW else _SMALL))
    scores = batch * shape.heads * length**2
    bench.need(4 * (_BUFFERS * (shape.numbers + width**2) + 3 * scores))
    return SplitLayer(bench, shape).task()


class SplitLayer:
    """One rank's layer, and the shortest time of each split, which the case's `efficiency` compares.

    Creating the object measures it, so all ranks must do it at the same time."""

    def __init__(self, bench: gb.Bench, shape: LayerShape) -> None:
        self._bench, self._shape = bench, shape
        self._restore_threads = use_one_thread(bench)
        is_short = bench.traits.is_gpu and bench.target.tier != "full"
        self._tries = _GPU_TRIES if is_short else _TRIES
        self._layer = TransformerLayer(bench, shape)
        self._group: RankGroup = group_of(bench, 2 * shape.numbers)
        self._splits = possible_splits(shape, bench.world)
        self._outputs: dict[str, Any] = {}
        for split in self._splits:  # loads the kernels and sets up channels
            self._run(split)
        bench.device.synchronize()
        self._rows = bench.rng.integers(0, shape.length, _CHECKED)  # tokens of the first sequence that are compared
        self._reference = in_double(self._layer.weights, self._layer.input[: shape.length], self._rows, shape.dim)
        own_seconds = [[self._timed(split) for split in self._splits] for _ in range(self._tries)]
        slowest = np.max(bench.exchange(own_seconds), axis=0)
        self._shortest = dict(zip(self._splits, slowest.min(axis=0).tolist(), strict=True))

    def _run(self, split: str) -> None:
        self._outputs[split] = self._layer.call(split, self._group)

    def _timed(self, split: str) -> float:
        """Return the device's seconds of one call of a split, which starts when all ranks are ready."""
        self._group.board.meet()
        call = functools.partial(self._run, split)
        return float(self._bench.device.time(call, 1, "hot", gated=False, lead=self._group.meet).device[0])

    def task(self) -> gb.Task:
        """Return this rank's task: a stage for each split, which times one call of it."""
        limit = "" if self._bench.target.is_host else f"tensor.{type_of(self._bench)}"
        work = gb.Work(flops=self._shape.flops, items=1)
        effort = gb.Effort.exactly(self._tries)  # the splits were called many times when they were compared
        stages = {
            split: gb.Stage(
                functools.partial(self._timed, split),
                work,
                "flops",
                limit if split == UNSPLIT else "",
                clock="self",
                effort=effort,
            )
            for split in self._splits
        }
        notes = {"fastest": min(self._shortest, key=self._shortest.__getitem__)}
        notes |= {"layer": f"{self._shape.width} wide, {self._shape.heads} heads", "type": type_of(self._bench)}
        return gb.Task(stages, self._check, self._poison, self._close, {**notes, **self._group.notes})

    def _poison(self) -> None:
        """Overwrite the group's buffers and all outputs with NaN; every rank must call it, and waits for the others."""
        for array in (self._group.received, self._group.sent, *self._outputs.values()):
            array.fill(np.nan)
        self._bench.device.synchronize()
        self._group.board.meet()

    def _check(self) -> gb.Observation:
        """Compute each split again, compare it, and return the efficiencies."""
        outputs = {}
        for split in self._splits:
            self._run(split)
            outputs[split] = self._bench.xp.array(self._outputs[split])
        expect_close(outputs[UNSPLIT][self._rows], self._reference, "outputs of the whole layer")
        whole = outputs[UNSPLIT].astype(np.float64)
        for split, output in outputs.items():
            expect_close(output, whole, f"outputs of the layer split by {split}")
        one_s = _PERCENT * self._shortest[UNSPLIT] / self._bench.world
        return {
            f"efficiency {split}": gb.Observed(one_s / self._shortest[split], "%", "more") for split in self._splits[1:]
        }

    def _close(self) -> None:
        self._restore_threads()
        self._outputs.clear()
        self._group.close()
