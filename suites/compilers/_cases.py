"""Measure one operator by several compilers and libraries: its time, the bytes moved, the cost of a call."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from gpubench.api import suite as gb

from . import _providers as providers
from ._operators import POINTWISE, Problem

_ROWWISE = ("softmax", "rmsnorm", "layernorm", "residual_norm")
_COMPARED = ("pointwise", *_ROWWISE, "gemm_gelu", "build")
_BATCH = 100  # calls per sample of a library that does not use our stream
_SMALL = 8, 1024  # rows and columns of an operator whose call costs more than its work
_L2_SHARE = 4  # arrays below this share of the last-level cache are also timed after a flush

topic = gb.Topic(
    views=[
        gb.View("amortisation", "Calls after which compiling pays", _COMPARED, x="chain", by=("by",)),
        gb.View("bars", "Pointwise chains: throughput by provider", ("pointwise",), by=("chain", "by")),
        gb.View("bars", "Operators on rows: throughput by provider", _ROWWISE, by=("by",)),
        gb.View("bars", "Time of a call on a small operator by provider", ("dispatch",), by=("by",)),
    ],
)


def dtype_of(is_host: bool) -> str:
    """Return the type of the elements in all tiers."""
    return "float32" if is_host else "float16"


def in_full(target: gb.Target) -> bool:
    """Return whether the tier is `full`."""
    return target.tier == "full"


def runtime_of(params: Mapping[str, Any]) -> str:
    """Return the name of a provider's own process, or an empty string for providers that share a process."""
    return providers.RUNTIMES.get(params["by"], "")


def _by(target: gb.Target) -> Any:
    """Return the points of the axis `by`, the providers of the device; quick has only the fastest builders."""
    if target.is_host:
        return gb.points(providers.HOST_QUICK, providers.HOST_QUICK[1:2], providers.HOST)
    return gb.points(providers.GPU_QUICK, ("nvrtc",), providers.GPU)


def _by_few(target: gb.Target) -> Any:
    """Return the providers as the points of an axis; on a GPU quick has two that compile fast, and smoke one."""
    return _by(target) if target.is_host else gb.points(("nvrtc", "triton"), ("nvrtc",), providers.GPU)


def _of_interest(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether a point is measured: float32 on a GPU only at rows of 4096 elements, else all."""
    return target.is_host or params["dtype"] == "float16" or params["cols"] == 4096


def task_of(bench: gb.Bench, problem: Problem, by: str, made: providers.Built | None = None) -> gb.Task:
    """Return `problem`'s operator, built by the provider `by` unless it was `made` before, as a task.

    Its rate counts the work that no implementation can avoid."""
    built = made or providers.build(bench, problem, by)
    stages = {}
    if built.wait is None:
        stages[""] = _stage(bench, problem, built)
        providers.expect_on_our_stream(bench, built.call)
    if bench.traits.is_gpu or built.wait is not None:
        stages["host"] = _host_stage(built, problem)
    eager = (*(["torch"] if by == "inductor" else []), "cupy" if bench.traits.is_gpu else "numpy")
    notes = {**problem.notes(), **built.notes, "eager": ", ".join(eager)}  # the libraries that it is compared with
    return gb.Task(stages, _check_of(bench, problem, built), built.poison, notes=notes)


def _stage(bench: gb.Bench, problem: Problem, built: providers.Built) -> gb.Stage:
    """Return the stage whose calls are timed on our stream, judged by operations or by bytes as the problem says."""
    stage = partial(gb.Stage, built.call, problem.work, problem.quantity, problem.limit, effort=gb.POINT)
    if problem.quantity == "flops":
        return stage(max_calls=16, inputs=problem.change)
    is_small = problem.moved * _L2_SHARE < bench.target.device.cache_bytes
    modes: tuple[gb.Mode, ...] = ("hot", "cold", "graph") if is_small else ("hot", "graph")
    return stage(modes=modes, max_calls=64, inputs=problem.change)


def _host_stage(built: providers.Built, problem: Problem) -> gb.Stage:
    """Return the stage whose calls the host's clock times, until all calls of a batch have ended."""
    rest: dict[str, Any] = {"clock": "host", "effort": gb.POINT, "inputs": problem.change}
    stage = gb.Stage(built.call, problem.work, problem.quantity, problem.limit, **rest)
    if built.wait is None:
        return stage
    return replace(stage, call=partial(_seconds, built.call, built.wait), clock="self")


def _seconds(call: Callable[[], object], wait: Callable[[], None]) -> float:
    """Return the mean seconds of a call, from a batch of 100 calls and `wait`, the library's wait for all of them."""
    start = time.perf_counter()
    for _ in range(_BATCH):
        call()
    wait()
    return (time.perf_counter() - start) / _BATCH


def _check_of(bench: gb.Bench, problem: Problem, built: providers.Built) -> Callable[[], gb.Observation]:
    """Return the check of a built operator."""
    static = cache(built.static) if built.static else dict

    def check() -> gb.Observation:
        """Compare the last results with double precision; return the observed values by name."""
        observed = {**problem.compare(built.rows()), **static()}
        launches = bench.device.launches_of(built.call) if built.wait is None else None
        if launches is not None:
            observed["launches"] = gb.Observed(launches)
        if built.temporary is not None:
            observed["temporary"] = gb.Observed(built.temporary(), "B")
        return observed

    return check


_COLS = {True: gb.points((4096,), (1024,)), False: gb.points((4096,), full=(1024, 4096, 32768))}  # on the host or not
_DTYPES = {True: ("float32",), False: gb.points(("float16",), full=("float16", "float32"))}
_MATRIX: dict[str, Any] = {
    "rows": lambda target: (2048,) if target.is_host else gb.points((32768,), (4096,)),
    "cols": lambda target: _COLS[target.is_host],
    "dtype": lambda target: _DTYPES[target.is_host],
}


@topic.case(
    chain=lambda _target: gb.points(("swiglu",), full=tuple(POINTWISE)),
    **_MATRIX,
    by=_by,
    where=lambda target, params: target.is_host or target.tier != "full" or params["cols"] == 4096,
    runtime=runtime_of,
)
def pointwise(bench: gb.Bench, chain: str, rows: int, cols: int, dtype: str, by: str) -> gb.Task:
    """Bandwidth of a chain of pointwise operations: each input is read once, the output is written once."""
    return task_of(bench, Problem(bench, chain, rows, cols, dtype), by)


@topic.case(**_MATRIX, by=_by_few, runtime=runtime_of, where=_of_interest, headline={"by": "nvrtc", "cols": 4096})
def softmax(bench: gb.Bench, rows: int, cols: int, dtype: str, by: str) -> gb.Task:
    """Bandwidth of the softmax of every row: the matrix is read once and written once."""
    return task_of(bench, Problem(bench, "softmax", rows, cols, dtype), by)


@topic.case(
    **_MATRIX, by=_by_few, runtime=runtime_of, where=_of_interest, when=lambda target: target.is_host or in_full(target)
)
def rmsnorm(bench: gb.Bench, rows: int, cols: int, dtype: str, by: str) -> gb.Task:
    """Bandwidth of RMSNorm, every row over its root mean square, times a weight per column: read and written once."""
    return task_of(bench, Problem(bench, "rmsnorm", rows, cols, dtype), by)


@topic.case(**_MATRIX, by=_by_few, runtime=runtime_of, where=_of_interest, when=in_full)
def layernorm(bench: gb.Bench, rows: int, cols: int, dtype: str, by: str) -> gb.Task:
    """Bandwidth of layer norm with a weight and a bias per column: the matrix is read once and written once."""
    return task_of(bench, Problem(bench, "layernorm", rows, cols, dtype), by)


@topic.case(**_MATRIX, by=_by_few, runtime=runtime_of, where=_of_interest, when=in_full)
def residual_norm(bench: gb.Bench, rows: int, cols: int, dtype: str, by: str) -> gb.Task:
    """Bandwidth of the sum of two matrices and its RMSNorm: two matrices are read, two are written."""
    return task_of(bench, Problem(bench, "residual_norm", rows, cols, dtype), by)


@topic.case(by=_by_few, runtime=runtime_of, when=gb.on_gpu)
def dispatch(bench: gb.Bench, by: str) -> gb.Task:
    """Seconds of a call on a matrix of 8 × 1024 elements by the host's clock: the overhead of the code of `by`.

    `by` names the compiler or library; the operator is RMSNorm."""
    problem = Problem(bench, "rmsnorm", *_SMALL, "float16")
    built = providers.build(bench, problem, by)
    stage = replace(_host_stage(built, problem), work=gb.Work(), quantity="value", limit="")
    return gb.Task.of(stage, check=lambda: problem.compare(built.rows()), poison=built.poison, notes=built.notes)
