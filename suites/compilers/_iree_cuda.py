"""Compile operators by IREE to PTX, without a GPU, and read the kernels' launches from its host program.

IREE's runtime would launch the kernels on its own stream."""

import importlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from gpubench.api import suite as gb

from ._carried import OUTPUTS, KernelShape, WrittenKernels, WrittenLaunch
from ._iree_linalg import linalg
from ._operators import OPERATORS

INSTALL = "pip install 'gpubench-suite[iree]'"
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


def compiled(shape: KernelShape) -> WrittenKernels:
    """Compile the operator of `shape` by IREE for the architecture of `shape`, and return its kernels in PTX.

    They compute in float32."""
    try:
        compiler = importlib.import_module("iree.compiler")
    except ImportError as error:
        raise gb.Unavailable("IREE is not installed", INSTALL) from error
    function = linalg(OPERATORS[shape.operator], shape.rows, shape.cols, shape.dtype)
    module = f"module attributes {{hal.device.targets = [{_DEVICE.format(arch=shape.arch)}]}} {{\n{function}\n}}\n"
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--compile-to=hal", "--iree-opt-level=O3", f"--iree-hal-dump-executable-binaries-to={folder}"]
        program = compiler.compile_str(module, extra_args=flags).decode()
        kernels = "".join(path.read_text(encoding="utf-8") for path in Path(folder).glob("*.ptx"))
    library = f"IREE {version('iree-base-compiler')}"
    try:
        return kernels_of(library, program, kernels, shape)
    except (KeyError, ValueError) as error:
        raise gb.Skip(f"{library} has written {shape.operator} in a form that is not known here: {error}") from error


def kernels_of(library: str, program: str, kernels: str, shape: KernelShape) -> WrittenKernels:
    """Return the kernels of an operator in PTX with the launches that IREE's host program makes.

    Raises KeyError or ValueError if the program has another form than IREE 3.13 writes."""
    numbers = {name: int(number) for name, number in _NUMBER.findall(program)}
    arrays = _arrays(program, numbers, shape)
    functions, threads = dict(_LOOKUP.findall(program)), dict(_THREADS.findall(kernels))
    dispatches = _DISPATCH.findall(program)
    if not dispatches or len(dispatches) != program.count("hal.command_buffer.dispatch<"):
        raise ValueError("a launch")
    if other := _OTHER.search(program):
        raise ValueError(other[0])
    if ".extern .shared" in kernels:
        raise ValueError("shared memory of a size that the launch sets")
    if kernels.count(".version") != 1:
        raise ValueError("several files of kernels")
    launches = []
    for identity, x, y, z, arguments in dispatches:
        if (numbers[y], numbers[z]) != (1, 1):
            raise ValueError("blocks in several dimensions")
        function = functions[identity]
        names = tuple(arrays.names[numbers[place]] for place in _whole(_ARRAY.findall(arguments), numbers))
        launches.append(WrittenLaunch(function, numbers[x], int(threads[function]), names))
    return WrittenKernels(library, "ptx", shape, tuple(launches), arrays.scratch, arrays.order, kernels)


class _Arrays(NamedTuple):
    """The arrays of a program: `names` are names as in a WrittenLaunch, in the order in which launches count them.

    `scratch` and `order` are the fields of the same names of WrittenKernels."""

    names: list[str]
    scratch: tuple[int, ...]
    order: tuple[int, ...]


def _arrays(program: str, numbers: Mapping[str, int], shape: KernelShape) -> _Arrays:
    """Return the arrays of IREE's host program; `numbers` are the program's integer constants by name."""
    names = {name: OPERATORS[shape.operator].inputs[int(place)] for name, place in _INPUT.findall(program)}
    outputs = _OUTPUT.findall(program)
    starts = [numbers[start] for _, _, start in outputs]
    (array,) = {array for _, array, _ in outputs}
    if sorted(starts) != [place * shape.output_bytes for place in range(OPERATORS[shape.operator].outputs)]:
        raise ValueError("the outputs")
    if f"util.return {', '.join(name for name, *_ in outputs)} : " not in program:
        raise ValueError("the order of the outputs")
    names[array] = OUTPUTS
    sizes = {name: numbers[size] for name, size in _ALLOCATED.findall(program) if name not in names}
    names |= {name: f"scratch{place}" for place, name in enumerate(sizes)}
    (table,) = _TABLE.findall(program)
    order = tuple(sorted(range(len(starts)), key=starts.__getitem__))
    return _Arrays([names[name] for name in _whole(_ARRAY.findall(table), numbers)], tuple(sizes.values()), order)


def _whole(arrays: Sequence[tuple[str, str]], numbers: Mapping[str, int]) -> list[str]:
    """Return the names of arrays, each given with the name of its offset; raises ValueError if an offset is not 0."""
    if any(numbers[start] for _, start in arrays):
        raise ValueError("a part of an array")
    return [name for name, _ in arrays]
