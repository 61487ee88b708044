"""Build operators by JAX, whose XLA compiles the expression.

On a GPU XLA works on its own stream, and only the host's clock times it."""

import importlib
import os
from functools import partial
from typing import Any

from gpubench.api import suite as gb

from ._convolution import ConvolutionProblem, by_jax
from ._operators import Problem
from ._providers import Built, Expression

_INSTALL = "pip install 'gpubench-suite[jax]'"


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as XLA compiles it at its first call, on inputs that JAX shares by DLPack.

    On a GPU XLA queues its work on its own stream, and the result has a `wait`."""
    jax = _imported(bench)
    if isinstance(problem, ConvolutionProblem):
        compiled = jax.jit(by_jax(jax, problem))
    else:
        compiled = jax.jit(partial(problem.operator.expression, jax.numpy))
    is_beside = bench.traits.is_gpu

    def function(*inputs: Any) -> Any:
        outputs = compiled(*inputs)
        if not is_beside:  # on the host some calls return before their end
            jax.block_until_ready(outputs)
        return outputs

    expression = Expression(problem, function, jax.dlpack.from_dlpack, bench.xp.from_dlpack)
    notes = {"library": f"JAX {jax.__version__}", "precision": "as XLA computes: float32 within a kernel"}

    def wait() -> None:
        jax.block_until_ready(expression.outputs)

    return Built(expression, expression.rows, expression.poison, notes, wait=wait if is_beside else None)


def _imported(bench: gb.Bench) -> Any:
    """Return the module jax, which takes device memory as it needs it."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        jax = importlib.import_module("jax")
        importlib.import_module("jax.dlpack")
    except ImportError as error:
        raise gb.Unavailable("JAX is not installed", _INSTALL) from error
    if not bench.traits.is_gpu:
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    elif jax.default_backend() != "gpu":
        raise gb.Unavailable(f"JAX {jax.__version__} finds no GPU", f"{_INSTALL} (for CUDA 13)")
    return jax
