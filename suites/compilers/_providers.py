"""What a provider is: a compiler or a library that builds operators, each in a file of its own, `_by_<name>.py`.

Such a module has a function `build(bench, problem) -> Built`, which raises Skip where its library is not installed
(with the command that installs it) or has no such operator. A module is imported when its provider builds a case, so
that planning imports none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpubench.api.suite import Bench, Skip

from ._operators import Problem, Rows

HOST_QUICK = ("numpy", "numba")
HOST = HOST_QUICK
GPU_QUICK = ("cupy", "cupy-fused", "nvrtc", "triton")
GPU = (*GPU_QUICK, "numba-cuda", "torch", "inductor", "jax")
# of the providers whose libraries must not share a process with others'
RUNTIMES = {by: by for by in ("triton", "numba-cuda", "torch", "inductor", "jax")}


@dataclass(frozen=True, slots=True)
class Built:
    """An operator as one provider built it.

    `call` computes it once on the device. `rows` returns the checked rows of all outputs of the last call in double
    precision. `poison` overwrites the outputs with NaN, or drops those that the next call allocates. `is_ours` says
    whether the work is queued on our stream; if not, only the host's clock times it. `temporary` returns the most bytes
    that a call holds beside inputs and preallocated outputs.
    """

    call: Callable[[], object]
    rows: Callable[[], Rows]
    poison: Callable[[], None]
    notes: Mapping[str, str] = field(default_factory=dict)
    is_ours: bool = True
    temporary: Callable[[], float] | None = None


def build(bench: Bench, problem: Problem, by: str) -> Built:
    """Return the operator as a provider builds it; raises Skip where the provider or its operator is missing."""
    module = importlib.import_module(f"._by_{by.replace('-', '_')}", __package__)
    built: Built = module.build(bench, problem)
    return built


def lacks(by: str, problem: Problem) -> Skip:
    """Return the reason of a provider that has no such operator."""
    return Skip(f"{by} has no {problem.operator.name} here")


class Expression:
    """An operator as the plain expression of an array library, which allocates its outputs at each call."""

    def __init__(self, problem: Problem, xp: Any, inputs: tuple[Any, ...]) -> None:
        self._problem, self._xp, self._inputs = problem, xp, inputs
        self._outputs: tuple[Any, ...] = ()

    def __call__(self) -> None:
        """Compute the operator."""
        self._outputs = self._problem.operator.outputs_of(self._xp, *self._inputs)

    def rows(self) -> Rows:
        """Return the checked rows of the last call's outputs."""
        return tuple(self._problem.rows_of(array) for array in self._outputs)

    def poison(self) -> None:
        """Drop the outputs: the next call makes others."""
        self._outputs = ()


class Outputs:
    """Preallocated outputs in the memory of the device."""

    def __init__(self, bench: Bench, problem: Problem) -> None:
        self._problem = problem
        shape = (problem.rows, problem.cols)
        self.arrays = tuple(bench.xp.empty(shape, problem.dtype) for _ in range(problem.operator.outputs))

    def rows(self) -> Rows:
        """Return the checked rows of all outputs."""
        return tuple(self._problem.rows_of(array) for array in self.arrays)

    def poison(self) -> None:
        """Overwrite the outputs with NaN."""
        for array in self.arrays:
            array.fill(float("nan"))
