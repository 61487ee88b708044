"""Attention over latent vectors, in Triton run by NumPy and for Hopper on a grid on the host, against float64."""

import dataclasses

import _grid
import numpy as np
import pytest
from _grid_device import bench
from _modules import suite_module
from _numpy_triton import ElementPointer, NumpyTriton

from gpubench import plugins
from gpubench.base.errors import WrongAnswer

SUITE = plugins.load("suites", "inference")
LATENT = suite_module("inference", "_latent")


class PaperKernel:
    """A kernel in Triton whose programs NumPy runs one after another."""

    version = "on paper"

    def __init__(self, monkeypatch, kernel, constants):
        self.patch, self.kernel, self.constants = monkeypatch, kernel, constants

    def call(self, grid, *args):
        def run():
            triton = NumpyTriton((*grid, 1)[:2])
            self.patch.setattr(LATENT, "tl", triton)
            cells = [arg if np.ndim(arg) == 0 else ElementPointer(typed(arg)) for arg in args]
            for place in np.ndindex(triton.grid):
                triton.place = place
                self.kernel(*cells, *self.constants.values())

        return run


def typed(array):
    return array.view(np.float16) if array.dtype == np.uint16 else array


@pytest.fixture(params=["triton 2", "wgmma 2", "wgmma 3"])
def attention(request, monkeypatch):
    """Two sequences of 150 tokens, which end within their third page, in two parts or one."""

    def built(_bench, kernel, _types, constants, _warps, _stages):
        return PaperKernel(monkeypatch, kernel, constants)

    monkeypatch.setattr(LATENT._triton, "BuiltKernel", built)
    monkeypatch.setattr(LATENT, "tensor_map", _grid.tensor_map)
    monkeypatch.setattr(LATENT, "chunk_of", lambda *_: int(request.param[-1]))
    device = bench(SUITE, "nvidia")
    features = frozenset({request.param[:-2]})
    device.device.traits = dataclasses.replace(device.traits, features=features)
    return LATENT.LatentAttention(device, 2, 150, 128)


@pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")
def test_every_part_joins_to_the_attention_of_double_precision(attention):
    task = attention.task()
    for out in attention.outs:
        out[:] = 0xFFFF
    with pytest.raises(WrongAnswer, match="no copy"):
        task.check()
    for call in task.stages[""].rotation:
        call()
    assert 0 < task.check()["error"].value < 2**-10
    tokens = 2 * 150
    assert attention.work.flops == 2 * 128 * tokens * (576 + 512)
    assert attention.work.moved == 2 * (tokens * 576 + 256 * (576 + 512))
    attention.caches[0][:] = np.roll(attention.caches[0], 576)
    with pytest.raises(WrongAnswer, match="relative error"):
        task.check()


def test_parts_fill_whole_waves():
    """64 sequences of 64 pages in two blocks of heads: one wave of 128 programs on 132 units needs one part."""
    assert LATENT.chunk_of(64, 64, 2, 132) == 64
    assert LATENT.chunk_of(16, 64, 2, 132) == 16
