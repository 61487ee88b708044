# ruff: noqa: ANN001 - Triton reads annotations as its own
"""Define the operators as kernels in Triton: every input is read once, every output written once.

A function here becomes a kernel by `triton.jit`. `tl` is triton.language once `load` was called: Triton is imported
where a kernel is built, not where cases are planned."""

from __future__ import annotations  # as texts, which the compiler evaluates after `load`

from typing import Any

tl: Any = None
constexpr = Any  # Triton's own once `load` was called


def load(language: Any) -> None:
    """Let the kernels use triton.language."""
    globals().update(tl=language, constexpr=language.constexpr)


def elements(a, b, c, out, count, cols, chain: constexpr, block: constexpr) -> None:  # type: ignore[no-untyped-def]
    """Write `block` elements of the pointwise operator `chain`, a name of POINTWISE, to `out`, in float32.

    An input that the operator does not have is not read."""
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


def softmax(x, out, cols, block: constexpr) -> None:  # type: ignore[no-untyped-def]
    """Write the softmax of row p of x to `out` in program p, computed in float32.

    Rows have `cols` elements; `block` is a power of two that is at least `cols`."""
    row = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, block)
    inside = col < cols
    value = tl.load(x + row + col, mask=inside, other=-1.0e30).to(tl.float32)
    power = tl.exp(value - tl.max(value, 0))
    tl.store(out + row + col, power / tl.sum(power, 0), mask=inside)


def rmsnorm(x, weight, out, cols, epsilon: constexpr, block: constexpr) -> None:  # type: ignore[no-untyped-def]
    """Write the RMSNorm of row p of x to `out` in program p: the row over √(mean of squares + epsilon), times `weight`.

    It is computed in float32. Rows have `cols` elements; `block` is a power of two that is at least `cols`."""
    row = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, block)
    inside = col < cols
    value = tl.load(x + row + col, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(value * value, 0) / cols + epsilon)
    tl.store(out + row + col, value * scale * factor, mask=inside)


def layernorm(x, weight, bias, out, cols, epsilon: constexpr, block: constexpr) -> None:  # type: ignore[no-untyped-def]
    """Write the layer norm of row p of x to `out` in program p: (row − mean) / √(variance + epsilon) · weight + bias.

    It is computed in float32. Rows have `cols` elements; `block` is a power of two that is at least `cols`."""
    row = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, block)
    inside = col < cols
    value = tl.load(x + row + col, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    more = tl.load(bias + col, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, value - tl.sum(value, 0) / cols, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / cols + epsilon)
    tl.store(out + row + col, centred * scale * factor + more, mask=inside)


def residual_norm(x, residual, weight, summed, out, cols, epsilon: constexpr, block: constexpr) -> None:  # type: ignore[no-untyped-def]
    """Write row p of x + residual to `summed`, and the RMSNorm of that sum, times `weight`, to `out`, in program p.

    The norm is of the float32 sum; `epsilon` is added to the mean of squares."""
    row = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, block)
    inside = col < cols
    value = tl.load(x + row + col, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(residual + row + col, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    tl.store(summed + row + col, value, mask=inside)
    scale = 1 / tl.sqrt(tl.sum(value * value, 0) / cols + epsilon)
    tl.store(out + row + col, value * scale * factor, mask=inside)


ROWS = {function.__name__: function for function in (softmax, rmsnorm, layernorm, residual_norm)}
