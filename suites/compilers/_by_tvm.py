"""Build operators by TVM from its tensor expressions: its LLVM compiles for the host, and it writes CUDA C++ for GPUs.

Rows are parallel on the host. On a GPU TVM's own rules schedule the operator, here or on the machine that carried
it."""

import importlib
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._carried import carried_or_compiled
from ._operators import OPERATORS, Problem
from ._providers import Built, no_operator
from ._tvm_cuda import TensorExpressions, compiled, imported

_DATA_PARALLEL = 0  # the kind of an axis that is not reduced (tirx.IterVar.DataPar)


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as TVM compiles it: one function over all rows in parallel, or one kernel on a GPU.

    The kernel computes in float32."""
    if problem.operator.name not in OPERATORS:
        raise no_operator("tvm", problem)
    if bench.traits.is_gpu:
        return carried_or_compiled(bench, problem, "tvm", "cu", compiled)
    return _on_host(problem)


def _on_host(problem: Problem) -> Built:
    """Compile `problem`'s operator by TVM, and return it as a function that runs on all threads of the host."""
    tvm = imported()
    processor = tvm.target.codegen.llvm_get_system_cpu()
    module = tvm.compile(scheduled(tvm, problem), target=tvm.target.Target({"kind": "llvm", "mcpu": processor}))
    shapes = [array.shape for array in problem.inputs.values()]
    tensors = [  # TVM allocates them with the alignment that its code needs
        tvm.runtime.empty(shape, problem.dtype)
        for shape in (*shapes, *[problem.output_shape] * problem.operator.outputs)
    ]
    arrays = [np.from_dlpack(tensor) for tensor in tensors]  # the same memory
    inputs, outputs = arrays[: len(shapes)], arrays[len(shapes) :]

    def poison() -> None:
        for copied, array in zip(inputs, problem.inputs.values(), strict=True):
            np.copyto(copied, array)
        for output in outputs:
            output.fill(float("nan"))

    poison()
    notes = {"library": f"TVM {tvm.__version__}, LLVM for {processor}", "precision": f"computed in {problem.dtype}"}
    return Built(
        partial(module["main"], *tensors),
        lambda: tuple(problem.rows_of(array) for array in outputs),
        poison,
        notes,
    )


def scheduled(tvm: Any, problem: Problem) -> Any:
    """Return `problem`'s operator as TVM's module of one function: rows in parallel, the steps of a row in order.

    `tvm` is the module tvm."""
    te, topi = tvm.te, tvm.topi
    inputs = [te.placeholder(problem.shape_of(name), problem.dtype, name) for name in problem.operator.inputs]
    outputs = problem.operator.outputs_of(TensorExpressions(topi), *inputs)
    function = te.create_prim_func([*inputs, *outputs])
    schedule = importlib.import_module("tvm.s_tir").Schedule(tvm.IRModule({"main": function}))
    root = schedule.get_sblock("root")
    results = {schedule.get(block).name_hint for block in schedule.get_output_blocks(root)}
    for block in schedule.get_child_blocks(root):
        step = schedule.get(block)
        is_elementwise = all(axis.iter_type == _DATA_PARALLEL for axis in step.iter_vars)
        if is_elementwise and step.name_hint not in results and len(schedule.get_consumers(block)) == 1:
            schedule.compute_inline(block)
    *before, last = schedule.get_child_blocks(root)
    row = schedule.get_loops(last)[0]
    schedule.parallel(row)
    for block in reversed(before):
        if schedule.get(block).name_hint in results:  # only the loop of the last output can hold the other steps
            schedule.parallel(schedule.get_loops(block)[0])
        else:
            schedule.compute_at(block, row, preserve_unit_loops=True)
    return schedule.mod
