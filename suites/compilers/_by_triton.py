"""Build operators as Triton kernels of our own, with a configuration that the shape fixes, so that nothing is tuned."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpubench.api import suite as gb

from .._triton import TritonArray, on_stream, without_torch
from ._operators import EPSILON, POINTWISE, Problem, load_kernels
from ._providers import Built, Outputs, Varied
from ._static import of_triton

_ELEMENTS, _ELEMENTS_WARPS = 2048, 4  # of a pointwise chain in each program
_THREAD_ELEMENTS = 16, 32  # elements per thread of a short and of a long row, unless that needs too many warps
_SHORT = 2048  # the most elements of a short row
_MOST_WARPS = 32


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as one fused kernel in Triton, compiled by a first call, with preallocated outputs.

    Raises Skip on other vendors' GPUs, and Unavailable without Triton."""
    triton = _loaded(bench)
    built = _built(bench, triton, _jitted(triton, problem.operator.kernels["triton"]), problem)
    with without_torch():
        built.call()
    return built


def varied(bench: gb.Bench, problems: Sequence[Problem]) -> Varied:
    """Return one kernel for problems of different row lengths; Triton compiles it for each kind of argument.

    The result counts the compilations of this kernel. Raises Unavailable without Triton."""
    triton = _loaded(bench)
    kernel = triton.jit(problems[0].operator.kernels["triton"])
    compiled = []

    def note(*, fn: Any, **_of: Any) -> None:
        if fn.jit_function is kernel:
            compiled.append(fn.name)

    triton.knobs.runtime.jit_post_compile_hook = note
    return Varied([_built(bench, triton, kernel, problem) for problem in problems], lambda: len(compiled))


def _loaded(bench: gb.Bench) -> Any:
    """Return the module triton on the stream that is timed, with our kernels ready for it."""
    triton = on_stream(bench)
    load_kernels(tl=triton.language, constexpr=triton.language.constexpr)
    return triton


@functools.cache
def _jitted(triton: Any, function: Callable[..., None]) -> Any:
    """Return `function` as a kernel of Triton (`triton` is the module); later calls return the same kernel."""
    return triton.jit(function)


def _built(bench: gb.Bench, triton: Any, kernel: Any, problem: Problem) -> Built:
    """Return an operator as a launch by Triton's own launcher; a program takes 2048 elements of a chain, or a row."""
    name, outputs = problem.operator.name, Outputs(bench, problem)
    *inputs, out = [TritonArray(array, problem.dtype) for array in (*problem.inputs.values(), *outputs.arrays)]
    constants: dict[str, Any] = {}
    if name in POINTWISE:
        elements, block, warps = problem.rows * problem.cols, _ELEMENTS, _ELEMENTS_WARPS
        programs, constants["chain"] = -(-elements // _ELEMENTS), name
        arguments = (*inputs, *[inputs[0]] * (3 - len(inputs)), out, elements, problem.cols)
    else:
        programs, block = problem.rows, 1 << (problem.cols - 1).bit_length()
        warps = min(_MOST_WARPS, max(1, block // (32 * _THREAD_ELEMENTS[block > _SHORT])))
        arguments = (*inputs, out, problem.cols)
        if name != "softmax":
            by_name = dict(zip(problem.operator.inputs, inputs, strict=False))
            summed = inputs[-1]  # the first of two outputs
            x, weight = by_name["x"], by_name["weight"]
            arguments = (x, by_name.get("residual", x), weight, by_name.get("bias", x), summed, out, problem.cols)
            constants |= {"norm": name, "epsilon": EPSILON}
    options = {"num_warps": warps, "enable_fp_fusion": True}  # Triton 3.10 changes the defaults
    launch = partial(kernel[(programs,)], *arguments, **constants, block=block, **options)
    configuration = f"{block} elements and {warps} warps in each of {programs} programs"
    precision = "computed in float32, multiply-adds fused"
    static = partial(_static, launch, programs, bench.target.device) if bench.target.tier == "full" else None
    return outputs.built(launch, f"Triton {triton.__version__}", precision, configuration=configuration, static=static)


def _static(launch: Callable[[], Any], programs: int, device: gb.Device) -> Mapping[str, gb.Observed]:
    return of_triton(launch(), programs, device)  # a launch returns Triton's compiled kernel
