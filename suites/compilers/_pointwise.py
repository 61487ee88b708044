# ruff: noqa: ANN001 - Triton reads annotations as its own
"""Define chains of pointwise operations: the expression of each, and its kernel for each provider, side by side.

A provider that has loaded its library sets `prange` of numba, `tl` (triton.language), `ct` (cuda.tile) or `cuda`
(numba.cuda): cases are planned without them. The kernels of numba.cuda take flat arrays."""

from __future__ import annotations  # as texts, which compilers evaluate after their library was loaded

import math
from typing import Any

import numpy as np

from ._operator import Array, Operator

prange: Any = range
tl: Any = None
ct: Any = None
cuda: Any = None
constexpr = Any
Constant = Any

GELU, CUBIC = 0.7978845608028654, 0.044715  # of the approximation with tanh (Hendrycks & Gimpel, 2016)
_ONE, _HALF, _EIGHTH, _QUARTER, _SCALE, _GELU, _CUBIC = (
    np.float32(value) for value in (1, 0.5, 0.125, 0.25, 1.25, GELU, CUBIC)
)


def triton_elements(a, b, c, out, count, cols, chain: constexpr, block: constexpr) -> None:  # type: ignore[no-untyped-def]
    """Write `block` elements of the chain of that name to `out`; an input that the chain does not have is not read."""
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    x = tl.load(a + place, mask=inside).to(tl.float32)
    if chain == "bias-gelu":
        s = x + tl.load(b + place % cols, mask=inside).to(tl.float32)
        # (1 + tanh(z)) / 2 is the logistic function of 2·z
        result = s * tl.sigmoid(1.5957691216057308 * (s + 0.044715 * s * s * s))
    else:
        y = tl.load(b + place, mask=inside).to(tl.float32)
        if chain == "swiglu":
            result = x * tl.sigmoid(x) * y
        elif chain == "residual-dropout":
            result = x * tl.load(c + place, mask=inside).to(tl.float32) * 1.25 + y
        else:
            s = x + y
            t = x - y
            u = s * t + 0.25
            result = (u * 0.125 - s * 0.5 + t) * 0.5 - y * 0.125 + x
    tl.store(out + place, result, mask=inside)


def tile_of(matrix: Array, row: int, part: int, height: int, width: int, padding: Any) -> Array:
    """Return a tile of cuTile in float32; elements outside of the matrix have the value of `padding`."""
    read = ct.load(matrix, (row, part), (height, width), padding_mode=padding, allow_tma=False)
    return read.astype(ct.float32)


def columns_of(vector: Array, part: int, width: int) -> Array:
    """Return a tile of a vector in float32; elements outside of the vector are zero."""
    read = ct.load(vector, (part,), (width,), padding_mode=ct.PaddingMode.ZERO, allow_tma=False)
    return read.astype(ct.float32)


def store_tile(matrix: Array, row: int, part: int, tile: Array) -> None:
    ct.store(matrix, (row, part), tile.astype(matrix.dtype), allow_tma=False)


def _times_logistic(x: Array, z: Array) -> Array:
    power = ct.exp2(z * -1.4426950408889634, flush_to_zero=True)  # of 1 / ln 2: e^-z
    return ct.truediv(x, 1.0 + power, rounding_mode=ct.RoundingMode.APPROX, flush_to_zero=True)


# GELU(x + bias)
def _bias_gelu(xp: Any, x: Array, bias: Array) -> Array:
    y = x + bias
    return 0.5 * y * (1 + xp.tanh(GELU * (y + CUBIC * y * y * y)))


def _bias_gelu_numba(x: Array, bias: Array, out: Array) -> None:
    for row in prange(x.shape[0]):
        for i in range(x.shape[1]):
            y = x[row, i] + bias[i]
            out[row, i] = _HALF * y * (_ONE + np.tanh(_GELU * (y + _CUBIC * y * y * y)))


def _bias_gelu_cuda(x: Array, bias: Array, out: Array, cols: int) -> None:
    i = cuda.grid(1)
    if i < out.size:
        y = np.float32(x[i]) + np.float32(bias[i % cols])
        out[i] = _HALF * y * (_ONE + math.tanh(_GELU * (y + _CUBIC * y * y * y)))


def _bias_gelu_tile(x: Array, bias: Array, out: Array, height: Constant, width: Constant) -> None:
    row, part = ct.bid(0), ct.bid(1)
    s = tile_of(x, row, part, height, width, ct.PaddingMode.ZERO) + columns_of(bias, part, width)
    store_tile(out, row, part, _times_logistic(s, 1.5957691216057308 * (s + 0.044715 * s * s * s)))


BIAS_GELU_FUSED = (
    "T x, T bias",
    """float y = (float)x + (float)bias;
    z = 0.5f * y * (1 + tanhf(0.7978845608f * (y + 0.044715f * y * y * y)))""",
)


# SiLU(gate) · up
def _swiglu(xp: Any, gate: Array, up: Array) -> Array:
    return gate / (1 + xp.exp(-gate)) * up


def _swiglu_numba(gate: Array, up: Array, out: Array) -> None:
    for row in prange(gate.shape[0]):
        for i in range(gate.shape[1]):
            out[row, i] = gate[row, i] / (_ONE + np.exp(-gate[row, i])) * up[row, i]


def _swiglu_cuda(gate: Array, up: Array, out: Array, _cols: int) -> None:
    i = cuda.grid(1)
    if i < out.size:
        g = np.float32(gate[i])
        out[i] = g / (_ONE + math.exp(-g)) * np.float32(up[i])


def _swiglu_tile(gate: Array, up: Array, out: Array, height: Constant, width: Constant) -> None:
    row, part = ct.bid(0), ct.bid(1)
    x = tile_of(gate, row, part, height, width, ct.PaddingMode.ZERO)
    y = tile_of(up, row, part, height, width, ct.PaddingMode.ZERO)
    store_tile(out, row, part, _times_logistic(x, x) * y)


_SWIGLU_FUSED = "T gate, T up", "float g = gate; z = g / (1 + expf(-g)) * (float)up"


# x · kept · 1.25 + residual
def _residual_dropout(_xp: Any, x: Array, residual: Array, kept: Array) -> Array:
    return x * kept * 1.25 + residual


def _residual_dropout_numba(x: Array, residual: Array, kept: Array, out: Array) -> None:
    for row in prange(x.shape[0]):
        for i in range(x.shape[1]):
            out[row, i] = x[row, i] * kept[row, i] * _SCALE + residual[row, i]


def _residual_dropout_cuda(x: Array, residual: Array, kept: Array, out: Array, _cols: int) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = np.float32(x[i]) * np.float32(kept[i]) * _SCALE + np.float32(residual[i])


def _residual_dropout_tile(x, residual, kept, out, height: Constant, width: Constant) -> None:  # type: ignore[no-untyped-def]
    row, part = ct.bid(0), ct.bid(1)
    scaled = tile_of(x, row, part, height, width, ct.PaddingMode.ZERO) * 1.25
    factor = tile_of(kept, row, part, height, width, ct.PaddingMode.ZERO)
    store_tile(out, row, part, scaled * factor + tile_of(residual, row, part, height, width, ct.PaddingMode.ZERO))


_RESIDUAL_DROPOUT_FUSED = "T x, T residual, T kept", "z = (float)x * (float)kept * 1.25f + (float)residual"


# (u/8 − s/2 + t)/2 − y/8 + x, with s = x + y, t = x − y and u = s·t + 1/4: twelve operations
def _twelve(_xp: Any, x: Array, y: Array) -> Array:
    s = x + y
    t = x - y
    u = s * t + 0.25
    return (u * 0.125 - s * 0.5 + t) * 0.5 - y * 0.125 + x


def _twelve_numba(x: Array, y: Array, out: Array) -> None:
    for row in prange(x.shape[0]):
        for i in range(x.shape[1]):
            s = x[row, i] + y[row, i]
            t = x[row, i] - y[row, i]
            u = s * t + _QUARTER
            out[row, i] = (u * _EIGHTH - s * _HALF + t) * _HALF - y[row, i] * _EIGHTH + x[row, i]


def _twelve_cuda(x: Array, y: Array, out: Array, _cols: int) -> None:
    i = cuda.grid(1)
    if i < out.size:
        a = np.float32(x[i])
        b = np.float32(y[i])
        s = a + b
        t = a - b
        u = s * t + _QUARTER
        out[i] = (u * _EIGHTH - s * _HALF + t) * _HALF - b * _EIGHTH + a


def _twelve_tile(x: Array, y: Array, out: Array, height: Constant, width: Constant) -> None:
    row, part = ct.bid(0), ct.bid(1)
    first = tile_of(x, row, part, height, width, ct.PaddingMode.ZERO)
    second = tile_of(y, row, part, height, width, ct.PaddingMode.ZERO)
    s = first + second
    t = first - second
    u = s * t + 0.25
    store_tile(out, row, part, (u * 0.125 - s * 0.5 + t) * 0.5 - second * 0.125 + first)


_TWELVE_FUSED = (
    "T x, T y",
    """float a = x, b = y, s = a + b, t = a - b, u = s * t + 0.25f;
    z = (u * 0.125f - s * 0.5f + t) * 0.5f - b * 0.125f + a""",
)


_PROVIDERS = ("numba", "numba-cuda", "cutile", "cupy-fused", "nvrtc", "triton")  # nvrtc: the number in rows.cu
_BIAS_GELU = _bias_gelu_numba, _bias_gelu_cuda, _bias_gelu_tile, BIAS_GELU_FUSED, 0
_SWIGLU = _swiglu_numba, _swiglu_cuda, _swiglu_tile, _SWIGLU_FUSED, 1
_DROPOUT = _residual_dropout_numba, _residual_dropout_cuda, _residual_dropout_tile, _RESIDUAL_DROPOUT_FUSED, 2
_TWELVE = _twelve_numba, _twelve_cuda, _twelve_tile, _TWELVE_FUSED, 3
POINTWISE = {
    name: Operator(name, inputs, expression, dict(zip(_PROVIDERS, (*kernels, triton_elements), strict=True)))
    for name, inputs, expression, kernels in (
        ("bias-gelu", ("x", "bias"), _bias_gelu, _BIAS_GELU),
        ("swiglu", ("gate", "up"), _swiglu, _SWIGLU),
        ("residual-dropout", ("x", "residual", "kept"), _residual_dropout, _DROPOUT),
        ("twelve", ("x", "y"), _twelve, _TWELVE),
    )
}
