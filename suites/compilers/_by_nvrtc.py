"""Our own fused kernels, compiled at run time: what a compiler could attain with all of an operator in one kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpubench.api.suite import Bench, Skip

from . import _layout_nvrtc
from ._folding import FoldingProblem
from ._layout import ImageProblem
from ._operators import ITEM_BYTES, POINTWISE, Problem
from ._providers import Built, Outputs, lacks
from ._static import of_launch

_NUMBERS = {
    name: number for number, name in enumerate((*POINTWISE, "softmax", "rmsnorm", "layernorm", "residual_norm"))
}  # as rows.cu counts them
_VECTOR_BYTES = 16
_POINTWISE_THREADS = 256
_WARPS = 4  # rows of a block whose threads are one warp for each row
_VECTORS = 4  # of a row in each of its threads, up to _THREADS of them
_THREADS = 512
_HELD = 8  # vectors of a thread in registers: further ones are in shared memory
_KEPT = 4  # vectors of a thread whose elements stay converted
_RESIDENT_THREADS = 1024  # of the blocks that a multiprocessor holds at least, so that one loads while another waits


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """How rows.cu lays out rows: threads of a row, rows of a block, vectors of a thread, those of them in registers.

    `keeps` says whether a thread keeps its elements converted to float, and `resident` how many blocks share a
    multiprocessor.
    """

    threads: int
    rows: int
    vectors: int
    held: int
    keeps: bool
    resident: int

    @classmethod
    def of(cls, vectors: int, rows: int, warp: int) -> RowsPlan:
        """Return the plan for rows of so many vectors."""
        threads = min(_THREADS, max(warp, 2 ** math.ceil(math.log2(max(vectors / _VECTORS, 1)))))
        of_thread = -(-vectors // threads)
        of_block = _WARPS if threads == warp and rows % _WARPS == 0 else 1
        resident = max(1, _RESIDENT_THREADS // (threads * of_block))
        return cls(threads, of_block, of_thread, min(of_thread, _HELD), of_thread <= _KEPT, resident)

    @property
    def shared_bytes(self) -> int:
        """The shared memory of a block."""
        return (self.vectors - self.held) * self.threads * self.rows * _VECTOR_BYTES


def build(bench: Bench, problem: Problem) -> Built:
    """Return the operator as one kernel of rows.cu; raises Skip where it has none, or a row is too long for a block."""
    if isinstance(problem, ImageProblem):
        return _layout_nvrtc.build(bench, problem)
    if isinstance(problem, FoldingProblem):
        return _layout_nvrtc.folding(bench, problem)
    name = problem.operator.name
    if name not in _NUMBERS:
        raise lacks("nvrtc", problem)
    outputs = Outputs(bench, problem)
    launch = (_elements if name in POINTWISE else _rows)(bench, problem, outputs)
    notes = {"library": "rows.cu", "precision": "computed in float32", "kernels": "1"}
    return Built(launch, outputs.rows, outputs.poison, notes, static=partial(of_launch, launch))


def _defines(problem: Problem, threads: int) -> dict[str, int]:
    number = _NUMBERS[problem.operator.name]
    return {"OPERATOR": number, "HALVES": int(problem.dtype == "float16"), "COLS": problem.cols, "THREADS": threads}


def _elements(bench: Bench, problem: Problem, outputs: Outputs) -> partial[None]:
    inputs = list(problem.inputs.values())
    vectors = problem.elements * ITEM_BYTES[problem.dtype] // _VECTOR_BYTES
    kernel = bench.kernel("rows.cu", "elements", **_defines(problem, _POINTWISE_THREADS))
    a, b, c = (*inputs, *[inputs[0]] * (3 - len(inputs)))
    blocks = -(-vectors // _POINTWISE_THREADS)
    return partial(kernel, (blocks,), (_POINTWISE_THREADS,), (a, b, c, outputs.arrays[0], np.uint64(vectors)))


def _rows(bench: Bench, problem: Problem, outputs: Outputs) -> partial[None]:
    vectors = problem.cols * ITEM_BYTES[problem.dtype] // _VECTOR_BYTES
    plan = RowsPlan.of(vectors, problem.rows, bench.traits.warp)
    if plan.shared_bytes * plan.resident > bench.traits.max_shared_bytes:
        raise Skip(f"a row of {problem.cols} elements does not fit into the registers and shared memory of a block")
    layout = {"ROWS": plan.rows, "HELD": plan.held, "KEEPS": int(plan.keeps), "RESIDENT": plan.resident}
    kernel = bench.kernel("rows.cu", "rows", **_defines(problem, plan.threads), **layout, LANES=bench.traits.warp)
    inputs, arrays = problem.inputs, outputs.arrays
    x: Any = inputs["x"]
    weight = inputs.get("weight", x)
    args = (x, inputs.get("residual", x), weight, inputs.get("bias", weight), arrays[0], arrays[-1])
    return partial(kernel, (problem.rows // plan.rows,), (plan.threads * plan.rows,), args, plan.shared_bytes)
