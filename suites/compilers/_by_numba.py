"""Build operators by numba as one loop over the rows on all threads of the host, which fuses everything of a row.

Importing this module imports numba."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numba
import numpy as np
from numba import prange

from gpubench.api import suite as gb

from .._host import Compiled, parallel
from . import _layout_numba
from ._folding import FoldingProblem
from ._layout import ImageProblem
from ._operators import EPSILON, Problem
from ._providers import Built, Outputs, Varied, no_operator
from ._static import of_assembly

_ONE, _HALF, _GELU, _CUBIC = (np.float32(value) for value in (1, 0.5, 0.7978845608028654, 0.044715))
_EIGHTH, _QUARTER, _SCALE, _EPSILON = (np.float32(value) for value in (0.125, 0.25, 1.25, EPSILON))


def _bias_gelu(x: Any, bias: Any, out: Any) -> None:
    """Write GELU(x + bias), by its approximation with tanh, to `out`; `bias` has a number for each column."""
    for row in prange(x.shape[0]):
        for i in range(x.shape[1]):
            y = x[row, i] + bias[i]
            out[row, i] = _HALF * y * (_ONE + np.tanh(_GELU * (y + _CUBIC * y * y * y)))


def _swiglu(gate: Any, up: Any, out: Any) -> None:
    """Write SiLU(gate) · up to `out`; all are float32 matrices of the same shape."""
    for row in prange(gate.shape[0]):
        for i in range(gate.shape[1]):
            out[row, i] = gate[row, i] / (_ONE + np.exp(-gate[row, i])) * up[row, i]


def _residual_dropout(x: Any, residual: Any, kept: Any, out: Any) -> None:
    """Write x · kept · 1.25 + residual to `out`; all are float32 matrices of the same shape."""
    for row in prange(x.shape[0]):
        for i in range(x.shape[1]):
            out[row, i] = x[row, i] * kept[row, i] * _SCALE + residual[row, i]


def _twelve(x: Any, y: Any, out: Any) -> None:
    """Write (u/8 − s/2 + t)/2 − y/8 + x to `out`, with s = x + y, t = x − y and u = s·t + 1/4."""
    for row in prange(x.shape[0]):
        for i in range(x.shape[1]):
            s = x[row, i] + y[row, i]
            t = x[row, i] - y[row, i]
            u = s * t + _QUARTER
            out[row, i] = (u * _EIGHTH - s * _HALF + t) * _HALF - y[row, i] * _EIGHTH + x[row, i]


def _softmax(x: Any, out: Any) -> None:
    """Write the softmax of every row of x to `out`; both are float32 matrices of the same shape."""
    for row in prange(x.shape[0]):
        top = x[row, 0]
        for i in range(x.shape[1]):
            top = max(top, x[row, i])
        total = np.float32(0)
        for i in range(x.shape[1]):
            power = np.exp(x[row, i] - top)
            out[row, i] = power
            total += power
        for i in range(x.shape[1]):
            out[row, i] /= total


def _rmsnorm(x: Any, weight: Any, out: Any) -> None:
    """Write every row of x over √(mean of its squares + EPSILON), times the weight of each column, to `out`."""
    for row in prange(x.shape[0]):
        squares = np.float32(0)
        for i in range(x.shape[1]):
            squares += x[row, i] * x[row, i]
        scale = _ONE / np.sqrt(squares / np.float32(x.shape[1]) + _EPSILON)
        for i in range(x.shape[1]):
            out[row, i] = x[row, i] * scale * weight[i]


def _layernorm(x: Any, weight: Any, bias: Any, out: Any) -> None:
    """Write the layer norm of every row of x to `out`: mean 0, variance 1, times `weight` and plus `bias`."""
    for row in prange(x.shape[0]):
        total = np.float32(0)
        for i in range(x.shape[1]):
            total += x[row, i]
        mean, squares = total / np.float32(x.shape[1]), np.float32(0)
        for i in range(x.shape[1]):
            squares += (x[row, i] - mean) * (x[row, i] - mean)
        scale = _ONE / np.sqrt(squares / np.float32(x.shape[1]) + _EPSILON)
        for i in range(x.shape[1]):
            out[row, i] = (x[row, i] - mean) * scale * weight[i] + bias[i]


def _residual_norm(x: Any, residual: Any, weight: Any, summed: Any, out: Any) -> None:
    """Write x + residual to `summed`, and the RMSNorm of that sum times `weight` to `out`; all are float32."""
    for row in prange(x.shape[0]):
        squares = np.float32(0)
        for i in range(x.shape[1]):
            value = x[row, i] + residual[row, i]
            summed[row, i] = value
            squares += value * value
        scale = _ONE / np.sqrt(squares / np.float32(x.shape[1]) + _EPSILON)
        for i in range(x.shape[1]):
            out[row, i] = summed[row, i] * scale * weight[i]


_LOOPS: dict[str, Compiled] = {
    "bias-gelu": _bias_gelu,
    "swiglu": _swiglu,
    "residual-dropout": _residual_dropout,
    "twelve": _twelve,
    "softmax": _softmax,
    "rmsnorm": _rmsnorm,
    "layernorm": _layernorm,
    "residual_norm": _residual_norm,
}


def _product(loop: Compiled, a: Any, weights: Any, bias: Any, out: Any) -> None:
    """Compute a·weights with NumPy, then call `loop` with the product, `bias` and `out`."""
    loop(np.matmul(a, weights), bias, out)


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as a loop over rows that numba compiles, with preallocated outputs.

    Raises Skip if this module has no loop for the operator."""
    if isinstance(problem, ImageProblem):
        return _layout_numba.build(bench, problem)
    if isinstance(problem, FoldingProblem):
        return _layout_numba.folding(bench, problem)
    name, is_product = problem.operator.name, problem.operator.name == "gemm_gelu"
    if name not in _LOOPS and not is_product:
        raise no_operator("numba", problem)
    loop = parallel(_bias_gelu if is_product else _LOOPS[name])
    built = _built(bench, problem, partial(_product, loop) if is_product else loop)
    return replace(built, static=partial(_static, loop)) if bench.target.tier == "full" else built


def _static(loop: Any) -> Mapping[str, gb.Observed]:
    """Return the cycles per element that llvm-mca expects of a compiled loop, as `mca`; empty if unknown."""
    again: Any = numba.njit(parallel=True)(loop.py_func)
    again.compile(loop.signatures[-1])
    return of_assembly(again.inspect_asm(loop.signatures[-1]))


def _built(bench: gb.Bench, problem: Problem, loop: Compiled) -> Built:
    """Return a compiled loop over the inputs of `problem` and over preallocated outputs as a built operator."""
    outputs = Outputs(bench, problem)
    notes = {"library": f"numba {numba.__version__}", "precision": "computed in float32, not reassociated"}
    return Built(partial(loop, *problem.inputs.values(), *outputs.arrays), outputs.rows, outputs.poison, notes)


def varied(bench: gb.Bench, problems: Sequence[Problem]) -> Varied:
    """Return one loop, compiled by its first call, for problems whose rows have different lengths."""
    loop = numba.njit(parallel=True)(_LOOPS[problems[0].operator.name])
    return Varied([_built(bench, problem, loop) for problem in problems], lambda: len(loop.signatures))
