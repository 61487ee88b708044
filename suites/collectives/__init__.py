"""Collectives between GPUs through NCCL or RCCL, a rank a GPU; on the host between processes through shared memory."""

from __future__ import annotations

from typing import Any

from gpubench.api.suite import (
    POINT,
    Bench,
    Mode,
    Observation,
    Stage,
    Suite,
    Target,
    Task,
    View,
    Work,
    points,
    powers_of_two,
)

from .._between import Params, fitting
from .._link import BOTH_WAYS, LIBRARY, LIMIT, ONE_WAY, WRITES, link
from ._host import HostRank
from ._nccl import NcclRank
from ._operations import COLLECTIVES

_MEMORY, _NCCL, _RCCL = "memory", "nccl", "rccl"
_TAIL = 1000  # samples of single calls: ten lie beyond the 99th percentile
_TAIL_BYTES = 2**20  # up to here a tail of so many calls takes milliseconds
_GRAPH_BYTES = 2**16  # up to here a call is so short that the gap between two launches shows
_SMALLEST = 3  # powers of two
_PROTOCOL = "the library's (LL, LL128 or Simple): buffers between the ranks, steps that wait for flags"
_NAMES = tuple(COLLECTIVES)

suite = Suite(
    "collectives between GPUs (NCCL, RCCL), a rank a GPU; on the host between processes",
    views=[
        View("curve", "Bus bandwidth over size", _NAMES, "size_bytes", by=("of",), series="hot", log_x=True),
        View("curve", "Time of a call", _NAMES, "size_bytes", by=("of",), series="tail.each", log_x=True, log_y=True),
    ],
)


def _by(target: Target) -> tuple[str, ...]:
    if target.is_host:
        return (_MEMORY,)
    return (_RCCL if target.device.id.startswith("rocm") else _NCCL,)


def _of(target: Target) -> Any:
    """How many ranks: all GPUs that reach each other, and two; on the host two processes."""
    if target.is_host:
        return (2,)
    most = max(1 + len(target.device.peers), 2)
    return points((most,), smoke=(2,), full=tuple(dict.fromkeys((*(n for n in (2, 4, 8) if n < most), most))))


def _sizes(target: Target) -> Any:
    if target.is_host:
        return points((2**16,), smoke=(2**20,), full=powers_of_two(_SMALLEST, 26))
    quick = (2**_SMALLEST, 2**16, 2**20, 2**24, 2**30)
    return points(fitting(target, quick), smoke=(2**20,), full=fitting(target, powers_of_two(_SMALLEST, 30)))


def _reduce_sizes(target: Target) -> Any:
    """Of the first among collectives a few points more."""
    found = _sizes(target)
    if target.is_host:
        return points((2**_SMALLEST, 2**16, 2**22), found.smoke, found.full)
    quick = (2**_SMALLEST, 2**10, 2**13, 2**16, 2**18, 2**20, 2**22, 2**24, 2**28, 2**30)
    return points(fitting(target, quick), found.smoke, found.full)


def _ranks(params: Params) -> int:
    return int(params["of"])


def _devices(params: Params) -> int:
    return 1 if params["by"] == _MEMORY else int(params["of"])


def _task(bench: Bench, name: str, by: str, size_bytes: int) -> Task:
    what = COLLECTIVES[name]
    rank = HostRank(bench, what, size_bytes) if by == _MEMORY else NcclRank(bench, what, size_bytes)
    limit = "" if by == _MEMORY else LIMIT
    bus = Work(payload=size_bytes * what.factor(bench.world), items=1)
    modes: tuple[Mode, ...] = ("hot", "graph") if size_bytes <= _GRAPH_BYTES else ("hot",)
    plain = {"algbw": Work(payload=size_bytes, items=1)}
    stages = {
        "": Stage(rank.call, bus, "payload", limit, modes, lead=rank.meet, also=plain, effort=POINT),
        "tail": Stage(
            rank.call,
            bus,
            "item",
            modes=("each",),
            lead=rank.meet,
            effort=POINT.with_tail(_TAIL if size_bytes <= _TAIL_BYTES else 0),
        ),
    }

    def check() -> Observation:
        rank.check()
        return {}

    found = {"devices": ", ".join(device.id for device in bench.devices), **rank.notes}
    if by != _MEMORY:
        direction = ONE_WAY if name == "broadcast" else BOTH_WAYS
        found |= link(direction, LIBRARY, WRITES, counts=what.counts, protocol=_PROTOCOL)
    close = rank.close if isinstance(rank, HostRank) else lambda: None
    return Task(stages, check, rank.poison, close, found)


def _case(name: str, sentence: str, sizes: Any = _sizes, headline: dict[str, str] | None = None) -> None:
    """Declare the case of one collective."""

    def build(bench: Bench, by: str, of: int, size_bytes: int) -> Task:
        del of
        return _task(bench, name, by, size_bytes)

    build.__name__, build.__doc__ = name, sentence
    suite.case(ranks=_ranks, devices=_devices, by=_by, of=_of, size_bytes=sizes, headline=headline)(build)


_case("all_reduce", "Every rank has the sum of all arrays: bus bandwidth.", _reduce_sizes, headline={})
_case("all_gather", "Every rank has all parts: bus bandwidth.")
_case("reduce_scatter", "Every rank has its part of the sum of all arrays: bus bandwidth.")
_case("broadcast", "Every rank has the first one's array: bus bandwidth.")
_case("all_to_all", "Every rank has a part of every other's array: bus bandwidth.")
_case("send_recv", "Every rank sends its array to the next one, all at once: bus bandwidth.")
