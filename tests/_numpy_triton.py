"""The part of triton.language that our kernels in Triton use, by NumPy on the host: one program after another."""

import itertools
from types import SimpleNamespace

import numpy as np


class ElementPointer:
    """The address of an element of an array, or an array of addresses."""

    def __init__(self, array, offset=0):
        self.array, self.offset = array, offset

    @property
    def dtype(self):
        return SimpleNamespace(element_ty=self.array.dtype)

    def __add__(self, offset):
        return ElementPointer(self.array, self.offset + np.asarray(offset))


class TritonBlock(np.ndarray):
    """An array that converts itself as Triton's blocks do."""

    def to(self, dtype):
        return self.astype(dtype)


def block_of(values):
    """Return values as an array that Triton's language can use."""
    return np.asarray(values).view(TritonBlock)


class NumpyTriton:
    float16, float32, int64, constexpr = np.float16, np.float32, np.int64, object
    static_range, maximum, minimum, exp2, exp, sqrt = range, np.maximum, np.minimum, np.exp2, np.exp, np.sqrt
    where = staticmethod(np.where)

    def __init__(self, grid=(1, 1)):
        self.grid, self.place = grid, (0, 0)

    def program_id(self, axis):
        return block_of(self.place[axis])

    def num_programs(self, axis):
        return self.grid[axis]

    def arange(self, first, end):
        return np.arange(first, end)

    def full(self, shape, value, dtype):
        return block_of(np.full(shape, value, dtype))

    def zeros(self, shape, dtype):
        return self.full(shape, 0, dtype)

    def max(self, block, axis):
        return block.max(axis=axis)

    def sum(self, block, axis):
        return block.sum(axis=axis)

    def sigmoid(self, block):
        return 1 / (1 + np.exp(-block))

    def trans(self, block):
        return block_of(np.swapaxes(block, 0, 1))

    def dot(self, a, b, c=0):
        return block_of(a.astype(np.float32) @ b.astype(np.float32) + c)

    def load(self, at, mask=True, other=0.0):
        """Return the elements at `at`, and `other` where `mask` is false, but at least -60000 for half precision."""
        places = np.broadcast_to(at.offset, np.broadcast_shapes(at.offset.shape, np.shape(mask)))
        elements = np.where(mask, at.array[np.where(mask, places, 0)], at.array.dtype.type(max(other, -6e4)))
        return block_of(elements)

    def store(self, at, block, mask=True):
        kept = np.broadcast_to(mask, block.shape)
        at.array[at.offset[kept]] = block[kept]


class PaperTriton:
    """The module triton with NumPy's language; `launched` counts the launches of each kernel by its name."""

    __version__ = "on paper"

    def __init__(self):
        self.language, self.launched = NumpyTriton(), {}

    def jit(self, kernel):
        return PaperKernel(self, kernel)


class PaperKernel:
    def __init__(self, triton, kernel):
        self.triton, self.kernel = triton, kernel

    def __getitem__(self, grid):
        """Return the launch over a grid: each program runs once, one after another."""

        def launch(*arguments, num_warps, enable_fp_fusion, **constants):
            assert num_warps & (num_warps - 1) == 0
            assert enable_fp_fusion, "the same in every version of Triton"
            name = self.kernel.__name__
            self.triton.launched[name] = self.triton.launched.get(name, 0) + 1
            self.triton.language.grid = grid
            for place in itertools.product(*map(range, grid)):
                self.triton.language.place = place
                self.kernel(*arguments, **constants)

        return launch
