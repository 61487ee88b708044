"""Define the operators as kernels for numba's GPU target: every output is written once.

Rows are read once for each pass. `cuda` is numba.cuda once `load` was called. A block has THREADS threads; vectors
and matrices are flat arrays."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

THREADS = 256
_HALF_OF_BLOCK = THREADS // 2
_LOWEST = np.float32(-1e30)
_ZERO, _HALF, _ONE, _EIGHTH, _QUARTER, _SCALE = (np.float32(value) for value in (0, 0.5, 1, 0.125, 0.25, 1.25))
_GELU, _CUBIC, _EPSILON = (np.float32(value) for value in (0.7978845608028654, 0.044715, 1e-5))

cuda: Any = None
_sum_of_block: Any = None
_most_of_block: Any = None
_doubled_here: Any = None


def load(numba_cuda: Any) -> None:
    """Let the kernels use numba.cuda, and their functions on the device."""
    device = numba_cuda.jit(device=True)
    globals().update(cuda=numba_cuda, _sum_of_block=device(_sum), _most_of_block=device(_most))


def load_probe(numba_cuda: Any) -> None:
    """Let `probe` use numba.cuda."""
    globals().update(cuda=numba_cuda, _doubled_here=numba_cuda.jit(device=True)(_doubled))


def _doubled(value: Any) -> Any:
    return value + value


def probe(out: Any, count: Any) -> None:
    """Double numbers with what our kernels use: a function on the device, shared memory and a number."""
    parts = cuda.shared.array(1, np.float32)
    if cuda.threadIdx.x < count:
        parts[0] = _doubled_here(np.float32(out[0]))
        out[0] = parts[0]


def _sum(mine: Any) -> Any:
    """Return the sum of the values `mine` (float32) of all threads of the block; every thread must call it."""
    parts = cuda.shared.array(THREADS, np.float32)
    me = cuda.threadIdx.x
    parts[me] = mine
    cuda.syncthreads()
    step = _HALF_OF_BLOCK
    while step > 0:
        if me < step:
            parts[me] += parts[me + step]
        cuda.syncthreads()
        step //= 2
    total = parts[0]
    cuda.syncthreads()  # the array may be used again
    return total


def _most(mine: Any) -> Any:
    """Return the maximum of the values `mine` (float32) of all threads of the block; every thread must call it."""
    parts = cuda.shared.array(THREADS, np.float32)
    me = cuda.threadIdx.x
    parts[me] = mine
    cuda.syncthreads()
    step = _HALF_OF_BLOCK
    while step > 0:
        if me < step:
            parts[me] = parts[me + step] if parts[me + step] > parts[me] else parts[me]  # numba 0.68 compiles no max()
        cuda.syncthreads()
        step //= 2
    most = parts[0]
    cuda.syncthreads()  # the array may be used again
    return most


def _bias_gelu(x: Any, bias: Any, out: Any, cols: Any) -> None:
    """Write GELU(x + bias), by its approximation with tanh, to `out`, an element in each thread."""
    i = cuda.grid(1)
    if i < out.size:
        y = np.float32(x[i]) + np.float32(bias[i % cols])
        out[i] = _HALF * y * (_ONE + math.tanh(_GELU * (y + _CUBIC * y * y * y)))


def _swiglu(gate: Any, up: Any, out: Any, _cols: Any) -> None:
    """Write SiLU(gate) · up to `out`, an element in each thread."""
    i = cuda.grid(1)
    if i < out.size:
        g = np.float32(gate[i])
        out[i] = g / (_ONE + math.exp(-g)) * np.float32(up[i])


def _residual_dropout(x: Any, residual: Any, kept: Any, out: Any, _cols: Any) -> None:
    """Write x · kept · 1.25 + residual to `out`, an element in each thread."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = np.float32(x[i]) * np.float32(kept[i]) * _SCALE + np.float32(residual[i])


def _twelve(x: Any, y: Any, out: Any, _cols: Any) -> None:
    """Write (u/8 − s/2 + t)/2 − y/8 + x to `out`, with s = x + y, t = x − y and u = s·t + 1/4."""
    i = cuda.grid(1)
    if i < out.size:
        a = np.float32(x[i])
        b = np.float32(y[i])
        s = a + b
        t = a - b
        u = s * t + _QUARTER
        out[i] = (u * _EIGHTH - s * _HALF + t) * _HALF - b * _EIGHTH + a


def _softmax(x: Any, out: Any, cols: Any) -> None:
    """Write the softmax of row b of x to `out` in block b; the arrays are flat, and rows have `cols` elements."""
    first = cuda.blockIdx.x * cols
    most = _LOWEST
    for col in range(cuda.threadIdx.x, cols, THREADS):
        value = np.float32(x[first + col])
        most = value if value > most else most
    most = _most_of_block(most)
    total = _ZERO
    for col in range(cuda.threadIdx.x, cols, THREADS):
        total += math.exp(np.float32(x[first + col]) - most)
    total = _sum_of_block(total)
    for col in range(cuda.threadIdx.x, cols, THREADS):
        out[first + col] = math.exp(np.float32(x[first + col]) - most) / total


def _rmsnorm(x: Any, weight: Any, out: Any, cols: Any) -> None:
    """Write the RMSNorm of row b of x to `out` in block b: the row over √(mean of squares + 1e-5), times `weight`."""
    first = cuda.blockIdx.x * cols
    squares = _ZERO
    for col in range(cuda.threadIdx.x, cols, THREADS):
        value = np.float32(x[first + col])
        squares += value * value
    scale = _ONE / math.sqrt(_sum_of_block(squares) / np.float32(cols) + _EPSILON)
    for col in range(cuda.threadIdx.x, cols, THREADS):
        out[first + col] = np.float32(x[first + col]) * scale * np.float32(weight[col])


def _layernorm(x: Any, weight: Any, bias: Any, out: Any, cols: Any) -> None:
    """Write the layer norm of row b of x to `out` in block b: (row − mean) / √(variance + 1e-5) · weight + bias."""
    first = cuda.blockIdx.x * cols
    total = _ZERO
    for col in range(cuda.threadIdx.x, cols, THREADS):
        total += np.float32(x[first + col])
    mean = _sum_of_block(total) / np.float32(cols)
    squares = _ZERO
    for col in range(cuda.threadIdx.x, cols, THREADS):
        centred = np.float32(x[first + col]) - mean
        squares += centred * centred
    scale = _ONE / math.sqrt(_sum_of_block(squares) / np.float32(cols) + _EPSILON)
    for col in range(cuda.threadIdx.x, cols, THREADS):
        centred = np.float32(x[first + col]) - mean
        out[first + col] = centred * scale * np.float32(weight[col]) + np.float32(bias[col])


def _residual_norm(x: Any, residual: Any, weight: Any, summed: Any, out: Any, cols: Any) -> None:
    """Write row b of x + residual to `summed`, and the RMSNorm of that row, times `weight`, to `out`, in block b."""
    first = cuda.blockIdx.x * cols
    squares = _ZERO
    for col in range(cuda.threadIdx.x, cols, THREADS):
        value = np.float32(x[first + col]) + np.float32(residual[first + col])
        summed[first + col] = value
        squares += value * value
    scale = _ONE / math.sqrt(_sum_of_block(squares) / np.float32(cols) + _EPSILON)
    for col in range(cuda.threadIdx.x, cols, THREADS):
        value = np.float32(x[first + col]) + np.float32(residual[first + col])
        out[first + col] = value * scale * np.float32(weight[col])


Kernel = Callable[..., None]
ELEMENTS: dict[str, Kernel] = {
    "bias-gelu": _bias_gelu,
    "swiglu": _swiglu,
    "residual-dropout": _residual_dropout,
    "twelve": _twelve,
}
ROWS: dict[str, Kernel] = {
    "softmax": _softmax,
    "rmsnorm": _rmsnorm,
    "layernorm": _layernorm,
    "residual_norm": _residual_norm,
}
