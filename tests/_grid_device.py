"""A GPU on paper: NumPy's arrays, and kernels whose threads take turns on the host (_grid.py). It measures nothing.

What it shows is that a suite's kernels, launches and checks agree with each other.
"""

import dataclasses
import types
from typing import Any

from _grid import kernel, path_of, tensor_map
from _modules import shared_modules

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.model import Case, Device, Facts
from gpubench.plugins.backend import Traits

DTYPES = ("float64", "float32", "float16", "bfloat16")
PAPER = Device("cuda:0", "cupy", "Paper GPU", "sm_90", memory_bytes=2**34, cache_bytes=2**12, units=2, dtypes=DTYPES)


@dataclasses.dataclass
class PaperGpu:
    """An open host device that says it is a GPU; kernels come from the .cu file that a case names."""

    traits: Traits
    host: Any = dataclasses.field(default_factory=lambda: plugins.load("backends", "host").open(PAPER))
    device: Device = PAPER
    free: int = 2**40

    def free_bytes(self):
        return self.free

    def __getattr__(self, name):
        return getattr(self.host, name)


@dataclasses.dataclass
class PaperBench(Bench):
    """A bench whose kernels are built by g++ from the same file."""

    def kernel(self, file, name, **defines):
        return kernel(path_of(self._find_source(file)), name, **defines)


def bench(suite, vendor="amd", free=2**40, **params):
    """Return a bench of the suite on a GPU on paper; with vendor `amd`, NumPy computes the library's products."""
    features = frozenset({"matrix", "wgmma"} if vendor == "nvidia" else ())
    shared_modules("_matrix.gemv")[0].tensor_map = tensor_map
    traits = Traits(vendor, "sm_90", "cuda", ("hot",), "perf_counter", warp=32, is_gpu=True, features=features)
    gpu = PaperGpu(traits, free=free)
    case = Case(suite.name, "case", tuple(params.items()))
    return PaperBench(gpu, case, Target(Facts((PAPER,)), PAPER), suite.package, 1, devices=(PAPER,))


def products_by_numpy(bench, product, workspace=None, units=0):
    """Compute the vendor's products of halves by NumPy, with sums in single precision."""
    shape = product.shape

    def matrix(array, rows, cols, is_transposed=False):
        result = array.view("float16")[: shape.batch * rows * cols].astype("float32")
        return result.reshape((-1, cols, rows) if is_transposed else (-1, rows, cols))

    def call():
        is_turned = [order == "t" for order in shape.order]
        a, b = matrix(product.a, shape.m, shape.k, is_turned[0]), matrix(product.b, shape.k, shape.n, is_turned[1])
        a, b = (array.swapaxes(1, 2) if turned else array for array, turned in zip((a, b), is_turned, strict=True))
        product.c.view("float16")[: shape.batch * shape.m * shape.n] = (a @ b).astype("float16").ravel()

    return types.SimpleNamespace(call=call, notes={})
