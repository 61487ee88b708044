"""Build operators as expressions of CuPy: each operation is a kernel, and its result goes through memory."""

from collections.abc import Callable
from functools import partial
from typing import Any

from gpubench.api import suite as gb

from ._operators import Problem
from ._providers import Built, Expression


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as an expression of CuPy, each of whose operations is a kernel.

    A call allocates its outputs in CuPy's memory pool."""
    expression = Expression(problem, partial(problem.operator.expression, bench.xp))
    notes = {"library": f"CuPy {bench.xp.__version__}", "precision": f"every operation in {problem.dtype}"}
    temporary = partial(temporary_bytes, bench.xp, expression)
    return Built(expression, expression.rows, expression.poison, notes, temporary=temporary)


def temporary_bytes(cupy: Any, call: Callable[[], object]) -> float:
    """Return by how many bytes the peak use of CuPy's memory pool during `call` exceeds its use before the call.

    `cupy` is the module. Arrays that the call returns are counted too."""
    current_and_peak = [0, 0]  # bytes

    class Held(cupy.cuda.MemoryHook):  # type: ignore[misc]  # CuPy has no types
        """A hook of CuPy's memory that counts the bytes in use, and their peak."""

        name = "gpubench"

        def malloc_postprocess(self, **of: int) -> None:
            current_and_peak[0] += of["mem_size"]
            current_and_peak[1] = max(current_and_peak)

        def free_postprocess(self, **of: int) -> None:
            current_and_peak[0] -= of["mem_size"]

    with Held():
        call()
    return float(current_and_peak[1])
