"""Build operators as cuTile kernels of our own, with tiles that the shape fixes, on the stream that is timed."""

import contextlib
import functools
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from gpubench.api import suite as gb

from ._operators import EPSILON, OPERATORS, POINTWISE, Problem, load_kernels
from ._providers import Built, Outputs, imported
from ._static import of_code

_INSTALL = gb.installation.with_extra("cutile")
_OLDEST = gb.Architecture.parse("sm_80")  # Ampere, the oldest GPUs that cuTile's assembler knows
_ELEMENTS = 2048  # elements of a tile of a pointwise chain and of short rows: 16 in each of 128 threads
_BLOCK_ELEMENTS = 4096  # elements of a longer row that a block holds; a cluster of blocks shares the rest
_MOST_BLOCKS = 8  # of a cluster
_PRECISION = "computed in float32, multiply-adds fused, exponentials, quotients and roots approximate"


def build(bench: gb.Bench, problem: Problem) -> Built:
    """Return `problem`'s operator as one fused kernel of cuTile, compiled by a first call, with preallocated outputs.

    Raises Skip if cuTile does not compile for this GPU, and Unavailable without cuTile or its assembler, tileiras."""
    if bench.traits.vendor != "nvidia" or bench.traits.architecture < _OLDEST:
        raise gb.Skip(f"cuTile does not compile for {bench.traits.arch}")
    tile = loaded()
    outputs = Outputs(bench, problem)
    launch = configured(tile, problem.operator.name, problem.rows, problem.cols)
    arguments = (*problem.inputs.values(), *outputs.arrays, *launch.constants)
    call = partial(tile.launch, bench.device.stream, launch.grid, launch.kernel, arguments)
    with _assembler():
        call()
    static = partial(_static, bench, launch, arguments) if bench.target.tier == "full" else None
    return outputs.built(call, f"cuTile {tile.__version__}", _PRECISION, configuration=launch.words, static=static)


def loaded() -> Any:
    """Return the module cuda.tile with our kernels ready for it; raises Unavailable if cuTile is not installed."""
    os.environ.setdefault("CUDA_TILE_TEMP_DIR", tempfile.gettempdir())  # else a worker that is killed leaves a folder
    tile, _ = imported("cuTile", _INSTALL, "cuda.tile", "cuda.tile.compilation")
    load_kernels(ct=tile, Constant=tile.Constant)
    return tile


def settings() -> Any:
    """Return the `config` of cuTile's default context: `cache_dir` has its code, in `temp_dir` its assembler works."""
    return importlib.import_module("cuda.tile._cext").default_tile_context.config


@functools.cache
def _assembler_folder() -> str:
    """Return the path of a folder for the assembler, the same one for the whole process; it does not exist yet."""
    folder = tempfile.mkdtemp(prefix="gpubench-cutile-")
    shutil.rmtree(folder)
    return folder


@contextlib.contextmanager
def _assembler() -> Iterator[None]:
    """Let cuTile's assembler work in a folder that exists only inside the `with` block."""
    config, folder = settings(), _assembler_folder()
    usual, config.temp_dir = config.temp_dir, folder
    Path(folder).mkdir(0o700)
    try:
        yield
    except FileNotFoundError as error:
        raise gb.Unavailable("cuTile finds no assembler, tileiras", _INSTALL) from error
    finally:
        shutil.rmtree(folder)
        config.temp_dir = usual


class CutileLaunch(NamedTuple):
    """How a kernel is launched: its grid of programs, the blocks of a program, and the constants after its arrays.

    The last two constants are the height and width of a program's tile."""

    kernel: Any
    grid: tuple[int, int]
    blocks: int
    constants: tuple[float, ...]

    @property
    def words(self) -> str:
        """The configuration as a text."""
        height, width = self.constants[-2:]
        return f"{height} × {width} elements and {self.blocks} blocks in each of {prod(self.grid)} programs"


def configured(tile: Any, name: str, rows: int, cols: int) -> CutileLaunch:
    """Return the launch of the operator `name` on a matrix of `rows` × `cols` elements; `tile` is from `loaded`.

    A tile has 2048 elements, or one row if that is longer; then up to eight blocks share the row, with at least 4096
    elements each. A tile of a pointwise operator is at most 2048 elements wide."""
    width = 1 << (cols - 1).bit_length()
    if name in POINTWISE:
        width = min(width, _ELEMENTS)
    height, blocks = max(1, _ELEMENTS // width), min(_MOST_BLOCKS, max(1, width // _BLOCK_ELEMENTS))
    epsilon = () if name in POINTWISE or name == "softmax" else (EPSILON,)
    kernel = _kernel(tile, OPERATORS[name].kernels["cutile"], blocks)
    return CutileLaunch(kernel, (-(-rows // height), -(-cols // width)), blocks, (*epsilon, height, width))


@functools.cache
def _kernel(tile: Any, function: Callable[..., None], blocks: int) -> Any:
    """Return `function` as a kernel of cuTile with clusters of `blocks` blocks; later calls return the same kernel."""
    return tile.kernel(function, num_ctas=blocks if blocks > 1 else None)


def _static(bench: gb.Bench, launch: CutileLaunch, arguments: tuple[Any, ...]) -> Mapping[str, gb.Observed]:
    """Return the resources and instructions of a kernel, by name; it is compiled once more for `arguments`."""
    compilation = importlib.import_module("cuda.tile.compilation")
    convention = compilation.CallingConvention.cutile_python_v1()
    signature = compilation.KernelSignature.from_kernel_args(launch.kernel, arguments, convention)
    code = compiled_code(launch.kernel, signature, bench.traits.arch)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        attributes = bench.xp.RawModule(path=file.name).get_function(signature.symbol).attributes
    return {
        "registers": gb.Observed(attributes["num_regs"]),
        "shared": gb.Observed(attributes["shared_size_bytes"], "B"),
        "spilled": gb.Observed(attributes["local_size_bytes"], "B"),
        **of_code(code, signature.symbol, None, bench.target.device),  # the code does not tell the threads of a block
    }


def compiled_code(kernel: Any, signature: Any, arch: str) -> bytes:
    """Return the machine code (a cubin) of a cuTile kernel for arguments of the KernelSignature `signature`.

    `arch` is the architecture, such as sm_90. Raises Unavailable without the assembler."""
    code = BytesIO()
    export = importlib.import_module("cuda.tile.compilation").export_kernel
    with _assembler():
        export(kernel, [signature], code, gpu_code=arch, output_format="cubin")
    return code.getvalue()
