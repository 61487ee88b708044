"""Build operators as our own fused kernels, compiled at run time, which show what a compiler could reach."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpubench.api import suite as gb

from ._images import FoldingProblem, ImageProblem
from ._operators import ITEM_BYTES, POINTWISE, Problem
from ._providers import Built, Outputs
from ._static import of_code, of_launch

_VECTOR_BYTES = 16
_POINTWISE_THREADS = 128
_VECTORS = {"layernorm": 4}  # of a row in each thread, where that takes neither too few nor too many threads; else 2
_LEAST_THREADS = 64
_USUAL_THREADS, _USUAL_VECTORS = 512, 8  # a block has more threads if they would have more vectors; softmax always may
_MOST_THREADS = 1024
_MOST_COLUMNS = 1024 * 32  # 1024 threads have 64 registers each


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator, compiled as one fused kernel of rows.cu or layout.cu, with preallocated outputs.

    Raises Skip if neither file has a kernel for this shape."""
    if isinstance(problem, ImageProblem | FoldingProblem):
        outputs = Outputs(bench, problem)
        launch = problem.launch(bench, outputs.arrays[0])
        static: Callable[[], gb.Observation] = partial(of_launch, launch)
        return outputs.built(launch, "layout.cu", "computed in float32", kernels="1", static=static)
    if problem.cols * ITEM_BYTES[problem.dtype] % _VECTOR_BYTES:
        raise gb.Skip(f"a row of {problem.cols} elements is no multiple of {_VECTOR_BYTES} bytes")
    name, vectors = problem.operator.name, problem.cols * ITEM_BYTES[problem.dtype] // _VECTOR_BYTES
    if name not in POINTWISE and problem.cols > _MOST_COLUMNS:
        raise gb.Skip(f"a row of {problem.cols} elements does not fit into the registers of a block")
    outputs, inputs = Outputs(bench, problem), problem.inputs
    halves, number = int(problem.dtype == "float16"), problem.operator.kernels["nvrtc"]
    defines = {"OPERATOR": number, "HALVES": halves, "COLS": problem.cols}
    args: tuple[Any, ...]
    if name in POINTWISE:
        kernel, count = "elements", problem.rows * vectors
        blocks, defines["THREADS"] = -(-count // _POINTWISE_THREADS), _POINTWISE_THREADS
        first, *others = inputs.values()
        args = (first, *others, *[first] * (2 - len(others)), outputs.arrays[0], np.uint64(count))
    else:
        kernel, blocks = "rows", problem.rows
        defines |= {"THREADS": threads_of(name, vectors, bench.traits.warp), "LANES": bench.traits.warp}
        x: Any = inputs["x"]
        weight = inputs.get("weight", x)
        ends = outputs.arrays[0], outputs.arrays[-1]
        args = (x, inputs.get("residual", x), weight, inputs.get("bias", weight), *ends)
    launch = partial(bench.kernel("rows.cu", kernel, **defines), (blocks,), (defines["THREADS"],), args)
    static = partial(static_of, bench, kernel, defines, launch)
    return outputs.built(launch, "rows.cu", "computed in float32", kernels="1", static=static)


def static_of(bench: gb.Bench, name: str, defines: Mapping[str, int], launch: partial[None]) -> gb.Observation:
    """Return the resources of a launch and, on an NVIDIA GPU in the full tier, the instructions of its kernel, by name.

    `launch` binds its grid, block and arguments; `name` and `defines` are the kernel of rows.cu and its macros."""
    observed = of_launch(launch)
    if bench.traits.vendor != "nvidia" or bench.target.tier != "full":
        return observed
    (blocks,), (threads,), *_ = launch.args
    coder: Any = CodeOfKernels(bench.xp.cuda.nvrtc, bench.traits.architecture.target)
    code: Any = replace(bench, open_device=coder).kernel("rows.cu", name, **defines)
    return {**observed, **of_code(code, name, blocks * threads // bench.traits.warp, bench.target.device)}


class CodeOfKernels(NamedTuple):
    """A device whose kernels are their machine code, by CuPy's binding of NVRTC: CuPy keeps no code of a kernel."""

    nvrtc: Any
    arch: str

    def kernel(self, source: str, _name: str, defines: Mapping[str, str | int]) -> bytes:
        """Return the machine code (a cubin) of `source` with the macros `defines`."""
        program = self.nvrtc.createProgram(source, "kernel.cu", (), ())
        macros = (f"-D{name}={value}" for name, value in defines.items())
        try:
            self.nvrtc.compileProgram(program, (f"--gpu-architecture={self.arch}", "--std=c++17", *macros))
            return bytes(self.nvrtc.getCUBIN(program))
        finally:
            self.nvrtc.destroyProgram(program)


def threads_of(name: str, vectors: int, warp: int) -> int:
    """Return the threads of a block for a row of `vectors` vectors of 16 bytes.

    `name` is the operator's, and `warp` is the warp's number of threads."""
    threads = 1 << (-(-vectors // _VECTORS.get(name, 2)) - 1).bit_length()
    is_large = name == "softmax" or vectors > _USUAL_THREADS * _USUAL_VECTORS
    return min(_MOST_THREADS if is_large else _USUAL_THREADS, max(_LEAST_THREADS, warp, threads))
