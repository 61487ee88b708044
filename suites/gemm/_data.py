"""The operands of a product and the check of what came out, on a GPU and on the host.

On a GPU the data are made by data.cu: element i is a function of (seed, i). References are
products in double precision of the very elements that the library was given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpubench.api.suite import Bench, Kernel, Observation, Observed, expect

from ._formats import Format, Precision, Shape

KINDS = {"normal": 0, "uniform": 1, "constant": 2, "zeros": 3}  # as data.cu counts them
WORDS = {"normal": "N(0,1)", "uniform": "uniform in [-1, 1)", "constant": "all 1", "zeros": "all 0"}

_CHECKED = 64  # random rows (of double-precision products: a block of 64 × 64) that are compared
_BATCHES = 4  # of a batch, so many products are looked into
_THREADS = 256
_BLOCKS = 132 * 16
_CHUNK = 2**26  # elements that are widened at once

Epilogue = Callable[[Any], Any]  # what the library makes of whole rows of A·B


class Maker:
    """Fills, widens and inspects arrays of any format by the kernels of data.cu."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._kernels: dict[str, Kernel] = {}
        self.xp = bench.xp
        self.to_host = bench.device.to_host

    def run(self, name: str, count: int, *args: Any) -> None:
        """One of the kernels over `count` elements, through which its threads stride."""
        if name not in self._kernels:
            self._kernels[name] = self._bench.kernel("data.cu", name)
        blocks = max(1, min(_BLOCKS, -(-count // _THREADS)))
        self._kernels[name]((blocks,), (_THREADS,), args)

    def fill(self, out: Any, kind: Format, seed: int, data: str = "normal", spread: float = 1.0, first: int = 0) -> Any:
        """Fill an array with elements `first` … of the data of a seed, times `spread`."""
        words = np.uint64(out.size), np.uint64(first), np.uint64(seed), np.uint32(KINDS[data]), np.float32(spread)
        self.run(f"fill_{kind.name}", out.size, out, *words)
        return out

    def drawn(self, kind: Format, count: int, seed: int, data: str = "normal", spread: float = 1.0) -> Any:
        """A flat array of `count` elements."""
        return self.fill(self.xp.empty(count, kind.storage), kind, seed, data, spread)

    def widened(
        self,
        array: Any,
        kind: Format,
        rows: int,
        cols: int,
        strides: tuple[int, int],
        lines: Any = None,
        absolute: bool = False,
    ) -> Any:
        """(rows, cols) elements, or their sizes, as doubles, `strides` apart; row i is line lines[i], where given."""
        out = self.xp.empty((rows, cols), "float64")
        at = np.uint64(0) if lines is None else lines
        sizes = (np.uint64(value) for value in (rows, cols, *strides))
        self.run(f"widen_{kind.name}", out.size, array, at, *sizes, np.uint32(absolute), out)
        return out

    def lacking(self, array: Any, kind: Format) -> int:
        """How many elements are NaN or infinite, or as the output was spoiled."""
        count = self.xp.zeros(1, "uint32")
        self.run(f"lacking_{kind.name}", array.size, array, np.uint64(array.size), count)
        return int(self.to_host(count)[0])

    def differing(self, rows: Any) -> int:
        """How many 16-bit words of (n, …) are neither the first row's nor still spoiled."""
        words, count = rows.reshape(-1).view("uint16"), self.xp.zeros(1, "uint32")
        sizes = np.uint64(words.size), np.uint64(words.size // len(rows))
        self.run("differing", words.size, words, *sizes, count)
        return int(self.to_host(count)[0])


class Operands:
    """A, B and C of one case as flat arrays on a GPU; `epilogue` is what the library does to a row of A·B."""

    def __init__(self, bench: Bench, precision: Precision, shape: Shape, data: str = "normal") -> None:
        bench.need(1.1 * shape.moved(precision) + 4 * 8 * _CHUNK)
        self.precision, self.shape = precision, shape
        self.rng = bench.rng
        self.epilogue: Epilogue | None = None
        self._make = Maker(bench)
        self._to_host = bench.device.to_host
        m, n, k, batch = shape.m, shape.n, shape.k, shape.batch
        kind_a, kind_b, kind_c = precision.formats
        seeds = [int(seed) for seed in self.rng.integers(2**63, size=2)]
        self.a = self._make.drawn(kind_a, batch * m * k, seeds[0], data)
        self.b = self._make.drawn(kind_b, batch * k * n, seeds[1], data)
        self.c = bench.xp.empty(batch * m * n, kind_c.storage)

    def poison(self) -> None:
        """Fill C with a pattern that is no result, so that an element that is not written is seen."""
        self.c.view("uint8").fill(self.precision.formats[2].spoiled)

    def check(self) -> Observation:
        """Random rows of C against a product in double precision, and no element of C unwritten, NaN or infinite."""
        lacking = self._make.lacking(self.c, self.precision.formats[2])
        expect(lacking == 0, f"{lacking} elements of C are not written, NaN or infinite")
        if self.precision.sums == FLOAT64_SUMS:
            return judged(self.precision, self.shape.k, *self._block())
        batches = self.rng.permutation(self.shape.batch)[:_BATCHES]
        parts = [self._rows(int(batch), _CHECKED // len(batches)) for batch in batches]
        found, reference, scale = (np.concatenate(part) for part in zip(*parts, strict=True))
        return judged(self.precision, self.shape.k, found, reference, scale)

    def _of(self, batch: int) -> tuple[Any, Any, Any]:
        m, n, k = self.shape.m, self.shape.n, self.shape.k
        sizes = zip((self.a, self.b, self.c), (m * k, k * n, m * n), strict=True)
        a, b, c = (array[batch * size : (batch + 1) * size] for array, size in sizes)
        return a, b, c

    def _lines(self, count: int, most: int) -> Any:
        return self._make.xp.asarray(self.rng.integers(0, most, count).astype(np.int64))

    def _a_rows(self, a: Any, lines: Any, absolute: bool = False) -> Any:
        m, k = self.shape.m, self.shape.k
        strides = (k, 1) if self.shape.order[0] == "n" else (1, m)
        return self._make.widened(a, self.precision.formats[0], len(lines), k, strides, lines, absolute)

    def _b_columns(self, b: Any, first: int, count: int, absolute: bool = False) -> Any:
        """(k, count) of B."""
        n, k = self.shape.n, self.shape.k
        kind = self.precision.formats[1]
        if self.shape.order[1] == "t":
            return self._make.widened(b[first * k :], kind, count, k, (k, 1), None, absolute).T
        return self._make.widened(b[first:], kind, k, count, (n, 1), None, absolute)

    def _rows(self, batch: int, count: int) -> tuple[Any, Any, Any]:
        """Rows of C, of the product in double precision, and of |A|·|B|."""
        n = self.shape.n
        a, b, c = self._of(batch)
        lines = self._lines(count, self.shape.m)
        rows, sizes = self._a_rows(a, lines), self._a_rows(a, lines, True)
        each = max(1, _CHUNK // self.shape.k)
        reference, scale = [], []
        for first in range(0, n, each):
            columns = self._b_columns(b, first, min(each, n - first))
            reference.append(self._to_host(rows @ columns))
            scale.append(self._to_host(sizes @ self._b_columns(b, first, min(each, n - first), True)))
        found = self._make.widened(c, self.precision.formats[2], len(lines), n, (n, 1), lines)
        wanted = np.concatenate(reference, axis=1)
        wanted = self.epilogue(wanted) if self.epilogue else wanted
        return self._to_host(found), wanted, np.concatenate(scale, axis=1)

    def _block(self) -> tuple[Any, Any, Any]:
        """A block of C, of the product in extended precision on the host, and of |A|·|B|."""
        n, k = self.shape.n, self.shape.k
        a, b, c = self._of(int(self.rng.integers(self.shape.batch)))
        down, across = self._lines(_CHECKED, self.shape.m), self._lines(_CHECKED, n)
        strides = (k, 1) if self.shape.order[1] == "t" else (1, n)
        rows = self._to_host(self._a_rows(a, down)).astype(np.longdouble)
        columns = self._to_host(self._make.widened(b, self.precision.formats[1], _CHECKED, k, strides, across))
        columns = columns.astype(np.longdouble).T
        found = self._to_host(self._make.widened(c, self.precision.formats[2], _CHECKED, n, (n, 1), down))
        return found[:, self._to_host(across)], rows @ columns, np.abs(rows) @ np.abs(columns)


FLOAT64_SUMS = 2.0**-53


def judged(precision: Precision, k: int, found: Any, reference: Any, scale: Any) -> Observation:
    """‖C − R‖/‖R‖ and the greatest |C − R|/(|A|·|B|); raises WrongAnswer where the first is beyond its bound.

    Relative errors of single elements say nothing near zero, so the second is held against the size of
    the terms (Higham 2002, §3.1). Integers are compared exactly.
    """
    off = np.asarray(np.abs(found - reference), dtype=float)
    if precision.is_exact:
        wrong = int(np.count_nonzero(off))
        expect(wrong == 0, f"{wrong} of {off.size} integers compared are wrong")
    size = float(np.linalg.norm(np.asarray(reference, dtype=float)))
    error = float(np.linalg.norm(off)) / size if size else float(off.max())
    bound = precision.bound(k)
    expect(error <= bound, f"the relative error {error:.3g} of the rows compared is above {bound:.3g}")
    terms = np.asarray(scale, dtype=float)
    greatest = float(np.max(np.divide(off, terms, out=np.zeros_like(off), where=terms > 0)))
    return {"error": Observed(error), "greatest_error": Observed(greatest)}


class HostOperands:
    """A, B and C on the host processor, and NumPy's product of them."""

    def __init__(self, bench: Bench, precision: Precision, shape: Shape) -> None:
        bench.need(1.1 * shape.moved(precision))
        self.precision, self.shape, self.rng = precision, shape, bench.rng
        storage = precision.formats[0].storage
        self.a = self.rng.standard_normal((shape.m, shape.k)).astype(storage)
        self.b = self.rng.standard_normal((shape.k, shape.n)).astype(storage)
        self.c = np.empty((shape.m, shape.n), storage)

    def product(self) -> None:
        """NumPy's BLAS."""
        np.matmul(self.a, self.b, out=self.c)

    def poison(self) -> None:
        """Fill C with NaN, so that an element that is not written is seen."""
        self.c.fill(np.nan)

    def check(self) -> Observation:
        """Random rows against double precision (float64: a block against extended), and no NaN anywhere in C."""
        expect(bool(np.isfinite(self.c).all()), "C holds NaN or infinity: elements were not written")
        is_wide = self.precision.sums == FLOAT64_SUMS
        wide: Any = np.longdouble if is_wide else np.float64
        rows = self.rng.integers(0, self.shape.m, _CHECKED)
        columns = self.rng.integers(0, self.shape.n, _CHECKED) if is_wide else np.arange(self.shape.n)
        a: Any = self.a[rows].astype(wide)
        b: Any = self.b[:, columns].astype(wide)
        return judged(self.precision, self.shape.k, self.c[rows][:, columns], a @ b, np.abs(a) @ np.abs(b))
