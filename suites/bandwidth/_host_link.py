"""Measure the host link by NUMA node, with page-locked memory bound to a node, and of all GPUs of a host at once."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from gpubench.api import suite as gb

from .._between import rank_counts, ranks_of
from .._checks import in_turn
from .._stream import need_gpu
from ._link import HostMemory, LinkCopy
from ._numa import NodeMemory, node_numbers, node_of, shared_upstream

_SPARE_BYTES = 2**26
_MOST_CALLS = 32  # calls per batch for both directions at once, because each call queues six commands
_H2D, _D2H, _BOTH = "h2d", "d2h", "both"
_LIMITS = {_H2D: "link.h2d", _D2H: "link.d2h"}
_UNNAMED = "0"  # the node of a machine whose inventory names no NUMA nodes
_SIZES = gb.points((2**26,), (2**24,), (2**12, 2**16, 2**20, 2**26, 2**30))
_ALL_BYTES = gb.points((2**28,), (2**24,), (2**20, 2**28))

topic = gb.Topic(
    views=[
        gb.View("matrix", "Host link bandwidth by NUMA node", ("host_link",), "node", "device", by=("direction",)),
        gb.View("curve", "Host link bandwidth of all GPUs", ("host_link_all",), "of", by=("direction",), series="sum"),
    ]
)


def nodes_of(target: gb.Target) -> tuple[int, ...]:
    """Return the numbers of the NUMA nodes with memory that the machine's inventory names.

    If it names no nodes, the result is (0,)."""
    return node_numbers(dict(target.facts.host).get("numa", _UNNAMED))


def _nodes(target: gb.Target) -> Any:
    """Return the axis of NUMA nodes: all with memory; in `smoke` the first."""
    nodes = nodes_of(target)
    return gb.points(nodes, nodes[:1], tuple(dict.fromkeys((*nodes, 1))))


def _device(target: gb.Target) -> tuple[str, ...]:
    return (target.device.id,)


@topic.case(
    device=_device,
    node=_nodes,
    direction=gb.points((_H2D, _D2H), (_H2D,), (_H2D, _D2H, _BOTH)),
    size_bytes=_SIZES,
    when=gb.on_gpu,
)
def host_link(bench: gb.Bench, device: str, node: int, direction: str, size_bytes: int) -> gb.Task:
    """Bandwidth of copies between the GPU and page-locked memory on the NUMA node `node`, one way or both ways at once.

    `direction` is `h2d` (to the GPU), `d2h` or `both`. The rate counts each byte once (payload). Every check asks the
    operating system on which node each page is."""
    del device
    need_gpu(bench)
    both = direction == _BOTH
    bench.need((4 if both else 2) * size_bytes + _SPARE_BYTES)
    ways = (_H2D, _D2H) if both else (direction,)
    memories = [NodeMemory(size_bytes, node, nodes_of(bench.target)) for _ in ways]
    transfers = [
        LinkCopy(bench, _registered(bench, memory), way == _H2D, draw)
        for draw, (way, memory) in enumerate(zip(ways, memories, strict=True))
    ]
    outputs = [array for transfer in transfers for array in transfer.outputs]
    if both:
        call = partial(bench.device.together, *(transfer.call for transfer in transfers))
        work = gb.Work(payload=2 * size_bytes)
        stage = gb.Stage(call, work, "payload", max_calls=_MOST_CALLS, effort=gb.POINT, outputs=outputs)
    else:
        work, limit = gb.Work(payload=size_bytes), _LIMITS[direction]
        stage = gb.Stage(transfers[0].call, work, "payload", limit, effort=gb.POINT, outputs=outputs)
    notes = {**_place_notes(bench), **memories[0].expect_placed()}
    return gb.Task.of(
        stage,
        check=in_turn(*(memory.expect_placed for memory in memories), *(transfer.check for transfer in transfers)),
        close=in_turn(*(transfer.close for transfer in transfers)),
        notes=notes,
    )


@topic.case(
    ranks=ranks_of, devices=ranks_of, of=rank_counts, direction=(_H2D, _D2H), size_bytes=_ALL_BYTES, when=gb.on_gpu
)
def host_link_all(bench: gb.Bench, of: int, direction: str, size_bytes: int) -> gb.Task:
    """Bandwidth of copies of all GPUs at once, each with page-locked memory on the NUMA node nearest to it.

    `direction` is `h2d` (to the GPUs) or `d2h`. The rate is the slowest GPU's, each byte counted once (payload); the
    series `sum` counts the copies of all `of` GPUs. The ranks begin within the time of a message, so copies must take
    much longer than that."""
    need_gpu(bench)
    bench.need(2 * size_bytes + _SPARE_BYTES)
    nodes = nodes_of(bench.target)
    nearest_node = node_of(bench.peers[bench.rank].pci)
    memory = NodeMemory(size_bytes, nearest_node if nearest_node in nodes else nodes[0], nodes)
    transfer = LinkCopy(bench, _registered(bench, memory), direction == _H2D)
    works = {"sum": gb.Work(payload=of * size_bytes)}
    stage = gb.Stage(
        transfer.call,
        gb.Work(payload=size_bytes),
        "payload",
        _LIMITS[direction],
        also=works,
        effort=gb.POINT,
        outputs=transfer.outputs,
    )
    devices = bench.peers[:of]
    shared = shared_upstream([device.id for device in devices], [device.pci for device in devices])
    return gb.Task.of(
        stage,
        check=in_turn(memory.expect_placed, transfer.check),
        close=transfer.close,
        notes={"shared upstream": shared, **memory.expect_placed()},
    )


def _registered(bench: gb.Bench, memory: NodeMemory) -> HostMemory:
    """Return `memory` as page-locked host memory; the caller has placed its pages on their node before."""
    return HostMemory(memory.array, bench.device.register(memory.pages))


def _place_notes(bench: gb.Bench) -> Mapping[str, str]:
    """Return the note `NUMA node of the GPU` with the number of the node, or `not stated by the firmware`."""
    nearest_node = node_of(bench.target.device.pci)
    return {"NUMA node of the GPU": "not stated by the firmware" if nearest_node is None else str(nearest_node)}
