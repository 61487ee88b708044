"""Kernels of a .cu file on the host processor: a grid whose threads take turns (_grid.h), built by g++."""

import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SUITES = HERE.parent / "suites"
COMPILER = shutil.which("g++")
_SHARED_BYTES = 2**18  # of dynamic shared memory: more than a GPU has
_RUN = 'extern "C" void run_{0}(u32 x, u32 y, u32 n, void** a) {{ grid::run({0}, x, y, n, a); }}\n'


def source(file: str) -> str:
    """A kernel's file, `gemm/gemv.cu` for one, behind the prelude: as it is compiled for a GPU."""
    return (SUITES / "prelude.cuh").read_text() + (SUITES / file).read_text()


@functools.cache
def library(file: str, defines: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    """The kernels of that file as functions `run_NAME(across, down, threads, arguments)`."""
    folder = Path(tempfile.mkdtemp(prefix="gpubench-grid-"))
    source, built = folder / "kernel.cpp", folder / "kernel.so"
    options = ["-std=c++17", "-w", *(f"-D{key}={value}" for key, value in defines)]
    text = re.sub(
        r"extern __shared__ (\w+) (\w+)\[\];",
        rf"static \1 \2[{_SHARED_BYTES} / sizeof(\1)];",
        (SUITES / file).read_text(),
    )
    source.write_text((HERE / "_grid.h").read_text() + text)
    kernels = re.findall(r'extern "C"\s+void\s+(\w+)\(', _compiled(*options, "-E", "-P", str(source)))
    source.write_text(source.read_text() + "".join(_RUN.format(name) for name in kernels))
    _compiled(*options, "-O1", "-shared", "-fPIC", str(source), "-o", str(built))
    return ctypes.CDLL(str(built))


def _compiled(*options: str) -> str:
    assert COMPILER is not None
    return subprocess.run([COMPILER, *options], check=True, capture_output=True, text=True).stdout


def kernel(file: str, name: str, **defines: int) -> Callable[..., None]:
    """`name` of `file`: called as `Kernel` is, with a grid, a block and arguments (arrays and numpy scalars)."""
    call = getattr(library(file, tuple(sorted(defines.items()))), f"run_{name}")

    def run(across: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_bytes: int = 0) -> None:
        assert shared_bytes <= _SHARED_BYTES
        cells = [_cell(np.asarray(arg)) for arg in args]
        pointers = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        call(across[0], across[1] if len(across) > 1 else 1, block[0], pointers)

    return run


def _cell(arg: Any) -> Any:
    """What a parameter holds: an array's address, a scalar itself."""
    return np.array([arg.ctypes.data], np.uint64) if arg.ndim else arg.reshape(1)
