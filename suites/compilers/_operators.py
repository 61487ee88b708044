"""Define an operator at one shape: its inputs, the bytes that it must move, and the check of its outputs."""

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._matrix.data import Maker
from .._matrix.formats import FORMATS
from . import _pointwise, _rows
from ._operator import EPSILON, VECTORS, Operator
from ._pointwise import POINTWISE

__all__ = ["EPSILON", "ITEM_BYTES", "OPERATORS", "POINTWISE", "VECTORS", "Operator", "Problem", "Rows", "load_kernels"]

OPERATORS = POINTWISE | _rows.ROWS
ITEM_BYTES = {"float16": 2, "float32": 4}
_BOUNDS = {"float16": 16 * 2.0**-11, "float32": 1e-5}  # of the relative error: some providers round every intermediate

Rows = tuple[npt.NDArray[np.float64], ...]


def load_kernels(**modules: Any) -> None:
    """Let the kernels of OPERATORS use modules of a library by the names that the kernels give them."""
    for kernels in (_pointwise, _rows):
        vars(kernels).update(modules)


class Problem:
    """An operator at one shape, with its inputs in the memory of the device.

    `name` is a key of `operators`."""

    operators: ClassVar[Mapping[str, Operator]] = OPERATORS
    whole: ClassVar[tuple[str, ...]] = VECTORS  # inputs that every checked row needs as a whole
    most_checked: ClassVar[int] = 64  # random rows
    quantity: ClassVar[Literal["moved", "flops"]] = "moved"  # of `work`; its rate is compared with `limit`
    flops: float = 0.0  # operations of a call, if they are counted

    def __init__(self, bench: gb.Bench, name: str, rows: int, cols: int, dtype: str) -> None:
        self.operator, self.rows, self.cols, self.dtype = self.operators[name], rows, cols, dtype
        bench.need(self.moved + 3 * ITEM_BYTES[dtype] * self.operator.outputs * prod(self.output_shape))
        rng = bench.rng
        self._bench, self._to_host = bench, bench.device.to_host
        self._seeds = {name: int(rng.integers(2**63)) for name in self.operator.inputs}
        self.checked = np.sort(rng.choice(rows, min(self.most_checked, rows), replace=False))  # indices of rows
        self._exact: Rows = ()  # for operators whose expected rows are computed once for each of the two inputs
        self._other_exact: Rows = ()

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """The inputs by name, drawn at their first use, which a provider without its library never reaches."""
        return {name: self._drawn(self._bench, name) for name in self.operator.inputs}

    def _drawn(self, bench: gb.Bench, name: str) -> Any:
        shape, seed = self.shape_of(name), self._seeds[name]
        if bench.xp is np:
            drawn: Any = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
        else:
            drawn = Maker(bench).drawn(FORMATS["float32"], prod(shape), seed).reshape(shape)
        return self._scaled(name, drawn).astype(self.dtype)

    def _scaled(self, name: str, drawn: Any) -> Any:
        """Return the input `name`, made from `drawn`, an array of numbers that are N(0, 1)."""
        if name == "variance":
            return drawn * drawn + np.float32(0.5)
        return drawn < 0.84 if name == "kept" else drawn  # 0.84: the 80th percentile of N(0, 1)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input."""
        return (self.cols,) if name in VECTORS else (self.rows, self.cols)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of each output; the rows that are compared are lines of its first axis."""
        return (self.rows, self.cols)

    @property
    def moved(self) -> float:
        """The bytes that a call cannot avoid to move: each input is read once and each output written once."""
        inputs = sum(prod(self.shape_of(name)) for name in self.operator.inputs)
        return float(ITEM_BYTES[self.dtype] * (inputs + self.operator.outputs * prod(self.output_shape)))

    @property
    def work(self) -> gb.Work:
        """The work of one call."""
        return gb.Work(moved=self.moved, flops=self.flops)

    @property
    def limit(self) -> str:
        """The id of the peak with which the rate of a call is compared: memory, or products of this precision."""
        if self.quantity == "moved":
            return "dram"
        return "float32" if self.dtype == "float32" else f"tensor.{self.dtype}"

    def change(self) -> None:
        """Negate the first input in place, which changes the outputs; a second call restores it."""
        first = next(iter(self.inputs.values()))
        first *= -1
        self._exact, self._other_exact = self._other_exact, self._exact

    def rows_of(self, array: Any) -> npt.NDArray[np.float64]:
        """Return the checked rows of an array of the device's array module as a NumPy array in double precision."""
        rows: npt.NDArray[np.float64] = self._to_host(array[self.checked]).astype(np.float64)
        return rows

    def expected(self) -> Rows:
        """Return the checked rows of every output in double precision, computed by NumPy from the present inputs."""
        inputs = self.inputs.items()
        wide = (self._to_host(a).astype(np.float64) if name in self.whole else self.rows_of(a) for name, a in inputs)
        return self.operator.outputs_of(np, *wide)

    def compare(self, outputs: Rows) -> gb.Observation:
        """Compare the checked rows of every output with double precision; return the largest relative error as `error`.

        `outputs` has one NumPy array for each output."""
        gb.expect(len(outputs) == self.operator.outputs, f"{len(outputs)} outputs, not {self.operator.outputs}")
        error, bound = max(map(_error, outputs, self.expected())), _BOUNDS[self.dtype]
        gb.expect(error <= bound, f"the relative error {error:.3g} is above {bound:.3g}")
        return {"error": gb.Observed(error)}

    def notes(self) -> Mapping[str, str]:
        """Return notes on the data and on the check, by name."""
        bound = f"against double precision, relative error up to {_BOUNDS[self.dtype]:.2g}"
        return {"data": "seeded, N(0, 1)", "check": f"{len(self.checked)} random rows {bound}"}

    def vendor(self, _bench: gb.Bench) -> Any:
        """Return the operator as the vendor's library builds it, a `Built`; raises Skip if it has no such operator."""
        raise gb.Skip(f"vendor has no {self.operator.name} here")

    def numba_call(self, compiled: Callable[[Any], Any], outputs: tuple[Any, ...]) -> Callable[[], None]:
        """Return a call of the operator's loop, which `compiled` compiles, from the inputs to `outputs`."""
        return partial(compiled(self.operator.kernels["numba"]), *self.inputs.values(), *outputs)


def _error(rows: npt.NDArray[np.float64], exact: npt.NDArray[np.float64]) -> float:
    """Return the norm of `rows` − `exact` over the norm of `exact`, the relative error of an output."""
    gb.expect(rows.shape == exact.shape, f"an output has the shape {rows.shape}, not {exact.shape}")
    gb.expect(bool(np.isfinite(rows).all()), "an output is not written, NaN or infinite")
    return float(np.linalg.norm(rows - exact) / np.linalg.norm(exact))
