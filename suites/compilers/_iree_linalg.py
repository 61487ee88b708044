"""Write an operator's expression as a function in MLIR's dialect linalg, which IREE compiles."""

from __future__ import annotations

from ._operators import VECTORS, Operator

_TYPES = {"float16": "f16", "float32": "f32"}


class _Traced:
    """A value of the program that is being written: its name in MLIR, and its axes as _Program defines them."""

    def __init__(self, program: _Program, name: str, axes: str) -> None:
        self.program, self.name, self.axes = program, name, axes

    def __add__(self, operand: _Operand) -> _Traced:
        return self.program.binary("arith.addf", self, operand)

    def __sub__(self, operand: _Operand) -> _Traced:
        return self.program.binary("arith.subf", self, operand)

    def __mul__(self, operand: _Operand) -> _Traced:
        return self.program.binary("arith.mulf", self, operand)

    def __truediv__(self, operand: _Operand) -> _Traced:
        return self.program.binary("arith.divf", self, operand)

    def __radd__(self, operand: float) -> _Traced:
        return self + operand

    def __rmul__(self, operand: float) -> _Traced:
        return self * operand

    def __neg__(self) -> _Traced:
        return self.program.unary("arith.negf", self)


_Operand = _Traced | float


class _Program:
    """The lines of a function in MLIR, and functions in place of NumPy's, each of which adds lines.

    An operator's expression calls these functions."""

    def __init__(self, rows: int, cols: int) -> None:
        self._lengths = {"r": rows, "c": cols}
        self.lines: list[str] = []
        self._count = 0

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

    def exp(self, x: _Traced) -> _Traced:
        return self.unary("math.exp", x)

    def tanh(self, x: _Traced) -> _Traced:
        return self.unary("math.tanh", x)

    def sqrt(self, x: _Traced) -> _Traced:
        return self.unary("math.sqrt", x)

    def amax(self, x: _Traced, axis: int, keepdims: bool) -> _Traced:
        del axis, keepdims  # always the columns, and the result is one value for each row
        return self._reduced("arith.maximumf", -3.0e38, x)

    def sum(self, x: _Traced, axis: int, keepdims: bool) -> _Traced:
        del axis, keepdims
        return self._reduced("arith.addf", 0.0, x)

    def mean(self, x: _Traced, axis: int, keepdims: bool) -> _Traced:
        return self.sum(x, axis, keepdims) / self._lengths["c"]


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
