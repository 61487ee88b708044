"""Build operators by numba as one loop over the rows on all threads of the host, which fuses everything of a row.

Importing this module imports numba."""

from collections.abc import Sequence
from typing import Any

import numba

from gpubench.api import suite as gb

from .._host import parallel
from ._operators import Problem
from ._providers import Built, Outputs, Varied

_LIBRARY, _PRECISION = f"numba {numba.__version__}", "computed in float32, not reassociated"


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as a loop over rows that numba compiles, with preallocated outputs."""
    outputs = Outputs(bench, problem)
    call = problem.numba_call(lambda loop: parallel(_loaded(loop)), outputs.arrays)
    return outputs.built(call, _LIBRARY, _PRECISION)


def _loaded(loop: Any) -> Any:
    """Return a loop, whose module uses numba's own `prange` from now on."""
    loop.__globals__["prange"] = numba.prange
    return loop


def varied(bench: gb.Bench, problems: Sequence[Problem]) -> Varied:
    """Return one loop, compiled by its first call, for problems whose rows have different lengths."""
    loop: Any = numba.njit(parallel=True)(_loaded(problems[0].operator.kernels["numba"]))
    built = []
    for problem in problems:
        outputs = Outputs(bench, problem)
        call = problem.numba_call(lambda _: loop, outputs.arrays)
        built.append(outputs.built(call, _LIBRARY, _PRECISION))
    return Varied(built, lambda: len(loop.signatures))
