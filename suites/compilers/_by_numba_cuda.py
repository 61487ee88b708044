"""Build operators by numba's GPU target as kernels of our own in Python, on the stream that is timed.

The target comes with numba, or newer as the package numba-cuda."""

import functools
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._generated import expect_nvidia
from ._operators import POINTWISE, Problem, load_kernels
from ._providers import Built, Outputs
from ._rows import THREADS, block_reduction

_INSTALL = gb.installation.packages("'numba-cuda[cu13]' (or [cu12])")
_TRIED = gb.installation.packages("'numba==0.68.*' 'numba-cuda[cu13]==0.30.*' 'numpy<2.5' (or [cu12])")

cuda: Any = None
doubled: Any = None


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as one fused kernel on the stream that is timed, with preallocated outputs.

    Raises Unavailable without numba for this GPU."""
    expect_nvidia(bench, "numba-cuda")
    numba_cuda = _imported()
    outputs = Outputs(bench, problem)
    try:
        load(numba_cuda)
        kernel = _compiled(numba_cuda, problem.operator.kernels["numba-cuda"])
        arrays = (numba_cuda.as_cuda_array(array.ravel()) for array in (*problem.inputs.values(), *outputs.arrays))
        blocks = -(-problem.rows * problem.cols // THREADS) if problem.operator.name in POINTWISE else problem.rows
        stream = numba_cuda.external_stream(bench.device.stream)
        launch = partial(kernel[blocks, THREADS, stream], *arrays, problem.cols)
        launch()  # compiles the kernel
    except _mismatches():
        _expect_compiler(numba_cuda)
        raise
    return outputs.built(launch, f"numba {_version()}", "computed in float32", kernels="1")


def load(numba_cuda: Any) -> None:
    """Let the kernels use numba.cuda and its function that reduces the values of a block."""
    load_kernels(cuda=numba_cuda, reduce_block=numba_cuda.jit(device=True)(block_reduction))


def _imported() -> Any:
    """Return the module numba.cuda."""
    try:
        numba_cuda = importlib.import_module("numba.cuda")
    except ImportError as error:
        raise gb.Unavailable(f"numba has no GPU target that can be imported here ({error})", _INSTALL) from error
    except (AttributeError, TypeError) as error:
        raise _misfit(error) from error
    if not numba_cuda.is_available():
        raise gb.Unavailable("numba finds no GPU, or no compiler for it", _INSTALL)
    importlib.import_module("numba").config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # for the operator that is small on purpose
    return numba_cuda


def _expect_compiler(numba_cuda: Any) -> None:
    """Raise Unavailable if numba's GPU target cannot compile even a kernel of three lines."""
    # Asked only after a kernel of ours was not compiled, so that a build's times hold no second kernel. numba-cuda
    # 0.30.4 uses `row_stack`, for example, which NumPy 2.5 has dropped.
    try:
        load_probe(numba_cuda)
        numba_cuda.jit(probe)[1, 1](numba_cuda.to_device(np.zeros(1, np.float16)), 1)
    except _mismatches() as error:
        raise _misfit(error) from error


def load_probe(numba_cuda: Any) -> None:
    """Let `probe` use numba.cuda, by globals, which numba's simulator exchanges."""
    globals().update(cuda=numba_cuda, doubled=numba_cuda.jit(device=True)(lambda value: value + value))


def probe(out: Any, count: Any) -> None:
    """Double numbers with what our kernels use: a function on the device, shared memory and a number."""
    parts = cuda.shared.array(1, np.float32)
    if cuda.threadIdx.x < count:
        parts[0] = doubled(np.float32(out[0]))
        out[0] = parts[0]


def _mismatches() -> tuple[type[Exception], ...]:
    """Return the errors of a library that calls another as its other versions want it; numba wraps some of them."""
    return AttributeError, ImportError, TypeError, importlib.import_module("numba.core.errors").NumbaError


def _misfit(error: Exception) -> gb.Unavailable:
    versions = f"the installed numba or NumPy {np.__version__} ({str(error).splitlines()[0]})"
    return gb.Unavailable(f"numba's GPU target does not fit {versions}", _TRIED)


def _version() -> str:
    """Return the versions of numba and, if it is installed, of numba-cuda."""
    numba = importlib.import_module("numba")
    package_version = getattr(importlib.import_module("numba.cuda"), "__version__", "")
    return f"{numba.__version__}, numba-cuda {package_version}" if package_version else str(numba.__version__)


@functools.cache
def _compiled(numba_cuda: Any, kernel: Callable[..., None]) -> Any:
    return numba_cuda.jit(kernel)
