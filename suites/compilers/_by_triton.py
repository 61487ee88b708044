"""Build operators as Triton kernels of our own, with a configuration that the shape fixes, so that nothing is tuned."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gpubench.api import suite as gb

from .._triton import TritonArray, on_stream, without_torch
from . import _triton_kernels as kernels
from ._operators import EPSILON, POINTWISE, Problem
from ._providers import Built, Outputs, Varied, no_operator
from ._static import of_triton

_ELEMENTS = 2048  # elements of a pointwise chain in each program
_WARPS = 4
_THREAD_ELEMENTS = 16, 32  # elements per thread of a short and of a long row, unless that needs too many warps
_SHORT = 2048  # the most elements of a short row
_MOST_WARPS = 32


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as one fused kernel in Triton, compiled by a first call, with preallocated outputs.

    Raises Skip if this module has no kernel for the operator or on other vendors' GPUs, and Unavailable without
    Triton."""
    name = problem.operator.name
    if name not in (*POINTWISE, *kernels.ROWS):
        raise no_operator("triton", problem)
    triton = _loaded(bench)
    outputs = Outputs(bench, problem)
    arrays = _arrays(problem, outputs)
    call = _elements_call(triton, problem, arrays) if name in POINTWISE else _row_operator_call(triton, problem, arrays)
    with without_torch():
        call()
    built = _built(triton, call, outputs)
    if bench.target.tier != "full":
        return built
    return replace(built, static=lambda: of_triton(call(), call.programs, bench.target.device))


def varied(bench: gb.Bench, problems: Sequence[Problem]) -> Varied:
    """Return one kernel for problems of different row lengths; Triton compiles it for each kind of argument.

    The result counts the compilations of this kernel. Raises Unavailable without Triton."""
    triton = _loaded(bench)
    kernel = triton.jit(kernels.ROWS[problems[0].operator.name])
    compiled = []

    def note(*, fn: Any, **_of: Any) -> None:
        if fn.jit_function is kernel:
            compiled.append(fn.name)

    triton.knobs.runtime.jit_post_compile_hook = note
    built = []
    for problem in problems:
        outputs = Outputs(bench, problem)
        built.append(_built(triton, rows_call(kernel, problem, _arrays(problem, outputs)), outputs))
    return Varied(built, lambda: len(compiled))


def _loaded(bench: gb.Bench) -> Any:
    """Return the module triton on the stream that is timed, with our kernels ready for it."""
    triton = on_stream(bench)
    kernels.load(triton.language)
    return triton


def _arrays(problem: Problem, outputs: Outputs) -> list[TritonArray]:
    return [TritonArray(array, problem.dtype) for array in (*problem.inputs.values(), *outputs.arrays)]


def _built(triton: Any, call: TritonCall, outputs: Outputs) -> Built:
    """Return a launch, whose outputs are `outputs`, as a built operator with notes on its configuration."""
    notes = {"library": f"Triton {triton.__version__}", "precision": "computed in float32, multiply-adds fused"}
    notes["configuration"] = call.words
    return Built(call, outputs.rows, outputs.poison, notes)


class TritonCall:
    """The launch of a kernel by Triton's own launcher, with its arguments and options.

    `words` describes the configuration for the notes."""

    def __init__(self, kernel: Any, programs: int, arguments: tuple[Any, ...], warps: int, **constants: Any) -> None:
        options = {"num_warps": warps, "enable_fp_fusion": True}  # Triton 3.10 changes the defaults
        self._launch = functools.partial(kernel[(programs,)], *arguments, **constants, **options)
        self.programs = programs
        self.words = f"{constants['block']} elements and {warps} warps in each of {programs} programs"

    def __call__(self) -> Any:
        """Launch the kernel, and return Triton's object of the compiled kernel."""
        return self._launch()


@functools.cache
def _jitted(triton: Any, function: Callable[..., None]) -> Any:
    """Return `function` as a kernel of Triton (`triton` is the module); later calls return the same kernel."""
    return triton.jit(function)


def _elements_call(triton: Any, problem: Problem, arrays: list[TritonArray]) -> TritonCall:
    """Return the launch of a pointwise operator, with a program for each 2048 elements.

    `arrays` are the inputs and then the output; `triton` is the module."""
    *inputs, out = arrays
    a, b, c = (*inputs, *[inputs[0]] * (3 - len(inputs)))
    kernel, programs = _jitted(triton, kernels.elements), -(-problem.elements // _ELEMENTS)
    arguments = a, b, c, out, problem.elements, problem.cols
    return TritonCall(kernel, programs, arguments, _WARPS, chain=problem.operator.name, block=_ELEMENTS)


def _row_operator_call(triton: Any, problem: Problem, arrays: list[TritonArray]) -> TritonCall:
    return rows_call(_jitted(triton, kernels.ROWS[problem.operator.name]), problem, arrays)


def rows_call(kernel: Any, problem: Problem, arrays: list[TritonArray]) -> TritonCall:
    """Return the launch of a kernel on rows, with one program for each row.

    `kernel` is Triton's, `arrays` are the inputs and then the outputs."""
    block = 1 << (problem.cols - 1).bit_length()
    warps = min(_MOST_WARPS, max(1, block // (32 * _THREAD_ELEMENTS[block > _SHORT])))
    epsilon = {} if problem.operator.name == "softmax" else {"epsilon": EPSILON}
    return TritonCall(kernel, problem.rows, (*arrays, problem.cols), warps, **epsilon, block=block)
