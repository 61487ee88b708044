"""Build operators by torch.compile: Inductor fuses the functions that `_by_torch.py` calls one by one.

The kernels of a shape are compiled when the case is built, in this process: no worker of the compiler is left
behind."""

import importlib
from collections.abc import Sequence
from typing import Any

from gpubench.api import suite as gb

from ._by_torch import built_of, function_of, on_stream
from ._operators import Problem
from ._providers import Built, Varied


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as a function that torch.compile compiles at its first call, for this shape alone.

    Raises Unavailable without torch."""
    torch = _torch_in_this_process(bench)
    function = torch.compile(function_of(torch, problem), fullgraph=True, dynamic=False)
    return built_of(bench, problem, torch, function, _notes(torch))


def varied(bench: gb.Bench, problems: Sequence[Problem]) -> Varied:
    """Return one function, compiled by torch, for problems whose rows have different lengths.

    Raises Unavailable without torch."""
    torch = _torch_in_this_process(bench)
    counters = importlib.import_module("torch._dynamo.utils").counters
    before = counters["stats"]["unique_graphs"]
    function = torch.compile(function_of(torch, problems[0]), fullgraph=True)
    built = [built_of(bench, problem, torch, function, _notes(torch)) for problem in problems]
    return Varied(built, lambda: int(counters["stats"]["unique_graphs"] - before))


def _notes(torch: Any) -> dict[str, str]:
    return {"library": f"torch {torch.__version__}", "precision": "as Inductor computes: float32 within a kernel"}


def _torch_in_this_process(bench: gb.Bench) -> Any:
    """Return the module torch, set to our stream, with a compiler that is reset and works in this process alone."""
    torch = on_stream(bench)
    config: Any = importlib.import_module("torch._inductor.config")
    config.compile_threads = 1
    torch.compiler.reset()
    return torch
