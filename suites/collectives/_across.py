"""Measure between nodes: collectives of all ranks, and messages between two ranks, by TCP on the host and NCCL on GPUs.

There are such cases only where several machines measure together: `gpubench fleet pairs` starts them."""

from typing import Any

from gpubench.api import suite as gb

from .._between import Params, fitting, ranks_of
from ._nccl import NcclRank
from ._operations import COLLECTIVES, MESSAGE, Collective
from ._tcp import TcpRank

_TCP, _NCCL, _RCCL = "tcp", "nccl", "rccl"
_SMALLEST, _LARGEST, _HOST_LARGEST = 3, 30, 28  # message sizes as powers of two
_QUICK = (2**_SMALLEST, 2**20, 2**28)
# round trips per sample on a GPU, for messages of up to this size: an event resolves 0.5 µs
_BATCH, _BATCH_BYTES = 20, 2**16

topic = gb.Topic(
    views=[
        gb.View(
            "curve",
            "Collective bus bandwidth between nodes",
            ("across",),
            "size_bytes",
            by=("by", "of", "operation"),
            series="hot",
            log_x=True,
        ),
        gb.View("transfer", "Message time between two nodes by size", ("message",), "size_bytes", by=("by",)),
    ],
)


def _is_spread(target: gb.Target) -> bool:
    return target.nodes > 1


def _is_pair(target: gb.Target) -> bool:
    return target.nodes == 2


def _nodes(target: gb.Target) -> tuple[int, ...]:
    return (target.nodes,)


def _spread(params: Params) -> int:
    return int(params["nodes"])


def _ranks_per_node(params: Params) -> int:
    return 1 if params["by"] == _TCP else ranks_of(params) // _spread(params)


def _transports(target: gb.Target) -> tuple[str, ...]:
    if target.is_host:
        return (_TCP,)
    return (_RCCL if target.device.id.startswith("rocm") else _NCCL,)


def _rank_counts(target: gb.Target) -> Any:
    """Return the axis of numbers of ranks: one rank per node."""
    per_node = (1,) if target.is_host else tuple(dict.fromkeys((1, 1 + len(target.device.peers))))
    counts = tuple(target.nodes * count for count in per_node)
    return gb.points(counts, smoke=counts[:1])


def _sizes(target: gb.Target) -> Any:
    full = gb.powers_of_two(_SMALLEST, _HOST_LARGEST if target.is_host else _LARGEST)
    return gb.points(fitting(target, _QUICK), smoke=(2**20,), full=fitting(target, full))


def _message_sizes(target: gb.Target) -> Any:
    quick = (*gb.powers_of_two(_SMALLEST, 27, 4), 2**_LARGEST)
    return gb.points(
        fitting(target, quick), smoke=(2**20,), full=fitting(target, gb.powers_of_two(_SMALLEST, _LARGEST))
    )


def _rank(bench: gb.Bench, by: str, operation: Collective, size_bytes: int) -> TcpRank | NcclRank:
    return (TcpRank if by == _TCP else NcclRank)(bench, operation, size_bytes)


@topic.case(
    ranks=ranks_of,
    devices=_ranks_per_node,
    spread=_spread,
    when=_is_spread,
    by=_transports,
    nodes=_nodes,
    of=_rank_counts,
    operation=("send_recv", "all_reduce"),
    size_bytes=_sizes,
)
def across(bench: gb.Bench, by: str, nodes: int, of: int, operation: str, size_bytes: int) -> gb.Task:
    """Bus bandwidth of a collective of arrays of `size_bytes` over `of` ranks on several nodes.

    `operation` is `send_recv`, in which all ranks send their array to the next rank, or `all_reduce`, in which they add
    up all arrays. `by` is the library, or plain TCP. The series `algbw` is the size of the array over the time."""
    collective = COLLECTIVES[operation]
    rank = _rank(bench, by, collective, size_bytes)

    def check() -> gb.Observation:
        rank.check()
        return {} if rank.setup_s is None else {"setup": gb.Observed(rank.setup_s, "s")}

    work = gb.Work(payload=size_bytes * collective.factor(of), items=1)
    also = {"algbw": gb.Work(payload=size_bytes, items=1)}
    stage = gb.Stage(rank.call, work, "payload", lead=rank.meet, also=also, effort=gb.POINT, outputs=(rank.received,))
    notes = {"nodes": str(nodes), "counts": collective.counts, **rank.notes}
    return gb.Task.of(stage, check=check, close=rank.close, notes=notes)


@topic.case(
    ranks=_spread,
    devices=lambda _: 1,
    spread=_spread,
    when=_is_pair,
    by=_transports,
    nodes=_nodes,
    size_bytes=_message_sizes,
)
def message(bench: gb.Bench, by: str, nodes: int, size_bytes: int) -> gb.Task:
    """Bandwidth of a message of `size_bytes` to a rank of another node, timed as half of a round trip: payload.

    `by` is the library, or plain TCP."""
    rank = _rank(bench, by, MESSAGE, size_bytes)
    calls = _BATCH if bench.traits.is_gpu and size_bytes <= _BATCH_BYTES else 1

    def seconds() -> float:
        """Time one batch of round trips, and return half of the seconds per round trip that rank 0 measured.

        Only rank 0 sees the whole round trip; both ranks must call this."""
        (trips,) = bench.device.time(rank.call, calls, "hot", gated=False).device
        first: float = bench.exchange(trips / 2)[0]
        return first

    work, outputs = gb.Work(payload=size_bytes, items=1), (rank.received,)
    stage = gb.Stage(seconds, work, "payload", clock="self", lead=rank.meet, effort=gb.POINT, outputs=outputs)
    notes = {"nodes": str(nodes), "counts": MESSAGE.counts, **rank.notes}
    return gb.Task.of(stage, check=rank.check, close=rank.close, notes=notes)
