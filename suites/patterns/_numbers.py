"""Draw matrices of normal numbers in the number type of a device's products, the same for a seed on every rank."""

from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._matrix.data import Maker
from .._matrix.formats import FORMATS

HOST_TYPE, GPU_TYPE = "float32", "float16"
_TOLERANCE = {HOST_TYPE: 1e-4, GPU_TYPE: 1e-2}  # relative to the largest number: rounding, and a sum over some ranks


def type_of(bench: gb.Bench) -> str:
    """Return the number type of the device's products: `float16` on a GPU, `float32` on the host."""
    return GPU_TYPE if bench.traits.is_gpu else HOST_TYPE


def width_of(bench: gb.Bench) -> int:
    """Return the width of a layer in numbers: 256 on the host, 4096 on a GPU, and 128 on a GPU in the tier `smoke`."""
    if not bench.traits.is_gpu:
        return 256
    return 128 if bench.target.tier == "smoke" else 4096


class Normals:
    """Draws matrices of N(0, spread²)."""

    def __init__(self, bench: gb.Bench) -> None:
        self._bench = bench
        self._maker = Maker(bench) if bench.traits.is_gpu else None

    def matrix(self, rows: int, cols: int, seed: int, spread: float = 1.0) -> Any:
        """Return a matrix on the device, shape (rows, cols), of numbers drawn from N(0, `spread`²).

        The type is `type_of`: float16 (CuPy) on a GPU, float32 (NumPy) on the host."""
        if self._maker is not None:
            kind = FORMATS[GPU_TYPE]
            return self._maker.drawn(kind, rows * cols, seed, spread=spread).reshape(rows, cols)
        rng = np.random.default_rng([self._bench.seed, seed])
        return np.float32(spread) * rng.standard_normal((rows, cols), dtype=np.float32)


def expect_close(computed: Any, expected: Any, items: str) -> None:
    """Raise WrongAnswer if `computed` differs from the float64 array `expected` by more than rounding, or is NaN.

    Both are arrays of the device, or both of the host, of one shape."""
    tolerance = _TOLERANCE[str(computed.dtype)] * float(np.abs(expected).max())
    wrong = int(np.count_nonzero(~(np.abs(computed.astype(np.float64) - expected) <= tolerance)))
    gb.expect(wrong == 0, f"{wrong} of {expected.size} {items} are wrong")
