"""Each space by itself: caches past each other, memory, the host's and a peer's memory; single loads one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpubench.api.suite import POINT, Bench, Observation, Observed, Stage, Task, Work, expect

from ._chase import memory_bytes
from ._ring import GpuRing, Walk, pointer

_L1_BYTES, _L2_BYTES = 2**13, 2**22  # well inside each: AMD's vector L1 has 16 KiB, the smallest L2 4 MiB
_L1_STEPS, _L2_STEPS, _DRAM_STEPS, _BUS_STEPS = 2**18, 2**14, 2**13, 2**11  # some milliseconds each
_BUS_BYTES = 2**24  # a ring that a case does not go round once
_SINGLE_STEPS = 2**13
_PAIRS = 64  # loads of the known kind
_LINKS = 1024  # LINKS in chase.cu
_SINGLE_THREADS = 256
_PERCENTILES = (50.0, 90.0, 99.0, 99.9)


def load(bench: Bench, space: str) -> Task:
    """Dependent loads of one space."""
    ring = _ring(bench, space)
    kernel = "chase_l2" if space == "l2" else "chase"
    steps = {"l1": _L1_STEPS, "l2": _L2_STEPS, "dram": _DRAM_STEPS}.get(space, _BUS_STEPS)
    return ring.walk(steps, sweep=space == "l1", kernel=kernel).task(POINT, _notes(bench, space))


def _notes(bench: Bench, space: str) -> dict[str, str]:
    if space == "peer":
        return {"devices": " ← ".join(device.id for device in bench.devices[:2]), "ring": "fits the peer's cache"}
    return {}


def _ring(bench: Bench, space: str) -> GpuRing:
    """A ring in the space, as a walk round it leaves the caches; one in memory begins flushed."""
    sizes = {"l1": _L1_BYTES, "l2": _L2_BYTES, "dram": memory_bytes(bench.target)}
    nbytes = sizes.get(space, _BUS_BYTES)
    if space == "peer":
        return GpuRing.linked(bench, bench.device.peer_memory(bench.devices[1], nbytes), nbytes)
    if space == "host":
        return GpuRing.linked(bench, bench.device.pinned(nbytes), nbytes)
    bench.need(nbytes)
    ring = GpuRing.linked(bench, bench.xp.empty(nbytes, bench.xp.uint8), nbytes)
    if space == "dram":
        bench.device.flush()
    else:
        ring.settle("chase_l2")
    return ring


class Single:
    """Single loads: each timed by itself with two readings of the device's clock."""

    def __init__(self, bench: Bench, space: str) -> None:
        ring = _ring(bench, space)
        run = bench.kernel("chase.cu", "single_l2" if space == "l2" else "single")
        warm = ring.order.nodes if space == "l1" else 0  # a launch begins with an empty first cache
        state, self._took = ring.state(), bench.xp.zeros(_SINGLE_STEPS + _PAIRS, bench.xp.uint32)
        args = (pointer(ring.memory), np.uint64(warm), np.uint32(_SINGLE_STEPS), np.uint32(_PAIRS), self._took, state)
        shared = 4 * (_SINGLE_STEPS + _PAIRS)
        self._bench = bench
        self._walk = Walk(
            bench,
            lambda: run((1,), (_SINGLE_THREADS,), args, shared),
            ring.offset,
            state,
            _SINGLE_STEPS,
            _SINGLE_STEPS + warm,
        )
        self._found: dict[str, float] = {}

    def median(self) -> float:
        """Seconds of the median load, the clock's own share taken out."""
        self._walk.call()
        took = self._bench.device.to_host(self._took)
        self._found = single_figures(took[:_SINGLE_STEPS], took[_SINGLE_STEPS:], self._walk.read(6) / _LINKS)
        return self._found["p50"] * seconds_a_cycle(self._walk)

    def figures(self) -> Observation:
        """Percentiles of the last sample in cycles."""
        return {name: Observed(value, "cycles") for name, value in self._found.items()}

    def task(self) -> Task:
        """The median as the figure, the other percentiles beside it."""
        stage = Stage(self.median, Work(items=1), "item", clock="self", probe=self.figures, effort=POINT)
        note = f"of {_SINGLE_STEPS} loads a sample, less what reading the clock adds (overhead)"
        return Task.of(stage, check=self._checked, poison=lambda: self._took.fill(0), notes={"percentiles": note})

    def _checked(self) -> Observation:
        expect(bool((self._bench.device.to_host(self._took) > 0).all()), "a load took no cycles")
        return self._walk.check()


def single_figures(took: Any, known: Any, cycles: float) -> dict[str, float]:
    """Percentiles of cycle counts, less what those of a `known` load exceed the `cycles` that it takes in a chain."""
    overhead = float(np.median(known)) - cycles
    found = {f"p{share:g}": float(np.percentile(took, share)) - overhead for share in _PERCENTILES}
    return {**found, "max": float(took.max()) - overhead, "overhead": overhead}


def seconds_a_cycle(walk: Walk) -> float:
    """The length of a cycle, from the two clocks that the kernel read round the same loads."""
    cycles, nanoseconds = walk.read(1), walk.read(4)
    expect(cycles > 0 and nanoseconds > 0, f"the device's clocks stand: {cycles} cycles in {nanoseconds} ns")
    return nanoseconds * 1e-9 / cycles


def single(bench: Bench, space: str) -> Task:
    """The distribution of single loads."""
    return Single(bench, space).task()
