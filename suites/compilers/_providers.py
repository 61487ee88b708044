"""Build operators by their providers, which are compilers and libraries.

Array libraries are in `_libraries.py`; each other provider has a module `_by_<name>.py` with a function
`build(bench, problem) -> Built`. It raises Unavailable if its library is unavailable, with the command that installs
it, and Skip if it has no such operator."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpubench.api import suite as gb

from ._operators import OPERATORS, Problem, Rows

HOST_QUICK = ("numpy", "numba")
HOST = (*HOST_QUICK, "torch", "inductor", "jax", "tvm", "iree")
GPU_QUICK = ("cupy-fused", "nvrtc", "triton")
GPU = ("cupy", *GPU_QUICK, "cutile", "numba-cuda", "torch", "inductor", "jax", "tvm", "iree")
# providers whose libraries must not share a process with another provider's libraries
RUNTIMES = {by: by for by in ("triton", "cutile", "numba-cuda", "torch", "inductor", "jax", "tvm", "iree")}
_LIBRARIES = ("numpy", "cupy", "cupy-fused", "torch", "inductor", "jax")
_OURS = ("numba", "cupy-fused", "nvrtc", "triton", "cutile", "numba-cuda")  # providers for which we write kernels
_ATTEMPTS, _QUEUED = 3, 8  # tests of where calls execute, and the calls of each test
_BESIDE = 0.5  # the share of the calls' time for which the device may still work when our stream has ended


@dataclass(frozen=True, slots=True)
class Built:
    """An operator as one provider built it; `call` computes it once on the device.

    `wait` waits for calls that work on another stream than the one that is timed."""

    call: Callable[[], object]
    rows: Callable[[], Rows]
    poison: Callable[[], None]
    notes: Mapping[str, str] = field(default_factory=dict)
    temporary: Callable[[], float] | None = None
    wait: Callable[[], None] | None = None
    static: Callable[[], gb.Observation] | None = None


@dataclass(frozen=True, slots=True)
class Varied:
    """One operator at several lengths of a row, by one function that is not called before its creation.

    `built` has an entry for each length, in order. `compiled` returns the number of compilations since the creation."""

    built: Sequence[Built]
    compiled: Callable[[], int]


def imported(library: str, install: str, *names: str) -> list[Any]:
    """Return the modules of a library; raises Unavailable, with the command that installs it, if one is missing."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise gb.Unavailable(f"{library} is not installed", install) from error


def build(bench: gb.Bench, problem: Problem, by: str) -> Built:
    """Return `problem`'s operator as the provider `by` builds it, with the functions to check it.

    Raises Unavailable without the provider's library, and Skip if the provider has no such operator."""
    operator = problem.operator
    if (by in _OURS and by not in operator.kernels) or (by in ("tvm", "iree") and operator.name not in OPERATORS):
        raise gb.Skip(f"{by} has no {operator.name} here")
    built: Built = problem.vendor(bench) if by == "vendor" else _function_of(by, "build")(bench, problem)
    return built


def varied(bench: gb.Bench, problems: Sequence[Problem], by: str) -> Varied:
    """Return the operator of all `problems`, whose rows have different lengths, as one function of the provider `by`.

    Raises Unavailable without the provider's library."""
    operators: Varied = _function_of(by, "varied")(bench, problems)
    return operators


def _function_of(by: str, name: str) -> Any:
    module, name = ("_libraries", f"{name}_{by}") if by in _LIBRARIES else (f"_by_{by}", name)
    return getattr(importlib.import_module(f".{module.replace('-', '_')}", __package__), name.replace("-", "_"))


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


class Expression:
    """An operator as a function of arrays of some library, which allocates its outputs at each call.

    `outputs` are the outputs of the last call."""

    def __init__(
        self,
        problem: Problem,
        function: Callable[..., Any],
        to_library: Callable[[Any], Any] = lambda array: array,
        from_library: Callable[[Any], Any] = lambda array: array,
    ) -> None:
        self._problem, self._function = problem, function
        self._to_library, self._from_library = to_library, from_library
        self._inputs: tuple[Any, ...] = ()
        self.outputs: Any = ()
        self.poison()

    def __call__(self) -> None:
        """Compute the operator."""
        self.outputs = self._function(*self._inputs)

    def _rows(self) -> Rows:
        outputs = self.outputs if isinstance(self.outputs, tuple) else (self.outputs,)
        return tuple(self._problem.rows_of(self._from_library(array)) for array in outputs)

    def poison(self) -> None:
        """Drop the outputs, which the next call allocates again, and convert the problem's inputs again.

        The library's inputs may be copies, which do not follow a change of the problem's inputs."""
        self.outputs = ()
        self._inputs = tuple(self._to_library(array) for array in self._problem.inputs.values())

    def built(self, library: str, precision: str, **more: Any) -> Built:
        """Return this operator as built; texts are notes, and `more` has further notes and other fields of Built."""
        return _built(self, self._rows, self.poison, library=library, precision=precision, **more)


class Outputs:
    """Preallocated outputs in the memory of the device: `arrays` of the device's array module."""

    def __init__(self, bench: gb.Bench, problem: Problem) -> None:
        shape = (problem.operator.outputs, *problem.output_shape)
        self._problem, self.whole = problem, bench.xp.empty(shape, problem.dtype)
        self.arrays = tuple(self.whole)
        self.poison = partial(bench.poison, self.whole)

    def rows(self) -> Rows:
        """Return the checked rows of all outputs."""
        return tuple(self._problem.rows_of(array) for array in self.arrays)

    def built(self, call: Callable[[], object], library: str, precision: str, **more: Any) -> Built:
        """Return `call`, which writes these outputs, as built; `more` has further notes and other fields of Built."""
        return _built(call, self.rows, self.poison, library=library, precision=precision, **more)


def _built(call: Callable[[], object], rows: Callable[[], Rows], poison: Callable[[], None], **more: Any) -> Built:
    notes = {name: more.pop(name) for name in list(more) if isinstance(more[name], str)}
    return Built(call, rows, poison, notes, **more)
