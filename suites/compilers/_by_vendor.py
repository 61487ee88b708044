"""The vendor's own fusion: a product of its BLAS with bias and GELU in the epilogue."""

from __future__ import annotations

from gpubench.api.suite import Bench

from ..gemm._formats import PRECISIONS, MatrixProduct, Shape
from ..gemm._vendor import vendor
from ._operators import Problem
from ._products import ProductProblem
from ._providers import Built, Outputs, lacks


def build(bench: Bench, problem: Problem) -> Built:
    """Return the operator as one call of the vendor's library; raises Skip where it has none."""
    if not isinstance(problem, ProductProblem):
        raise lacks("vendor", problem)
    outputs, (a, weights, bias) = Outputs(bench, problem), problem.inputs.values()
    shape, out = Shape(problem.rows, problem.cols, problem.k), outputs.arrays[0].ravel()
    product = MatrixProduct(PRECISIONS[problem.dtype], shape, a.ravel(), weights.ravel(), out, bias, "gelu")
    found = vendor(bench, product)
    return Built(found.call, outputs.rows, outputs.poison, {**found.notes, "precision": "sums in float32"})
