"""What lies nearer than memory: registers, shared memory and its banks, a cluster's, constants; and atomics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api.suite import POINT, Bench, Observation, Skip, Task, expect

from ._ring import Walk, new_state, pointer

_WORD_BYTES = 4
_STEPS = 2**18  # of a chain in shared memory or in registers: a few milliseconds
_THREADS = 256
_BANKS, _LANES = 32, 32  # of shared memory and of the loads that it serves at once, on NVIDIA and on AMD
_CONFLICT_BYTES, _CONFLICT_STEPS = 2**15, 2**16
_REGISTER_STEPS = 2**19
_CELLS, _CELL_BYTES = 64, 128  # of atomics: steps are a multiple of their number
_CLUSTER_STEPS = 2**15
_CONSTANT_LINE_BYTES, _CONSTANT_BYTES = 64, 2**16
_CONSTANT_STEPS = 2**15
_FAR_STEPS, _BUS_STEPS = 2**13, 2**10


def _cycle(order: npt.NDArray[Any], unit: int, words: int) -> npt.NDArray[np.uint32]:
    """A ring of byte offsets over the nodes of `order`, each `unit` words long, in an array of so many words."""
    ring = np.zeros(words, np.uint32)
    ring[order * unit] = np.roll(order, -1) * unit * _WORD_BYTES
    return ring


def shared(bench: Bench, size_bytes: int, kernel: str = "shared", blocks: int = 1, steps: int = _STEPS) -> Task:
    """A ring of 4-byte nodes in shared memory, walked by one lane."""
    nodes = size_bytes // _WORD_BYTES - 1
    order = bench.rng.permutation(nodes)
    ring = bench.xp.asarray(_cycle(order, 1, nodes))
    state = new_state(bench, int(order[0]) * _WORD_BYTES)
    run = bench.kernel("near.cu", kernel)
    args = (ring, np.uint32(nodes), np.uint64(steps), state)
    walk = Walk(
        bench,
        lambda: run((blocks,), (_THREADS,), args, size_bytes),
        lambda walked: int(order[walked % nodes]) * _WORD_BYTES,
        state,
        steps,
    )
    return walk.task(POINT)


def cluster(bench: Bench, size_bytes: int) -> Task:
    """The same ring in the shared memory of the other block of a cluster."""
    if "clusters" not in bench.traits.features:
        raise Skip("needs blocks that reach each other's shared memory (NVIDIA, sm_90 or newer)")
    return shared(bench, size_bytes, "cluster", 2, _CLUSTER_STEPS)


class Conflict:
    """A warp whose lanes walk rings of their own, `degree` of them in each bank."""

    def __init__(self, bench: Bench, degree: int) -> None:
        lanes, words = bench.traits.warp, _CONFLICT_BYTES // _WORD_BYTES
        self._orders = conflict_rings(bench.rng, degree, lanes, words)
        ring = np.zeros(words, np.uint32)
        for order in self._orders:
            ring[order] = np.roll(order, -1) * _WORD_BYTES
        self._lanes = bench.xp.asarray(np.array([order[0] * _WORD_BYTES for order in self._orders], np.uint32))
        near, state, run = bench.xp.asarray(ring), new_state(bench, 0), bench.kernel("near.cu", "conflict")
        args = (near, np.uint32(words), np.uint32(lanes), np.uint64(_CONFLICT_STEPS), self._lanes, state)
        self._bench = bench
        self.walk = Walk(
            bench, lambda: run((1,), (_THREADS,), args, _CONFLICT_BYTES), lambda _: 0, state, _CONFLICT_STEPS
        )

    def check(self) -> Observation:
        """Every lane stands where its ring says."""
        found = self._bench.device.to_host(self._lanes)
        expected = [int(order[self.walk.walked % len(order)]) * _WORD_BYTES for order in self._orders]
        wrong = int(np.count_nonzero(found != np.array(expected)))
        expect(wrong == 0, f"{wrong} of {len(expected)} lanes stand where they should not")
        return {}


def conflict_rings(rng: np.random.Generator, degree: int, lanes: int, words: int) -> list[npt.NDArray[Any]]:
    """The ring of each lane, as words of shared memory: `degree` lanes of any 32 in one bank, on rows of their own."""
    classes = degree * (lanes // _LANES)  # rings that share a bank take turns on its rows
    length = words // _BANKS // classes
    length -= 1 - length % 2  # odd: no power of two of steps leads back
    found = []
    for lane in range(lanes):
        bank, place = lane % _LANES // degree, lane % degree + degree * (lane // _LANES)
        found.append((rng.permutation(length) * classes + place) * _BANKS + bank)
    return found


def conflict(bench: Bench, degree: int) -> Task:
    """Loads in step of a whole warp, `degree` lanes to a bank."""
    case = Conflict(bench, degree)
    return Task.of(case.walk.stage(POINT), check=case.check)


def constant(bench: Bench, size_bytes: int) -> Task:
    """A ring of one node each 64 bytes in constant memory, walked round once before it is timed."""
    nodes, unit = size_bytes // _CONSTANT_LINE_BYTES - 1, _CONSTANT_LINE_BYTES // _WORD_BYTES
    order = bench.rng.permutation(nodes)
    ring = _cycle(order, unit, _CONSTANT_BYTES // _WORD_BYTES) // _WORD_BYTES
    run = bench.kernel("near.cu", "constant")
    bench.device.copy(run.symbol("fixed", _CONSTANT_BYTES), ring.astype(np.uint32).view(np.uint8))
    state = new_state(bench, int(order[0]) * unit)
    args = (np.uint64(nodes), np.uint64(_CONSTANT_STEPS), state)
    walk = Walk(
        bench,
        lambda: run((1,), (1,), args),
        lambda walked: int(order[walked % nodes]) * unit,
        state,
        _CONSTANT_STEPS,
        _CONSTANT_STEPS + nodes,
    )
    return walk.task(POINT)


_TYPES: Mapping[str, Any] = {"float32": np.float32, "float64": np.float64, "uint32": np.uint32}


def register(bench: Bench, dtype: str) -> Task:
    """A multiply-add in registers. Integers wrap; of real numbers a is 1 and the sums stay below 2^23, so exact."""
    real, rng = _TYPES[dtype], bench.rng
    a = int(rng.integers(2**31)) * 2 + 1 if dtype == "uint32" else 1
    b, begin = (int(number) for number in rng.integers(1, 16, 2))
    expected = chained(begin, a, b, _REGISTER_STEPS, 2**32)
    out, state = bench.xp.zeros(1, real), new_state(bench, 0)
    run = bench.kernel("near.cu", dtype)
    args = (real(begin), real(a), real(b), np.uint64(_REGISTER_STEPS), out, state)
    walk = Walk(bench, lambda: run((1,), (1,), args), lambda _: 0, state, _REGISTER_STEPS)

    def check() -> Observation:
        found = int(bench.device.to_host(out)[0])
        expect(found == expected, f"after {_REGISTER_STEPS} steps the chain stands at {found}, not at {expected}")
        return {}

    return Task.of(walk.stage(POINT), check=check, poison=lambda: out.fill(0))


def chained(x: int, a: int, b: int, steps: int, modulus: int) -> int:
    """What x becomes in so many steps of a·x + b modulo `modulus`, by squaring."""
    while steps:
        if steps & 1:
            x = (a * x + b) % modulus
        a, b, steps = a * a % modulus, (a * b + b) % modulus, steps >> 1
    return x


class Atomic:
    """A chain of atomic additions, each of what the last one found, to cells that take turns."""

    def __init__(self, bench: Bench, space: str) -> None:
        self.steps = {"shared": _STEPS // 16, "host": _BUS_STEPS, "peer": _BUS_STEPS}.get(space, _FAR_STEPS)
        self._word = np.uint32 if space == "shared" else np.uint64
        first = bench.rng.integers(2**32, size=(_CELLS + 1, _CELL_BYTES // self._word().itemsize), dtype=self._word)
        self._bench, self._cells = bench, _cells(bench, space)
        bench.device.copy(self._cells, first[1:].view(np.uint8).ravel())
        self._value, self._known = int(first[0, 0]), [int(cell) for cell in first[1:, 0]]
        state = new_state(bench, self._value)
        kernels = {"shared": "atomic_shared", "global": "atomic"}
        run = bench.kernel("near.cu", kernels.get(space, "atomic_system"))
        args = (pointer(self._cells), np.uint64(_CELLS - 1), np.uint64(self.steps), state)
        self.walk = Walk(bench, lambda: run((1,), (1,), args, _CELLS * _CELL_BYTES), lambda _: 0, state, self.steps)
        self._checked = 0

    def check(self) -> Observation:
        """Cells and value are where so many additions lead."""
        stands = self.walk.read(0)  # waits for the device, whose cells may be the host's memory
        modulus = int(np.iinfo(self._word).max) + 1
        self._value = after_additions(self._value, self._known, self.walk.walked - self._checked, modulus)
        self._checked = self.walk.walked
        found = np.asarray(self._bench.device.to_host(self._cells)).view(self._word)
        found = found[:: _CELL_BYTES // found.itemsize]
        wrong = sum(int(there) != known for there, known in zip(found, self._known, strict=True))
        expect(stands == self._value, f"after {self._checked} additions the chain stands at another value")
        expect(not wrong, f"after {self._checked} additions {wrong} of {_CELLS} cells hold something else")
        return {}


def _cells(bench: Bench, space: str) -> Any:
    if space == "host":
        return bench.device.pinned(_CELLS * _CELL_BYTES)
    if space == "peer":
        return bench.device.peer_memory(bench.devices[1], _CELLS * _CELL_BYTES)
    return bench.xp.zeros(_CELLS * _CELL_BYTES, bench.xp.uint8)


def after_additions(value: int, cells: list[int], steps: int, modulus: int) -> int:
    """The value after so many times (cell, cell + value), the cells in turns from the first; it changes the cells."""
    for step in range(steps):
        place = step % len(cells)
        value, cells[place] = cells[place], (cells[place] + value) % modulus
    return value


def atomic(bench: Bench, space: str) -> Task:
    """A chain of atomic additions to words of the space."""
    case = Atomic(bench, space)
    return Task.of(case.walk.stage(POINT), check=case.check)
