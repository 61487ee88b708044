"""Build operators by torch in eager mode, with its own functions: the result of each goes through memory."""

from collections.abc import Callable
from functools import partial
from typing import Any

from gpubench.api import suite as gb

from .._torch import imported
from ._convolution import ConvolutionProblem, by_torch
from ._operators import EPSILON, Problem
from ._providers import Built, Expression


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as torch's own functions on the problem's inputs, which torch shares by DLPack.

    Raises Unavailable without torch."""
    torch = on_stream(bench)
    notes = {"library": f"torch {torch.__version__}", "precision": f"results of every function in {problem.dtype}"}
    return built_of(bench, problem, torch, function_of(torch, problem), notes)


def function_of(torch: Any, problem: Problem) -> Callable[..., Any]:
    """Return `problem`'s operator as a function of torch's tensors, one tensor for each input of the problem.

    It calls torch's own functions where torch has them, as a user would, and else the operators of the tensors."""
    if isinstance(problem, ConvolutionProblem):
        return by_torch(torch, problem)
    functional = torch.nn.functional

    def bias_gelu(x: Any, bias: Any) -> Any:
        return functional.gelu(x + bias, approximate="tanh")

    def swiglu(gate: Any, up: Any) -> Any:
        return functional.silu(gate) * up

    def softmax(x: Any) -> Any:
        return functional.softmax(x, dim=-1)

    def rmsnorm(x: Any, weight: Any) -> Any:
        return functional.rms_norm(x, weight.shape, weight, EPSILON)

    def layernorm(x: Any, weight: Any, bias: Any) -> Any:
        return functional.layer_norm(x, weight.shape, weight, bias, EPSILON)

    def residual_norm(x: Any, residual: Any, weight: Any) -> Any:
        summed = x + residual
        return summed, rmsnorm(summed, weight)

    def gemm_gelu(a: Any, weights: Any, bias: Any) -> Any:
        return functional.gelu(a @ weights + bias, approximate="tanh")

    functions = (bias_gelu, swiglu, softmax, rmsnorm, layernorm, residual_norm, gemm_gelu)
    by_name = {function.__name__: function for function in functions}
    return by_name.get(problem.operator.name.replace("-", "_")) or partial(problem.operator.expression, torch)


def on_stream(bench: gb.Bench) -> Any:
    """Return the module torch, set to the stream that is timed; frees the memory that torch keeps unused.

    Raises Unavailable without torch, or on a GPU that torch does not find."""
    torch = imported(bench.traits.is_gpu)
    if bench.traits.is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.set_stream(torch.cuda.ExternalStream(bench.device.stream))
    return torch


def built_of(
    bench: gb.Bench, problem: Problem, torch: Any, function: Callable[..., Any], notes: dict[str, str]
) -> Built:
    """Return `function`, which takes and returns torch's tensors, as a built operator.

    The inputs are ours, which torch reads by DLPack, and torch allocates the outputs. `torch` is the module."""
    expression = Expression(problem, function, torch.from_dlpack, bench.xp.from_dlpack)
    temporary = partial(_peak_bytes_of_call, torch, expression) if bench.traits.is_gpu else None
    return Built(expression, expression.rows, expression.poison, notes, temporary=temporary)


def _peak_bytes_of_call(torch: Any, expression: Expression) -> float:
    """Return by how many bytes the peak use of torch's allocator during a call exceeds its use before the call."""
    expression.poison()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    expression()
    return float(torch.cuda.max_memory_allocated() - before)
