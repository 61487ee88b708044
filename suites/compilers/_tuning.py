"""Measure what tuning buys: an operator after growing efforts of a tuner, with the seconds that each effort took.

On a GPU the tuner is torch's Inductor: its rules, then its search among kernels and libraries (max-autotune), then
steps from each kernel's best settings (coordinate descent). On the host it is TVM: fixed rules, then its MetaSchedule
(Shao et al., NeurIPS 2022) with growing numbers of trials."""

import time
from dataclasses import replace

from gpubench.api import suite as gb

from .._checks import measured_before
from . import _by_tvm, _libraries
from ._build import Caches, with_environment
from ._cases import in_full, task_of
from ._operators import Problem
from ._products import ProductProblem

_INDUCTOR: dict[str, dict[str, bool]] = {
    "inductor": {},
    "inductor-max": {"max_autotune": True},
    "inductor-descent": {"max_autotune": True, "coordinate_descent_tuning": True},
}
_TRIALS = {"tvm": 0, "tvm-16": 16, "tvm-64": 64}

topic = gb.Topic(
    views=[
        gb.View("amortisation", "Calls after which tuning pays", ("tuning",), x="op", by=("by",)),
        gb.View("pareto", "Time of a call over the seconds of tuning", ("tuning",), x="tuning.self", y="call.hot"),
    ]
)


@topic.case(
    op=lambda target: ("softmax", "rmsnorm", "swiglu") if target.is_host else ("softmax", "rmsnorm", "gemm_gelu"),
    by=lambda target: tuple(_TRIALS if target.is_host else _INDUCTOR),
    when=in_full,
    runtime=lambda params: "torch" if params["by"] in _INDUCTOR else "tvm",
)
def tuning(bench: gb.Bench, op: str, by: str) -> gb.Task:
    """An operator after tuning: its rate, and as `tuning` the seconds of tuning and compiling, with empty caches.

    `by` names the tuner and its effort: for Inductor none, max-autotune, and also coordinate descent; for TVM the
    number of MetaSchedule's trials. Each pays off against the tuner's own code without tuning."""
    dtype, rows, cols = ("float16", 32768, 4096) if bench.traits.is_gpu else ("float32", 2048, 1024)
    problem: Problem = (
        ProductProblem(bench, 4096, 14336, 4096, dtype) if op == "gemm_gelu" else Problem(bench, op, rows, cols, dtype)
    )
    problem.expected()  # draws the inputs, which is no part of tuning
    if by in _INDUCTOR:
        _libraries.start_inductor(bench)
    with Caches() as caches, with_environment(caches.environment):
        begun = time.perf_counter()
        if by in _INDUCTOR:
            built = _libraries.build_inductor(bench, problem, _INDUCTOR[by])
        else:
            built = _by_tvm.build(bench, problem, _TRIALS[by])
        built.call()
        bench.device.synchronize()
        seconds = time.perf_counter() - begun
        task = task_of(bench, problem, by, built)
    call = replace(task.stages[""], work=gb.Work(), quantity="value", limit="", modes=("hot",))
    stages = {**task.stages, "call": call, "tuning": measured_before([seconds])}
    return replace(task, stages=stages, notes={**task.notes, "eager": "inductor" if by in _INDUCTOR else "tvm"})
