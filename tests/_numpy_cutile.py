"""The part of cuda.tile that our kernels in cuTile use, by NumPy on the host: one program after another."""

import enum
import itertools

import numpy as np


class PaddingMode(enum.Enum):
    """The value of elements of a tile that lie outside of its array."""

    ZERO = 0.0
    NEG_INF = -np.inf


class RoundingMode(enum.Enum):
    """How a quotient is rounded; here always to the nearest."""

    APPROX = "approx"
    FULL = "full"


class PaperCutile:
    __version__ = "on paper"
    float32, int32, Constant = np.float32, np.int32, object
    PaddingMode, RoundingMode = PaddingMode, RoundingMode
    where = staticmethod(np.where)
    temp_dir = "as set by the user"

    def __init__(self):
        self.launched, self.place = [], ()

    def kernel(self, function, num_ctas=None):
        return function, num_ctas

    def launch(self, stream, grid, kernel, arguments):
        function, blocks = kernel
        self.launched.append((stream, function.__name__, grid, blocks))
        with np.errstate(over="ignore", invalid="ignore"):  # of rows outside of a matrix, which are not stored
            for self.place in itertools.product(*map(range, grid)):
                function(*arguments)

    def bid(self, axis):
        return self.place[axis]

    def arange(self, count, dtype):
        return np.arange(count, dtype=dtype)

    def load(self, array, index, shape, padding_mode, allow_tma):
        assert not allow_tma, "the same kind of access everywhere"
        tile = np.full(shape, padding_mode.value, array.dtype)
        found = array[self._places(array, index, shape)]
        assert found.size, "a tile outside of its array is undefined"
        tile[tuple(slice(length) for length in found.shape)] = found
        return tile

    def store(self, array, index, tile, allow_tma):
        assert not allow_tma, "the same kind of access everywhere"
        assert tile.dtype == array.dtype, "cuTile does not convert what it stores"
        places = array[self._places(array, index, tile.shape)]
        places[...] = tile[tuple(slice(length) for length in places.shape)]

    @staticmethod
    def _places(array, index, shape):
        """Return the part of an array that a tile covers."""
        assert all(length & (length - 1) == 0 for length in shape), "the lengths of a tile are powers of two"
        assert len(shape) == array.ndim
        return tuple(slice(place * length, (place + 1) * length) for place, length in zip(index, shape, strict=True))

    def max(self, tile, axis, keepdims):
        return tile.max(axis=axis, keepdims=keepdims)

    def sum(self, tile, axis, keepdims):
        return tile.sum(axis=axis, keepdims=keepdims)

    def exp2(self, tile, flush_to_zero):
        assert flush_to_zero
        return np.exp2(tile)

    def rsqrt(self, tile, flush_to_zero):
        assert flush_to_zero
        return 1 / np.sqrt(tile)

    def truediv(self, x, y, rounding_mode, flush_to_zero=False):
        assert isinstance(rounding_mode, RoundingMode)
        return np.true_divide(x, y, dtype=np.float32)
