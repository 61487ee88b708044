"""Build operators on images as loops over all threads of the host. Importing this module imports numba."""

from functools import partial
from typing import Any

import numba
import numpy as np
from numba import prange

from gpubench.api import suite as gb

from .._host import Compiled, parallel
from ._folding import FoldingProblem
from ._layout import ImageProblem
from ._operators import EPSILON
from ._providers import Built, Outputs

_ONE, _EPSILON = np.float32(1), np.float32(EPSILON)
_TILE = 16  # float32 elements: a line of most caches


def _transpose(x: Any, out: Any) -> None:
    """Write each image of x, (images, rows, cols), transposed to `out`, (images, cols, rows), in tiles."""
    rows, cols = x.shape[1], x.shape[2]
    down = (rows + _TILE - 1) // _TILE
    for strip in prange(x.shape[0] * down):
        image, top = strip // down, strip % down * _TILE
        for left in range(0, cols, _TILE):
            for col in range(left, min(left + _TILE, cols)):
                for row in range(top, min(top + _TILE, rows)):
                    out[image, col, row] = x[image, row, col]


def _pool_planes(x: Any, out: Any) -> None:
    """Write the maximum of each 2 × 2 elements of x, (planes, rows, columns), to `out`."""
    for plane in prange(x.shape[0]):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                upper = max(x[plane, 2 * i, 2 * j], x[plane, 2 * i, 2 * j + 1])
                lower = max(x[plane, 2 * i + 1, 2 * j], x[plane, 2 * i + 1, 2 * j + 1])
                out[plane, i, j] = max(upper, lower)


def _pool_lines(x: Any, out: Any) -> None:
    """Write the maximum of each 2 × 2 elements of x, (images, rows, columns, channels), to `out`."""
    for image in prange(x.shape[0]):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                for k in range(out.shape[3]):
                    upper = max(x[image, 2 * i, 2 * j, k], x[image, 2 * i, 2 * j + 1, k])
                    lower = max(x[image, 2 * i + 1, 2 * j, k], x[image, 2 * i + 1, 2 * j + 1, k])
                    out[image, i, j, k] = max(upper, lower)


def _planes(x: Any, scale: Any, shift: Any, out: Any) -> None:
    """Write x · scale + shift to `out`; x is (planes, places), and plane p belongs to channel p modulo their number."""
    channels = scale.shape[0]
    for plane in prange(x.shape[0]):
        by, more = scale[plane % channels], shift[plane % channels]
        for i in range(x.shape[1]):
            out[plane, i] = x[plane, i] * by + more


def _lines(x: Any, scale: Any, shift: Any, out: Any) -> None:
    """Write x · scale + shift to `out`; x is (places, channels), and `scale` and `shift` have one for each channel."""
    for line in prange(x.shape[0]):
        for i in range(x.shape[1]):
            out[line, i] = x[line, i] * scale[i] + shift[i]


class _ByChannel:
    """A bias or a batch norm as a call of `loop`, which is `_planes` or `_lines`.

    `vectors` are the bias alone, or mean, variance, weight and bias; the factors are computed in each call."""

    def __init__(self, loop: Compiled, x: Any, vectors: tuple[Any, ...], out: Any) -> None:
        self._loop, self._x, self._vectors, self._out = loop, x, vectors, out

    def __call__(self) -> None:
        """Compute the factor and the shift of each channel, and apply them to all elements."""
        if len(self._vectors) == 1:
            scale, shift = np.ones_like(self._vectors[0]), self._vectors[0]
        else:
            mean, variance, weight, bias = self._vectors
            scale = weight / np.sqrt(variance + _EPSILON)
            shift = bias - mean * scale
        self._loop(self._x, scale, shift, self._out)


def build(bench: gb.Bench, problem: ImageProblem) -> Built:
    """Return `problem`'s operator on images as a loop that numba compiles, with a preallocated output.

    The loop runs over all threads of the host."""
    outputs = Outputs(bench, problem)
    x, *vectors = problem.inputs.values()
    out, is_planar = outputs.arrays[0], problem.layout == "nchw"
    planes, places = problem.rows * problem.channels, problem.side**2
    if problem.what == "transpose":
        plane_shape = (problem.channels, places) if is_planar else (places, problem.channels)
        call: Any = partial(
            parallel(_transpose), x.reshape(problem.rows, *plane_shape), out.reshape(problem.rows, *plane_shape[::-1])
        )
    elif problem.what == "pool":
        halved = (planes, problem.side // 2, problem.side // 2)
        source, result = (x.reshape(planes, *x.shape[2:]), out.reshape(halved)) if is_planar else (x, out)
        call = partial(parallel(_pool_planes if is_planar else _pool_lines), source, result)
    else:
        flat = (planes, places) if is_planar else (problem.rows * places, problem.channels)
        loop = parallel(_planes if is_planar else _lines)
        call = _ByChannel(loop, x.reshape(flat), tuple(vectors), out.reshape(flat))
    notes = {"library": f"numba {numba.__version__}", "precision": "computed in float32, not reassociated"}
    return Built(call, outputs.rows, outputs.poison, notes)


def folding(bench: gb.Bench, problem: FoldingProblem) -> Built:
    """Return a batch norm of a matrix as a compiled loop over its rows, with a preallocated output."""
    outputs = Outputs(bench, problem)
    x, *vectors = problem.inputs.values()
    loop, out = parallel(_lines), outputs.arrays[0]
    is_folded = problem.operator.name == "folded"
    call: Any = partial(loop, x, *vectors, out) if is_folded else _ByChannel(loop, x, tuple(vectors), out)
    notes = {"library": f"numba {numba.__version__}", "precision": "computed in float32, not reassociated"}
    return Built(call, outputs.rows, outputs.poison, notes)
