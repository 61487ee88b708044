"""Define the operators that every provider builds: their expressions, the bytes they must move, and their check.

An operator takes matrices of `rows` × `cols` elements, and vectors of `cols` elements, and gives matrices of the
same shape."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._matrix.data import Maker
from .._matrix.formats import FORMATS

EPSILON = 1e-5  # added to the variance by norms
VECTORS = ("weight", "bias", "mean", "variance", "scale", "shift")  # inputs of one row; all others are matrices
ITEM_BYTES = {"float16": 2, "float32": 4}
_BOUNDS = {"float16": 16 * 2.0**-11, "float32": 1e-5}  # of the relative error: some providers round every intermediate
_GELU = 0.7978845608028654, 0.044715  # of the approximation with tanh (Hendrycks & Gimpel, 2016)

Array = Any  # of the provider's own library
Rows = tuple[npt.NDArray[np.float64], ...]


def _bias_gelu(xp: Any, x: Array, bias: Array) -> Array:
    y = x + bias
    return 0.5 * y * (1 + xp.tanh(_GELU[0] * (y + _GELU[1] * y * y * y)))


def _swiglu(xp: Any, gate: Array, up: Array) -> Array:
    return gate / (1 + xp.exp(-gate)) * up


def _residual_dropout(_xp: Any, x: Array, residual: Array, kept: Array) -> Array:
    return x * kept * 1.25 + residual


def _twelve(_xp: Any, x: Array, y: Array) -> Array:
    """Return (u/8 − s/2 + t)/2 − y/8 + x, with s = x + y, t = x − y and u = s·t + 1/4: twelve operations."""
    s = x + y
    t = x - y
    u = s * t + 0.25
    v = u * 0.125 - s * 0.5
    return (v + t) * 0.5 - y * 0.125 + x


def _softmax(xp: Any, x: Array) -> Array:
    powers = xp.exp(x - xp.amax(x, axis=-1, keepdims=True))
    return powers / xp.sum(powers, axis=-1, keepdims=True)


def _rmsnorm(xp: Any, x: Array, weight: Array) -> Array:
    return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + EPSILON) * weight


def _layernorm(xp: Any, x: Array, weight: Array, bias: Array) -> Array:
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    return centred / xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True) + EPSILON) * weight + bias


def _residual_norm(xp: Any, x: Array, residual: Array, weight: Array) -> tuple[Array, Array]:
    s = x + residual
    return s, _rmsnorm(xp, s, weight)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator: its inputs by name, the number of its outputs, and its expression over arrays of any library.

    `expression(xp, *inputs)` uses functions that NumPy, CuPy, torch and jax.numpy share, and returns one array or a
    tuple of them."""

    name: str
    inputs: tuple[str, ...]
    expression: Callable[..., Any]
    outputs: int = 1

    def outputs_of(self, xp: Any, *inputs: Array) -> tuple[Array, ...]:
        """Return the outputs of the expression as a tuple; `xp` is the module whose functions it uses, such as NumPy.

        The inputs are arrays of that module, in the order of `inputs`."""
        outputs = self.expression(xp, *inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)


OPERATORS = {
    operator.name: operator
    for operator in (
        Operator("bias-gelu", ("x", "bias"), _bias_gelu),
        Operator("swiglu", ("gate", "up"), _swiglu),
        Operator("residual-dropout", ("x", "residual", "kept"), _residual_dropout),
        Operator("twelve", ("x", "y"), _twelve),
        Operator("softmax", ("x",), _softmax),
        Operator("rmsnorm", ("x", "weight"), _rmsnorm),
        Operator("layernorm", ("x", "weight", "bias"), _layernorm),
        Operator("residual_norm", ("x", "residual", "weight"), _residual_norm, outputs=2),
    )
}
POINTWISE = ("bias-gelu", "swiglu", "residual-dropout", "twelve")


class Problem:
    """An operator at one shape, with its inputs in the memory of the device.

    `name` is a key of `operators`."""

    operators: ClassVar[Mapping[str, Operator]] = OPERATORS
    most_checked: ClassVar[int] = 64  # random rows
    quantity: ClassVar[Literal["moved", "flops"]] = "moved"  # of `work`; its rate is compared with `limit`

    def __init__(self, bench: gb.Bench, name: str, rows: int, cols: int, dtype: str) -> None:
        self.operator, self.rows, self.cols, self.dtype = self.operators[name], rows, cols, dtype
        bench.need(self.moved + 3 * ITEM_BYTES[dtype] * self.operator.outputs * prod(self.output_shape))
        rng = bench.rng
        self._bench, self._to_host = bench, bench.device.to_host
        self._seeds = {name: int(rng.integers(2**63)) for name in self.operator.inputs}
        self._checked = np.sort(rng.choice(rows, min(self.most_checked, rows), replace=False))

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """The inputs by name, drawn at their first use, which a provider without its library never reaches."""
        return {name: self._drawn(self._bench, name) for name in self.operator.inputs}

    def _drawn(self, bench: gb.Bench, name: str) -> Any:
        drawn = _normal(bench, self.shape_of(name), self._seeds[name])
        return self._scaled(name, drawn).astype(self.dtype)

    def _scaled(self, name: str, drawn: Any) -> Any:
        """Return the input `name`, made from `drawn`, an array of numbers that are N(0, 1)."""
        return drawn < 0.84 if name == "kept" else drawn  # 0.84: the 80th percentile of N(0, 1)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input."""
        return (self.cols,) if name in VECTORS else (self.rows, self.cols)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of each output; the rows that are compared are lines of its first axis."""
        return (self.rows, self.cols)

    @property
    def elements(self) -> int:
        """The number of elements of a matrix."""
        return self.rows * self.cols

    @property
    def moved(self) -> float:
        """The bytes that a call cannot avoid to move: each input is read once and each output written once."""
        inputs = sum(prod(self.shape_of(name)) for name in self.operator.inputs)
        return float(ITEM_BYTES[self.dtype] * (inputs + self.operator.outputs * prod(self.output_shape)))

    @property
    def work(self) -> gb.Work:
        """The work of one call."""
        return gb.Work(moved=self.moved)

    @property
    def limit(self) -> str:
        """The id of the peak with which the rate of a call is compared, as a Stage takes it."""
        return "dram"

    def change(self) -> None:
        """Negate the first input in place. This changes the outputs, so a call that returns old results is detected."""
        first = next(iter(self.inputs.values()))
        first *= -1

    def rows_of(self, array: Any) -> npt.NDArray[np.float64]:
        """Return the checked rows of an array of the device's array module as a NumPy array in double precision."""
        rows: npt.NDArray[np.float64] = self._to_host(array[self._checked]).astype(np.float64)
        return rows

    @property
    def checked(self) -> npt.NDArray[np.int64]:
        """The indices of the rows that are compared."""
        return self._checked

    def expected(self) -> Rows:
        """Return the checked rows of every output in double precision, computed by NumPy from the present inputs."""
        inputs = (
            self._to_host(array).astype(np.float64) if name in VECTORS else self.rows_of(array)
            for name, array in self.inputs.items()
        )
        return self.operator.outputs_of(np, *inputs)

    def compare(self, outputs: Rows) -> gb.Observation:
        """Compare the checked rows of every output with double precision; return the largest relative error as `error`.

        `outputs` has one NumPy array for each output."""
        gb.expect(len(outputs) == self.operator.outputs, f"{len(outputs)} outputs, not {self.operator.outputs}")
        errors = [_error(rows, exact) for rows, exact in zip(outputs, self.expected(), strict=True)]
        bound = _BOUNDS[self.dtype]
        gb.expect(max(errors) <= bound, f"the relative error {max(errors):.3g} is above {bound:.3g}")
        return {"error": gb.Observed(max(errors))}

    def notes(self) -> Mapping[str, str]:
        """Return notes on the data and on the check, by name."""
        return {
            "data": "seeded, N(0, 1)",
            "check": f"{len(self._checked)} random rows against double precision, relative error up to "
            f"{_BOUNDS[self.dtype]:.2g}",
        }


def _normal(bench: gb.Bench, shape: tuple[int, ...], seed: int) -> Any:
    """Return seeded float32 numbers that are N(0, 1) in the memory of the device, as an array of its array module."""
    if bench.xp is np:
        return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    make = Maker(bench)
    return make.drawn(FORMATS["float32"], prod(shape), seed).reshape(shape)


def _error(rows: npt.NDArray[np.float64], exact: npt.NDArray[np.float64]) -> float:
    """Return the norm of `rows` − `exact` over the norm of `exact`, the relative error of an output."""
    gb.expect(rows.shape == exact.shape, f"an output has the shape {rows.shape}, not {exact.shape}")
    gb.expect(bool(np.isfinite(rows).all()), "an output is not written, NaN or infinite")
    return float(np.linalg.norm(rows - exact) / np.linalg.norm(exact))
