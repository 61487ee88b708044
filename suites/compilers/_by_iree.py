"""Build operators by IREE from MLIR's dialect linalg, for the host's processor and as PTX for GPUs."""

import importlib
from functools import partial
from importlib.metadata import version

import numpy as np

from gpubench.api import suite as gb

from ._carried import carried_or_compiled
from ._iree_cuda import INSTALL, compiled
from ._iree_linalg import linalg
from ._operators import OPERATORS, Problem
from ._providers import Built, Expression, no_operator

_FLAGS = ("--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3")
_DRIVER = "local-task"  # the host's processor, on all its threads


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as IREE compiles it: kernels on a GPU, a function of IREE's runtime on the host.

    The function on the host allocates its outputs at each call."""
    if problem.operator.name not in OPERATORS:
        raise no_operator("iree", problem)
    if bench.traits.is_gpu:
        return carried_or_compiled(bench, problem, "iree", "ptx", compiled)
    return _on_host(problem)


def _on_host(problem: Problem) -> Built:
    """Compile `problem`'s operator by IREE, and return it as a function that runs on all threads of the host."""
    try:
        compiler, runtime = (importlib.import_module(f"iree.{part}") for part in ("compiler", "runtime"))
    except ImportError as error:
        raise gb.Unavailable("IREE is not installed", INSTALL) from error
    program = linalg(problem.operator, problem.rows, problem.cols, problem.dtype)
    binary = compiler.compile_str(program, target_backends=["llvm-cpu"], extra_args=list(_FLAGS))
    config = runtime.Config(_DRIVER)
    context = runtime.SystemContext(config=config)
    context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, binary))
    notes = {
        "library": f"IREE {version('iree-base-compiler')}",
        "precision": "computed in float32",
        "flags": " ".join(_FLAGS),
    }
    to_library = partial(runtime.asdevicearray, config.device)
    expression = Expression(problem, context.modules.module["main"], to_library, np.asarray)
    return Built(expression, expression.rows, expression.poison, notes)
