"""Attention of a prompt: our kernels on the host against double precision, and checks that can fail."""

import dataclasses
import sys

import _grid
import numpy as np
import pytest
from _grid_device import bench, products_by_numpy

from gpubench import plugins
from gpubench.base.errors import Missing, Skip, WrongAnswer

SUITE = plugins.load("suites", "inference")
ATTENTION, FLASH = (sys.modules[f"{SUITE.package}.{name}"] for name in ("_prefill_attention", "_flash"))
SMALL = ATTENTION.PromptShape(tokens=70, heads=4, kv_heads=2, dim=64)
needs_compiler = pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")


class Pointer:
    """The address of an element of an array, or an array of addresses."""

    def __init__(self, array, offset=0):
        self.array, self.offset = array, offset

    def __add__(self, offset):
        return Pointer(self.array, self.offset + np.asarray(offset))


class Block(np.ndarray):
    """An array that converts itself as Triton's blocks do."""

    def to(self, dtype):
        return self.astype(dtype)


class NumpyTriton:
    """What the kernel needs of triton.language, by NumPy: one program after another."""

    float16, float32 = np.float16, np.float32
    static_range, maximum, minimum, exp2 = range, np.maximum, np.minimum, np.exp2
    where = staticmethod(np.where)

    def __init__(self, grid):
        self.grid, self.place = grid, (0, 0)

    def program_id(self, axis):
        return self.place[axis]

    def num_programs(self, axis):
        return self.grid[axis]

    def arange(self, first, end):
        return np.arange(first, end)

    def full(self, shape, value, dtype):
        return np.full(shape, value, dtype).view(Block)

    def zeros(self, shape, dtype):
        return self.full(shape, 0, dtype)

    def max(self, block, axis):
        return block.max(axis=axis)

    def sum(self, block, axis):
        return block.sum(axis=axis)

    def dot(self, a, b, c=0):
        return (a.astype(np.float32) @ b.astype(np.float32) + c).view(Block)

    def load(self, at, mask=True, other=0.0):
        places = np.broadcast_to(at.offset, np.broadcast_shapes(at.offset.shape, np.shape(mask)))
        return np.where(mask, at.array[np.where(mask, places, 0)], np.float16(other)).view(Block)

    def store(self, at, block, mask=True):
        kept = np.broadcast_to(mask, block.shape)
        at.array[at.offset[kept]] = block[kept]


def by_kernel(monkeypatch, prompt, shape, rows, cols):
    """Every program of the kernel in Triton, as the host's Python."""
    grid = (-(-shape.tokens // rows), shape.heads)
    triton = NumpyTriton(grid)
    monkeypatch.setattr(FLASH, "tl", triton)
    out = np.full(shape.size, np.nan, np.float16)
    pointers = [Pointer(array.view(np.float16)) for array in (prompt.queries, prompt.keys, prompt.values)]
    numbers = shape.tokens, shape.heads, shape.heads // shape.kv_heads
    for triton.place in np.ndindex(grid):
        FLASH.flash(*pointers, Pointer(out), *numbers, shape.dim, rows, cols)
    return out.view("uint16")


@pytest.fixture
def library(monkeypatch):
    """The products of the vendor's library by NumPy."""
    monkeypatch.setattr(ATTENTION, "vendor", products_by_numpy)


@pytest.fixture
def unfused(library):
    return ATTENTION.PrefillAttention(bench(SUITE, "nvidia"), SMALL, "unfused")


@needs_compiler
def test_two_products_and_a_softmax_are_the_attention_of_double_precision(unfused):
    unfused.provider.poison()
    with pytest.raises(WrongAnswer, match="not written"):
        unfused.check()
    unfused.provider()
    assert 0 < unfused.check()["error"].value < 2**-9
    unfused.prompt.values[:] = np.roll(unfused.prompt.values, 64)
    with pytest.raises(WrongAnswer, match="relative error"):
        unfused.check()


@needs_compiler
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("tokens", [72, pytest.param(2056, marks=pytest.mark.slow)])
def test_a_softmax_that_holds_its_row_in_registers_gives_the_same(tokens):
    """A thread holds one vector of eight scores, and of 2056 tokens two."""
    found = ATTENTION.PrefillAttention(bench(SUITE, "nvidia"), dataclasses.replace(SMALL, tokens=tokens), "unfused")
    found.provider.poison()
    found.provider()
    assert 0 < found.check()["error"].value < 2**-9


@needs_compiler
@pytest.mark.parametrize(("rows", "cols"), [(16, 16), (32, 16)])
def test_the_kernel_in_triton_is_the_attention_of_double_precision(monkeypatch, unfused, rows, cols):
    """A prompt that ends within a block: the last block has tokens that do not exist."""
    found = by_kernel(monkeypatch, unfused.prompt, SMALL, rows, cols)
    unfused.provider._out[:] = found
    assert 0 < unfused.check()["error"].value < 2**-9


@needs_compiler
def test_without_triton_or_torch_their_cases_say_how_to_install_them(monkeypatch):
    extras = {"triton": ("triton", "compilers"), "torch": ("torch", "torch"), "cudnn": ("torch", "torch")}
    for by, (name, extra) in extras.items():
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(Missing, match="is not installed") as found:
            ATTENTION.PrefillAttention(bench(SUITE, "nvidia"), SMALL, by)
        assert f"pip install 'gpubench-suite[{extra}]'" in str(found.value)
    with pytest.raises(Skip, match="NVIDIA"):
        ATTENTION.PrefillAttention(bench(SUITE, "amd"), SMALL, "cudnn")


def test_operations_count_the_pairs_that_a_token_attends_to():
    """A prompt of three tokens has six pairs: 2 operations for a product of each element, and 2 for each value."""
    work = ATTENTION.PromptShape(3, 4, 2, 64).work
    assert work.flops == 6 * 4 * 64 * 4
    assert work.moved == 2 * 3 * 64 * (4 + 2 + 2 + 4)
