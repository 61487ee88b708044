"""Measure products by NumPy's BLAS on the host, and name the BLAS and its threads."""

import ctypes
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import flipping
from .._matrix.data import CHECKED, judged
from .._matrix.formats import PRECISIONS, Precision, Shape
from .._matrix.freivalds import expect_host_product
from .._matrix.rotation import copies_of, rotated, rotation_notes

# OpenBLAS under the names of NumPy's wheels, of Linux distributions and of its 64-bit build; then BLIS and MKL.
_QUESTIONS = (
    "scipy_openblas_get_num_threads64_",
    "openblas_get_num_threads64_",
    "openblas_get_num_threads",
    "bli_thread_get_num_threads",
    "MKL_Get_Max_Threads",
)
_MAPS = Path("/proc/self/maps")


@functools.cache
def library() -> str:
    """Return the versions of NumPy and of its BLAS as text: `NumPy 2.4.6 with scipy-openblas 0.3.31`."""
    build = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"NumPy {np.__version__} with {build['name']} {build['version']}"


@functools.cache
def threads() -> str:
    """Return as a text the number of threads that the loaded BLAS reports, or `unknown` if no library reports it."""
    np.ones((2, 2)) @ np.ones((2, 2))
    maps = _MAPS.read_text(encoding="utf-8", errors="replace")
    paths = {line.split()[-1] for line in maps.splitlines() if ".so" in line}
    for path in sorted(path for path in paths if any(name in Path(path).name for name in ("blas", "blis", "mkl_rt"))):
        loaded = ctypes.CDLL(path)
        for question in _QUESTIONS:
            if hasattr(loaded, question):
                return str(int(getattr(loaded, question)()))
    return "unknown"


def _notes() -> Mapping[str, str]:
    return {"library": library(), "threads": threads(), "data": "N(0,1)"}


def host_product(bench: gb.Bench, precision: Precision, shape: Shape) -> gb.Task:
    """Return one product of matrices by NumPy as a task; raises Skip if they do not fit into the free memory.

    The check compares random rows with double precision (float64: a block with extended precision), and every
    element in sums of random signs; all of C must be written and finite."""
    bench.need(1.1 * shape.moved(precision))
    rng, storage = bench.rng, precision.formats[0].storage
    a = rng.standard_normal((shape.m, shape.k)).astype(storage)
    b = rng.standard_normal((shape.k, shape.n)).astype(storage)
    c = np.empty((shape.m, shape.n), storage)

    def check() -> gb.Observation:
        """Compare random rows or a block of C with a more precise product, and all elements in random sums."""
        gb.expect(bool(np.isfinite(c).all()), "C holds NaN or infinity: elements were not written")
        expect_host_product(precision, a, b, c, rng)
        wide: Any = np.longdouble if precision.is_double else np.float64
        rows = rng.integers(0, shape.m, CHECKED)
        columns = rng.integers(0, shape.n, CHECKED) if precision.is_double else np.arange(shape.n)
        wide_a, wide_b = a[rows].astype(wide), b[:, columns].astype(wide)
        scale = np.abs(wide_a) @ np.abs(wide_b)
        return judged(precision, shape.k, c[rows][:, columns], wide_a @ wide_b, scale)

    work = gb.Work(flops=shape.flops, moved=shape.moved(precision))

    def redraw() -> None:
        """Negate random rows of A, so that no call can have kept the answer."""
        signs = rng.choice((-1, 1), (shape.m, 1)).astype(storage)
        signs[0] = -1
        np.multiply(a, signs, out=a)

    call = functools.partial(np.matmul, a, b, out=c)
    stage = gb.Stage(call, work, "flops", precision.a, max_calls=64, outputs=(c,), inputs=redraw)
    return gb.Task.of(stage, check=check, notes=_notes())


def host_gemv(bench: gb.Bench, rows: int, cols: int) -> gb.Task:
    """Return y = W·x in float32 by NumPy as a task, with copies of the weights (rows × cols) in turn.

    Raises Skip if they do not fit into the free memory."""
    bench.need(4.0 * (rows * cols * 4) + 4 * bench.target.device.cache_bytes)
    rng = bench.rng
    weights = rng.standard_normal((rows, cols), dtype=np.float32)
    x, y = rng.standard_normal(cols, dtype=np.float32), np.empty(rows, np.float32)
    reference, scale = weights.astype(float) @ x, np.abs(weights).astype(float) @ np.abs(x)
    copies = copies_of(bench, weights)

    def check() -> gb.Observation:
        return judged(PRECISIONS["float32"], cols, y, reference, scale)

    calls = [functools.partial(np.matmul, copy, x, out=y) for copy in copies]
    moved, inputs = 4.0 * (rows * cols + rows + cols), flipping(x, reference)
    stage = rotated(calls, copies, moved, 2.0 * rows * cols, outputs=(y,), inputs=inputs)
    notes = {**_notes(), **rotation_notes(rows, cols, copies)}
    return gb.Task.of(stage, check=check, notes=notes)
