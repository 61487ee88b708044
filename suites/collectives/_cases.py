"""Measure six collectives of arrays of many sizes, by NCCL or RCCL, or on the host through shared memory."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gpubench.api import suite as gb

from .._between import Params, fitting, rank_counts, ranks_of
from .._link import BOTH_WAYS, LIBRARY, LIMIT, ONE_WAY, WRITES, link
from ._host import HostRank
from ._nccl import NcclRank
from ._operations import COLLECTIVES

_MEMORY, _NCCL, _RCCL = "memory", "nccl", "rccl"
_TAIL = 1000  # samples of single calls: ten lie beyond the 99th percentile
_TAIL_BYTES = 2**20  # up to this size, the calls of a tail take milliseconds
_GRAPH_BYTES = 2**16  # up to this size a call is so short that the gap between two launches is visible
_SMALLEST = 3  # the smallest size as a power of two
_PROTOCOL = "chosen by the library (LL, LL128 or Simple)"
_NAMES = tuple(COLLECTIVES)

topic = gb.Topic(
    views=[
        gb.View(
            "curve",
            "Collective bus bandwidth by message size",
            _NAMES,
            "size_bytes",
            by=("of",),
            series="hot",
            log_x=True,
        ),
        gb.View(
            "curve",
            "Collective call time by message size",
            _NAMES,
            "size_bytes",
            by=("of",),
            series="tail.each",
            log_x=True,
            log_y=True,
        ),
    ],
)


def _libraries(target: gb.Target) -> tuple[str, ...]:
    if target.is_host:
        return (_MEMORY,)
    return (_RCCL if target.device.id.startswith("rocm") else _NCCL,)


def _sizes(target: gb.Target) -> Any:
    if target.is_host:
        return gb.points((2**16,), smoke=(2**20,), full=gb.powers_of_two(_SMALLEST, 26))
    quick = (2**_SMALLEST, 2**16, 2**20, 2**24, 2**30)
    return gb.points(fitting(target, quick), smoke=(2**20,), full=fitting(target, gb.powers_of_two(_SMALLEST, 30)))


def _reduce_sizes(target: gb.Target) -> Any:
    """Return the axis of array sizes in bytes for `all_reduce`: `_sizes` with more points in `quick`."""
    common = _sizes(target)
    if target.is_host:
        return gb.points((2**_SMALLEST, 2**16, 2**22), common.smoke, common.full)
    quick = (2**_SMALLEST, 2**10, 2**13, 2**16, 2**18, 2**20, 2**22, 2**24, 2**28, 2**30)
    return gb.points(fitting(target, quick), common.smoke, common.full)


def _devices(params: Params) -> int:
    return 1 if params["by"] == _MEMORY else ranks_of(params)


def _collective(
    sizes: Callable[[gb.Target], Any] = _sizes, headline: Mapping[str, str] | None = None
) -> Callable[[Callable[..., gb.Task]], Callable[..., gb.Task]]:
    """Return the decorator that declares the case of a collective, with the axes `by`, `of` and `size_bytes`."""
    return topic.case(
        ranks=ranks_of, devices=_devices, headline=headline, by=_libraries, of=rank_counts, size_bytes=sizes
    )


@_collective(_reduce_sizes, headline={})
def all_reduce(bench: gb.Bench, by: str, of: int, size_bytes: int) -> gb.Task:
    """Bus bandwidth of an all-reduce: every one of `of` ranks receives the sum of all ranks' arrays of `size_bytes`."""
    return _task(bench, "all_reduce", by, of, size_bytes)


@_collective()
def all_gather(bench: gb.Bench, by: str, of: int, size_bytes: int) -> gb.Task:
    """Bus bandwidth of an all-gather: every one of `of` ranks receives the parts of all ranks, `size_bytes` in all."""
    return _task(bench, "all_gather", by, of, size_bytes)


@_collective()
def reduce_scatter(bench: gb.Bench, by: str, of: int, size_bytes: int) -> gb.Task:
    """Bus bandwidth of a reduce-scatter: every one of `of` ranks receives its part of the sum of all ranks' arrays."""
    return _task(bench, "reduce_scatter", by, of, size_bytes)


@_collective()
def broadcast(bench: gb.Bench, by: str, of: int, size_bytes: int) -> gb.Task:
    """Bus bandwidth of a broadcast: every one of `of` ranks receives the array of rank 0."""
    return _task(bench, "broadcast", by, of, size_bytes)


@_collective()
def all_to_all(bench: gb.Bench, by: str, of: int, size_bytes: int) -> gb.Task:
    """Bus bandwidth of an all-to-all: every one of `of` ranks receives one part of every rank's array."""
    return _task(bench, "all_to_all", by, of, size_bytes)


@_collective()
def send_recv(bench: gb.Bench, by: str, of: int, size_bytes: int) -> gb.Task:
    """Bus bandwidth of a ring: every one of `of` ranks sends its array to the next rank, all at the same time."""
    return _task(bench, "send_recv", by, of, size_bytes)


def _task(bench: gb.Bench, name: str, by: str, of: int, size_bytes: int) -> gb.Task:
    """Return this rank's task of the collective `name` of `size_bytes` over `of` ranks; every rank must call it."""
    operation = COLLECTIVES[name]
    is_host = by == _MEMORY
    rank = HostRank(bench, operation, size_bytes) if is_host else NcclRank(bench, operation, size_bytes)
    work = gb.Work(payload=size_bytes * operation.factor(of), items=1)
    modes: tuple[gb.Mode, ...] = ("hot", "graph") if size_bytes <= _GRAPH_BYTES else ("hot",)
    also = {"algbw": gb.Work(payload=size_bytes, items=1)}
    tail = gb.POINT.with_tail(_TAIL if size_bytes <= _TAIL_BYTES else 0)
    limit = "" if is_host else LIMIT
    stage = partial(gb.Stage, rank.call, work, lead=rank.meet, outputs=(rank.received,))
    stages = {
        "": stage("payload", limit, modes, also=also, effort=gb.POINT),
        "tail": stage("item", modes=("each",), effort=tail),
    }
    notes = {"devices": ", ".join(device.id for device in bench.devices), **rank.notes}
    if not is_host:
        direction = ONE_WAY if name == "broadcast" else BOTH_WAYS
        notes |= link(direction, LIBRARY, WRITES, counts=operation.counts, protocol=_PROTOCOL)
    return gb.Task(stages, rank.check, close=rank.close, notes=notes)
