"""A language model's chain of products, token by token or a prompt at once: seeded weights, no download.

Each matrix takes what the last one left: `out` the first columns of `qkv`, `down` those of `up`. Weights
are N(0, 1/columns), so that numbers keep their size from the first layer to the last. Attention, norms and
activations are left out: what is measured is what the weights cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpubench.api.suite import Bench, Observation, Observed, Skip, Stage, Task, Work, expect

from ._data import Maker
from ._formats import FORMATS, PRECISIONS, Shape
from ._gemv import KINDS, Call, Vectors, Weights, distance, poison, tensor_call, warp_call
from ._models import MODELS, Model
from ._vendor import Arrays, vendor

PROMPT = 2048  # tokens of a prefill
_COMPARED = 16  # tokens of a prefill whose chain is repeated in double precision
_HALF = FORMATS["float16"]


@dataclass(frozen=True, slots=True)
class Chain:
    """A model in memory: its matrices, a buffer for what each kind of matrix leaves, and the first input."""

    make: Maker
    matrices: tuple[Weights, ...]
    outputs: tuple[Any, ...]
    first: Any
    tokens: int

    @property
    def nbytes(self) -> int:
        """Bytes of all weights and scales."""
        return sum(weights.nbytes for weights in self.matrices)

    def inputs(self) -> list[Any]:
        """What each matrix takes: rows of the last one's output, of which it looks at its first columns."""
        return [self.first, *self.outputs[:-1]]

    def poison(self) -> None:
        """Fill every output with NaN."""
        for output in self.outputs:
            poison(output)


def build(bench: Bench, model: str, phase: str, weights: str) -> Task:
    """The task of a whole model's products, for one token or for a prompt."""
    chosen = MODELS[model]
    if bench.traits.vendor != "nvidia" and phase == "prefill":
        raise Skip("prefill needs the vendor's product of transposed weights through cuBLASLt")
    bench.need(1.1 * chosen.size * (KINDS[weights].bits / 8 + 2 / 128) + 2**31)
    return _decode(bench, chosen, weights) if phase == "decode" else _prefill(bench, chosen, weights)


def _chain(bench: Bench, model: Model, kind: str, tokens: int, tiled: bool = False) -> Chain:
    make, rng = Maker(bench), bench.rng
    matrices = tuple(
        Weights(make, kind, layer.rows, layer.cols, int(rng.integers(2**63)), layer.cols**-0.5, tiled)
        for layer in model.matrices
    )
    sizes = {**{layer.name: tokens * layer.rows for layer in model.layers}, model.head.name: model.head.rows}
    room = {name: bench.xp.empty(size, _HALF.storage) for name, size in sizes.items()}
    first = make.drawn(_HALF, tokens * model.head.cols, int(rng.integers(2**63)))
    return Chain(make, matrices, tuple(room[layer.name] for layer in model.matrices), first, tokens)


def _decode(bench: Bench, model: Model, kind: str) -> Task:
    by_tensor = kind == "int4" and "matrix" in bench.traits.features
    chain = _chain(bench, model, kind, 1, by_tensor)
    calls: list[Call] = []
    for weights, x, y in zip(chain.matrices, chain.inputs(), chain.outputs, strict=True):
        held = Vectors(x, y)
        calls.append(tensor_call(bench, weights, held, 1) if by_tensor else warp_call(bench, weights, held))
    moved = chain.nbytes + sum(_HALF.itemsize * (weights.rows + weights.cols) for weights in chain.matrices)
    work = Work(moved=float(moved), flops=2.0 * model.size, items=1)
    stage = Stage(_chained(calls), work, "items", "dram", modes=("graph",), max_calls=4, item="token")
    notes = _notes(model, kind, "skinny.cu" if by_tensor else "gemv.cu")
    return Task.of(stage, check=lambda: _checked(chain, np.zeros(1, np.int64)), poison=chain.poison, notes=notes)


def _prefill(bench: Bench, model: Model, kind: str) -> Task:
    """All layers for every token of the prompt, the head for the last one; quantised weights are restored first."""
    chain = _chain(bench, model, kind, PROMPT)
    quantised = KINDS[kind].is_quantised
    room = bench.xp.empty(max(layer.size for layer in model.layers) if quantised else 0, _HALF.storage)
    calls: list[Call] = []
    notes: Mapping[str, str] = {}
    pitch = model.head.cols
    for weights, x, y in zip(chain.matrices[:-1], chain.inputs(), chain.outputs, strict=False):
        shape = Shape(PROMPT, weights.rows, weights.cols, "nt", pitch=pitch)
        product = vendor(bench, PRECISIONS["float16"], shape, Arrays(x, room if quantised else weights.words, y))
        calls += [partial(weights.restore, room), product.call] if quantised else [product.call]
        notes, pitch = product.notes, weights.rows
    head, x, y = chain.matrices[-1], chain.inputs()[-1], chain.outputs[-1]
    calls.append(warp_call(bench, head, Vectors(x[(PROMPT - 1) * pitch :], y)))
    flops = 2.0 * PROMPT * sum(weights.rows * weights.cols for weights in chain.matrices[:-1])
    work = Work(moved=float(chain.nbytes), flops=flops + 2.0 * model.head.size, items=PROMPT)
    stage = Stage(_chained(calls), work, "items", "tensor.float16", max_calls=2, item="token")
    lines = np.append(bench.rng.integers(0, PROMPT, _COMPARED - 1), PROMPT - 1)
    kept = _notes(model, kind, f"{notes['library']}, the head by gemv.cu")
    return Task.of(stage, check=lambda: _checked(chain, lines), poison=chain.poison, notes=kept)


def _chained(calls: list[Call]) -> Call:
    def chain() -> None:
        for call in calls:
            call()

    return chain


def _checked(chain: Chain, lines: Any) -> Observation:
    """What some tokens are after the last layer, and what the head makes of the last one, in double precision."""
    make, last, head = chain.make, chain.matrices[-2], chain.matrices[-1]
    index = make.xp.asarray(lines.astype(np.int64))
    expect(make.lacking(chain.outputs[-1], _HALF) == 0, "elements of the last output are not written, NaN or infinite")
    x = make.widened(chain.first, _HALF, len(lines), head.cols, (head.cols, 1), index)
    for weights in chain.matrices[:-1]:
        x = weights.product(x[:, : weights.cols])
    found = make.widened(chain.outputs[-2], _HALF, len(lines), last.rows, (last.rows, 1), index)
    logits = make.widened(chain.outputs[-1], _HALF, 1, head.rows, (head.rows, 1))
    error = max(distance(make, found, x), distance(make, logits, head.product(x[-1:])))
    bound = 4 * 2**-11 * math.sqrt(len(chain.matrices))  # each matrix rounds its output, one after another
    expect(error <= bound, f"the relative error {error:.3g} of the chain is above {bound:.3g}")
    return {"error": Observed(error)}


def _notes(model: Model, kind: str, kernels: str) -> Mapping[str, str]:
    words = f"{len(model.matrices)} matrices, {model.size / 1e9:.2f}e9 weights in {kind}"
    return {"model": f"{words}, shapes of {model.source}", "kernels": kernels, "data": "seeded, N(0, 1/columns)"}
