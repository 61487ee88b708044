"""Measure signals between processes, and barriers of all of them: between GPUs by kernels, on the host by threads."""

from typing import Any

from gpubench.api import suite as gb

from .._between import Params, devices_of, labels, notes, paths, rank_counts, ranks_of
from ._host_rounds import EventPingPong, FlagBarrier, FlagPingPong, StreamPingPong
from ._kernel_rounds import KernelBarrier, KernelBarrierWithin, KernelPingPong
from ._rounds import Rounds

_HOST_MEANS = ("flag", "pipe", "socket")
_GPU_MEANS = ("store", "add", "mapped")
_WORDS = "words"  # the host's means of a barrier
_HALF = {"counted": "half of a round trip"}

topic = gb.Topic(
    views=[
        gb.View("bars", "Signal latency between processes", ("signal", "event_signal"), by=("means",)),
        gb.View("bars", "Barrier latency", ("barrier", "within"), by=("means",)),
    ]
)


def _signal_devices(params: Params) -> int:
    return 2 if params["means"] in _GPU_MEANS else 1


def _barrier_devices(params: Params) -> int:
    return 1 if params["means"] == _WORDS else ranks_of(params)


def _barrier_ranks(target: gb.Target) -> Any:
    """Return the axis of numbers of ranks: numbers of GPUs, or on the host 2, 4 and 8 if each rank can have a core."""
    return rank_counts(target, tuple(count for count in (2, 4, 8) if count <= max(target.device.units, 2)))


@topic.case(ranks=2, devices=_signal_devices, means=lambda target: _HOST_MEANS if target.is_host else _GPU_MEANS)
def signal(bench: gb.Bench, means: str) -> gb.Task:
    """Seconds for one word to reach the other process: half of a round trip.

    Kernels exchange the words between GPUs, and threads on the host; `means` is how."""
    rounds: Rounds
    if means in _GPU_MEANS:
        rounds = KernelPingPong(bench, means)
    else:
        rounds = FlagPingPong(bench) if means == "flag" else StreamPingPong(bench, means)
    return rounds.task(2, _HALF)


@topic.case(ranks=2, devices=devices_of, when=gb.on_gpu, path=paths)
def event_signal(bench: gb.Bench, path: str) -> gb.Task:
    """Seconds for a GPU event that both processes share to reach the other process: half of a round trip.

    A flag in host memory announces each event, because an event does not tell that it was recorded again. `path` is
    `same` if both processes use one GPU, or `peer` for two."""
    return EventPingPong(bench).task(2, {**notes(bench, path), **_HALF}, labels(bench, path))


@topic.case(
    ranks=ranks_of,
    devices=_barrier_devices,
    means=lambda target: (_WORDS,) if target.is_host else ("flags", "counter"),
    of=_barrier_ranks,
)
def barrier(bench: gb.Bench, means: str, of: int) -> gb.Task:
    """Seconds of a barrier of `of` ranks: of kernels, one rank per GPU, or of threads on the host.

    `means` is `flags` (each rank polls the flags of all others), `counter` (all add to one counter) or `words` (flags
    in host memory)."""
    del of
    rounds = FlagBarrier(bench) if means == _WORDS else KernelBarrier(bench, means)
    return rounds.task(1)


@topic.case(when=gb.on_gpu, scope=("block", "grid"))
def within(bench: gb.Bench, scope: str) -> gb.Task:
    """Seconds of a barrier within one GPU: of one block, or of a grid with one block per compute unit."""
    return KernelBarrierWithin(bench, scope).task(1)
