"""Compile operators by TVM to CUDA C++ for NVIDIA GPUs, scheduled by its default rules, which needs no GPU here."""

import importlib
import re
from typing import Any

from gpubench.api import suite as gb

from ._carried import KernelShape, WrittenKernels, WrittenLaunch
from ._operators import OPERATORS, VECTORS

_INSTALL = "pip install 'gpubench-suite[tvm]'"
_RULES = "Matmul", "GEMV", "Reduction", "GeneralReduction", "Fallback"  # tvm.relax.backend.cuda.pipeline
_THREADS = 256  # of the block of a row, as in TVM's rule GeneralReduction
_DECLARED = re.compile(r'^extern "C" __global__ void __launch_bounds__\(\d+\) (\w+)\((.*)\);$', re.MULTILINE)
_OUTPUTS = {"output": "output0", "output_v0": "output0", "output_v1": "output1"}  # as TVM names them


def imported() -> Any:
    """Return the module tvm; raises Unavailable if it is not installed."""
    try:
        return importlib.import_module("tvm")
    except ImportError as error:
        raise gb.Unavailable("TVM is not installed", _INSTALL) from error


class TensorExpressions:
    """The functions that operators' expressions call, in TVM's tensor expressions; `topi` is the module tvm.topi."""

    def __init__(self, topi: Any) -> None:
        self._topi = topi
        self.exp, self.tanh, self.sqrt = topi.exp, topi.tanh, topi.sqrt
        self.amax, self.sum = topi.max, topi.sum

    def mean(self, x: Any, axis: int, keepdims: bool) -> Any:
        return self._topi.sum(x, axis, keepdims) / float(int(x.shape[axis]))


def compiled(shape: KernelShape) -> WrittenKernels:
    """Compile the operator of `shape` by TVM for the architecture of `shape`, and return its kernel in CUDA C++.

    The kernel computes in float32."""
    tvm = imported()
    target = tvm.target.Target({"kind": "cuda", "arch": shape.arch})
    unscheduled = tvm.IRModule({"main": _function(tvm, shape)})
    has_rule = OPERATORS[shape.operator].outputs == 1
    module = _by_rules(unscheduled, target) if has_rule else _by_rows(unscheduled)
    source = _source(tvm, module, target)
    kernels = _DECLARED.findall(source)
    if len(kernels) != 1:
        raise gb.Skip(f"TVM gives {shape.operator} {len(kernels)} kernels with memory between them")
    ((name, parameters),) = kernels
    names = (parameter.rpartition(" ")[2].removesuffix("_ptr") for parameter in parameters.split(", "))
    arguments = tuple(_OUTPUTS.get(name, name) for name in names)
    launch = WrittenLaunch(name, *_extents(tvm, module["main"]), arguments)
    order = tuple(range(OPERATORS[shape.operator].outputs))
    return WrittenKernels(f"TVM {tvm.__version__}", "cu", shape, (launch,), (), order, source)


def _function(tvm: Any, shape: KernelShape) -> Any:
    """Return the operator of `shape` as TVM's function without a schedule, with all outputs in one loop."""
    te, topi, operator = tvm.te, tvm.topi, OPERATORS[shape.operator]
    matrix = shape.rows, shape.cols
    inputs = [
        te.placeholder((shape.cols,) if name in VECTORS else matrix, shape.dtype, name) for name in operator.inputs
    ]
    wide = (topi.cast(values, "float32") for values in inputs)
    results = operator.outputs_of(TensorExpressions(topi), *wide)
    outputs = te.compute(matrix, lambda *at: tuple(result(*at).astype(shape.dtype) for result in results), "output")
    return te.create_prim_func([*inputs, *([outputs] if len(results) == 1 else outputs)])


def _by_rules(module: Any, target: Any) -> Any:
    """Return the module scheduled for the target `target` by the rules that TVM applies to models for CUDA."""
    dlight = importlib.import_module("tvm.s_tir.dlight")
    with target:
        return dlight.ApplyDefaultSchedule(*(getattr(dlight.gpu, rule)() for rule in _RULES))(module)


def _by_rows(module: Any) -> Any:
    """Return the module scheduled with a block for each row, which computes all steps of the row."""
    schedule = importlib.import_module("tvm.s_tir").Schedule(module)
    root = schedule.get_sblock("root")
    results = schedule.get_output_blocks(root)
    names = {schedule.get(block).name_hint for block in results}
    steps = [block for block in schedule.get_child_blocks(root) if schedule.get(block).name_hint not in names]
    reductions = [block for block in steps if not _is_elementwise(schedule.get(block))]
    for block in steps:
        if _is_elementwise(schedule.get(block)):
            schedule.compute_inline(block)
    row, *_ = schedule.get_loops(results[0])
    schedule.bind(row, "blockIdx.x")
    for block in reversed(reductions):
        schedule.set_scope(block, 0, "shared")
        schedule.compute_at(block, row, preserve_unit_loops=True)
    for block in (*reductions, results[0]):
        pass_, thread = schedule.split(schedule.get_loops(block)[-1], [None, _THREADS])
        schedule.reorder(thread, pass_)
        schedule.bind(thread, "threadIdx.x")
    return schedule.mod


def _is_elementwise(step: Any) -> bool:
    """Return whether no axis of a step (an SBlock of TVM) is reduced."""
    return all(axis.iter_type == 0 for axis in step.iter_vars)


def _source(tvm: Any, module: Any, target: Any) -> str:
    """Return the CUDA C++ that TVM writes for a scheduled module; `target` is TVM's."""
    importlib.import_module("tvm_ffi").register_global_func("tvm_callback_cuda_compile", str.encode, override=True)
    (device,) = tvm.compile(module, target=target).mod.imports
    return str(device.inspect_source("cuda"))


def _extents(tvm: Any, function: Any) -> tuple[int, int]:
    """Return the number of blocks and the number of threads in each block of a scheduled function."""
    extents: dict[str, int] = {}

    def visit(loop: Any) -> None:
        if loop.thread_binding is not None:
            extents[str(loop.thread_binding.thread_tag)] = int(loop.extent)

    importlib.import_module("tvm_ffi").structural_walk(function.body, (tvm.tirx.For, visit), order="post")
    blocks, threads = extents.pop("blockIdx.x"), extents.pop("threadIdx.x")
    if extents:
        raise gb.Skip(f"TVM's schedule has further dimensions: {', '.join(sorted(extents))}")
    return blocks, threads
