"""Build operators as our own fused kernels, compiled at run time, which show what a compiler could reach."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from . import _layout_nvrtc
from ._folding import FoldingProblem
from ._layout import ImageProblem
from ._offline import OfflineDevice, nvrtc
from ._operators import ITEM_BYTES, POINTWISE, Problem
from ._providers import Built, Outputs, no_operator
from ._static import of_code, of_launch

_NUMBERS = {
    name: number for number, name in enumerate((*POINTWISE, "softmax", "rmsnorm", "layernorm", "residual_norm"))
}  # as rows.cu counts them
_VECTOR_BYTES = 16
_POINTWISE_THREADS = 128
_VECTORS = {"layernorm": 4}  # of a row in each thread, where that takes neither too few nor too many threads; else 2
_LEAST_THREADS = 64
_USUAL_THREADS, _USUAL_VECTORS = 512, 8  # a block has more threads if they would have more vectors; softmax always may
_MOST_THREADS = 1024
_MOST_COLUMNS = 1024 * 32  # 1024 threads have 64 registers each


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator, compiled as one fused kernel of rows.cu or layout.cu, with preallocated outputs.

    Raises Skip if neither file has a kernel for the operator and its shape."""
    if isinstance(problem, ImageProblem):
        return _layout_nvrtc.build(bench, problem)
    if isinstance(problem, FoldingProblem):
        return _layout_nvrtc.folding(bench, problem)
    name = problem.operator.name
    if name not in _NUMBERS:
        raise no_operator("nvrtc", problem)
    if problem.cols * ITEM_BYTES[problem.dtype] % _VECTOR_BYTES:
        raise gb.Skip(f"a row of {problem.cols} elements is no multiple of {_VECTOR_BYTES} bytes")
    outputs = Outputs(bench, problem)
    launch, static = (_elements_launch if name in POINTWISE else _rows_launch)(bench, problem, outputs)
    notes = {"library": "rows.cu", "precision": "computed in float32", "kernels": "1"}
    return Built(launch, outputs.rows, outputs.poison, notes, static=static)


_Launch = tuple[partial[None], Callable[[], Mapping[str, gb.Observed]]]  # a launch, and the values of its compiled code


def _launch_of(bench: gb.Bench, name: str, defines: Mapping[str, int], blocks: int, args: tuple[Any, ...]) -> _Launch:
    """Return the launch of the kernel `name` of rows.cu, and the function that returns its static values."""
    launch = partial(bench.kernel("rows.cu", name, **defines), (blocks,), (defines["THREADS"],), args)
    return launch, partial(static_of, bench, name, defines, launch)


def static_of(
    bench: gb.Bench, name: str, defines: Mapping[str, int], launch: partial[None]
) -> Mapping[str, gb.Observed]:
    """Return the resources of a launch and, on an NVIDIA GPU in the full tier, the instructions of its kernel, by name.

    `launch` is bound to its grid, block and arguments; `name` and `defines` are the kernel of rows.cu and its
    macros."""
    observed = of_launch(launch)
    if bench.traits.vendor != "nvidia" or bench.target.tier != "full":
        return observed
    (blocks,), (threads,), *_ = launch.args
    try:
        device = OfflineDevice(bench, {"sm_90": "sm_90a"}.get(bench.traits.arch, bench.traits.arch), nvrtc())
    except gb.Unavailable:
        return observed
    replace(bench, open_device=device).kernel("rows.cu", name, **defines)
    return {**observed, **of_code(device.code, name, blocks * threads // bench.traits.warp, bench.target.device)}


def _defines(problem: Problem, threads: int) -> dict[str, int]:
    """Return the macros of rows.cu, by name, for a problem whose blocks have `threads` threads."""
    number = _NUMBERS[problem.operator.name]
    return {"OPERATOR": number, "HALVES": int(problem.dtype == "float16"), "COLS": problem.cols, "THREADS": threads}


def _elements_launch(bench: gb.Bench, problem: Problem, outputs: Outputs) -> _Launch:
    """Return the launch of a pointwise operator, and the function that returns its static values (see `static_of`)."""
    inputs = list(problem.inputs.values())
    vectors = problem.elements * ITEM_BYTES[problem.dtype] // _VECTOR_BYTES
    a, b, c = (*inputs, *[inputs[0]] * (3 - len(inputs)))
    blocks = -(-vectors // _POINTWISE_THREADS)
    args = (a, b, c, outputs.arrays[0], np.uint64(vectors))
    return _launch_of(bench, "elements", _defines(problem, _POINTWISE_THREADS), blocks, args)


def _rows_launch(bench: gb.Bench, problem: Problem, outputs: Outputs) -> _Launch:
    """Return the launch of an operator on rows, and the function that returns its static values (see `static_of`)."""
    vectors = problem.cols * ITEM_BYTES[problem.dtype] // _VECTOR_BYTES
    threads = threads_of(problem.operator.name, vectors, bench.traits.warp)
    if problem.cols > _MOST_COLUMNS:
        raise gb.Skip(f"a row of {problem.cols} elements does not fit into the registers of a block")
    inputs, arrays = problem.inputs, outputs.arrays
    x: Any = inputs["x"]
    weight = inputs.get("weight", x)
    args = (x, inputs.get("residual", x), weight, inputs.get("bias", weight), arrays[0], arrays[-1])
    return _launch_of(bench, "rows", {**_defines(problem, threads), "LANES": bench.traits.warp}, problem.rows, args)


def threads_of(name: str, vectors: int, warp: int) -> int:
    """Return the threads of a block for a row of `vectors` vectors of 16 bytes.

    `name` is the operator's, and `warp` is the warp's number of threads."""
    threads = 1 << (-(-vectors // _VECTORS.get(name, 2)) - 1).bit_length()
    is_large = name == "softmax" or vectors > _USUAL_THREADS * _USUAL_VECTORS
    return min(_MOST_THREADS if is_large else _USUAL_THREADS, max(_LEAST_THREADS, warp, threads))
