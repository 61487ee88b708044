"""Build operators by array libraries from their plain expressions, and by CuPy's own fusion."""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._torch import on_stream, with_compiler
from ._images import ConvolutionProblem
from ._operators import EPSILON, Problem
from ._providers import Built, Expression, Outputs, Varied, imported

_INSTALL_JAX = gb.installation.with_extra("jax")


def build_numpy(_bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as an expression of NumPy on one thread: each operation is a loop over memory."""
    expression = Expression(problem, partial(problem.operator.expression, np))
    return expression.built(f"NumPy {np.__version__}", f"every operation in {problem.dtype}")


def build_cupy(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as an expression of CuPy: each operation is a kernel with a result in memory."""
    cupy, expression = bench.xp, Expression(problem, partial(problem.operator.expression, bench.xp))
    temporary = partial(_cupy_bytes, cupy, expression)
    return expression.built(f"CuPy {cupy.__version__}", f"every operation in {problem.dtype}", temporary=temporary)


class _Fusion:
    """A factory of CuPy's kernels; `cupy` is the module."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def elementwise(self, inputs: str, body: str) -> Any:
        """Return an ElementwiseKernel from its inputs and the operation that sets z, of type T, in CUDA C++."""
        return self._cupy.ElementwiseKernel(inputs, "T z", body, "gpubench_pointwise")

    def reduction(self, inputs: str, mapped: str, joined: str = "a + b", start: str = "0") -> Callable[..., Any]:
        """Return a reduction of rows to float32: `mapped` for an element, `joined` for a and b, from `start`."""
        parts = "float32 z", mapped, joined, "z = a", start, "gpubench_reduction"
        return partial(self._cupy.ReductionKernel(inputs, *parts), axis=1, keepdims=True)


def build_cupy_fused(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as a pointwise kernel of CuPy, after reductions for an operator on rows."""
    fuse, outputs, fused = _Fusion(bench.xp), Outputs(bench, problem), problem.operator.kernels["cupy-fused"]
    arrays = (*problem.inputs.values(), *outputs.arrays)
    call = partial(fuse.elementwise(*fused), *arrays) if isinstance(fused, tuple) else fused(fuse, *arrays)
    temporary = partial(_cupy_bytes, bench.xp, call)
    return outputs.built(call, f"CuPy {bench.xp.__version__}", "computed in float32", temporary=temporary)


def _cupy_bytes(cupy: Any, call: Callable[[], object]) -> float:
    """Return by how many bytes the peak use of CuPy's memory pool during `call` exceeds its use before the call."""
    current_and_peak = [0, 0]  # bytes

    class Held(cupy.cuda.MemoryHook):  # type: ignore[misc]  # CuPy has no types
        """A hook of CuPy's memory that counts the bytes in use, and their peak."""

        name = "gpubench"

        def malloc_postprocess(self, **of: int) -> None:
            current_and_peak[0] += of["mem_size"]
            current_and_peak[1] = max(current_and_peak)

        def free_postprocess(self, **of: int) -> None:
            current_and_peak[0] -= of["mem_size"]

    with Held():
        call()
    return float(current_and_peak[1])


def build_torch(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as torch's own functions in eager mode; raises Unavailable without torch."""
    torch = on_stream(bench)
    function = _torch_function(torch, problem)
    return _by_torch(bench, problem, torch, function, f"results of every function in {problem.dtype}")


def build_inductor(bench: gb.Bench, problem: Problem, options: Mapping[str, bool] | None = None) -> Built:
    """Return the functions of `build_torch` as torch.compile fuses them at the first call, for this shape alone.

    `options` are settings of Inductor, such as `max_autotune`."""
    torch = with_compiler(bench)
    chosen = dict(options) if options else None
    function = torch.compile(_torch_function(torch, problem), fullgraph=True, dynamic=False, options=chosen)
    return _by_torch(bench, problem, torch, function, _INDUCTOR)


def start_inductor(bench: gb.Bench) -> None:
    """Compile a small function, so that what torch's compiler starts once a process is over."""
    torch = with_compiler(bench)
    torch.compile(torch.sin)(torch.ones(64, device="cuda" if bench.traits.is_gpu else "cpu"))


def varied_inductor(bench: gb.Bench, problems: Sequence[Problem]) -> Varied:
    """Return one function, compiled by torch, for problems whose rows have different lengths."""
    torch = with_compiler(bench)
    stats = importlib.import_module("torch._dynamo.utils").counters["stats"]
    before = stats["unique_graphs"]
    function = torch.compile(_torch_function(torch, problems[0]), fullgraph=True)
    built = [_by_torch(bench, problem, torch, function, _INDUCTOR) for problem in problems]
    return Varied(built, lambda: int(stats["unique_graphs"] - before))


_INDUCTOR = "as Inductor computes: float32 within a kernel"


def _torch_function(torch: Any, problem: Problem) -> Callable[..., Any]:
    """Return `problem`'s operator as a function of torch's tensors: torch's own functions where torch has them."""
    functional = torch.nn.functional
    if isinstance(problem, ConvolutionProblem):
        convolve = partial(functional.conv2d, stride=problem.shape.stride, padding=problem.shape.padding)
        if problem.layout == "nchw":
            return lambda x, filters: functional.relu(convolve(x, filters))
        turned, back = (0, 3, 1, 2), (0, 2, 3, 1)  # NHWC is torch's memory format channels_last
        return lambda x, filters: functional.relu(convolve(x.permute(turned), filters.permute(turned))).permute(back)

    def rmsnorm(x: Any, weight: Any) -> Any:
        return functional.rms_norm(x, weight.shape, weight, EPSILON)

    def residual_norm(x: Any, residual: Any, weight: Any) -> Any:
        summed = x + residual
        return summed, rmsnorm(summed, weight)

    functions: dict[str, Callable[..., Any]] = {
        "bias-gelu": lambda x, bias: functional.gelu(x + bias, approximate="tanh"),
        "swiglu": lambda gate, up: functional.silu(gate) * up,
        "softmax": lambda x: functional.softmax(x, dim=-1),
        "rmsnorm": rmsnorm,
        "layernorm": lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias, EPSILON),
        "residual_norm": residual_norm,
        "gemm_gelu": lambda a, weights, bias: functional.gelu(a @ weights + bias, approximate="tanh"),
    }
    return functions.get(problem.operator.name) or partial(problem.operator.expression, torch)


def _by_torch(bench: gb.Bench, problem: Problem, torch: Any, function: Callable[..., Any], precision: str) -> Built:
    """Return `function` of torch's tensors, which share our inputs by DLPack, as a built operator."""
    expression = Expression(problem, function, torch.from_dlpack, bench.xp.from_dlpack)

    def temporary() -> float:
        """Return by how many bytes the peak use of torch's allocator during a call exceeds its use before."""
        expression.poison()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        expression()
        return float(torch.cuda.max_memory_allocated() - before)

    held = temporary if bench.traits.is_gpu else None
    return expression.built(f"torch {torch.__version__}", precision, temporary=held)


def build_jax(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as XLA compiles it at its first call, on inputs that JAX shares by DLPack.

    On a GPU XLA queues its work on its own stream, which only the host's clock times, and the result has a `wait`."""
    jax, is_beside = jax_of(bench), bench.traits.is_gpu
    compiled = jax.jit(_jax_function(jax, problem))

    def function(*inputs: Any) -> Any:
        outputs = compiled(*inputs)
        if not is_beside:  # on the host some calls return before their end
            jax.block_until_ready(outputs)
        return outputs

    expression = Expression(problem, function, jax.dlpack.from_dlpack, bench.xp.from_dlpack)
    wait = (lambda: jax.block_until_ready(expression.outputs)) if is_beside else None
    return expression.built(f"JAX {jax.__version__}", "as XLA computes: float32 within a kernel", wait=wait)


def jax_of(bench: gb.Bench) -> Any:
    """Return the module jax, which takes device memory as it needs it."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax, _ = imported("JAX", _INSTALL_JAX, "jax", "jax.dlpack")
    if not bench.traits.is_gpu:
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    elif jax.default_backend() != "gpu":
        raise gb.Unavailable(f"JAX {jax.__version__} finds no GPU", f"{_INSTALL_JAX} (for CUDA 13)")
    return jax


def _jax_function(jax: Any, problem: Problem) -> Callable[..., Any]:
    """Return `problem`'s operator as a function of JAX's arrays."""
    if not isinstance(problem, ConvolutionProblem):
        return partial(problem.operator.expression, jax.numpy)
    layouts = ("NCHW", "OIHW", "NCHW") if problem.layout == "nchw" else ("NHWC", "OHWI", "NHWC")
    strides, padding = (problem.shape.stride,) * 2, ((problem.shape.padding,) * 2,) * 2
    convolve = partial(jax.lax.conv_general_dilated, window_strides=strides, padding=padding, dimension_numbers=layouts)
    return lambda x, filters: jax.nn.relu(convolve(x, filters))
