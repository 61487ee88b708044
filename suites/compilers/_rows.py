# ruff: noqa: ANN001 - Triton reads annotations as its own
"""Define operators on the rows of a matrix: the expression of each, and its kernel for each provider, side by side.

As in `_pointwise.py`, libraries put their modules in the place of `prange`, `tl`, `ct`, `cuda` and `reduce_block`. A
kernel of numba.cuda or Triton computes row b in block b; one of cuArray computes `height` rows, and `width` is at least
the number of columns. Every kernel computes in float32."""

from __future__ import annotations  # as texts, which compilers evaluate after their library was loaded

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ._operator import EPSILON, Array, Operator
from ._pointwise import columns_of, store_tile, tile_of

prange: Any = range
tl: Any = None
ct: Any = None
cuda: Any = None
reduce_block: Any = None
constexpr = Any
Constant = Any

THREADS, _HALF_OF_BLOCK = 256, 128  # of a block of numba.cuda
_LOWEST, _ZERO, _ONE, _EPSILON = (np.float32(value) for value in (-1e30, 0, 1, EPSILON))


def block_reduction(mine: Any, is_maximum: bool) -> Any:
    """Return the maximum or the sum of the values `mine` of all threads of a block of numba.cuda; all must call it."""
    parts = cuda.shared.array(THREADS, np.float32)
    me = cuda.threadIdx.x
    parts[me] = mine
    cuda.syncthreads()
    step = _HALF_OF_BLOCK
    while step > 0:
        if me < step:
            other = parts[me + step]
            if not is_maximum:
                parts[me] += other
            elif other > parts[me]:  # numba 0.68 compiles no max()
                parts[me] = other
        cuda.syncthreads()
        step //= 2
    result = parts[0]
    cuda.syncthreads()  # the array may be used again
    return result


# softmax
def _softmax(xp: Any, x: Array) -> Array:
    powers = xp.exp(x - xp.amax(x, axis=-1, keepdims=True))
    return powers / xp.sum(powers, axis=-1, keepdims=True)


def softmax_numba(x: Array, out: Array) -> None:
    """Write the softmax of every row of x to `out`."""
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


def _softmax_cuda(x: Array, out: Array, cols: int) -> None:
    first = cuda.blockIdx.x * cols
    most = _LOWEST
    for col in range(cuda.threadIdx.x, cols, THREADS):
        value = np.float32(x[first + col])
        most = value if value > most else most
    most = reduce_block(most, True)
    total = _ZERO
    for col in range(cuda.threadIdx.x, cols, THREADS):
        total += math.exp(np.float32(x[first + col]) - most)
    total = reduce_block(total, False)
    for col in range(cuda.threadIdx.x, cols, THREADS):
        out[first + col] = math.exp(np.float32(x[first + col]) - most) / total


def softmax_triton(x, out, cols, block: constexpr) -> None:  # type: ignore[no-untyped-def]
    """Write the softmax of a row to `out`; `block` is a power of two that is at least `cols`."""
    row = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, block)
    inside = col < cols
    value = tl.load(x + row + col, mask=inside, other=-1.0e30).to(tl.float32)
    power = tl.exp(value - tl.max(value, 0))
    tl.store(out + row + col, power / tl.sum(power, 0), mask=inside)


def _softmax_tile(x: Array, out: Array, height: Constant, width: Constant) -> None:
    row = ct.bid(0)
    value = tile_of(x, row, 0, height, width, ct.PaddingMode.NEG_INF) * 1.4426950408889634  # 1 / ln 2: e^x = 2^value
    power = ct.exp2(value - ct.max(value, axis=1, keepdims=True), flush_to_zero=True)
    scale = ct.truediv(1.0, ct.sum(power, axis=1, keepdims=True), rounding_mode=ct.RoundingMode.FULL)
    store_tile(out, row, 0, power * scale)


def _softmax_fused(fuse: Any, x: Array, out: Array) -> Callable[[], None]:
    most = fuse.reduction("T x", "(float)x", "max(a, b)", "-1e30f")
    total = fuse.reduction("T x, float32 top", "expf((float)x - top)")
    last = fuse.elementwise("T x, float32 top, float32 sum", "z = expf((float)x - top) / sum")

    def call() -> None:
        top = most(x)
        last(x, top, total(x, top), out)

    return call


def norm_triton(x, add, weight, bias, summed, out, cols, norm: constexpr, epsilon: constexpr, block: constexpr) -> None:  # type: ignore[no-untyped-def]
    """Write a row of the norm of that name to `out`; an array that the norm does not have is not used."""
    row = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, block)
    inside = col < cols
    value = tl.load(x + row + col, mask=inside, other=0.0).to(tl.float32)
    if norm == "residual_norm":
        value += tl.load(add + row + col, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    if norm == "residual_norm":
        tl.store(summed + row + col, value, mask=inside)
    if norm == "layernorm":
        more = tl.load(bias + col, mask=inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value - tl.sum(value, 0) / cols, 0.0)
    result = value * (1 / tl.sqrt(tl.sum(value * value, 0) / cols + epsilon)) * factor
    if norm == "layernorm":
        result += more
    tl.store(out + row + col, result, mask=inside)


# RMSNorm: a row over √(mean of its squares + ε), times a weight for each column
def _rmsnorm(xp: Any, x: Array, weight: Array) -> Array:
    return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + EPSILON) * weight


def _rmsnorm_numba(x: Array, weight: Array, out: Array) -> None:
    for row in prange(x.shape[0]):
        squares = np.float32(0)
        for i in range(x.shape[1]):
            squares += x[row, i] * x[row, i]
        scale = _ONE / np.sqrt(squares / np.float32(x.shape[1]) + _EPSILON)
        for i in range(x.shape[1]):
            out[row, i] = x[row, i] * scale * weight[i]


def _rmsnorm_cuda(x: Array, weight: Array, out: Array, cols: int) -> None:
    first = cuda.blockIdx.x * cols
    squares = _ZERO
    for col in range(cuda.threadIdx.x, cols, THREADS):
        value = np.float32(x[first + col])
        squares += value * value
    scale = _ONE / math.sqrt(reduce_block(squares, False) / np.float32(cols) + _EPSILON)
    for col in range(cuda.threadIdx.x, cols, THREADS):
        out[first + col] = np.float32(x[first + col]) * scale * np.float32(weight[col])


def _over_root_mean_square(value: Array, cols: int, epsilon: float) -> Array:
    """Return rows over √(mean of squares + epsilon); elements beyond the number of columns must be zero."""
    return value * ct.rsqrt(ct.sum(value * value, axis=1, keepdims=True) / cols + epsilon, flush_to_zero=True)


def _rmsnorm_tile(x: Array, weight: Array, out: Array, epsilon: Constant, height: Constant, width: Constant) -> None:
    row = ct.bid(0)
    value = tile_of(x, row, 0, height, width, ct.PaddingMode.ZERO)
    store_tile(out, row, 0, _over_root_mean_square(value, x.shape[1], epsilon) * columns_of(weight, 0, width))


def _rmsnorm_fused(fuse: Any, x: Array, weight: Array, out: Array) -> Callable[[], None]:
    squares = fuse.reduction("T x", "(float)x * (float)x")
    body = f"z = (float)x / sqrtf(sum / cols + {EPSILON}f) * (float)weight"
    last = fuse.elementwise("T x, float32 sum, T weight, int32 cols", body)
    return lambda: last(x, squares(x), weight, x.shape[1], out)


# layer norm: mean 0, variance 1, times a weight and plus a bias for each column
def _layernorm(xp: Any, x: Array, weight: Array, bias: Array) -> Array:
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    return centred / xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True) + EPSILON) * weight + bias


def _layernorm_numba(x: Array, weight: Array, bias: Array, out: Array) -> None:
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


def _layernorm_cuda(x: Array, weight: Array, bias: Array, out: Array, cols: int) -> None:
    first = cuda.blockIdx.x * cols
    total = _ZERO
    for col in range(cuda.threadIdx.x, cols, THREADS):
        total += np.float32(x[first + col])
    mean = reduce_block(total, False) / np.float32(cols)
    squares = _ZERO
    for col in range(cuda.threadIdx.x, cols, THREADS):
        centred = np.float32(x[first + col]) - mean
        squares += centred * centred
    scale = _ONE / math.sqrt(reduce_block(squares, False) / np.float32(cols) + _EPSILON)
    for col in range(cuda.threadIdx.x, cols, THREADS):
        centred = np.float32(x[first + col]) - mean
        out[first + col] = centred * scale * np.float32(weight[col]) + np.float32(bias[col])


def _layernorm_tile(x, weight, bias, out, epsilon: Constant, height: Constant, width: Constant) -> None:  # type: ignore[no-untyped-def]
    row = ct.bid(0)
    cols = x.shape[1]
    value = tile_of(x, row, 0, height, width, ct.PaddingMode.ZERO)
    inside = ct.arange(width, dtype=ct.int32) < cols
    centred = ct.where(inside, value - ct.sum(value, axis=1, keepdims=True) / cols, 0.0)
    scaled = _over_root_mean_square(centred, cols, epsilon) * columns_of(weight, 0, width)
    store_tile(out, row, 0, scaled + columns_of(bias, 0, width))


def _layernorm_fused(fuse: Any, x: Array, weight: Array, bias: Array, out: Array) -> Callable[[], None]:
    sums = fuse.reduction("T x", "(float)x")
    centred, cols = "((float)x - sum / cols)", x.shape[1]
    squares = fuse.reduction("T x, float32 sum, int32 cols", f"{centred} * {centred}")
    body = f"z = {centred} / sqrtf(square / cols + {EPSILON}f) * (float)weight + (float)bias"
    last = fuse.elementwise("T x, float32 sum, float32 square, T weight, T bias, int32 cols", body)

    def call() -> None:
        total = sums(x)
        last(x, total, squares(x, total, cols), weight, bias, cols, out)

    return call


# a sum, and the RMSNorm of that sum
def _residual_norm(xp: Any, x: Array, residual: Array, weight: Array) -> tuple[Array, Array]:
    s = x + residual
    return s, _rmsnorm(xp, s, weight)


def _residual_norm_numba(x: Array, residual: Array, weight: Array, summed: Array, out: Array) -> None:
    for row in prange(x.shape[0]):
        squares = np.float32(0)
        for i in range(x.shape[1]):
            value = x[row, i] + residual[row, i]
            summed[row, i] = value
            squares += value * value
        scale = _ONE / np.sqrt(squares / np.float32(x.shape[1]) + _EPSILON)
        for i in range(x.shape[1]):
            out[row, i] = summed[row, i] * scale * weight[i]


def _residual_norm_cuda(x: Array, residual: Array, weight: Array, summed: Array, out: Array, cols: int) -> None:
    first = cuda.blockIdx.x * cols
    squares = _ZERO
    for col in range(cuda.threadIdx.x, cols, THREADS):
        value = np.float32(x[first + col]) + np.float32(residual[first + col])
        summed[first + col] = value
        squares += value * value
    scale = _ONE / math.sqrt(reduce_block(squares, False) / np.float32(cols) + _EPSILON)
    for col in range(cuda.threadIdx.x, cols, THREADS):
        value = np.float32(x[first + col]) + np.float32(residual[first + col])
        out[first + col] = value * scale * np.float32(weight[col])


def _residual_norm_tile(x, residual, weight, summed, out, epsilon: Constant, height: Constant, width: Constant) -> None:  # type: ignore[no-untyped-def]
    row = ct.bid(0)
    value = tile_of(x, row, 0, height, width, ct.PaddingMode.ZERO)
    value = value + tile_of(residual, row, 0, height, width, ct.PaddingMode.ZERO)
    store_tile(summed, row, 0, value)
    store_tile(out, row, 0, _over_root_mean_square(value, x.shape[1], epsilon) * columns_of(weight, 0, width))


def _residual_norm_fused(fuse: Any, x: Array, residual: Array, weight: Array, summed: Array, out: Array) -> Any:
    add = fuse.elementwise("T x, T residual", "z = (float)x + (float)residual")
    norm = _rmsnorm_fused(fuse, summed, weight, out)

    def call() -> None:
        add(x, residual, summed)
        norm()

    return call


_PROVIDERS = ("numba", "numba-cuda", "triton", "cutile", "cupy-fused", "nvrtc")  # nvrtc: the number in rows.cu
_SOFTMAX = softmax_numba, _softmax_cuda, softmax_triton, _softmax_tile, _softmax_fused, 4
_RMSNORM = _rmsnorm_numba, _rmsnorm_cuda, norm_triton, _rmsnorm_tile, _rmsnorm_fused, 5
_LAYERNORM = _layernorm_numba, _layernorm_cuda, norm_triton, _layernorm_tile, _layernorm_fused, 6
_RESIDUAL = (
    _residual_norm_numba,
    _residual_norm_cuda,
    norm_triton,
    _residual_norm_tile,
    _residual_norm_fused,
    7,
)
ROWS = {
    name: Operator(name, inputs, expression, dict(zip(_PROVIDERS, kernels, strict=True)), outputs)
    for name, inputs, expression, kernels, outputs in (
        ("softmax", ("x",), _softmax, _SOFTMAX, 1),
        ("rmsnorm", ("x", "weight"), _rmsnorm, _RMSNORM, 1),
        ("layernorm", ("x", "weight", "bias"), _layernorm, _LAYERNORM, 1),
        ("residual_norm", ("x", "residual", "weight"), _residual_norm, _RESIDUAL, 2),
    )
}
