"""Build operators by their providers, which are compilers and libraries, each in a module `_by_<name>.py`.

Such a module has a function `build(bench, problem) -> Built`, which raises Unavailable if its library is unavailable
(with the command that installs it), and Skip if it has no such operator."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

from gpubench.api import suite as gb

from ._operators import Problem, Rows

HOST_QUICK = ("numpy", "numba")
HOST = (*HOST_QUICK, "torch", "inductor", "jax", "tvm", "iree")
GPU_QUICK = ("cupy-fused", "nvrtc", "triton")
GPU = ("cupy", *GPU_QUICK, "cutile", "numba-cuda", "torch", "inductor", "jax", "tvm", "iree")
# providers whose libraries must not share a process with another provider's libraries
RUNTIMES = {by: by for by in ("triton", "cutile", "numba-cuda", "torch", "inductor", "jax", "tvm", "iree")}
_ATTEMPTS, _QUEUED = 3, 8  # tests of where calls execute, and the calls of each test
_BESIDE = 0.5  # the share of the calls' time for which the device may still work when our stream has ended


@dataclass(frozen=True, slots=True)
class Built:
    """An operator as one provider built it.

    `call` computes it once on the device."""

    call: Callable[[], object]
    rows: Callable[[], Rows]
    poison: Callable[[], None]
    notes: Mapping[str, str] = field(default_factory=dict)
    temporary: Callable[[], float] | None = None
    wait: Callable[[], None] | None = None
    static: Callable[[], Mapping[str, gb.Observed]] | None = None

    @property
    def is_ours(self) -> bool:
        """Whether the work is queued on the stream that is timed."""
        return self.wait is None


@dataclass(frozen=True, slots=True)
class Varied:
    """One operator at several lengths of a row, by one function that is not called before its creation.

    `built` has an entry for each length, in order. `compiled` returns the number of compilations since the creation."""

    built: Sequence[Built]
    compiled: Callable[[], int]


def build(bench: gb.Bench, problem: Problem, by: str) -> Built:
    """Return `problem`'s operator as the provider `by` builds it, with the functions to check it.

    Raises Unavailable without the provider's library, and Skip if the provider has no such operator."""
    built: Built = _provider(by).build(bench, problem)
    return built


def varied(bench: gb.Bench, problems: Sequence[Problem], by: str) -> Varied:
    """Return the operator of all `problems`, whose rows have different lengths, as one function of the provider `by`.

    Raises Unavailable without the provider's library."""
    operators: Varied = _provider(by).varied(bench, problems)
    return operators


def _provider(by: str) -> ModuleType:
    """Return the module of a provider, such as `_by_numba_cuda` for numba-cuda."""
    return importlib.import_module(f"._by_{by.replace('-', '_')}", __package__)


def expect_on_our_stream(bench: gb.Bench, call: Callable[[], object]) -> None:
    """Raise WrongAnswer if calls of an operator execute on another stream than ours, where no event would time them.

    Eight calls are queued in each of three tests."""
    call()  # compiles, loads and allocates
    beside = []
    for _ in range(_ATTEMPTS):  # a single test may fail because the host was delayed
        bench.device.synchronize()
        start = bench.device.now()
        for _ in range(_QUEUED):
            call()
        bench.device.synchronize()
        ours_s = bench.device.now() - start
        beside.append(bench.device.elsewhere() / ours_s)
    gb.expect(min(beside) < _BESIDE, "the calls do not work on the stream that is timed")


def no_operator(by: str, problem: Problem) -> gb.Skip:
    """Return the Skip of a provider that has no such operator."""
    return gb.Skip(f"{by} has no {problem.operator.name} here")


def _itself(array: Any) -> Any:
    return array


class Expression:
    """An operator as a function of arrays of some library, which allocates its outputs at each call.

    `outputs` are the outputs of the last call."""

    def __init__(
        self,
        problem: Problem,
        function: Callable[..., Any],
        to_library: Callable[[Any], Any] = _itself,
        from_library: Callable[[Any], Any] = _itself,
    ) -> None:
        self._problem, self._function = problem, function
        self._to_library, self._from_library = to_library, from_library
        self._inputs: tuple[Any, ...] = ()
        self.outputs: Any = ()
        self.poison()

    def __call__(self) -> None:
        """Compute the operator."""
        self.outputs = self._function(*self._inputs)

    def rows(self) -> Rows:
        """Return the checked rows of the last call's outputs as NumPy arrays in double precision."""
        outputs = self.outputs if isinstance(self.outputs, tuple) else (self.outputs,)
        return tuple(self._problem.rows_of(self._from_library(array)) for array in outputs)

    def poison(self) -> None:
        """Drop the outputs, which the next call allocates again, and convert the problem's inputs again.

        The library's inputs may be copies, which do not follow a change of the problem's inputs."""
        self.outputs = ()
        self._inputs = tuple(self._to_library(array) for array in self._problem.inputs.values())


class Outputs:
    """Preallocated outputs in the memory of the device: `arrays` of the device's array module."""

    def __init__(self, bench: gb.Bench, problem: Problem) -> None:
        self._problem = problem
        self.arrays = tuple(
            bench.xp.empty(problem.output_shape, problem.dtype) for _ in range(problem.operator.outputs)
        )
        self.poison = partial(bench.poison, *self.arrays)

    def rows(self) -> Rows:
        """Return the checked rows of all outputs."""
        return tuple(self._problem.rows_of(array) for array in self.arrays)
