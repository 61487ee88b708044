"""Define the operators as kernels in cuTile: every input is read once, every output written once.

A program (a block in cuTile's words) computes a tile of `height` rows and `width` columns, which are powers of two.
Elements of a tile that lie outside of the matrix are not stored."""

from __future__ import annotations  # as texts, which the compiler evaluates after `load`

from typing import Any

ct: Any = None
Array = Any
Tile = Any
Constant = Any  # cuTile's own once `load` was called


def load(module: Any) -> None:
    """Let the kernels use cuda.tile."""
    globals().update(ct=module, Constant=module.Constant)


def _tile(matrix: Array, row: int, part: int, height: int, width: int, padding: Any) -> Tile:
    """Return a tile of a matrix in float32; elements outside of the matrix have the value of `padding`."""
    read = ct.load(matrix, (row, part), (height, width), padding_mode=padding, allow_tma=False)
    return read.astype(ct.float32)


def _columns(vector: Array, part: int, width: int) -> Tile:
    """Return a tile of a vector in float32; elements outside of the vector are zero."""
    read = ct.load(vector, (part,), (width,), padding_mode=ct.PaddingMode.ZERO, allow_tma=False)
    return read.astype(ct.float32)


def _write(matrix: Array, row: int, part: int, tile: Tile) -> None:
    ct.store(matrix, (row, part), tile.astype(matrix.dtype), allow_tma=False)


def _times_logistic(x: Tile, z: Tile) -> Tile:
    power = ct.exp2(z * -1.4426950408889634, flush_to_zero=True)  # of 1 / ln 2: e^-z
    return ct.truediv(x, 1.0 + power, rounding_mode=ct.RoundingMode.APPROX, flush_to_zero=True)


def bias_gelu(x: Array, bias: Array, out: Array, height: Constant, width: Constant) -> None:
    """Write a tile of GELU(x + bias) to `out`, by its approximation with tanh; `bias` has a number for each column.

    (1 + tanh(z)) / 2 is the logistic function of 2·z."""
    row, part = ct.bid(0), ct.bid(1)
    s = _tile(x, row, part, height, width, ct.PaddingMode.ZERO) + _columns(bias, part, width)
    _write(out, row, part, _times_logistic(s, 1.5957691216057308 * (s + 0.044715 * s * s * s)))


def swiglu(gate: Array, up: Array, out: Array, height: Constant, width: Constant) -> None:
    """Write a tile of SiLU(gate) · up to `out`."""
    row, part = ct.bid(0), ct.bid(1)
    x = _tile(gate, row, part, height, width, ct.PaddingMode.ZERO)
    y = _tile(up, row, part, height, width, ct.PaddingMode.ZERO)
    _write(out, row, part, _times_logistic(x, x) * y)


def residual_dropout(x: Array, residual: Array, kept: Array, out: Array, height: Constant, width: Constant) -> None:
    """Write a tile of x · kept · 1.25 + residual to `out`."""
    row, part = ct.bid(0), ct.bid(1)
    scaled = _tile(x, row, part, height, width, ct.PaddingMode.ZERO) * 1.25
    factor = _tile(kept, row, part, height, width, ct.PaddingMode.ZERO)
    _write(out, row, part, scaled * factor + _tile(residual, row, part, height, width, ct.PaddingMode.ZERO))


def twelve(x: Array, y: Array, out: Array, height: Constant, width: Constant) -> None:
    """Write a tile of (u/8 − s/2 + t)/2 − y/8 + x to `out`, with s = x + y, t = x − y and u = s·t + 1/4."""
    row, part = ct.bid(0), ct.bid(1)
    first = _tile(x, row, part, height, width, ct.PaddingMode.ZERO)
    second = _tile(y, row, part, height, width, ct.PaddingMode.ZERO)
    s = first + second
    t = first - second
    u = s * t + 0.25
    _write(out, row, part, (u * 0.125 - s * 0.5 + t) * 0.5 - second * 0.125 + first)


def softmax(x: Array, out: Array, height: Constant, width: Constant) -> None:
    """Write the softmax of `height` rows of x to `out`; `width` is at least the number of columns."""
    row = ct.bid(0)
    value = _tile(x, row, 0, height, width, ct.PaddingMode.NEG_INF) * 1.4426950408889634  # 1 / ln 2: e^x = 2^value
    power = ct.exp2(value - ct.max(value, axis=1, keepdims=True), flush_to_zero=True)
    scale = ct.truediv(1.0, ct.sum(power, axis=1, keepdims=True), rounding_mode=ct.RoundingMode.FULL)
    _write(out, row, 0, power * scale)


def _over_root_mean_square(value: Tile, cols: int, epsilon: float) -> Tile:
    """Return rows over √(mean of squares + epsilon); elements beyond the number of columns must be zero."""
    return value * ct.rsqrt(ct.sum(value * value, axis=1, keepdims=True) / cols + epsilon, flush_to_zero=True)


def rmsnorm(x: Array, weight: Array, out: Array, epsilon: Constant, height: Constant, width: Constant) -> None:
    """Write the RMSNorm of `height` rows of x to `out`: a row over √(mean of squares + epsilon), times the weights.

    `width` is at least the number of columns."""
    row = ct.bid(0)
    value = _tile(x, row, 0, height, width, ct.PaddingMode.ZERO)
    _write(out, row, 0, _over_root_mean_square(value, x.shape[1], epsilon) * _columns(weight, 0, width))


def layernorm(
    x: Array, weight: Array, bias: Array, out: Array, epsilon: Constant, height: Constant, width: Constant
) -> None:
    """Write the layer norm of `height` rows of x to `out`: mean 0, variance 1, times the weights and plus the biases.

    `epsilon` is added to the variance; `width` is at least the number of columns."""
    row = ct.bid(0)
    cols = x.shape[1]
    value = _tile(x, row, 0, height, width, ct.PaddingMode.ZERO)
    inside = ct.arange(width, dtype=ct.int32) < cols
    centred = ct.where(inside, value - ct.sum(value, axis=1, keepdims=True) / cols, 0.0)
    scaled = _over_root_mean_square(centred, cols, epsilon) * _columns(weight, 0, width)
    _write(out, row, 0, scaled + _columns(bias, 0, width))


def residual_norm(
    x: Array,
    residual: Array,
    weight: Array,
    summed: Array,
    out: Array,
    epsilon: Constant,
    height: Constant,
    width: Constant,
) -> None:
    """Write `height` rows of x + residual to `summed`, and the RMSNorm of that sum, times `weight`, to `out`.

    `epsilon` is added to the mean of squares; `width` is at least the number of columns."""
    row = ct.bid(0)
    value = _tile(x, row, 0, height, width, ct.PaddingMode.ZERO)
    value = value + _tile(residual, row, 0, height, width, ct.PaddingMode.ZERO)
    _write(summed, row, 0, value)
    _write(out, row, 0, _over_root_mean_square(value, x.shape[1], epsilon) * _columns(weight, 0, width))


ELEMENTS = {function.__name__.replace("_", "-"): function for function in (bias_gelu, swiglu, residual_dropout, twelve)}
ROWS = {function.__name__: function for function in (softmax, rmsnorm, layernorm, residual_norm)}
