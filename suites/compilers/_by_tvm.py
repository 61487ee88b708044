"""Build operators by TVM from its tensor expressions: its LLVM compiles for the host, and it writes CUDA C++ for GPUs.

Rows are parallel on the host. On a GPU TVM's own rules schedule the operator, and NVRTC compiles what TVM writes."""

import importlib
import importlib.util
import logging
import os
import re
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._generated import GeneratedKernels, GeneratedLaunch, expect_nvidia
from ._operators import Problem
from ._providers import Built, imported

INSTALL_TVM = gb.installation.with_extra("tvm")
_RULES = "Matmul", "GEMV", "Reduction", "GeneralReduction", "Fallback"  # tvm.relax.backend.cuda.pipeline
_SEED, _TRIALS_AT_ONCE = 1, 16  # of MetaSchedule's search
_SLOW_S = 0.1  # of a schedule's calls, after which no further one is timed
_TRIAL_S = 5.0  # after which a schedule is given up: some need minutes to compile, or for a call
_THREADS = 256  # of the block of a row, as in TVM's rule GeneralReduction
_DECLARED = re.compile(r'^extern "C" __global__ void __launch_bounds__\(\d+\) (\w+)\((.*)\);$', re.MULTILINE)
_OUTPUTS = {"output": "output0", "output_v0": "output0", "output_v1": "output1"}  # as TVM names them


class TensorExpressions:
    """The functions that operators' expressions call, in TVM's tensor expressions; `topi` is the module tvm.topi."""

    def __init__(self, topi: Any) -> None:
        self.exp, self.tanh, self.sqrt = topi.exp, topi.tanh, topi.sqrt
        self.amax, self.sum = topi.max, topi.sum

    def mean(self, x: Any, axis: int, keepdims: bool) -> Any:
        return self.sum(x, axis, keepdims) / float(int(x.shape[axis]))


def build(bench: gb.Bench, problem: Problem, trials: int = 0) -> Built:
    """Return `problem`'s operator as TVM compiles it: one function over all rows in parallel, or one kernel on a GPU.

    The kernel computes in float32. `trials` of MetaSchedule schedule for the host; without any, fixed rules do."""
    arch = expect_nvidia(bench, "tvm") if bench.traits.is_gpu else ""
    (tvm,) = imported("TVM", INSTALL_TVM, "tvm")
    return kernels_of(tvm, problem, arch).built(bench, problem) if arch else _on_host(tvm, problem, trials)


def _on_host(tvm: Any, problem: Problem, trials: int) -> Built:
    """Return `problem`'s operator as a function on all threads of the host."""
    processor = tvm.target.codegen.llvm_get_system_cpu()
    kind = {"kind": "llvm", "mcpu": processor} | ({"num-cores": len(os.sched_getaffinity(0))} if trials else {})
    target = tvm.target.Target(kind)
    function = _function_of(tvm, problem)
    scheduled = _tuned(tvm, function, target, trials) if trials else _for_host(function)
    module = tvm.compile(scheduled, target=target)
    shapes = [*map(problem.shape_of, problem.operator.inputs), *[problem.output_shape] * problem.operator.outputs]
    # TVM allocates them with the alignment that its code needs
    tensors = [tvm.runtime.empty(shape, problem.dtype) for shape in shapes]
    arrays = [np.from_dlpack(tensor) for tensor in tensors]  # the same memory
    inputs, outputs = arrays[: len(problem.inputs)], arrays[len(problem.inputs) :]

    def poison() -> None:
        for copied, array in zip(inputs, problem.inputs.values(), strict=True):
            np.copyto(copied, array)
        for output in outputs:
            output.fill(float("nan"))

    poison()
    notes = {"library": f"TVM {tvm.__version__}, LLVM for {processor}", "precision": f"computed in {problem.dtype}"}
    return Built(partial(module["main"], *tensors), lambda: tuple(map(problem.rows_of, outputs)), poison, notes)


def _placeholders(tvm: Any, problem: Problem) -> list[Any]:
    return [tvm.te.placeholder(problem.shape_of(name), problem.dtype, name) for name in problem.operator.inputs]


def _function_of(tvm: Any, problem: Problem) -> Any:
    """Return `problem`'s operator as TVM's module of one function without a schedule."""
    inputs = _placeholders(tvm, problem)
    outputs = problem.operator.outputs_of(TensorExpressions(tvm.topi), *inputs)
    return tvm.IRModule({"main": tvm.te.create_prim_func([*inputs, *outputs])})


def _tuned(tvm: Any, module: Any, target: Any, trials: int) -> Any:
    """Return the module with the fastest schedule among `trials` that MetaSchedule proposes (Shao et al., 2022)."""
    if importlib.util.find_spec("xgboost") is None:  # its model of costs
        raise gb.Unavailable("TVM's MetaSchedule needs xgboost", "pip install xgboost")
    meta = importlib.import_module("tvm.s_tir.meta_schedule")
    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.WARNING)
    child = importlib.import_module("tvm.support.popen_pool").PopenWorker()  # a process that can be ended
    builder, runner = _builder_and_runner(tvm, meta, target, child)
    callbacks = meta.measure_callback
    with ExitStack() as stack:
        stack.callback(child.kill)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpubench-tuning-"))
        records = meta.tune_tir(
            *(module, target, folder, trials),
            num_trials_per_iter=_TRIALS_AT_ONCE,
            builder=builder,
            runner=runner,
            measure_callbacks=[callbacks.AddToDatabase(), callbacks.UpdateCostModel()],
            num_tuning_cores="logical",
            seed=_SEED,
        )
        schedule = meta.tir_integration.compile_tir(records, module, target)
    if schedule is None:
        raise gb.Skip(f"none of MetaSchedule's {trials} trials has a time")
    return schedule.mod


def _builder_and_runner(tvm: Any, meta: Any, target: Any, child: Any) -> tuple[Any, Any]:
    """Return what takes MetaSchedule's proposals, and what times them in the process `child`."""
    # MetaSchedule's own start a process for each, which imports TVM
    derived, proposals = importlib.import_module("tvm.ir.utils"), list[Any]()

    def timed(proposed: Any, arguments: list[tuple[tuple[int, ...], str]]) -> list[float]:
        """Return the seconds of a schedule's calls on random numbers: of three after the first, or of a slow one."""
        rng, module, seconds = np.random.default_rng(_SEED), tvm.compile(proposed, target=target), list[float]()
        tensors = [tvm.runtime.tensor(rng.random(shape).astype(dtype)) for shape, dtype in arguments]
        while len(seconds) < 4 and sum(seconds) < _SLOW_S:
            begun = time.perf_counter()
            module["main"](*tensors)
            seconds.append(time.perf_counter() - begun)
        return seconds[1:] or seconds

    @derived.derived_object
    class Builder(meta.builder.PyBuilder):  # type: ignore[misc]
        """Takes schedules, which are compiled where they are timed."""

        def build(self, inputs: Any) -> list[Any]:
            first = len(proposals)
            proposals.extend(proposed.mod for proposed in inputs)
            return [meta.builder.BuilderResult(str(at), None) for at in range(first, len(proposals))]

    @derived.derived_object
    class Measured(meta.runner.PyRunnerFuture):  # type: ignore[misc]
        """The seconds of a schedule's calls, or why there are none."""

        def __init__(self, seconds: list[float] | None, error: str | None = None) -> None:
            super().__init__()
            self.outcome = seconds, error

        def done(self) -> bool:
            return True

        def result(self) -> Any:
            return meta.runner.RunnerResult(*self.outcome)

    @derived.derived_object
    class Runner(meta.runner.PyRunner):  # type: ignore[misc]
        """Compiles and times schedules in another process."""

        def run(self, inputs: Any) -> list[Any]:
            return [self._measured(proposals[int(ran.artifact_path)], ran.args_info) for ran in inputs]

        def _measured(self, proposed: Any, arguments: Any) -> Any:
            sizes = [(tuple(map(int, of.shape)), str(of.dtype)) for of in arguments]
            child.send(timed, (proposed, sizes), timeout=_TRIAL_S)
            try:
                return Measured(child.recv())
            except TimeoutError:
                return Measured(None, f"not compiled and timed within {_TRIAL_S:g} s")

    return Builder(), Runner()


def _for_host(module: Any) -> Any:
    """Return the function of `module` scheduled: rows in parallel, the steps of a row in order."""
    schedule = importlib.import_module("tvm.s_tir").Schedule(module)
    root = schedule.get_sblock("root")
    results = {schedule.get(block).name_hint for block in schedule.get_output_blocks(root)}
    for block in schedule.get_child_blocks(root):
        step = schedule.get(block)
        if _is_elementwise(step) and step.name_hint not in results and len(schedule.get_consumers(block)) == 1:
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


def kernels_of(tvm: Any, problem: Problem, arch: str) -> GeneratedKernels:
    """Return the kernel of `problem`'s operator in CUDA C++, as TVM writes it for the architecture `arch`."""
    operator, topi = problem.operator, tvm.topi
    target, inputs = tvm.target.Target({"kind": "cuda", "arch": arch}), _placeholders(tvm, problem)
    results = operator.outputs_of(TensorExpressions(topi), *(topi.cast(values, "float32") for values in inputs))
    narrow = lambda *at: tuple(result(*at).astype(problem.dtype) for result in results)  # noqa: E731
    outputs = tvm.te.compute(problem.output_shape, narrow, "output")
    function = tvm.te.create_prim_func([*inputs, *([outputs] if len(results) == 1 else outputs)])
    unscheduled = tvm.IRModule({"main": function})
    module = _by_rules(unscheduled, target) if operator.outputs == 1 else _by_rows(unscheduled)
    # TVM would call NVRTC or nvcc here; its text is compiled as all other kernels are
    importlib.import_module("tvm_ffi").register_global_func("tvm_callback_cuda_compile", str.encode, override=True)
    (device,) = tvm.compile(module, target=target).mod.imports
    source = str(device.inspect_source("cuda"))
    kernels = _DECLARED.findall(source)
    if len(kernels) != 1:
        raise gb.Skip(f"TVM gives {operator.name} {len(kernels)} kernels with memory between them")
    ((name, parameters),) = kernels
    names = (parameter.rpartition(" ")[2].removesuffix("_ptr") for parameter in parameters.split(", "))
    launch = GeneratedLaunch(name, *_extents(tvm, module["main"]), tuple(_OUTPUTS.get(name, name) for name in names))
    return GeneratedKernels(f"TVM {tvm.__version__}", "cu", source, (launch,))


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
    """Return whether no axis of a step (an SBlock of TVM) is reduced: tirx.IterVar.DataPar is 0."""
    return all(axis.iter_type == 0 for axis in step.iter_vars)


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
