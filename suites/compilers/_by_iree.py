"""Build operators by IREE from MLIR's dialect linalg: with IREE's runtime on the host, and as PTX on a GPU.

IREE's runtime would launch the kernels on its own stream, so their launches are read from its host program."""

import importlib
import re
import tempfile
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._generated import GeneratedKernels, GeneratedLaunch, expect_nvidia
from ._linalg import linalg
from ._operators import ITEM_BYTES, Problem
from ._providers import Built, Expression

_INSTALL = "pip install 'gpubench-suite[iree]'"
_HOST_FLAGS = ("--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3")
_HOST_DRIVER = "local-task"  # the host's processor, on all its threads
# IREE 3.13 has no description of GPUs from sm_90 on; this one claims what its description of sm_89 has, without the
# matrix instructions, and the shared memory that a block may have on every GPU.
_DEVICE = (
    '#hal.device.target<"cuda", [#hal.executable.target<"cuda", "cuda-nvptx-fb", {{iree_codegen.target_info = '
    '#iree_gpu.target<arch = "{arch}", features = "", wgp = <'
    "compute = fp64|fp32|fp16|int64|int32|int16|int8, storage = b64|b32|b16|b8, subgroup = shuffle|arithmetic, "
    "subgroup_size_choices = [32], max_workgroup_sizes = [1024, 1024, 1024], max_thread_count_per_workgroup = 1024, "
    "max_workgroup_memory_bytes = 49152, max_workgroup_counts = [2147483647, 65535, 65535]>>}}>]> : !hal.device"
)
_NUMBER = re.compile(r"(%\w+) = arith\.constant (\d+) : index")
_LOOKUP = re.compile(r"(%\w+) = hal\.executable\.lookup\.function .* function\(@\w+::@\w+::@(\w+)\)")
_DISPATCH = re.compile(
    r"hal\.command_buffer\.dispatch<.*\)\[(%\w+)\] workgroups\(\[(%\w+), (%\w+), (%\w+)\]\)"
    r" bindings\(\[((?:\n *\(%\w+ : index\)\[%\w+, %\w+\],? ?)+)\n"
)
_TABLE = re.compile(r"hal\.device\.queue\.execute\.indirect<.* bindings\(\[((?:\n *\(%\w+ : !hal\.buffer\).*)+)\n")
_ARRAY = re.compile(r"\((%\w+) : [!.\w]+\)\[(%\w+), %\w+\]")  # of a dispatch or of the table, with its offset
_INPUT = re.compile(r"(%\w+) = hal\.buffer_view\.buffer<%arg(\d+) ")
_ALLOCATED = re.compile(r"(%\w+) = hal\.device\.queue\.alloca<.* : !hal\.buffer\{(%\w+)\}")
_OUTPUT = re.compile(r"(%\w+) = hal\.buffer_view\.create buffer\((%\w+) : !hal\.buffer\)\[(%\w+), %\w+\]")
_OTHER = re.compile(
    r"hal\.command_buffer\.(?!create|dispatch<|execution_barrier|finalize)\w+"
    r"|hal\.device\.queue\.(?!alloca|dealloca|execute\.indirect)\w+"
)  # commands that are no launches
_THREADS = re.compile(r"\.entry (\w+)\([^)]*\)\s*\.maxntid (\d+), 1, 1\s")


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as IREE compiles it: kernels on a GPU, a function of IREE's runtime on the host.

    Both compute in float32. The function on the host allocates its outputs at each call."""
    arch = expect_nvidia(bench, "iree") if bench.traits.is_gpu else ""
    try:
        compiler = importlib.import_module("iree.compiler")
        runtime = None if arch else importlib.import_module("iree.runtime")
    except ImportError as error:
        raise gb.Unavailable("IREE is not installed", _INSTALL) from error
    library = f"IREE {version('iree-base-compiler')}"
    program = linalg(problem.operator, problem.rows, problem.cols, problem.dtype)
    if not runtime:
        return _in_ptx(compiler, library, program, problem, arch).built(bench, problem)
    binary = compiler.compile_str(program, target_backends=["llvm-cpu"], extra_args=list(_HOST_FLAGS))
    config = runtime.Config(_HOST_DRIVER)
    context = runtime.SystemContext(config=config)
    context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, binary))
    to_library = partial(runtime.asdevicearray, config.device)
    expression = Expression(problem, context.modules.module["main"], to_library, np.asarray)
    return expression.built(library, "computed in float32", flags=" ".join(_HOST_FLAGS))


def _in_ptx(compiler: Any, library: str, function: str, problem: Problem, arch: str) -> GeneratedKernels:
    """Return the kernels of `function`, which is MLIR, as IREE compiles it for the architecture `arch`."""
    module = f"module attributes {{hal.device.targets = [{_DEVICE.format(arch=arch)}]}} {{\n{function}\n}}\n"
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--compile-to=hal", "--iree-opt-level=O3", f"--iree-hal-dump-executable-binaries-to={folder}"]
        program = compiler.compile_str(module, extra_args=flags).decode()
        kernels = "".join(path.read_text(encoding="utf-8") for path in Path(folder).glob("*.ptx"))
    try:
        return kernels_of(library, program, kernels, problem)
    except (KeyError, ValueError) as error:
        name = problem.operator.name
        raise gb.Skip(f"{library} has written {name} in a form that is not known here: {error}") from error


def kernels_of(library: str, program: str, kernels: str, problem: Problem) -> GeneratedKernels:
    """Return the kernels of an operator in PTX with the launches that IREE's host program makes.

    Raises KeyError or ValueError if the program has another form than IREE 3.13 writes."""
    numbers = {name: int(number) for name, number in _NUMBER.findall(program)}

    def whole(arrays: Sequence[tuple[str, str]]) -> list[str]:
        """Return the names of arrays, each given with the name of its offset, which must be 0."""
        if any(numbers[start] for _, start in arrays):
            raise ValueError("a part of an array")
        return [name for name, _ in arrays]

    names = {name: problem.operator.inputs[int(place)] for name, place in _INPUT.findall(program)}
    outputs = _OUTPUT.findall(program)
    starts = [numbers[start] for _, _, start in outputs]
    (output_array,) = {array for _, array, _ in outputs}
    output_bytes = problem.rows * problem.cols * ITEM_BYTES[problem.dtype]
    if sorted(starts) != [place * output_bytes for place in range(problem.operator.outputs)]:
        raise ValueError("the outputs")
    if f"util.return {', '.join(name for name, *_ in outputs)} : " not in program:
        raise ValueError("the order of the outputs")
    names[output_array] = "outputs"
    scratch = {name: numbers[size] for name, size in _ALLOCATED.findall(program) if name not in names}
    names |= {name: f"scratch{place}" for place, name in enumerate(scratch)}
    (table,) = _TABLE.findall(program)
    arrays = [names[name] for name in whole(_ARRAY.findall(table))]  # in the order in which launches count them

    functions, threads = dict(_LOOKUP.findall(program)), dict(_THREADS.findall(kernels))
    dispatches = _DISPATCH.findall(program)
    _expect_known(program, kernels, len(dispatches))
    launches = []
    for identity, x, y, z, arguments in dispatches:
        if (numbers[y], numbers[z]) != (1, 1):
            raise ValueError("blocks in several dimensions")
        places = [numbers[place] for place in whole(_ARRAY.findall(arguments))]
        function = functions[identity]
        threads_of_block = int(threads[function])
        launches.append(
            GeneratedLaunch(function, numbers[x], threads_of_block, tuple(arrays[place] for place in places))
        )
    order = tuple(sorted(range(len(starts)), key=starts.__getitem__))
    return GeneratedKernels(library, "ptx", kernels, tuple(launches), tuple(scratch.values()), order)


def _expect_known(program: str, kernels: str, launches: int) -> None:
    """Raise ValueError if a program has other commands than the `launches` that were read, or unknown kernels."""
    unknown = {
        "a launch": not launches or launches != program.count("hal.command_buffer.dispatch<"),
        "shared memory of a size that the launch sets": ".extern .shared" in kernels,
        "several files of kernels": kernels.count(".version") != 1,
        **dict.fromkeys(_OTHER.findall(program), True),
    }
    if any(unknown.values()):
        raise ValueError(", ".join(name for name, is_so in unknown.items() if is_so))
