"""torch.compile: Inductor fuses what `_by_torch.py` calls one by one into kernels of its own, in Triton or C++.

The kernels of a shape are compiled when the case is built, in this process: no worker of the compiler is left behind.
"""

from __future__ import annotations

import importlib
from typing import Any

from gpubench.api.suite import Bench

from ._by_torch import built_of, function_of, on_stream
from ._operators import Problem
from ._providers import Built


def build(bench: Bench, problem: Problem) -> Built:
    """Return the compiled operator, for this shape alone; raises Missing without torch."""
    torch = _in_this_process(bench)
    notes = {"library": f"torch {torch.__version__}", "precision": "as Inductor computes: float32 within a kernel"}
    return built_of(bench, problem, torch, _compiled(torch, problem, dynamic=False), notes)


def _in_this_process(bench: Bench) -> Any:
    """Return the module torch on our stream, with a compiler that has met no operator and starts no process."""
    torch = on_stream(bench)
    config: Any = importlib.import_module("torch._inductor.config")
    config.compile_threads = 1
    torch.compiler.reset()
    return torch


def _compiled(torch: Any, problem: Problem, dynamic: bool | None) -> Any:
    return torch.compile(function_of(torch, problem), fullgraph=True, dynamic=dynamic)
