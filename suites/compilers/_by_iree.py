"""Build operators by IREE from MLIR's dialect linalg: with IREE's runtime on the host, and as PTX on a GPU.

IREE's runtime would launch the kernels on its own stream, so their launches are read from its host program."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from functools import partial, partialmethod
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._generated import GeneratedKernels, GeneratedLaunch, expect_nvidia
from ._operators import ITEM_BYTES, VECTORS, Operator, Problem
from ._providers import Built, Expression, imported

_INSTALL = gb.installation.with_extra("iree")
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
    program = linalg(problem.operator, problem.rows, problem.cols, problem.dtype)
    if arch:
        (compiler,) = imported("IREE", _INSTALL, "iree.compiler")
        return _in_ptx(compiler, _library(), program, problem, arch).built(bench, problem)
    function, to_library, library = on_host(program)
    expression = Expression(problem, function, to_library, np.asarray)
    return expression.built(library, "computed in float32", flags=" ".join(_HOST_FLAGS))


def _library() -> str:
    return f"IREE {version('iree-base-compiler')}"


def on_host(program: str | bytes, **options: str) -> tuple[Any, Callable[[Any], Any], str]:
    """Return `main` of a program in MLIR as IREE runs it on the host, the conversion of its inputs, and IREE's name."""
    compiler, runtime = imported("IREE", _INSTALL, "iree.compiler", "iree.runtime")
    binary = compiler.compile_str(program, target_backends=["llvm-cpu"], extra_args=list(_HOST_FLAGS), **options)
    config = runtime.Config(_HOST_DRIVER)
    context = runtime.SystemContext(config=config)
    module = runtime.VmModule.copy_buffer(context.instance, binary)
    context.add_vm_module(module)
    return context.modules[module.name]["main"], partial(runtime.asdevicearray, config.device), _library()


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
        function, places = functions[identity], whole(_ARRAY.findall(arguments))
        names_of_arrays = tuple(arrays[numbers[place]] for place in places)
        launches.append(GeneratedLaunch(function, numbers[x], int(threads[function]), names_of_arrays))
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


_TYPES = {"float16": "f16", "float32": "f32"}


class _Traced:
    """A value of the program that is being written: its name in MLIR, and its axes as _Program defines them."""

    def __init__(self, program: _Program, name: str, axes: str) -> None:
        self.program, self.name, self.axes = program, name, axes

    def _with(self, operation: str, operand: _Operand) -> _Traced:
        return self.program.binary(operation, self, operand)

    def __neg__(self) -> _Traced:
        return self.program.unary("arith.negf", self)

    __add__ = __radd__ = partialmethod(_with, "arith.addf")
    __sub__ = partialmethod(_with, "arith.subf")
    __mul__ = __rmul__ = partialmethod(_with, "arith.mulf")
    __truediv__ = partialmethod(_with, "arith.divf")


_Operand = _Traced | float


class _Program:
    """The lines of a function in MLIR, and functions in place of NumPy's, each of which adds lines.

    An operator's expression calls these functions."""

    def __init__(self, rows: int, cols: int) -> None:
        self._lengths = {"r": rows, "c": cols}
        self.lines: list[str] = []
        self._count = 0
        self.exp, self.tanh, self.sqrt = (partial(self.unary, f"math.{name}") for name in ("exp", "tanh", "sqrt"))

    def type_of(self, axes: str, element: str = "f32") -> str:
        """Return the MLIR type of a value with these axes; `element` is the type of an element, such as f32."""
        return f"tensor<{'x'.join(str(self._lengths[axis]) for axis in axes)}x{element}>"

    def converted(self, operation: str, value: _Traced, types: tuple[str, str]) -> _Traced:
        """Write a conversion of each element from the first to the second of `types`, and return its result."""
        if types[0] == types[1]:
            return value
        before, after = (self.type_of(value.axes, element) for element in types)
        return self._let(value.axes, f"{operation} {value.name} : {before} to {after}")

    def _let(self, axes: str, text: str) -> _Traced:
        """Write a line that names the value of the operation `text`, and return that value with these axes."""
        self._count += 1
        self.lines.append(f"  %{self._count} = {text}")
        return _Traced(self, f"%{self._count}", axes)

    def _constant(self, number: float, axes: str) -> _Traced:
        return self._let(axes, f"arith.constant dense<{float(number):.17e}> : {self.type_of(axes)}")

    def _empty(self, axes: str) -> str:
        return self._let(axes, f"tensor.empty() : {self.type_of(axes)}").name

    def _as(self, value: _Operand, axes: str) -> _Traced:
        """Return `value`, broadcast to these axes; a number or a value that lacks some of them is repeated."""
        if not isinstance(value, _Traced):
            return self._constant(value, axes)
        if value.axes == axes:
            return value
        missing = [place for place, axis in enumerate(axes) if axis not in value.axes]
        ins, outs = f"{value.name} : {self.type_of(value.axes)}", f"{self._empty(axes)} : {self.type_of(axes)}"
        return self._let(axes, f"linalg.broadcast ins({ins}) outs({outs}) dimensions = {missing}")

    def unary(self, operation: str, value: _Traced) -> _Traced:
        """Write an operation on each element, such as math.exp, and return its result."""
        return self._let(value.axes, f"{operation} {value.name} : {self.type_of(value.axes)}")

    def binary(self, operation: str, first: _Traced, second: _Operand) -> _Traced:
        """Write an operation on pairs of elements, such as arith.addf, and return its result."""
        used_axes = {axis for value in (first, second) if isinstance(value, _Traced) for axis in value.axes}
        axes = "".join(axis for axis in "rc" if axis in used_axes)
        left, right = self._as(first, axes), self._as(second, axes)
        return self._let(axes, f"{operation} {left.name}, {right.name} : {self.type_of(axes)}")

    def _reduced(self, operation: str, start: float, value: _Traced) -> _Traced:
        """Write a reduction of each row of a matrix, beginning with `start`, and return its result."""
        ins, outs = f"{value.name} : {self.type_of('rc')}", f"{self._constant(start, 'r').name} : {self.type_of('r')}"
        return self._let("r", f"linalg.reduce {{ {operation} }} ins({ins}) outs({outs}) dimensions = [1]")

    def amax(self, x: _Traced, **_of_columns: object) -> _Traced:
        return self._reduced("arith.maximumf", -3.0e38, x)

    def sum(self, x: _Traced, **_of_columns: object) -> _Traced:
        return self._reduced("arith.addf", 0.0, x)

    def mean(self, x: _Traced, **_of_columns: object) -> _Traced:
        return self.binary("arith.divf", self.sum(x), self._lengths["c"])


def linalg(operator: Operator, rows: int, cols: int, dtype: str) -> str:
    """Return `operator` as the text of a function `main` in MLIR, which computes in float32.

    Matrices have `rows` × `cols` elements of type `dtype`, a key of ITEM_BYTES."""
    program, element = _Program(rows, cols), _TYPES[dtype]
    inputs = [_Traced(program, f"%{name}", "c" if name in VECTORS else "rc") for name in operator.inputs]
    wide = [program.converted("arith.extf", value, (element, "f32")) for value in inputs]
    results = operator.outputs_of(program, *wide)
    outputs = [program.converted("arith.truncf", value, ("f32", element)) for value in results]
    arguments = ", ".join(f"{value.name}: {program.type_of(value.axes, element)}" for value in inputs)
    types = ", ".join([program.type_of("rc", element)] * len(outputs))
    returned = f"  return {', '.join(value.name for value in outputs)} : {types}"
    return "\n".join([f"func.func @main({arguments}) -> ({types}) {{", *program.lines, returned, "}"])
