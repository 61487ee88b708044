"""Multiply activations and weights in e4m3 by cuBLASLt, with one scale or with scales for blocks (W8A8)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._matrix.data import Maker
from .._matrix.formats import FORMATS, PRECISIONS, MatrixProduct, Scales, Shape
from .._matrix.gemv import Call, WeightKind
from .._matrix.product import precision_of

_E4M3 = FORMATS["float8_e4m3"]
_PRECISION = replace(PRECISIONS["float8_e4m3"], c="float16")
_BLOCK = 128  # elements along a row, and rows of weights, that share a scale
_THREADS = 256  # threads of a block, as in chain.cu
_SPREAD = 32.0  # standard deviation of the codes of weights, far from the largest number of e4m3
_ACTIVATION_SCALE = 2.0**-5  # the one scale of activations, whose sizes are about 1
_CHUNK = 2**26  # weights that are widened to double precision at once
_ROWS = 16  # the library takes a multiple of these tokens
ROUNDOFF = 2.0**-8  # of a layer: activations are rounded to four significant bits, and their errors average out

Rounded = tuple[Any, Any, np.float32]  # numbers of e4m3, their scales, and the one scale; 0 if there are several
NOT_ROUNDED: Rounded = np.uint64(0), np.uint64(0), np.float32(0)

EIGHT_KINDS = {"float8": WeightKind(-1, 8, "float16"), "float8_blocks": WeightKind(-2, 8, "float16")}


class EightWeights:
    """A matrix of seeded weights in e4m3 with scales, as float32: one, or one for each block of 128 × 128.

    `kind` is a key of EIGHT_KINDS; the weights are normal numbers times about `spread`."""

    def __init__(self, bench: gb.Bench, make: Maker, kind: str, rows: int, cols: int, seed: int, spread: float) -> None:
        precision_of(bench, "float8_e4m3")
        self.kind, self.rows, self.cols = EIGHT_KINDS[kind], rows, cols
        self._bench, self._make, self._is_blocked = bench, make, kind == "float8_blocks"
        self.words = make.drawn(_E4M3, rows * cols, seed, spread=_SPREAD)
        sizes = (-(-rows // _BLOCK), cols // _BLOCK) if self._is_blocked else (1, 1)
        factors = np.random.default_rng(seed).uniform(0.7, 1.3, sizes).astype(np.float32) * np.float32(spread / _SPREAD)
        padded = np.zeros((sizes[0], -(-sizes[1] // 4) * 4), np.float32)  # a row of blocks begins at a multiple of 4
        padded[:, : sizes[1]] = factors
        self._factors, self.scales = bench.xp.asarray(factors.astype(float)), bench.xp.asarray(padded.ravel())

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and their scales."""
        return int(self.words.nbytes + self.scales.nbytes)

    def product(self, x: Any) -> Any:
        """Return X·Wᵀ as doubles (tokens, rows) on the device, where X has doubles (tokens, cols)."""
        xp, most = self._make.xp, max(_BLOCK, _CHUNK // self.cols // _BLOCK * _BLOCK)
        parts = []
        for first in range(0, self.rows, most):
            count = min(most, self.rows - first)
            wide = self._make.widened(self.words[first * self.cols :], _E4M3, count, self.cols, (self.cols, 1))
            blocks = np.arange(first, first + count) // _BLOCK if self._is_blocked else np.zeros(count, int)
            factors = self._factors[xp.asarray(blocks)]
            parts.append(x @ (wide.reshape(count, factors.shape[1], -1) * factors[:, :, None]).reshape(count, -1).T)
        return parts[0] if len(parts) == 1 else xp.concatenate(parts, axis=1)

    def rounded(self, tokens: int, room: dict[tuple[int, int], Any]) -> Rounded:
        """Return where kernels write X of the product as numbers of e4m3; `room` keeps it for other products.

        Raises Skip for numbers of tokens that the library does not take."""
        if tokens % _ROWS:
            raise gb.Skip(f"products in FP8 take a multiple of {_ROWS} tokens, not {tokens}")
        xp, key = self._bench.xp, (tokens, self.cols)
        if key not in room:
            scales = xp.full(tokens * (self.cols // _BLOCK) if self._is_blocked else 1, _ACTIVATION_SCALE, "float32")
            room[key] = xp.empty(tokens * self.cols, "uint8"), scales
        return *room[key], np.float32(0 if self._is_blocked else _ACTIVATION_SCALE)

    def described(self, y: Any, tokens: int, room: dict[tuple[int, int], Any]) -> MatrixProduct:
        """Return Y = X·Wᵀ, where `rounded` has X; `y` is a flat device array of halves."""
        codes, scales, _one = self.rounded(tokens, room)
        modes = ("VEC128_32F", "BLK128x128_32F") if self._is_blocked else ("SCALAR_32F", "SCALAR_32F")
        shape = Shape(tokens, self.rows, self.cols, "nt")
        return MatrixProduct(_PRECISION, shape, codes, self.words, y, scales=Scales(scales, self.scales, modes))

    def rounding(self, x: Any, tokens: int, room: dict[tuple[int, int], Any]) -> Call:
        """Return the launch that rounds `x`, a flat device array of halves, to where `rounded` says."""
        codes, scales, one = self.rounded(tokens, room)
        groups = self.cols // _BLOCK
        cells = (x, codes, scales, np.uint32(tokens), np.uint32(groups), one)
        blocks = -(-tokens * groups // (_THREADS // 32))
        return partial(self._bench.kernel("chain.cu", "to_eight").early, (blocks,), (_THREADS,), cells)
