"""Measure all products of a language model, token by token or a prompt at once, with seeded weights.

Each matrix takes the output of the previous one: `out` the first columns of `qkv`, `down` the first of `up`. Weights
are N(0, 1/columns), so that numbers keep their size from the first layer to the last."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import flipping, in_turn
from .._matrix.data import Maker
from .._matrix.formats import FORMATS, PRECISIONS, MatrixProduct, Shape
from .._matrix.gemv import KINDS, Call, Vectors, Weights, distance, order_of, tensor_call, warp_call
from .._matrix.vendor import vendor
from .._models import MODELS, Model

PROMPT = 2048  # tokens of a prefill
_COMPARED = 16  # tokens of a prefill for which the chain of products is repeated in double precision
_HALF = FORMATS["float16"]

topic = gb.Topic(
    views=[gb.View("bars", "Language model throughput in tokens per second", ("decoder",), by=("phase", "weights"))]
)


@topic.case(
    model=gb.points(("llama-3-8b",), full=("chatglm-6b", "llama-3-8b")),
    phase=gb.points(("decode",), full=("decode", "prefill")),
    weights=gb.points((), ("int4",), ("float16", "int8", "int4")),
    when=gb.on_gpu,
)
def decoder(bench: gb.Bench, model: str, phase: str, weights: str) -> gb.Task:
    """Tokens per second of all products of a model with seeded weights: token by token, or a prompt of 2048 tokens.

    Attention, norms and activations are left out. Raises Skip if the library does not support the products of a prompt.
    """
    chosen = MODELS[model]
    if bench.traits.vendor != "nvidia" and phase == "prefill":
        raise gb.Skip("prefill needs the vendor's product of transposed weights through cuBLASLt")
    bench.need(1.1 * chosen.size * (KINDS[weights].bits / 8 + 2 / 128) + 2**31)
    return _decode_task(bench, chosen, weights) if phase == "decode" else _prefill_task(bench, chosen, weights)


class ModelChain:
    """A model in memory: its matrices, an output for each kind of matrix, and the input of the first matrix.

    `kind` is a key of KINDS, `order` is of Weights, and `tokens` is the number of tokens that go through together."""

    def __init__(self, bench: gb.Bench, model: Model, kind: str, tokens: int, order: int = 0) -> None:
        self._make, rng = Maker(bench), bench.rng
        self.matrices = tuple(
            Weights(self._make, kind, layer.rows, layer.cols, int(rng.integers(2**63)), layer.cols**-0.5, order)
            for layer in model.matrices
        )
        sizes = {**{layer.name: tokens * layer.rows for layer in model.layers}, model.head.name: model.head.rows}
        room = {name: bench.xp.empty(size, _HALF.storage) for name, size in sizes.items()}
        first = self._make.drawn(_HALF, tokens * model.head.cols, int(rng.integers(2**63)))
        self.outputs = tuple(room[layer.name] for layer in model.matrices)
        self.inputs = (first, *self.outputs[:-1])  # a matrix reads only the first columns of each row
        self.nbytes = sum(weights.nbytes for weights in self.matrices)  # bytes of all weights and scales

    def check(self, lines: Any) -> gb.Observation:
        """Compare the tokens `lines` after the last layer, and the last token after the head, with double precision.

        `lines` are numbers of tokens (NumPy), with the last token at the end."""
        make, last, head = self._make, self.matrices[-2], self.matrices[-1]
        index = make.xp.asarray(lines.astype(np.int64))
        missing = make.count_unwritten(self.outputs[-1], _HALF)
        gb.expect(missing == 0, "elements of the last output are not written, NaN or infinite")
        x = make.widened(self.inputs[0], _HALF, len(lines), head.cols, (head.cols, 1), index)
        for weights in self.matrices[:-1]:
            x = weights.product(x[:, : weights.cols])
        result = make.widened(self.outputs[-2], _HALF, len(lines), last.rows, (last.rows, 1), index)
        logits = make.widened(self.outputs[-1], _HALF, 1, head.rows, (head.rows, 1))
        error = max(distance(make, result, x), distance(make, logits, head.product(x[-1:])))
        bound = 4 * 2**-11 * math.sqrt(len(self.matrices))  # each matrix rounds its output, one after another
        gb.expect(error <= bound, f"the relative error {error:.3g} of the chain is above {bound:.3g}")
        return {"error": gb.Observed(error)}


def _decode_task(bench: gb.Bench, model: Model, kind: str) -> gb.Task:
    """Return all products for one token as a task, by skinny.cu for int4 and by gemv.cu for other weights."""
    by_tensor = kind == "int4" and "matrix" in bench.traits.features
    chain = ModelChain(bench, model, kind, 1, order_of(bench, 1) if by_tensor else 0)
    calls: list[Call] = []
    for weights, x, y in zip(chain.matrices, chain.inputs, chain.outputs, strict=True):
        vectors = Vectors(x, y)
        calls.append(tensor_call(bench, weights, vectors, 1) if by_tensor else warp_call(bench, weights, vectors))
    moved = chain.nbytes + sum(_HALF.itemsize * (weights.rows + weights.cols) for weights in chain.matrices)
    work = gb.Work(moved=float(moved), flops=2.0 * model.size, items=1)
    outputs, inputs = chain.outputs, flipping(chain.inputs[0])
    stage = gb.Stage(
        in_turn(*calls), work, "items", "dram", ("graph",), max_calls=4, item="token", outputs=outputs, inputs=inputs
    )
    notes = _notes(model, kind, "skinny.cu" if by_tensor else "gemv.cu")
    return gb.Task.of(stage, check=partial(chain.check, np.zeros(1, np.int64)), notes=notes)


def _prefill_task(bench: gb.Bench, model: Model, kind: str) -> gb.Task:
    """Return a task that multiplies PROMPT tokens by all layers' matrices, and the last token by the output matrix."""
    chain = ModelChain(bench, model, kind, PROMPT)
    quantised = KINDS[kind].is_quantised
    room = bench.xp.empty(max(layer.size for layer in model.layers) if quantised else 0, _HALF.storage)
    calls: list[Call] = []
    library, pitch = "", model.head.cols
    for weights, x, y in zip(chain.matrices[:-1], chain.inputs, chain.outputs, strict=False):
        shape = Shape(PROMPT, weights.rows, weights.cols, "nt", pitch=pitch)
        halves = room if quantised else weights.words
        product = vendor(bench, MatrixProduct(PRECISIONS["float16"], shape, x, halves, y))
        calls += [partial(weights.restore, room), product.call] if quantised else [product.call]
        library, pitch = product.notes["library"], weights.rows
    head, x, y = chain.matrices[-1], chain.inputs[-1], chain.outputs[-1]
    calls.append(warp_call(bench, head, Vectors(x[(PROMPT - 1) * pitch :], y)))
    flops = 2.0 * PROMPT * sum(weights.rows * weights.cols for weights in chain.matrices[:-1])
    work = gb.Work(moved=float(chain.nbytes), flops=flops + 2.0 * model.head.size, items=PROMPT)
    limit, outputs, inputs = "tensor.float16", chain.outputs, flipping(chain.inputs[0])
    stage = gb.Stage(in_turn(*calls), work, "items", limit, max_calls=2, item="token", outputs=outputs, inputs=inputs)
    lines = np.append(bench.rng.integers(0, PROMPT, _COMPARED - 1), PROMPT - 1)
    notes = _notes(model, kind, f"{library}, the head by gemv.cu")
    return gb.Task.of(stage, check=partial(chain.check, lines), notes=notes)


def _notes(model: Model, kind: str, kernels: str) -> Mapping[str, str]:
    """Return the notes on model, kernels and data; `kind` is the type of the weights, and `kernels` a text."""
    weights = f"{len(model.matrices)} matrices, {model.size / 1e9:.2f}e9 weights in {kind}"
    return {"model": f"{weights}, shapes of {model.source}", "kernels": kernels, "data": "seeded, N(0, 1/columns)"}
