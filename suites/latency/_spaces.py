"""Measure the latency of each memory space by itself (first cache, L2, DRAM, host and peer), and of single loads."""

from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._ring import MOST_CYCLES, GpuRing, Walk, device_count, memory_bytes, pointer, remote_memory

_L1_BYTES, _L2_BYTES = 2**13, 2**22  # well within each cache: AMD's vector L1 has 16 KiB, the smallest L2 has 4 MiB
_L1_STEPS, _L2_STEPS, _DRAM_STEPS, _BUS_STEPS = 2**18, 2**14, 2**13, 2**11  # a few milliseconds each
_BUS_BYTES = 2**24  # one case does not complete this ring
_SINGLE_STEPS = 2**13
_PAIRS = 64  # single loads of a known latency, which give the cost of reading the clock
_LINKS = 1024  # LINKS in chase.cu
_SINGLE_THREADS = 256
_PERCENTILES = (50.0, 90.0, 99.0, 99.9)

topic = gb.Topic()


def _ring(bench: gb.Bench, space: str) -> GpuRing:
    """Return a ring in the memory `space` of the case `load`, with the caches as a walk leaves them."""
    size_bytes = {"l1": _L1_BYTES, "l2": _L2_BYTES, "dram": memory_bytes(bench.target)}.get(space, _BUS_BYTES)
    ring = GpuRing.linked(bench, size_bytes, remote_memory(bench, space, size_bytes))
    if space == "dram":
        bench.device.flush()
    elif space in ("l1", "l2"):
        ring.settle("chase_l2")
    return ring


@topic.case(when=gb.on_gpu, devices=device_count, space=gb.points(("l1", "l2", "dram", "host", "peer"), ("l1",)))
def load(bench: gb.Bench, space: str) -> gb.Task:
    """Seconds, and device cycles, of a dependent load from one memory space by itself.

    `l1`: through the first cache; `l2`: past it; `dram`: a flushed ring of four last-level caches; `host`: page-locked
    memory over the bus; `peer`: another GPU's memory, from that GPU's cache."""
    steps = {"l1": _L1_STEPS, "l2": _L2_STEPS, "dram": _DRAM_STEPS}.get(space, _BUS_STEPS)
    kernel = "chase_l2" if space == "l2" else "chase"
    walk = _ring(bench, space).walk(steps, sweep=space == "l1", kernel=kernel)
    if space != "peer":
        return walk.task()
    return walk.task(
        {"devices": " ← ".join(device.id for device in bench.devices[:2]), "ring": "fits into the peer's cache"}
    )


class SingleLoads:
    """Loads from a ring that are timed one by one, each between two readings of the device's clock.

    `kernel` is `single` or `single_l2` of chase.cu."""

    def __init__(self, bench: gb.Bench, ring: GpuRing, kernel: str, warm: int) -> None:
        run, state = bench.kernel("chase.cu", kernel), ring.state()
        loads = _SINGLE_STEPS + _PAIRS
        self._bench, self.took = bench, bench.xp.zeros(loads, bench.xp.uint32)
        args = (pointer(ring.memory), np.uint64(warm), np.uint32(_SINGLE_STEPS), np.uint32(_PAIRS), self.took, state)
        steps = _SINGLE_STEPS, _SINGLE_STEPS + warm
        self._walk = Walk(bench, lambda: run((1,), (_SINGLE_THREADS,), args, 4 * loads), ring.offset, state, *steps)
        self._cycles: dict[str, float] = {}

    def median(self) -> float:
        """Make one sample of 8192 loads and return the median in seconds, without the cost of reading the clock.

        Raises WrongAnswer if a clock of the device did not advance."""
        self._walk.call()
        took = self._bench.device.to_host(self.took)
        self._cycles = single_figures(took[:_SINGLE_STEPS], took[_SINGLE_STEPS:], self._walk.read(6) / _LINKS)
        cycles, nanoseconds = self._walk.read(1), self._walk.read(4)  # two clocks measure the same loads
        gb.expect(
            cycles > 0 and nanoseconds > 0,
            f"a clock did not advance: {cycles} cycles, {nanoseconds} ns",
        )
        return self._cycles["p50"] * (nanoseconds * 1e-9 / cycles)

    def percentiles(self) -> gb.Observation:
        """Return the figures of `single_figures` for the last sample, in cycles; empty before the first sample."""
        return {name: gb.Observed(cycles, "cycles") for name, cycles in self._cycles.items()}

    def check(self) -> gb.Observation:
        """Raise WrongAnswer if a load took no cycles, or if the walk does not stand where the ring's order says.

        Returns no observations."""
        took = self._bench.device.to_host(self.took)
        gb.expect(bool(((took > 0) & (took < MOST_CYCLES)).all()), "a load took no cycles, or was not timed")
        return self._walk.check()


def single_figures(took: Any, chained: Any, cycles: float) -> dict[str, float]:
    """Return `p50`, `p90`, `p99`, `p99.9` and `max` of the cycle counts `took`, less the overhead; and `overhead`.

    The overhead is the cost of reading the clock, in cycles: the median of `chained` minus `cycles`."""
    overhead = float(np.median(chained)) - cycles
    percentiles = {f"p{share:g}": float(np.percentile(took, share)) - overhead for share in _PERCENTILES}
    return {**percentiles, "max": float(took.max()) - overhead, "overhead": overhead}


@topic.case(when=gb.on_gpu, devices=device_count, space=gb.points(("l1", "l2", "dram"), ("l1",)))
def single(bench: gb.Bench, space: str) -> gb.Task:
    """Seconds of the median load from `space`, timed one by one, without the cost of reading the clock.

    The percentiles are in device cycles. The spaces are the same as in the case `load`."""
    ring = _ring(bench, space)
    # Loads the whole ring first, because the first cache is empty when a kernel starts.
    warm = ring.order.nodes if space == "l1" else 0
    loads = SingleLoads(bench, ring, "single_l2" if space == "l2" else "single", warm)
    stage = gb.Stage(
        loads.median,
        gb.Work(items=1),
        "item",
        clock="self",
        probe=loads.percentiles,
        effort=gb.POINT,
        outputs=(loads.took,),
    )
    note = f"of {_SINGLE_STEPS} loads per sample, minus the time of reading the clock (overhead)"
    return gb.Task.of(stage, check=loads.check, notes={"percentiles": note})
