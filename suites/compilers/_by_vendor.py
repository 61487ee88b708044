"""Build operators by the vendor's library: products with bias and GELU in the epilogue, and a layer of its products."""

from functools import partial

import numpy as np

from gpubench.api import suite as gb

from .._checks import in_turn
from .._matrix.formats import PRECISIONS, MatrixProduct, Shape
from .._matrix.vendor import vendor
from ..inference._chain import PrefillChain
from ._layer import LayerProblem, inference_bench
from ._operators import Problem
from ._products import ProductProblem
from ._providers import Built, Outputs, no_operator


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return a product with bias and GELU, or a decoder layer, by the vendor's library; else raise Skip."""
    if isinstance(problem, LayerProblem):
        return _layer(bench, problem)
    if isinstance(problem, ProductProblem):
        return _product(bench, problem)
    raise no_operator("vendor", problem)


def _product(bench: gb.Bench, problem: ProductProblem) -> Built:
    """Return GELU(A·B + bias) as one call of the vendor's library, with a preallocated output."""
    outputs, (a, weights, bias) = Outputs(bench, problem), problem.inputs.values()
    shape, out = Shape(problem.rows, problem.cols, problem.k), outputs.arrays[0].ravel()
    operands = MatrixProduct(PRECISIONS[problem.dtype], shape, a.ravel(), weights.ravel(), out, bias, "gelu")
    product_call = vendor(bench, operands)
    return Built(
        product_call.call, outputs.rows, outputs.poison, {**product_call.notes, "precision": "sums in float32"}
    )


def _layer(bench: gb.Bench, problem: LayerProblem) -> Built:
    """Return the layer as all calls of the suite inference's prefill but the last, which is the head."""
    prefill, tokens = PrefillChain(inference_bench(bench), problem.weights, problem.rows), problem.rows
    chain, device = prefill.chain, bench.device
    device.copy(chain.device_input, np.arange(tokens, dtype=np.uint32))
    chain.turns[..., 0], chain.turns[..., 1] = problem.inputs["cosine"], problem.inputs["sine"]
    stream = chain.stream.reshape(tokens, problem.cols)
    notes = {"library": "the vendor's products, chain.cu", "precision": "sums and the residual stream in float32"}
    poison = partial(bench.poison, *prefill.outputs)
    return Built(in_turn(*prefill.calls[:-1]), lambda: (problem.rows_of(stream),), poison, notes)
