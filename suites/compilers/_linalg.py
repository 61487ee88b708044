"""Write an operator's expression as a function in MLIR's dialect linalg, which IREE compiles."""

from __future__ import annotations

from functools import partial, partialmethod

from ._operator import VECTORS, Operator

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
