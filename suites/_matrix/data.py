"""Make the operands of a product on a GPU, and check the result of a product on a GPU or on the host.

matrix_data.cu makes the data: element i is a function of (seed, i). References are products in double precision of the
elements that the library was given."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import flipping
from .formats import Format, MatrixProduct, Precision, Shape
from .freivalds import SIGN_BLOCK, element_bound, expect_product, sign_blocks

CHECKED = 64  # random rows that are compared (of double-precision products: a block of 64 × 64)
_CONTENTS = {"normal": "N(0,1)", "uniform": "uniform in [-1, 1)", "constant": "all 1", "zeros": "all 0"}
_NUMBERS = {data: number for number, data in enumerate(_CONTENTS)}  # the numbers that matrix_data.cu uses for them
_BATCHES = 4  # at most this many products of a batch are checked
_THREADS = 256
_BLOCKS = 132 * 16
_CHUNK = 2**26  # elements that are widened to double precision at once

Epilogue = Callable[[Any], Any]  # the library's operation on whole rows of A·B


class Maker:
    """Fills, widens and inspects CuPy arrays of any format by the kernels of matrix_data.cu.

    `xp` is CuPy, and `to_host` copies an array to NumPy."""

    def __init__(self, bench: gb.Bench) -> None:
        self._bench = bench
        self._kernels: dict[str, gb.Kernel] = {}
        self.xp = bench.xp
        self.to_host = bench.device.to_host

    def run(self, name: str, count: int, *args: Any) -> None:
        """Launch the kernel `name` of matrix_data.cu with `args`; its threads stride through `count` elements."""
        if name not in self._kernels:
            self._kernels[name] = self._bench.kernel("matrix_data.cu", name)
        blocks = max(1, min(_BLOCKS, -(-count // _THREADS)))
        self._kernels[name]((blocks,), (_THREADS,), args)

    def fill(self, out: Any, kind: Format, seed: int, data: str = "normal", spread: float = 1.0, first: int = 0) -> Any:
        """Fill the array `out` with elements `first`, `first` + 1, … of the data of `seed`, and return `out`.

        `kind` is the format of the elements, which are multiplied by `spread`; `data` is `normal`, `uniform`,
        `constant` or `zeros`."""
        numbers = np.uint64(out.size), np.uint64(first), np.uint64(seed), np.uint32(_NUMBERS[data]), np.float32(spread)
        self.run(f"fill_{kind.name}", out.size, out, *numbers)
        return out

    def drawn(self, kind: Format, count: int, seed: int, data: str = "normal", spread: float = 1.0) -> Any:
        """Return a new flat CuPy array of `count` elements of the format `kind` with the data of `seed`.

        The elements are multiplied by `spread`; `data` is `normal`, `uniform`, `constant` or `zeros`."""
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
        """Return (rows, cols) elements of an array as doubles on the device, or their absolute values if `absolute`.

        `kind` is the format of the elements."""
        out = self.xp.empty((rows, cols), "float64")
        at = np.uint64(0) if lines is None else lines
        sizes = (np.uint64(value) for value in (rows, cols, *strides))
        self.run(f"widen_{kind.name}", out.size, array, at, *sizes, np.uint32(absolute), out)
        return out

    def count_unwritten(self, array: Any, kind: Format) -> int:
        """Return the number of elements of `array`, in the format `kind`, that are NaN (as if poisoned) or infinite."""
        count = self.xp.zeros(1, "uint32")
        self.run(f"unusable_{kind.name}", array.size, array, np.uint64(array.size), count)
        return int(self.to_host(count)[0])

    def written(self, rows: Any) -> Any:
        """Return the indices of `rows` along its first axis with a 16-bit word that is not poisoned: NumPy, int64."""
        halfwords, marks = rows.reshape(-1).view("uint16"), self.xp.zeros(len(rows), "uint32")
        sizes = (np.uint64(size) for size in (halfwords.size, halfwords.size // len(rows)))
        self.run("mark_written", halfwords.size, halfwords, *sizes, marks)
        return np.flatnonzero(self.to_host(marks))

    def differing(self, rows: Any, first: int = 0) -> int:
        """Return how many 16-bit words of `rows` are not poisoned and differ from the same word of rows[first].

        `rows` is a device array whose first axis counts results that should be equal."""
        halfwords, count = rows.reshape(-1).view("uint16"), self.xp.zeros(1, "uint32")
        sizes = (np.uint64(size) for size in (halfwords.size, halfwords.size // len(rows), first))
        self.run("differing", halfwords.size, halfwords, *sizes, count)
        return int(self.to_host(count)[0])

    def squares(self, matrix: Any) -> Any:
        """Return the sums of squares of each row of `matrix` over blocks of SIGN_BLOCK columns: NumPy, (rows, blocks).

        `matrix` has doubles on the device."""
        rows, cols = matrix.shape
        out = self.xp.empty((rows, -(-cols // SIGN_BLOCK)), "float64")
        self.run("squares", out.size, matrix, *(np.uint64(size) for size in (rows, cols, SIGN_BLOCK)), out)
        return self.to_host(out)


class Operands:
    """A, B and C of one case as flat CuPy arrays, A and B filled with seeded data.

    `data` is `normal`, `uniform`, `constant` or `zeros`."""

    def __init__(self, bench: gb.Bench, precision: Precision, shape: Shape, data: str = "normal") -> None:
        bench.need(1.1 * shape.moved(precision) + 4 * 8 * _CHUNK)
        self.precision, self.shape = precision, shape
        self.rng = bench.rng
        self.epilogue: Epilogue | None = None
        self.notes: Mapping[str, str] = {"shape": str(shape), "data": _CONTENTS[data], "seed": str(bench.seed)}
        self._make = Maker(bench)
        self._to_host = bench.device.to_host
        m, n, k, batch = shape.m, shape.n, shape.k, shape.batch
        kind_a, kind_b, kind_c = precision.formats
        seeds = [int(seed) for seed in self.rng.integers(2**63, size=2)]
        self._seed, self._data = seeds[0], data
        self.a = self._make.drawn(kind_a, batch * m * k, seeds[0], data)
        self.b = self._make.drawn(kind_b, batch * k * n, seeds[1], data)
        self.c = bench.xp.empty(batch * m * n, kind_c.storage)
        self._negate = flipping(self.a)

    @property
    def product(self) -> MatrixProduct:
        """The product of these operands."""
        return MatrixProduct(self.precision, self.shape, self.a, self.b, self.c)

    def work(self, products: int = 1) -> gb.Work:
        """Return the operations and the least number of bytes of a number of products."""
        return gb.Work(flops=products * self.shape.flops, moved=products * self.shape.moved(self.precision))

    def stage(self, call: Callable[[], None], effort: gb.Effort = gb.TIER) -> gb.Stage:
        """Return one product as a stage, judged by its operations."""
        limit, inputs = self.precision.limit, None if self._data == "zeros" else self.redraw  # -0 equals 0
        rest: dict[str, Any] = {"effort": effort, "outputs": (self.c,), "inputs": inputs}
        return gb.Stage(call, self.work(), "flops", limit, max_calls=64, **rest)

    def redraw(self) -> None:
        """Fill A with the data of a new seed, so that no call can have kept their answer; negate a constant."""
        if self._data == "constant":
            self._negate()
            return
        self._seed += 1
        self._make.fill(self.a, self.precision.formats[0], self._seed, self._data)

    def check(self) -> gb.Observation:
        """Compare random rows of C with a product in double precision, and every element in sums of random signs.

        Returns the errors as `judged` does."""
        missing = self._make.count_unwritten(self.c, self.precision.formats[2])
        gb.expect(missing == 0, f"{missing} elements of C are not written, NaN or infinite")
        errors = self._compared_rows()
        if self.epilogue is None:
            self._expect_every_element(int(self.rng.integers(self.shape.batch)))
        return errors

    def _compared_rows(self) -> gb.Observation:
        """Return the errors of compared elements, as `judged` does; raises WrongAnswer if one is above its bound."""
        if self.precision.is_double:
            return judged(self.precision, self.shape.k, *self._block())
        batches = self.rng.permutation(self.shape.batch)[:_BATCHES]
        parts = [self._rows(int(batch), CHECKED // len(batches)) for batch in batches]
        result, reference, scale = (np.concatenate(part) for part in zip(*parts, strict=True))
        return judged(self.precision, self.shape.k, result, reference, scale)

    def _expect_every_element(self, batch: int) -> None:
        """Raise WrongAnswer if C·X differs from A·(B·X) for random signs X, which depends on every element of C."""
        m, n, k = self.shape.m, self.shape.n, self.shape.k
        make, to_host, (a, b, c) = self._make, self._to_host, self._in_batch(batch)
        signs = sign_blocks(self.rng, n)
        all_signs = make.xp.asarray(signs)
        parts, squares = [], []  # B·X, and the squares of B's columns summed over each block
        most = SIGN_BLOCK * max(1, _CHUNK // 2 // k // SIGN_BLOCK)
        for first in range(0, n, most):
            columns = self._b_columns(b, first, min(most, n - first))
            blocks = slice(first // SIGN_BLOCK, (first + most) // SIGN_BLOCK)
            parts.append(columns @ make.xp.asarray(signs[first : first + most, blocks]))
            squares.append(self._block_squares(columns))
        b_squares = np.concatenate(squares)
        most = max(1, _CHUNK // 2 // max(k, n))
        for first in range(0, m, most):
            lines = make.xp.asarray(np.arange(first, min(first + most, m)))
            rows = self._a_rows(a, lines)
            result = make.widened(c, self.precision.formats[2], len(lines), n, (n, 1), lines)
            a_b_x = np.concatenate([to_host(rows @ part) for part in parts], axis=1)
            terms = np.sqrt(make.squares(rows).sum(axis=1)[:, None] * b_squares)
            expect_product(self.precision, k, to_host(result @ all_signs), a_b_x, np.sqrt(make.squares(result)), terms)

    def _block_squares(self, columns: Any) -> Any:
        """Return the sum of squares of each block of columns of B: NumPy, (blocks,)."""
        if columns.flags.c_contiguous:
            return self._make.squares(columns).sum(axis=0)
        of_columns = self._make.squares(columns.T).sum(axis=1)
        return np.add.reduceat(of_columns, np.arange(0, len(of_columns), SIGN_BLOCK))

    def _in_batch(self, batch: int) -> tuple[Any, Any, Any]:
        """Return A, B and C of the product with the number `batch` as flat device arrays."""
        m, n, k = self.shape.m, self.shape.n, self.shape.k
        sizes = zip((self.a, self.b, self.c), (m * k, k * n, m * n), strict=True)
        a, b, c = (array[batch * size : (batch + 1) * size] for array, size in sizes)
        return a, b, c

    def _lines(self, count: int, most: int) -> Any:
        """Return `count` random row or column numbers below `most`, as int64 on the device."""
        return self._make.xp.asarray(self.rng.integers(0, most, count).astype(np.int64))

    def _a_rows(self, a: Any, lines: Any, absolute: bool = False) -> Any:
        """Return the rows of A with the numbers `lines` (int64) as doubles (rows, k) on the device."""
        m, k = self.shape.m, self.shape.k
        strides = (k, 1) if self.shape.order[0] == "n" else (1, m)
        return self._make.widened(a, self.precision.formats[0], len(lines), k, strides, lines, absolute)

    def _b_columns(self, b: Any, first: int, count: int, absolute: bool = False) -> Any:
        """Return `count` columns of B from column `first` on as doubles (k, count) on the device."""
        n, k = self.shape.n, self.shape.k
        kind = self.precision.formats[1]
        if self.shape.order[1] == "t":
            return self._make.widened(b[first * k :], kind, count, k, (k, 1), None, absolute).T
        return self._make.widened(b[first:], kind, k, count, (n, 1), None, absolute)

    def _rows(self, batch: int, count: int) -> tuple[Any, Any, Any]:
        """Return three NumPy arrays (count, n) for `count` random rows: C, its reference, and |A|·|B|."""
        n = self.shape.n
        a, b, c = self._in_batch(batch)
        lines = self._lines(count, self.shape.m)
        rows, sizes = self._a_rows(a, lines), self._a_rows(a, lines, True)
        most = max(1, _CHUNK // self.shape.k)
        references, scales = [], []
        for first in range(0, n, most):
            count = min(most, n - first)
            references.append(self._to_host(rows @ self._b_columns(b, first, count)))
            scales.append(self._to_host(sizes @ self._b_columns(b, first, count, True)))
        result = self._make.widened(c, self.precision.formats[2], len(lines), n, (n, 1), lines)
        reference = np.concatenate(references, axis=1)
        reference = self.epilogue(reference) if self.epilogue else reference
        return self._to_host(result), reference, np.concatenate(scales, axis=1)

    def _block(self) -> tuple[Any, Any, Any]:
        """Return three NumPy arrays (64, 64) for random rows and columns of a random product: C, A·B and |A|·|B|."""
        n, k = self.shape.n, self.shape.k
        a, b, c = self._in_batch(int(self.rng.integers(self.shape.batch)))
        down, across = self._lines(CHECKED, self.shape.m), self._lines(CHECKED, n)
        strides = (k, 1) if self.shape.order[1] == "t" else (1, n)
        rows = self._to_host(self._a_rows(a, down)).astype(np.longdouble)
        columns = self._to_host(self._make.widened(b, self.precision.formats[1], CHECKED, k, strides, across))
        columns = columns.astype(np.longdouble).T
        result = self._to_host(self._make.widened(c, self.precision.formats[2], CHECKED, n, (n, 1), down))
        return result[:, self._to_host(across)], rows @ columns, np.abs(rows) @ np.abs(columns)


def _partial_sums(precision: Precision, size: float, off: Any) -> float:
    """Return the error that a library adds to an element if it splits K and rounds the partial sums."""
    return 4 * precision.narrow * size / math.sqrt(off.size)


def judged(precision: Precision, k: int, result: Any, reference: Any, scale: Any) -> gb.Observation:
    """Return ‖C − R‖/‖R‖ as `error` and the largest |C − R|/(|A|·|B|) as `greatest_error`.

    `result` is C, `reference` R and `scale` |A|·|B|: NumPy arrays for the same elements, each a sum of k products.
    Raises WrongAnswer if `error` is above `Precision.bound`, or an element differs by more than `element_bound` and
    `_partial_sums` allow. Near zero the relative error of a single element means nothing, so each element has a bound
    relative to the size of its terms (Higham 2002, §3.1). Integers are compared exactly."""
    off = np.asarray(np.abs(result - reference), dtype=float)
    if precision.is_exact:
        wrong = int(np.count_nonzero(off))
        gb.expect(wrong == 0, f"{wrong} of {off.size} compared integers are wrong")
    size = float(np.linalg.norm(np.asarray(reference, dtype=float)))
    error = float(np.linalg.norm(off)) / size if size else float(off.max())
    bound = precision.bound(k)
    gb.expect(error <= bound, f"the relative error {error:.3g} of the compared rows is above {bound:.3g}")
    terms = np.asarray(scale, dtype=float)
    allowed = element_bound(precision, k, np.asarray(reference, dtype=float), terms) + _partial_sums(
        precision, size, off
    )
    wrong = int(np.count_nonzero(~(off <= allowed)))
    gb.expect(wrong == 0, f"{wrong} of {off.size} compared elements differ by more than rounding explains")
    greatest = float(np.max(np.divide(off, terms, out=np.zeros_like(off), where=terms > 0)))
    return {"error": gb.Observed(error), "greatest_error": gb.Observed(greatest)}
