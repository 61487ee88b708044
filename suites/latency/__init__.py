"""Latency: how long one thing takes that waits for the one before.

A walk is a chain of dependent loads by one active lane round a ring: a random single cycle over cache lines,
one node a line, each holding where the next one is. Seconds are by the device's events or the clock that the
case's figure names; cycles, where there are any, by the device's clock in the same kernel. This file says what
is measured and over which axes; `_latency_*` build it, topic by topic.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpubench.api.suite import Bench, Suite, Task, View, on_gpu, on_host, points, powers_of_two

from . import _chase, _costs, _loaded, _near, _slices, _spaces
from . import _host as _cores

suite = Suite(
    "latency of loads from registers to memory, of atomics, and of what a program pays beside its work",
    views=[
        View("staircase", "Latency over working set", ("chase",), "size_bytes", series="hot", log_x=True, log_y=True),
        View("staircase", "One line a page: latency over reach", ("reach",), "reach_bytes", series="hot", log_x=True),
        View("staircase", "Constant memory over working set", ("constant",), "size_bytes", series="hot", log_x=True),
        View("bars", "Latency by space", ("load", "shared", "cluster", "register"), log_x=True),
        View("bars", "Atomics by space", ("atomic",), log_x=True),
        View("curve", "Bank conflicts of shared memory", ("conflict",), "degree", series="hot"),
        View("curve", "Memory while other units stream", ("loaded",), "units", series="self"),
        View("pareto", "Memory's latency against what others stream", ("loaded",), "streamed", "self"),
        View(
            "bars",
            "What a program pays beside its work",
            ("launch", "graph_launch", "event_record", "event_wait", "synchronize", "barrier", "host_flag", "allocate"),
            log_x=True,
        ),
        View("matrix", "Latency by unit and slice of the cache", ("slices",), x="place", y="unit", series="unit *"),
        View("bars", "Between two cores", ("core_to_core",)),
        View("bars", "Memory by page size", ("pages",)),
    ],
)


def _with_peer(params: Mapping[str, str | int | float]) -> int:
    return 2 if params["space"] == "peer" else 1


@suite.case(version=2, size_bytes=_chase.working_sets, headline={"size_bytes": 2**32})
def chase(bench: Bench, size_bytes: int) -> Task:
    """Dependent loads from a ring of `size_bytes` in device memory: seconds and device cycles per load."""
    return _chase.chase(bench, size_bytes)


@suite.case(when=on_gpu, reach_bytes=_chase.reaches)
def reach(bench: Bench, reach_bytes: int) -> Task:
    """Dependent loads of one line in each 2 MiB, past the first cache: what address translation adds, per load."""
    return _chase.reach(bench, reach_bytes)


@suite.case(when=on_gpu, devices=_with_peer, space=points(("l1", "l2", "dram", "host", "peer"), ("l1",)))
def load(bench: Bench, space: str) -> Task:
    """Dependent loads of one space by itself.

    l1: through the first cache; l2: past it; dram: a flushed ring of four last-level caches; host: page-locked
    memory over the bus; peer: another GPU's memory, from its cache.
    """
    return _spaces.load(bench, space)


@suite.case(when=on_gpu, devices=_with_peer, space=points(("l1", "l2", "dram"), ("l1",)))
def single(bench: Bench, space: str) -> Task:
    """Loads timed one by one: the median in seconds, percentiles in cycles, less the reading of the clock."""
    return _spaces.single(bench, space)


@suite.case(when=on_gpu, size_bytes=(2**14,))
def shared(bench: Bench, size_bytes: int) -> Task:
    """Dependent loads from shared memory (LDS), a ring of 4-byte nodes: seconds and device cycles per load."""
    return _near.shared(bench, size_bytes)


@suite.case(when=on_gpu, degree=points(powers_of_two(0, 5), (32,), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)))
def conflict(bench: Bench, degree: int) -> Task:
    """Dependent loads of a whole warp from shared memory, `degree` lanes to a bank, each a word of its own."""
    return _near.conflict(bench, degree)


@suite.case(when=on_gpu, size_bytes=(2**14,))
def cluster(bench: Bench, size_bytes: int) -> Task:
    """Dependent loads from the shared memory of the cluster's other block."""
    return _near.cluster(bench, size_bytes)


@suite.case(when=on_gpu, size_bytes=points((2**10, 2**11, 3 * 2**10, *powers_of_two(12, 16)), (2**10,)))
def constant(bench: Bench, size_bytes: int) -> Task:
    """Dependent loads from constant memory (AMD: through the scalar cache), one node each 64 bytes."""
    return _near.constant(bench, size_bytes)


@suite.case(when=on_gpu, dtype=points(("float32", "float64", "uint32"), ("float32",)))
def register(bench: Bench, dtype: str) -> Task:
    """Dependent multiply-adds in registers: seconds and device cycles per operation."""
    return _near.register(bench, dtype)


@suite.case(
    when=on_gpu, devices=_with_peer, space=points(("shared", "global", "system", "host", "peer"), ("shared", "global"))
)
def atomic(bench: Bench, space: str) -> Task:
    """Dependent atomic additions to 64 words in turns, 64 bits wide.

    shared: of the block, 32 bits wide; global: of the device, in its memory; system, host, peer: of the whole
    system, in the device's, in page-locked and in another GPU's memory.
    """
    return _near.atomic(bench, space)


@suite.case(when=on_gpu)
def launch(bench: Bench) -> Task:
    """An empty kernel: seconds a launch, queued back to back (hot) and as a replayed graph.

    It has no output; its check is that the device reports no error.
    """
    return _costs.launch(bench)


@suite.case(when=on_gpu, nodes=points((1, 100), (1,)))
def graph_launch(bench: Bench, nodes: int) -> Task:
    """A launch of a graph of so many empty kernels: seconds a graph. Checked as `launch`."""
    return _costs.graph_launch(bench, nodes)


@suite.case(when=on_gpu)
def event_record(bench: Bench) -> Task:
    """A record of an event that takes no time of day: the host's seconds. Checked as `launch`."""
    return _costs.event_record(bench)


@suite.case(when=on_gpu)
def event_wait(bench: Bench) -> Task:
    """Empty kernels on two streams in turns, each after the other's event: seconds a kernel. Checked as `launch`."""
    return _costs.event_wait(bench)


@suite.case(when=on_gpu, after=("nothing", "kernel"))
def synchronize(bench: Bench, after: str) -> Task:
    """The host waits for an idle stream, or launches an empty kernel and waits for it: the host's seconds."""
    return _costs.synchronize(bench, after)


@suite.case(when=on_gpu, blocks=_costs.grids)
def barrier(bench: Bench, blocks: int) -> Task:
    """A barrier over a grid of so many blocks, one a unit: an atomic each, and a bounded wait for all."""
    return _costs.barrier(bench, blocks)


@suite.case(when=on_gpu)
def host_flag(bench: Bench) -> Task:
    """A round trip: the host writes a word of page-locked memory, a waiting kernel sees it and answers."""
    return _costs.host_flag(bench)


@suite.case(when=on_gpu, how=("malloc", "pool"), size_bytes=points((2**20, 2**28), (2**20,), powers_of_two(12, 32, 4)))
def allocate(bench: Bench, how: str, size_bytes: int) -> Task:
    """Memory taken and given back: cudaMalloc and cudaFree, or the stream-ordered pool; the host's seconds a pair."""
    return _costs.allocate(bench, how, size_bytes)


@suite.case(when=on_gpu, access=("load", "atomic"), lines=points((256,), (64,), (1024,)))
def slices(bench: Bench, access: str, lines: int) -> Task:
    """The same lines of the last-level cache from each unit alone: latency by unit and by slice of the cache.

    load: past the first cache; of a partitioned cache each part may keep copies for its own units. atomic: an
    addition of nothing, which goes to the one place that a line has.
    """
    return _slices.slices(bench, access, lines)


@suite.case(when=on_gpu, units=_loaded.streams)
def loaded(bench: Bench, units: int) -> Task:
    """Dependent loads from memory while so many other units read it as fast as they can."""
    return _loaded.loaded(bench, units)


@suite.case(when=on_host, other=_cores.others)
def core_to_core(bench: Bench, other: int) -> Task:
    """A word from the first core to another: half of a round trip."""
    del bench
    return _cores.core_to_core(other)


@suite.case(when=on_host, page=("4KiB", "2MiB"), size_bytes=_chase.page_sizes)
def pages(bench: Bench, page: str, size_bytes: int) -> Task:
    """Dependent loads from memory of small and of large pages: what address translation adds, per load."""
    return _chase.pages(bench, page, size_bytes)
