"""Build operators as expressions of NumPy: each operation is a loop over arrays in memory."""

from functools import partial

import numpy as np

from gpubench.api import suite as gb

from ._operators import Problem
from ._providers import Built, Expression


def build(_bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as an expression of NumPy on one thread, which allocates its outputs at each call."""
    expression = Expression(problem, partial(problem.operator.expression, np))
    notes = {"library": f"NumPy {np.__version__}", "precision": f"every operation in {problem.dtype}"}
    return Built(expression, expression.rows, expression.poison, notes)
