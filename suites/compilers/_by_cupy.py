"""CuPy: each operation is a kernel of its own, and its result goes through memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpubench.api.suite import Bench

from ._operators import Problem
from ._providers import Built, Expression


def build(bench: Bench, problem: Problem) -> Built:
    """Return the operator as an expression of CuPy; the outputs come from its memory pool."""
    expression = Expression(problem, partial(problem.operator.expression, bench.xp))
    notes = {"library": f"CuPy {bench.xp.__version__}", "precision": f"every operation in {problem.dtype}"}
    temporary = partial(temporary_bytes, bench.xp, expression)
    return Built(expression, expression.rows, expression.poison, notes, temporary=temporary)


def temporary_bytes(cupy: Any, call: Callable[[], object]) -> float:
    """Return the most bytes that a call holds of CuPy's memory pool at the same time, its own outputs included."""
    held = [0, 0]  # now, and the most

    class Held(cupy.cuda.MemoryHook):  # type: ignore[misc]  # CuPy has no types
        name = "gpubench"

        def malloc_postprocess(self, **of: int) -> None:
            held[0] += of["mem_size"]
            held[1] = max(held)

        def free_postprocess(self, **of: int) -> None:
            held[0] -= of["mem_size"]

    with Held():
        call()
    return float(held[1])
