"""Build operators by CuPy's own means of fusion: an ElementwiseKernel, after ReductionKernels for operators on rows."""

from collections.abc import Callable
from functools import partial
from typing import Any

from gpubench.api import suite as gb

from ._by_cupy import temporary_bytes
from ._operators import EPSILON, Problem
from ._providers import Built, Outputs, no_operator

_GELU = """
float y = (float)x + (float)bias;
z = 0.5f * y * (1 + tanhf(0.7978845608f * (y + 0.044715f * y * y * y)))
"""
_TWELVE = """
float a = x, b = y, s = a + b, t = a - b, u = s * t + 0.25f;
z = (u * 0.125f - s * 0.5f + t) * 0.5f - b * 0.125f + a
"""
# parameters in and out, and the operation on an element in float; T is the type of the elements
_POINTWISE = {
    "bias-gelu": ("T x, T bias", "T z", _GELU),
    "swiglu": ("T gate, T up", "T z", "float g = gate; z = g / (1 + expf(-g)) * (float)up"),
    "residual-dropout": ("T x, T residual, T kept", "T z", "z = (float)x * (float)kept * 1.25f + (float)residual"),
    "twelve": ("T x, T y", "T z", _TWELVE),
}


class _Kernels:
    """A factory of CuPy's kernels; `cupy` is the module."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def pointwise(self, inputs: str, outputs: str, body: str) -> Any:
        """Return an ElementwiseKernel; `inputs`, `outputs` and `body` are its parameters and operation in CUDA C++."""
        return self._cupy.ElementwiseKernel(inputs, outputs, body, "gpubench_pointwise")

    def reduction(self, inputs: str, mapped: str, joined: str, last: str, start: str) -> Any:
        """Return a ReductionKernel to float32 from CuPy's expressions for an element, a pair, the result and the start.

        `mapped` is the expression of an element, `joined` combines a and b, `last` writes the result, `start` is the
        identity.
        """
        return self._cupy.ReductionKernel(inputs, "float32 z", mapped, joined, last, start, "gpubench_reduction")


def _softmax(kernels: _Kernels, x: Any, out: Any) -> Callable[[], None]:
    """Return a call that writes the softmax of every row of x to `out`, as two reductions and an elementwise kernel."""
    most = kernels.reduction("T x", "(float)x", "max(a, b)", "z = a", "-1e30f")
    total = kernels.reduction("T x, float32 top", "expf((float)x - top)", "a + b", "z = a", "0")
    last = kernels.pointwise("T x, float32 top, float32 sum", "T z", "z = expf((float)x - top) / sum")

    def call() -> None:
        top = most(x, axis=1, keepdims=True)
        last(x, top, total(x, top, axis=1, keepdims=True), out)

    return call


def _rmsnorm(kernels: _Kernels, x: Any, weight: Any, out: Any) -> Callable[[], None]:
    """Return a call that writes the RMSNorm of every row of x to `out`, as a reduction and an elementwise kernel."""
    squares = kernels.reduction("T x", "(float)x * (float)x", "a + b", "z = a", "0")
    last = kernels.pointwise(
        "T x, float32 sum, T weight, int32 cols",
        "T z",
        f"z = (float)x / sqrtf(sum / cols + {EPSILON}f) * (float)weight",
    )
    return lambda: last(x, squares(x, axis=1, keepdims=True), weight, x.shape[1], out)


def _layernorm(kernels: _Kernels, x: Any, weight: Any, bias: Any, out: Any) -> Callable[[], None]:
    """Return a call that writes the layer norm of every row of x to `out`."""
    sums = kernels.reduction("T x", "(float)x", "a + b", "z = a", "0")
    squares = kernels.reduction(
        "T x, float32 sum, int32 cols", "((float)x - sum / cols) * ((float)x - sum / cols)", "a + b", "z = a", "0"
    )
    last = kernels.pointwise(
        "T x, float32 sum, float32 square, T weight, T bias, int32 cols",
        "T z",
        f"z = ((float)x - sum / cols) / sqrtf(square / cols + {EPSILON}f) * (float)weight + (float)bias",
    )
    cols = x.shape[1]

    def call() -> None:
        total = sums(x, axis=1, keepdims=True)
        last(x, total, squares(x, total, cols, axis=1, keepdims=True), weight, bias, cols, out)

    return call


def _residual_norm(kernels: _Kernels, x: Any, residual: Any, weight: Any, summed: Any, out: Any) -> Callable[[], None]:
    """Return a call that writes x + residual to `summed`, and the RMSNorm of that sum times `weight` to `out`."""
    add = kernels.pointwise("T x, T residual", "T z", "z = (float)x + (float)residual")
    norm = _rmsnorm(kernels, summed, weight, out)

    def call() -> None:
        add(x, residual, summed)
        norm()

    return call


def _gemm_gelu(kernels: _Kernels, a: Any, weights: Any, bias: Any, out: Any) -> Callable[[], None]:
    """Return a call that writes GELU(a·weights + bias) to `out`: CuPy's product, then one elementwise kernel."""
    gelu = kernels.pointwise("T x, T bias", "T z", _GELU)
    return lambda: gelu(a @ weights, bias, out)


def _written(kernels: _Kernels, *arrays: Any) -> Callable[[], None]:
    """Return a call that computes (x − mean) / √(variance + EPSILON) · weight + bias as one elementwise kernel."""
    body = f"z = ((float)x - (float)mean) / sqrtf((float)variance + {EPSILON}f) * (float)weight + (float)bias"
    return partial(kernels.pointwise("T x, T mean, T variance, T weight, T bias", "T z", body), *arrays)


def _folded(kernels: _Kernels, *arrays: Any) -> Callable[[], None]:
    """Return a call that computes x · scale + shift as one elementwise kernel."""
    body = "z = (float)x * (float)scale + (float)shift"
    return partial(kernels.pointwise("T x, T scale, T shift", "T z", body), *arrays)


_ROWS: dict[str, Callable[..., Callable[[], None]]] = {
    "softmax": _softmax,
    "rmsnorm": _rmsnorm,
    "layernorm": _layernorm,
    "residual_norm": _residual_norm,
    "gemm_gelu": _gemm_gelu,
    "written": _written,
    "folded": _folded,
}


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as one to three fused kernels of CuPy, which write to preallocated outputs.

    Raises Skip if this module has no kernels for the operator."""
    kernels, outputs, name = _Kernels(bench.xp), Outputs(bench, problem), problem.operator.name
    arrays = (*problem.inputs.values(), *outputs.arrays)
    notes = {"library": f"CuPy {bench.xp.__version__}", "precision": "computed in float32"}
    if name in _POINTWISE:
        kernel = kernels.pointwise(*_POINTWISE[name])
        call: Callable[[], None] = partial(kernel, *arrays)
    elif name in _ROWS:
        call = _ROWS[name](kernels, *arrays)
    else:
        raise no_operator("cupy-fused", problem)
    temporary = partial(temporary_bytes, bench.xp, call)
    return Built(call, outputs.rows, outputs.poison, notes, temporary=temporary)
