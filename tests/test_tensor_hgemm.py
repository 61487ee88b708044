"""The HGEMM ladder: kernels against double precision on a grid on the host, what a device lacks, what is planned."""

import dataclasses
import sys
from types import SimpleNamespace

import _grid
import numpy as np
import pytest
from _grid_device import bench

from gpubench import plugins
from gpubench.base.errors import Skip, WrongAnswer
from gpubench.plugins.backend import KernelResources

SUITE = plugins.load("suites", "tensor")
HGEMM, RUNGS, KERNELS, MAPS = (
    sys.modules[f"{SUITE.package}.{name}"] for name in ("_hgemm", "_rungs", "_kernels", "_tensor_map")
)
ROOM = SUITE.package.rpartition(".")[0]
DATA, FORMATS = (sys.modules[f"{ROOM}.gemm.{name}"] for name in ("_data", "_formats"))
needs_compiler = pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")


def paper():
    """A paper GPU of NVIDIA; g++ builds its kernels for the architecture that mma.sync needs."""
    found = bench(SUITE, "nvidia")
    built = found.kernel
    return SimpleNamespace(
        traits=found.traits,
        device=found.device,
        kernel=lambda file, name, **defines: built(file, name, __CUDA_ARCH__=900, **defines),
    )


def operands(m, n, k):
    found = bench(SUITE, "nvidia")
    shape = FORMATS.Shape(m, n, k, "nt")
    return DATA.Operands(dataclasses.replace(found, package=DATA.__package__), FORMATS.PRECISIONS["float16"], shape)


def checked(rung, found):
    """The rung once, on overwritten results, and the check."""
    call, notes = rung.build(paper(), found.product)
    found.poison()
    call()
    found.check()
    return notes


SMALL = [
    (RUNGS.RUNGS["naive"], (32, 48, 40)),
    (RUNGS.RUNGS["tile"], (256, 128, 48)),
    (RUNGS.mma_rung((64, 64, 32), (2, 2), swizzled=False, stages=1, resident=1), (128, 192, 96)),
    (RUNGS.mma_rung((64, 64, 64), (2, 1), swizzled=True, stages=1, resident=1), (64, 64, 128)),
    (RUNGS.mma_rung((64, 128, 32), (2, 2), swizzled=True, stages=4, resident=1, band=2), (320, 256, 160)),
    (RUNGS.mma_rung((64, 64, 64), (1, 2), swizzled=True, stages=3, resident=1), (64, 128, 64)),
]


@needs_compiler
@pytest.mark.parametrize(("rung", "sides"), SMALL, ids=lambda value: str(getattr(value, "kernel", value)))
def test_every_element_of_a_rungs_product_is_that_of_double_precision(rung, sides):
    assert checked(rung, operands(*sides))["kernel"].startswith(rung.kernel)


@needs_compiler
def test_a_tile_that_is_left_out_fails_the_check():
    found = operands(256, 128, 48)
    rung = RUNGS.RUNGS["tile"]
    call, _ = dataclasses.replace(rung, tile=(256, 128)).build(paper(), found.product)
    found.poison()
    call()
    with pytest.raises(WrongAnswer, match="not written"):
        found.check()
