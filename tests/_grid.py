"""Kernels of a .cu file on the host processor: a grid whose threads take turns (_grid.h), built by g++.

A built library is kept in `.pytest_cache` under the hash of its source, its options and the compiler: each one is built
once for all test processes and for later runs.
"""

import ctypes
import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
SUITES = HERE.parent / "suites"
COMPILER = shutil.which("g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs g++")
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"\n', re.MULTILINE)
_BUILT = HERE.parent / ".pytest_cache" / "gpubench-kernels"
_OPTIONS = ("-std=c++17", "-w", "-O1", "-fPIC")
_SHARED_BYTES = 2**18  # bytes of dynamic shared memory, more than any GPU has
_RUN = 'extern "C" void run_{0}(u32 x, u32 y, u32 n, void** a) {{ grid::run({0}, x, y, n, a); }}\n'


def source(file: str) -> str:
    """Return the prelude and a kernel's file, such as `gemm/gemv.cu`, as they are compiled for a GPU."""
    return (SUITES / "prelude.cuh").read_text() + text_of(SUITES / file)


def text_of(path: Path) -> str:
    """Return a kernel's file with the headers that it includes."""
    places = path.parent, SUITES
    return _INCLUDE.sub(
        lambda found: text_of(next(place / found[1] for place in places if (place / found[1]).is_file())),
        path.read_text(),
    )


def path_of(place: Path) -> str:
    """Return the path of a kernel's file as `kernel` takes it: relative to the suites, or absolute elsewhere."""
    return str(place.relative_to(SUITES) if place.is_relative_to(SUITES) else place)


@functools.cache
def library(file: str, defines: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    """Return the kernels of that file as functions `run_NAME(across, down, threads, arguments)`."""
    options = [*_OPTIONS, *(f"-D{key}={value}" for key, value in defines)]
    text = re.sub(
        r"extern __shared__ (\w+) (\w+)\[\];",
        rf"static \1 \2[{_SHARED_BYTES} / sizeof(\1)];",
        text_of(SUITES / file),
    )
    grid = (HERE / "_grid.h").read_text()
    built = _BUILT / f"{_key(_RUN, *options, grid, text)}.so"
    if not built.exists():
        _build(grid, text, options, built)
    return ctypes.CDLL(str(built))


def _key(*texts: str) -> str:
    return hashlib.sha256("\0".join([_compiler(), *texts]).encode()).hexdigest()


def _build(grid: str, kernels: str, options: list[str], built: Path) -> None:
    """Build the kernels of a source under another name, since a second process may load or build the same library."""
    _BUILT.mkdir(parents=True, exist_ok=True)
    includes = "".join(re.findall(r"^#include <.*\n", grid, re.MULTILINE))
    text = re.sub(r"^#include <.*\n", "", grid, flags=re.MULTILINE) + kernels
    with tempfile.TemporaryDirectory(dir=_BUILT) as folder:
        source, library = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
        source.write_text(text)
        names = re.findall(r'extern "C"\s+void\s+(\w+)\(', _compiled(*options, "-E", "-P", str(source)))
        assert names, "the preprocessor's output has no kernel; such a library must not be kept"
        calls = "".join(_RUN.format(name) for name in names)
        source.write_text(f'#include "{_precompiled(includes)}"\n{text}{calls}')
        _compiled(*options, "-shared", str(source), "-o", str(library))
        library.replace(built)


@functools.cache
def _precompiled(includes: str) -> Path:
    """Return a header with the includes of the C++ library that g++ has parsed: parsing takes longer than a kernel."""
    header = _BUILT / f"{_key(*_OPTIONS, includes)}.h"
    parsed = header.with_suffix(".h.gch")
    if not parsed.exists():
        header.write_text(includes)
        with tempfile.TemporaryDirectory(dir=_BUILT) as folder:
            _compiled(*_OPTIONS, "-x", "c++-header", str(header), "-o", f"{folder}/parsed")
            Path(folder, "parsed").replace(parsed)
    return header


@functools.cache
def _compiler() -> str:
    """Return the compiler's version and the machine that it builds for."""
    return _compiled("--version") + _compiled("-dumpmachine")


def _compiled(*options: str) -> str:
    assert COMPILER is not None
    return subprocess.run([COMPILER, *options], check=True, capture_output=True, text=True).stdout


def kernel(file: str, name: str, **defines: int) -> Any:
    """Return `name` of `file`, which is called as `Kernel`: with a grid, a block, and arrays or numpy scalars."""
    call = getattr(library(file, tuple(sorted(defines.items()))), f"run_{name}")

    def run(across: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_bytes: int = 0) -> None:
        assert shared_bytes <= _SHARED_BYTES
        cells = [_cell(np.asarray(arg)) for arg in args]
        pointers = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        call(across[0], across[1] if len(across) > 1 else 1, block[0], pointers)

    run.early = run
    run.resources = lambda threads, shared_bytes=0: None
    run.keep_cache = lambda threads: None
    return run


def _cell(arg: Any) -> Any:
    """Return the value of a parameter: the address of an array, or the scalar itself."""
    return np.array([arg.ctypes.data], np.uint64) if arg.ndim else arg.reshape(1)


def tensor_map(matrix, rows, columns, box_rows, box_columns, is_plain=False):
    """Return the tensor map of a NumPy array, as the kernels on the grid read it (GbTensorMap)."""
    assert rows * columns * (8 if is_plain else 2) <= matrix.nbytes
    assert is_plain or box_columns == 64
    cells = (matrix.ctypes.data, columns, rows, box_rows, box_columns if is_plain else 0, *[0] * 11)
    return np.array(cells, np.uint64).view("V128")[0]
