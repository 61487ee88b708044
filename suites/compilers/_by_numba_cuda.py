"""Build operators by numba's GPU target as kernels of our own in Python, on the stream that is timed.

The target comes with numba, or newer as the package numba-cuda."""

import functools
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from . import _numba_cuda_kernels as kernels
from ._operators import Problem
from ._providers import Built, Outputs, no_operator

_INSTALL = "pip install 'numba-cuda[cu13]' (or [cu12])"
_TRIED = "pip install 'numba==0.68.*' 'numba-cuda[cu13]==0.30.*' 'numpy<2.5' (or [cu12])"


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as one fused kernel on the stream that is timed, with preallocated outputs.

    Raises Skip if this module has no kernel for the operator, and Unavailable without numba for this GPU."""
    name = problem.operator.name
    if name not in (*kernels.ELEMENTS, *kernels.ROWS):
        raise no_operator("numba-cuda", problem)
    cuda = _imported()
    outputs = Outputs(bench, problem)
    try:
        kernels.load(cuda)
        launch = _launch(bench, problem, cuda, outputs)
        launch()  # compiles the kernel
    except _mismatches():
        expect_compiler(cuda)
        raise
    notes = {"library": f"numba {_version()}", "precision": "computed in float32", "kernels": "1"}
    return Built(launch, outputs.rows, outputs.poison, notes)


def _launch(bench: gb.Bench, problem: Problem, cuda: Any, outputs: Outputs) -> Callable[[], object]:
    name = problem.operator.name
    is_pointwise = name in kernels.ELEMENTS
    kernel = _compiled(cuda, (kernels.ELEMENTS if is_pointwise else kernels.ROWS)[name])
    arrays = (cuda.as_cuda_array(array.ravel()) for array in (*problem.inputs.values(), *outputs.arrays))
    blocks = -(-problem.elements // kernels.THREADS) if is_pointwise else problem.rows
    return partial(kernel[blocks, kernels.THREADS, cuda.external_stream(bench.device.stream)], *arrays, problem.cols)


def _imported() -> Any:
    """Return the module numba.cuda."""
    try:
        cuda = importlib.import_module("numba.cuda")
    except ImportError as error:
        raise gb.Unavailable(f"numba has no GPU target that can be imported here ({error})", _INSTALL) from error
    except (AttributeError, TypeError) as error:
        raise _misfit(error) from error
    if not cuda.is_available():
        raise gb.Unavailable("numba finds no GPU, or no compiler for it", _INSTALL)
    importlib.import_module("numba").config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # for the operator that is small on purpose
    return cuda


def expect_compiler(cuda: Any) -> None:
    """Raise Unavailable if numba's GPU target cannot compile even a kernel of three lines.

    It is asked after a kernel of ours was not compiled, so that a build's times hold no second kernel. numba-cuda
    0.30.4 uses `row_stack`, for example, which NumPy 2.5 has dropped."""
    try:
        kernels.load_probe(cuda)
        cuda.jit(kernels.probe)[1, 1](cuda.to_device(np.zeros(1, np.float16)), 1)
    except _mismatches() as error:
        raise _misfit(error) from error


def _mismatches() -> tuple[type[Exception], ...]:
    """Return the errors of a library that calls another as its other versions want it; numba wraps some of them."""
    return AttributeError, ImportError, TypeError, importlib.import_module("numba.core.errors").NumbaError


def _misfit(error: Exception) -> gb.Unavailable:
    message = str(error).partition("\n")[0]
    return gb.Unavailable(
        f"numba's GPU target does not fit the installed numba or NumPy {np.__version__} ({message})", _TRIED
    )


def _version() -> str:
    """Return the versions of numba and, if it is installed, of numba-cuda."""
    numba = importlib.import_module("numba")
    package_version = getattr(importlib.import_module("numba.cuda"), "__version__", "")
    return f"{numba.__version__}, numba-cuda {package_version}" if package_version else str(numba.__version__)


@functools.cache
def _compiled(cuda: Any, kernel: kernels.Kernel) -> Any:
    return cuda.jit(kernel)
