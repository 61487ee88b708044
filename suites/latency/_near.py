"""Measure the latency of registers, shared memory with bank conflicts, cluster and constant memory, and of atomics."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._checks import expect_equal
from ._ring import Walk, device_count, new_state, pointer, remote_memory

_WORD_BYTES = 4
_STEPS = 2**18  # steps of a chain in shared memory or in registers: a few milliseconds
_THREADS = 256
_BANKS, _LANES = 32, 32  # banks of shared memory, and the lanes that it serves at once, on NVIDIA and on AMD
_CONFLICT_BYTES, _CONFLICT_STEPS = 2**15, 2**16
_REGISTER_STEPS = 2**19
_CELLS, _CELL_BYTES = 64, 128  # cells of atomics; the number of steps is a multiple of the number of cells
_CLUSTER_STEPS = 2**15
_CONSTANT_LINE_BYTES, _CONSTANT_BYTES = 64, 2**16
_CONSTANT_STEPS = 2**15
_FAR_STEPS, _BUS_STEPS = 2**13, 2**10
_BARRIERS, _CHECKED_BARRIERS = 4096, 64

topic = gb.Topic(
    views=[
        gb.View(
            "staircase", "Constant memory latency by working set", ("constant",), "size_bytes", series="hot", log_x=True
        ),
        gb.View("bars", "Barrier time of a block and of a cluster", ("near_barrier",)),
        gb.View("bars", "Atomic latency by memory space", ("atomic",), log_x=True),
        gb.View("curve", "Shared memory latency by bank conflict degree", ("conflict",), "degree", series="hot"),
    ]
)


def _in_shared_memory(bench: gb.Bench, size_bytes: int, kernel: str, blocks: int, steps: int) -> gb.Task:
    """Return the task of a walk of one lane in shared memory, `steps` dependent loads in each launch."""
    nodes = size_bytes // _WORD_BYTES - 1
    offsets = bench.rng.permutation(nodes) * _WORD_BYTES
    ring = np.zeros(nodes, np.uint32)
    ring[offsets // _WORD_BYTES] = np.roll(offsets, -1)
    args = (bench.xp.asarray(ring), np.uint32(nodes), np.uint64(steps), new_state(bench, int(offsets[0])))
    run = bench.kernel("near.cu", kernel)
    walk = Walk(
        bench,
        lambda: run((blocks,), (_THREADS,), args, size_bytes),
        lambda walked: int(offsets[walked % nodes]),
        args[-1],
        steps,
    )
    return walk.task()


@topic.case(when=gb.on_gpu, size_bytes=(2**14,))
def shared(bench: gb.Bench, size_bytes: int) -> gb.Task:
    """Seconds, and device cycles, of a dependent load from shared memory (LDS), in a ring of 4-byte nodes."""
    return _in_shared_memory(bench, size_bytes, "shared", 1, _STEPS)


@topic.case(when=gb.on_gpu, degree=gb.points(gb.powers_of_two(0, 5), (32,), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)))
def conflict(bench: gb.Bench, degree: int) -> gb.Task:
    """Seconds of a load by a whole warp from shared memory, in a chain of dependent loads, with bank conflicts.

    In each group of 32 lanes, every `degree` neighbouring lanes load different words of the same bank."""
    lanes, word_count = bench.traits.warp, _CONFLICT_BYTES // _WORD_BYTES
    rings = conflict_rings(bench.rng, degree, lanes, word_count)
    linked = np.zeros(word_count, np.uint32)
    for places in rings:
        linked[places] = np.roll(places, -1) * _WORD_BYTES
    positions = bench.xp.asarray(np.array([places[0] * _WORD_BYTES for places in rings], np.uint32))
    args = (bench.xp.asarray(linked), np.uint32(word_count), np.uint32(lanes), np.uint64(_CONFLICT_STEPS), positions)
    state, run = new_state(bench, 0), bench.kernel("near.cu", "conflict")
    walk = Walk(
        bench,
        lambda: run((1,), (_THREADS,), (*args, state), _CONFLICT_BYTES),
        lambda _: 0,
        state,
        _CONFLICT_STEPS,
    )

    def check() -> None:
        """Raise WrongAnswer if a lane does not end at the position that its ring gives."""
        expected = [int(places[walk.walked % len(places)]) * _WORD_BYTES for places in rings]
        expect_equal(bench.device.to_host(positions), np.array(expected), "positions of lanes")

    return gb.Task.of(walk.stage(), check=check)


def conflict_rings(rng: np.random.Generator, degree: int, lanes: int, word_count: int) -> list[npt.NDArray[np.intp]]:
    """Return the ring of each of `lanes` lanes: indices of 4-byte words in shared memory, in the order of the walk.

    The bank of word i is i % 32."""
    classes = degree * (lanes // _LANES)  # rings that share a bank take turns on its rows
    length = word_count // _BANKS // classes
    length -= 1 - length % 2  # an odd length: after a power of two of steps the walk is not at its start
    rings = []
    for lane in range(lanes):
        bank, place = lane % _LANES // degree, lane % degree + degree * (lane // _LANES)
        rings.append((rng.permutation(length) * classes + place) * _BANKS + bank)
    return rings


@topic.case(when=gb.on_gpu, size_bytes=(2**14,))
def cluster(bench: gb.Bench, size_bytes: int) -> gb.Task:
    """Seconds of a dependent load from the shared memory of the cluster's other block."""
    if "clusters" not in bench.traits.features:
        raise gb.Skip("needs blocks that reach each other's shared memory (NVIDIA, sm_90 or newer)")
    return _in_shared_memory(bench, size_bytes, "cluster", 2, _CLUSTER_STEPS)


@topic.case(
    when=gb.on_gpu,
    blocks=gb.points((1, 2), (1,), (1, 2, 4, 8, 16)),
    threads=gb.points((1024,), full=(32, 256, 1024)),
)
def near_barrier(bench: gb.Bench, blocks: int, threads: int) -> gb.Task:
    """Seconds of one barrier of a block of `threads` threads, or of a cluster of `blocks` such blocks.

    The barriers of a whole grid are in `barrier`. `cycles` is what one barrier takes by the first thread's clock."""
    if blocks > 1 and "clusters" not in bench.traits.features:
        raise gb.Skip("needs clusters of blocks (NVIDIA, sm_90 or newer)")
    run = bench.kernel("near.cu", "cluster_barrier" if blocks > 1 else "block_barrier", CLUSTER=max(2, blocks))
    if blocks > 8:
        run.allow_large_clusters()
    state, passed = new_state(bench, 0), 0

    def call(rounds: int = _BARRIERS, checked: int = 0) -> None:
        nonlocal passed
        passed += rounds
        run((blocks,), (threads,), (np.uint64(rounds), np.uint32(checked), state), _WORD_BYTES * threads)

    def cycles() -> gb.Observation:
        return {"cycles": gb.Observed(float(bench.device.to_host(state)[1]) / _BARRIERS, "cycles", "less")}

    def check() -> None:
        """Pass barriers that are checked; raise WrongAnswer if a thread passed one before its neighbour arrived."""
        call(_CHECKED_BARRIERS, 1)
        counted, _, early = (int(word) for word in bench.device.to_host(state)[:3])
        gb.expect(not early, f"{early} threads passed a barrier before their neighbour reached it")
        gb.expect(counted == passed, f"{counted} of {passed} barriers were passed")

    try:
        call(_CHECKED_BARRIERS, 1)
        bench.device.synchronize()
    except RuntimeError as error:
        raise gb.Skip(f"the device refuses clusters of {blocks} blocks: {error}") from error
    stage = gb.Stage(call, gb.Work(items=_BARRIERS), "item", effort=gb.POINT, probe=cycles)
    return gb.Task.of(stage, check=check)


@topic.case(when=gb.on_gpu, size_bytes=gb.points((2**10, 2**11, 3 * 2**10, *gb.powers_of_two(12, 16)), (2**10,)))
def constant(bench: gb.Bench, size_bytes: int) -> gb.Task:
    """Seconds of a dependent load from `size_bytes` of constant memory (AMD: scalar cache), in nodes of 64 bytes.

    The kernel walks round the ring once before it is timed."""
    nodes = size_bytes // _CONSTANT_LINE_BYTES - 1
    places = bench.rng.permutation(nodes) * (_CONSTANT_LINE_BYTES // _WORD_BYTES)
    ring = np.zeros(_CONSTANT_BYTES // _WORD_BYTES, np.uint32)
    ring[places] = np.roll(places, -1)
    run = bench.kernel("near.cu", "constant")
    bench.device.copy(run.symbol("fixed", _CONSTANT_BYTES), ring.view(np.uint8))
    args = (np.uint64(nodes), np.uint64(_CONSTANT_STEPS), new_state(bench, int(places[0])))
    walk = Walk(
        bench,
        lambda: run((1,), (1,), args),
        lambda walked: int(places[walked % nodes]),
        args[-1],
        _CONSTANT_STEPS,
        _CONSTANT_STEPS + nodes,
    )
    return walk.task()


@topic.case(when=gb.on_gpu, dtype=gb.points(("float32", "float64", "uint32"), ("float32",)))
def register(bench: gb.Bench, dtype: str) -> gb.Task:
    """Seconds, and device cycles, of a dependent multiply-add x = a·x + b of the format `dtype` in registers.

    Integers wrap round. Real numbers have a factor of 1 and sums below 2^23, so they stay exact."""
    real, rng = np.dtype(dtype).type, bench.rng
    a = int(rng.integers(2**31)) * 2 + 1 if dtype == "uint32" else 1
    b, begin = (int(number) for number in rng.integers(1, 16, 2))
    expected = chained(begin, a, b, _REGISTER_STEPS, 2**32)
    out, state = bench.xp.zeros(1, real), new_state(bench, 0)
    run = bench.kernel("near.cu", dtype)
    args = (real(begin), real(a), real(b), np.uint64(_REGISTER_STEPS), out, state)
    walk = Walk(bench, lambda: run((1,), (1,), args), lambda _: 0, state, _REGISTER_STEPS)

    def check() -> None:
        result = bench.device.to_host(out)[0]
        right = bool(result == expected)
        gb.expect(right, f"after {_REGISTER_STEPS} steps the chain is at {result}, not at {expected}")

    return gb.Task.of(replace(walk.stage(), outputs=(out,)), check=check)


def chained(x: int, a: int, b: int, steps: int, modulus: int) -> int:
    """Return x after `steps` steps of x = (a·x + b) mod `modulus`, in a number of operations logarithmic in `steps`."""
    while steps:
        if steps & 1:
            x = (a * x + b) % modulus
        a, b, steps = a * a % modulus, (a * b + b) % modulus, steps >> 1
    return x


class AtomicChain:
    """A chain of atomic additions to 64 cells in turn; each addition adds the value that the previous one returned.

    `walk` is the Walk that makes the additions."""

    def __init__(self, bench: gb.Bench, space: str) -> None:
        steps = {"shared": _STEPS // 16, "host": _BUS_STEPS, "peer": _BUS_STEPS}.get(space, _FAR_STEPS)
        self._word = np.uint32 if space == "shared" else np.uint64
        first = bench.rng.integers(2**32, size=(_CELLS + 1, _CELL_BYTES // self._word().itemsize), dtype=self._word)
        size_bytes = _CELLS * _CELL_BYTES
        remote = remote_memory(bench, space, size_bytes)
        self._bench, self._cells = bench, bench.xp.zeros(size_bytes, bench.xp.uint8) if remote is None else remote
        bench.device.copy(self._cells, first[1:].view(np.uint8).ravel())
        self._value, self._expected = int(first[0, 0]), [int(cell) for cell in first[1:, 0]]
        state = new_state(bench, self._value)
        kernels = {"shared": "atomic_shared", "global": "atomic"}
        run = bench.kernel("near.cu", kernels.get(space, "atomic_system"))
        args = (pointer(self._cells), np.uint64(_CELLS - 1), np.uint64(steps), state)
        self.walk = Walk(bench, lambda: run((1,), (1,), args, size_bytes), lambda _: 0, state, steps)
        self._checked = 0

    def check(self) -> gb.Observation:
        """Raise WrongAnswer if the cells or the last value differ from the result of the same additions on the host.

        Returns no observations."""
        # Synchronises with the device before the cells are read, which may lie in the host's memory.
        value = self.walk.read(0)
        modulus = int(np.iinfo(self._word).max) + 1
        self._value = after_additions(self._value, self._expected, self.walk.walked - self._checked, modulus)
        self._checked = self.walk.walked
        cells = np.asarray(self._bench.device.to_host(self._cells)).view(self._word)
        gb.expect(value == self._value, f"after {self._checked} additions the chain has a wrong value")
        expect_equal(cells[:: _CELL_BYTES // cells.itemsize], np.array(self._expected, self._word), "cells")
        return {}


def after_additions(value: int, cells: list[int], steps: int, modulus: int) -> int:
    """Return the value after `steps` atomic additions to `cells` in turn, from the first.

    Each addition replaces the pair (value, cell) by (cell, (cell + value) % modulus) and so changes the list
    `cells`."""
    for step in range(steps):
        place = step % len(cells)
        value, cells[place] = cells[place], (cells[place] + value) % modulus
    return value


@topic.case(
    when=gb.on_gpu,
    devices=device_count,
    space=gb.points(("shared", "global", "system", "host", "peer"), ("shared", "global")),
)
def atomic(bench: gb.Bench, space: str) -> gb.Task:
    """Seconds of a dependent atomic addition to 64 cells in turn; a cell has 64 bits, in shared memory 32.

    With the `space` `shared` atomics have the scope of a block, in shared memory; with `global` the scope of the
    device, in its memory. `system`, `host` and `peer` atomics have the scope of the whole system: in the device's
    memory, in page-locked host memory, and in another GPU's memory."""
    chain = AtomicChain(bench, space)
    return gb.Task.of(chain.walk.stage(), check=chain.check)
