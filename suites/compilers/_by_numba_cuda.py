"""Build operators by numba's GPU target as kernels of our own in Python, on the stream that is timed.

The target comes with numba, or newer as the package numba-cuda."""

import functools
import importlib
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from . import _numba_cuda_kernels as kernels
from ._operators import Problem
from ._providers import Built, Outputs, no_operator

_INSTALL = "pip install 'numba-cuda[cu13]' (or [cu12])"
_OLDER_NUMPY = "pip install 'numpy<2.5'"


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as one fused kernel on the stream that is timed, with preallocated outputs.

    Raises Skip if this module has no kernel for the operator, and Unavailable without numba for this GPU."""
    name = problem.operator.name
    if name not in (*kernels.ELEMENTS, *kernels.ROWS):
        raise no_operator("numba-cuda", problem)
    cuda = _imported()
    outputs, is_pointwise = Outputs(bench, problem), name in kernels.ELEMENTS
    kernel = _compiled(cuda, (kernels.ELEMENTS if is_pointwise else kernels.ROWS)[name])
    arrays = (cuda.as_cuda_array(array.ravel()) for array in (*problem.inputs.values(), *outputs.arrays))
    blocks = -(-problem.elements // kernels.THREADS) if is_pointwise else problem.rows
    stream = cuda.external_stream(bench.device.stream)
    notes = {"library": f"numba {_version()}", "precision": "computed in float32", "kernels": "1"}
    launch = partial(kernel[blocks, kernels.THREADS, stream], *arrays, problem.cols)
    return Built(launch, outputs.rows, outputs.poison, notes)


def _imported() -> Any:
    """Return the module numba.cuda with its compiler and our kernels loaded."""
    try:
        cuda = importlib.import_module("numba.cuda")
    except ImportError as error:
        raise gb.Unavailable(f"numba has no GPU target that can be imported here ({error})", _INSTALL) from error
    if not cuda.is_available():
        raise gb.Unavailable("numba finds no GPU, or no compiler for it", _INSTALL)
    load_compiler()
    importlib.import_module("numba").config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # for the operator that is small on purpose
    kernels.load(cuda)
    return cuda


def load_compiler() -> None:
    """Load what numba's GPU target loads before it compiles its first function.

    Raises Unavailable if the target uses a function that the installed NumPy does not have: numba-cuda 0.30.4 uses
    `row_stack`, which NumPy 2.5 has dropped."""
    try:
        importlib.import_module("numba.cuda.descriptor").cuda_target.typing_context.refresh()
    except AttributeError as error:
        raise gb.Unavailable(
            f"numba's GPU target does not support NumPy {np.__version__} ({error})", _OLDER_NUMPY
        ) from error


def _version() -> str:
    """Return the versions of numba and, if it is installed, of numba-cuda."""
    numba = importlib.import_module("numba")
    package_version = getattr(importlib.import_module("numba.cuda"), "__version__", "")
    return f"{numba.__version__}, numba-cuda {package_version}" if package_version else str(numba.__version__)


@functools.cache
def _compiled(cuda: Any, kernel: kernels.Kernel) -> Any:
    return cuda.jit(kernel)
