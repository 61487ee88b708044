"""Kernels in PTX on the host: all threads of some blocks go through each instruction together, on NumPy's arrays.

It knows the instructions that IREE writes for operators on rows. Registers hold bits, as PTX says. A branch must be
taken by all threads or by none.
"""

import operator
import re

import numpy as np

WARP = 32
_BITS = {"16": np.uint16, "32": np.uint32, "64": np.uint64}
_TYPES = {"u": "uint", "s": "int", "b": "uint", "f": "float"}
_COMPARED = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq}
_TWO = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "or": operator.or_,
    "and": operator.and_,
    "max": np.maximum,
}
_ONE = {"neg": operator.neg, "abs": np.abs, "sqrt": np.sqrt}
_LINE = re.compile(r"(?:@(!?)(%p\d+) )?\s*([\w.]+)\s*(.*);")
_OPERANDS = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")


def type_of(name):
    """NumPy's type for PTX's `f32`."""
    return np.dtype(f"{_TYPES[name[0]]}{name[1:]}")


class PtxThreads:
    def __init__(self, blocks, threads, memory):
        count = blocks * threads
        self.memory = {start: array.reshape(-1).view(np.uint8) for start, array in memory.items()}
        self.registers = {
            "%tid.x": np.arange(count, dtype=np.uint32) % threads,
            "%ctaid.x": np.arange(count, dtype=np.uint32) // threads,
        }
        self.count = count

    def run(self, text, function, addresses):
        """Run a function of a text of PTX with the addresses of its arrays."""
        body = text[text.index(f".entry {function}(") :]
        lines = [line.strip() for line in body[body.index("{") : body.index("\n}")].splitlines()]
        labels = {line[:-1]: place for place, line in enumerate(lines) if line.endswith(":")}
        self.parameters = {f"{function}_param_{place}": address for place, address in enumerate(addresses)}
        place = 0
        while place < len(lines):
            target = self._step(lines[place]) if _LINE.match(lines[place]) else None
            if target == "return":
                return
            place = labels[target] if target else place + 1

    def _step(self, line):
        """Do what a line says; return the label of a branch that is taken."""
        no, predicate, name, operands = _LINE.match(line).groups()
        if name.startswith("."):  # a declaration
            return None
        taken = np.full(self.count, True)
        if predicate:
            taken = ~self.registers[predicate] if no else self.registers[predicate]
            assert name in ("bra", "bra.uni"), line
            assert taken.all() or not taken.any(), f"threads part ways: {line}"
        if name in ("bra", "bra.uni"):
            return operands if taken.all() else None
        if name == "ret":
            return "return"
        self._do(name.split("."), _OPERANDS.findall(operands))
        return None

    def value(self, text, kind):
        """The value of a register, a number or a parameter as numbers of a type."""
        if text in self.registers:
            return self.registers[text].view(kind)
        if text.startswith("0f"):
            return np.full(self.count, int(text[2:], 16), np.uint32).view(kind)
        return np.full(self.count, int(text, 0), np.int64).astype(kind)

    def _put(self, text, value):
        self.registers[text] = value if value.dtype == bool else value.view(_BITS[str(8 * value.itemsize)])

    def _do(self, parts, operands):
        name, last = parts[0], parts[-1]
        if name in ("ld", "st"):
            self._move(parts, operands)
        elif name == "mov":
            self._copy(type_of(last), *operands)
        elif name == "cvt":
            self._convert(parts[1:], operands)
        elif name == "setp":
            first, second = (self.value(text, type_of(last)) for text in operands[1:])
            self._put(operands[0], _COMPARED[parts[1]](first, second))
        elif name == "selp":
            first, second = (self.value(text, type_of(last)) for text in operands[1:3])
            self._put(operands[0], np.where(self.registers[operands[3]], first, second))
        elif name == "shfl":
            assert parts[2] == "bfly", parts
            lanes = np.arange(self.count) ^ int(operands[2])
            self._put(operands[0].partition("|")[0], self.value(operands[1], np.uint32)[lanes])
        else:
            self._put(operands[0], self._computed(name, parts, operands[1:]))

    def _computed(self, name, parts, operands):
        kind = np.dtype(np.float16) if parts[-1] == "f16x2" else type_of(parts[-1])
        if parts[-1] == "f16x2":
            halves = (self.value(text, np.uint32).copy().view(np.float16) for text in operands)
            return _TWO[name](*halves).view(np.uint32)
        values = [self.value(text, kind) for text in operands]
        if name == "fma":
            first, second, third = (value.astype(np.float64) for value in values)
            return (first * second + third).astype(kind)
        if name == "shl":
            return values[0] << values[1]
        if parts[:2] == ["mul", "wide"]:
            return values[0].astype(np.uint64) * values[1].astype(np.uint64)
        return (_ONE[name] if len(values) == 1 else _TWO[name])(*values).astype(kind)

    def _convert(self, kinds, operands):
        into, of = type_of(kinds[-2].removesuffix("x2")), type_of(kinds[-1])
        values = [self.value(text, of) for text in operands[1:]]
        if kinds[-2] == "f16x2":  # the first operand is the upper half
            upper, lower = (value.astype(np.float16).view(np.uint16).astype(np.uint32) for value in values)
            self._put(operands[0], lower | upper << np.uint32(16))
        else:
            rounded = {"rzi": np.trunc, "rmi": np.floor}.get(kinds[0], lambda value: value)(values[0])
            self._put(operands[0], rounded.astype(into))

    def _copy(self, kind, into, source):
        """Move a register; a list in braces is its parts, the lowest first."""
        parts = re.findall(r"[^{},\s]+", into)
        if into.startswith("{"):
            whole = self.value(source, kind).copy().view(f"u{kind.itemsize // len(parts)}").reshape(-1, len(parts))
            for place, part in enumerate(parts):
                self._put(part, whole[:, place].copy())
        elif source.startswith("{"):
            names = re.findall(r"[^{},\s]+", source)
            half = f"u{kind.itemsize // len(names)}"
            self._put(into, np.stack([self.value(name, half) for name in names], 1).copy().view(kind).reshape(-1))
        else:
            self._put(into, self.value(source, kind))

    def _move(self, parts, operands):
        """Load from a parameter, or load from memory or store to it one element or a vector."""
        is_load, kind = parts[0] == "ld", type_of(parts[-1])
        registers, address = operands if is_load else operands[::-1]
        names = re.findall(r"%\w+", registers)
        base, _, offset = address.strip("[]").partition("+")
        if parts[1] == "param":
            self._put(registers, np.full(self.count, self.parameters[base], np.uint64))
            return
        starts = self.value(base, np.int64) + int(offset or 0)
        start = max(start for start in self.memory if start <= starts.min())
        array = self.memory[start]
        places = (starts - start)[:, None] + np.arange(len(names) * kind.itemsize)
        if is_load:
            values = array[places].view(kind)
            for place, name in enumerate(names):
                self._put(name, values[:, place].copy())
        else:
            stored = np.stack([self.value(name, kind) for name in names], 1)
            array[places] = np.ascontiguousarray(stored).view(np.uint8)
