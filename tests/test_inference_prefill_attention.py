"""Attention of a prompt: our kernels on the host against double precision, and checks that can fail."""

import dataclasses
import sys

import numpy as np
import pytest
from _earlier import expect_found
from _grid import needs_compiler
from _grid_device import bench, products_by_numpy
from _modules import suite_module
from _numpy_triton import ElementPointer, NumpyTriton

from gpubench import plugins
from gpubench.base.errors import Skip, Unavailable, WrongAnswer

SUITE = plugins.load("suites", "inference")
ATTENTION = suite_module("inference", "_prefill_attention")
SMALL = ATTENTION.PromptShape(tokens=72, heads=4, kv_heads=2, dim=64)


def by_kernel(monkeypatch, prompt, shape, rows, cols):
    """Run every program of the Triton kernel in Python on the host, and return the result."""
    grid = (-(-shape.tokens // rows), shape.heads)
    triton = NumpyTriton(grid)
    monkeypatch.setattr(ATTENTION, "tl", triton)
    out = np.full(shape.size, np.nan, np.float16)
    pointers = [ElementPointer(array.view(np.float16)) for array in (prompt.queries, prompt.keys, prompt.values)]
    numbers = shape.tokens, shape.heads, shape.heads // shape.kv_heads
    for triton.place in np.ndindex(grid):
        ATTENTION.flash(*pointers, ElementPointer(out), *numbers, shape.dim, rows, cols)
    return out.view("uint16")


@pytest.fixture
def library(monkeypatch):
    """Replace the products of the vendor's library by those of NumPy."""
    monkeypatch.setattr(ATTENTION, "vendor", products_by_numpy)


@pytest.fixture
def unfused(library):
    return ATTENTION.PrefillAttention(bench(SUITE, "nvidia"), SMALL, "unfused")


@needs_compiler
def test_two_products_and_a_softmax_are_the_attention_of_double_precision(unfused):
    unfused.provider.poison()
    with pytest.raises(WrongAnswer, match="not written"):
        unfused.check()
    unfused.provider.call()
    assert 0 < unfused.check()["error"].value < 2**-9
    expect_found(unfused.task(), bench(SUITE).open_device, unfused.provider.results())
    unfused.provider.call()
    unfused.prompt.values[:] = np.roll(unfused.prompt.values, 64)
    with pytest.raises(WrongAnswer, match="relative error"):
        unfused.check()


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("tokens", [70, 2056])
def test_rows_of_any_length_give_the_same(tokens):
    """Rows of 70 scores are no whole vectors; of 2056 scores a thread holds two vectors instead of one."""
    prefill = ATTENTION.PrefillAttention(bench(SUITE, "nvidia"), dataclasses.replace(SMALL, tokens=tokens), "unfused")
    prefill.provider.poison()
    prefill.provider.call()
    assert 0 < prefill.check()["error"].value < 2**-9


@needs_compiler
@pytest.mark.parametrize(("rows", "cols"), [(16, 16), (32, 16)])
def test_the_kernel_in_triton_is_the_attention_of_double_precision(monkeypatch, unfused, rows, cols):
    """A prompt that ends within a block: the last block has tokens that do not exist."""
    result = by_kernel(monkeypatch, unfused.prompt, SMALL, rows, cols)
    unfused.provider.results()[:] = result
    assert 0 < unfused.check()["error"].value < 2**-9


@needs_compiler
def test_without_triton_or_torch_their_cases_say_how_to_install_them(monkeypatch):
    extras = {"triton": ("triton", "compilers"), "torch": ("torch", "torch"), "cudnn": ("torch", "torch")}
    for by, (name, extra) in extras.items():
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(Unavailable, match="is not installed") as caught:
            ATTENTION.PrefillAttention(bench(SUITE, "nvidia"), SMALL, by)
        assert f"pip install 'gpubench-suite[{extra}]'" in str(caught.value)
    with pytest.raises(Skip, match="NVIDIA"):
        ATTENTION.PrefillAttention(bench(SUITE, "amd"), SMALL, "cudnn")


def test_operations_count_the_pairs_that_a_token_attends_to():
    """A prompt of three tokens has six pairs: 2 operations for a product of each element, and 2 for each value."""
    work = ATTENTION.PromptShape(3, 4, 2, 64).work
    assert work.flops == 6 * 4 * 64 * 4
    assert work.moved == 2 * 3 * 64 * (4 + 2 + 2 + 4)
