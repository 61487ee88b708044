"""Measure two programs on one device: the share of its rate that each keeps, and the wait behind long kernels.

The victim waits after each operation, and each is timed. The aggressor keeps its queue at least 10 ms deep. Both run
alone and together in the same sample, so that the device's clock is the same for all three."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from .._between import Params, need_shared_gpu
from .._checks import CheckedCall
from .._stream import need_numba
from ._aggressor import Aggressor, NeighbourBoard
from ._green import GreenContext, SmPool
from ._loads import LaunchQueue, aggressors, is_queued, launch, launch_queue, nothing, spin, victims

NONE = "none"
_LONGEST_CALL_S, _LOOK_S = 5.0, 1e-3
_AHEAD_S = 0.03  # duration of the work that the other process has queued
_COVER = 2.5  # work queued ahead in one process, in windows; queueing during the window would disturb the victim
_MPS_FOLDER = "/tmp/nvidia-mps"  # unless CUDA_MPS_PIPE_DIRECTORY names another: "Multi-Process Service", NVIDIA
_SHARE_OF_MEMORY, _SPARE_BYTES = 8, 2**30  # memory that both programs need
_SMOKE = (("launch", "spin", "processes"), ("triad", "triad", "processes"))
_QUICK = (("decode", "gemm"),)
_TELLING = (("launch", "gemm"), ("decode", "triad"), ("gemm", "gemm"), ("h2d", "copy"))
_WAYS = ("processes", "green", "streams", "priority", "mps")
_IN_FULL = ("processes", "green")
_LONG_S = 2e-3  # duration of two blocks of the long kernel of `preempt`, which fill an SM
_TWO_PROCESSES = ("processes", "mps")


def _matrix(title: str, series: str) -> gb.View:
    """Return a matrix of a series of the cases, with a row for each victim and a column for each aggressor."""
    return gb.View("matrix", title, ("neighbour",), "aggressor", "victim", by=("how",), series=series)


topic = gb.Topic(
    views=[
        _matrix("Rate ratio of a victim: beside an aggressor over alone", "relative"),
        _matrix("Rate ratio summed over both programs (above 1 sharing pays)", "sum"),
        _matrix("Operation time of a victim beside an aggressor", "self"),
    ],
)


def _ways(target: gb.Target) -> tuple[str, ...]:
    return _WAYS[:1] if target.is_host else _WAYS


def _is_measured(target: gb.Target, params: Params) -> bool:
    """Return whether to measure a point: in `full` all pairs by processes and green contexts, four by other ways."""
    victim, aggressor, how = (str(params[name]) for name in ("victim", "aggressor", "how"))
    if target.tier == "smoke":
        return (victim, aggressor, how) == _SMOKE[target.is_host]
    if target.tier == "quick":
        return how == "processes" and (victim, aggressor) in _QUICK
    return how in _IN_FULL or (victim, aggressor) in _TELLING


def _ranks(params: Params) -> int:
    return 2 if params["how"] in _TWO_PROCESSES and params["aggressor"] != NONE else 1


def jain(shares: tuple[float, ...]) -> float:
    """Return Jain's index of fairness, (Σx)² / (n·Σx²): 1 if all shares are equal, 1/n if one program has everything.

    Source: Jain, Chiu & Hawe, DEC-TR-301, 1984."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


@dataclass(frozen=True, slots=True)
class SharedWindow:
    """Rates of one sample in operations per second: each program alone, and both together."""

    victim_alone: float
    aggressor_alone: float
    victim: float
    aggressor: float
    victim_alone_s: float  # the median duration of an operation

    def observed(self) -> dict[str, gb.Observed]:
        """Return `relative` and `aggressor`, the share of its rate that each program keeps, `sum`, `jain` and `alone`.

        `sum` is the system's throughput in units of programs alone (Eyerman & Eeckhout, IEEE Micro 28(3), 2008), `jain`
        the index of both shares, and `alone` the victim's seconds alone."""
        victim_share, aggressor_share = self.victim / self.victim_alone, self.aggressor / self.aggressor_alone
        return {
            "relative": gb.Observed(victim_share, "", "more"),
            "aggressor": gb.Observed(aggressor_share, "", "more"),
            "sum": gb.Observed(victim_share + aggressor_share, "", "more"),
            "jain": gb.Observed(jain((victim_share, aggressor_share)), "", "more"),
            "alone": gb.Observed(self.victim_alone_s, "s"),
        }


def medians(observed: Sequence[Mapping[str, gb.Observed]]) -> dict[str, gb.Observed]:
    """Return by name the median of each value over `observed`, which has the values of each window by name."""
    return {
        name: replace(example, value=median(values[name].value for values in observed))
        for name, example in observed[0].items()
    }


def timed_window(load: CheckedCall, where: LaunchQueue, seconds: float) -> list[float]:
    """Return the host seconds of each call of `load` on `where` for `seconds`; each is waited for before the next."""
    where.enter()
    durations = []
    before = time.perf_counter()
    end = before + seconds
    while before < end:
        load.call()
        where.wait()
        now = time.perf_counter()
        durations.append(now - before)
        before = now
    return durations


@dataclass(frozen=True, slots=True)
class SampleSpan:
    """The length of a sample: the number of windows, and the seconds of each of a window's three measurements."""

    windows: int
    seconds: float

    @classmethod
    def of(cls, bench: gb.Bench) -> SampleSpan:
        return {"smoke": cls(1, 0.03), "quick": cls(2, 0.03), "full": cls(3, 0.05)}[bench.target.tier]


class NeighbourPair:
    """A victim that runs `load` on the launch queue `where`, and the board of its aggressor, which must be starting."""

    def __init__(
        self, bench: gb.Bench, load: CheckedCall, where: LaunchQueue, board: NeighbourBoard, span: SampleSpan
    ) -> None:
        self._bench, self._load, self._queue, self._board, self._span = bench, load, where, board, span
        self._home = launch_queue(bench)
        self._windows: list[SharedWindow] = []
        self.beside_s = 0.0  # the median duration of an operation in the last sample
        board.wait_until_ready()

    def seconds(self) -> list[float]:
        """Return the seconds of each of the victim's operations beside the aggressor in one sample."""
        self._load.overwrite(self._bench)
        self._home.wait()
        durations = [seconds for _ in range(self._span.windows) for seconds in self._window()]
        self._load.check()
        self.beside_s = median(durations)
        return durations

    def alone_s(self) -> float:
        """Return the seconds of the victim's median operation without the aggressor."""
        return median(window.victim_alone_s for window in self._windows)

    def _window(self) -> list[float]:
        """Measure both programs alone and together; return the seconds of the victim's operations together."""
        alone = timed_window(self._load, self._queue, self._span.seconds)
        self._board.run()
        aggressor_alone = self._rate_alone()
        self._board.rest()
        self._board.run()
        ended, begin = self._board.ended, time.perf_counter()
        beside = timed_window(self._load, self._queue, self._span.seconds)
        aggressor = (self._board.ended - ended) / (time.perf_counter() - begin)
        self._board.rest()
        self._home.enter()
        victim_alone, victim = len(alone) / sum(alone), len(beside) / sum(beside)
        self._windows.append(SharedWindow(victim_alone, aggressor_alone, victim, aggressor, median(alone)))
        return beside

    def _rate_alone(self) -> float:
        """Return how many calls of the aggressor end per second; raises RuntimeError if none ends within 5 s."""
        ended, begin = self._board.ended, time.perf_counter()
        time.sleep(self._span.seconds)
        while self._board.ended == ended:
            if time.perf_counter() - begin > _LONGEST_CALL_S:
                raise RuntimeError(f"no call of the aggressor has ended within {_LONGEST_CALL_S:g} s")
            time.sleep(_LOOK_S)
        return (self._board.ended - ended) / (time.perf_counter() - begin)

    def observed(self) -> gb.Observation:
        """Return the medians of the ratios of all windows so far, including windows before the first sample."""
        return medians([window.observed() for window in self._windows])


class Partners:
    """Two queues of one process: plain streams, streams of the highest and the lowest priority, or green contexts."""

    def __init__(self, bench: gb.Bench, how: str) -> None:
        self._contexts: list[GreenContext] = []
        cuda, levels = bench.xp.cuda, [0]
        if how == "green":
            pool = SmPool(bench)
            self._contexts = [pool.context(group) for group in pool.halves()]
            streams = [context.stream(bench) for context in self._contexts]
        elif how == "priority":
            if bench.traits.vendor != "nvidia":
                raise gb.Skip(
                    "HIP has stream priorities, but CuPy does not bind their range (hipDeviceGetStreamPriorityRange)"
                )
            driver = lib.Driver()
            lowest, highest = driver("cuCtxGetStreamPriorityRange")
            streams = [cuda.Stream(non_blocking=True, priority=level) for level in (int(highest), int(lowest))]
            levels = [int(driver("cuStreamGetPriority", stream.ptr)) for stream in streams]
            if levels[0] >= levels[1]:  # a lower number is a higher priority
                raise gb.Skip(f"this device has no stream priorities: both streams have {levels[0]}")
        else:
            streams = [cuda.Stream(non_blocking=True) for _ in range(2)]
        self.queues = [launch_queue(bench, stream) for stream in streams]
        self.note = {
            "green": "green contexts from one split, of "
            + " and ".join(f"{context.units}" for context in self._contexts)
            + " SMs",
            "priority": f"the victim's stream has priority {levels[0]}, the highest, the aggressor's {levels[-1]}",
        }.get(how, "two streams of one process")

    def close(self) -> None:
        for context in self._contexts:
            context.close()


def mps_daemon() -> bool:
    """Return whether an MPS control daemon runs; if so, all programs of this user are its clients."""
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _MPS_FOLDER))
    try:
        pid = int((folder / "nvidia-cuda-mps-control.pid").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return Path("/proc", str(pid)).exists()


def need_way(how: str) -> None:
    """Raise Skip if `how` is `mps` and no MPS control daemon runs, or `how` is `processes` and such a daemon runs."""
    if how == "mps" and not mps_daemon():
        raise gb.Skip("no MPS control daemon runs; start one with nvidia-cuda-mps-control -d, if that is allowed")
    if how == "processes" and mps_daemon():
        raise gb.Skip(
            "an MPS control daemon runs, so that processes do not take turns; run the case with how=mps instead"
        )


def way_labels(bench: gb.Bench, how: str) -> tuple[str, ...]:
    """Return the label `time-sliced` if processes take turns on a GPU."""
    return ("time-sliced",) if how == "processes" and bench.traits.is_gpu else ()


MakeLoad = Callable[[gb.Bench], CheckedCall]


def share(bench: gb.Bench, how: str, victim: MakeLoad, aggressor: MakeLoad, queued: bool, finish: Finish) -> gb.Task:
    """Return the task of two programs that share the device in the way `how`; `finish` makes the victim's task."""
    if bench.traits.is_gpu:
        need_way(how)
        bench.need(bench.target.device.memory_bytes // _SHARE_OF_MEMORY + _SPARE_BYTES)
    else:
        need_numba(bench)
    if how in _TWO_PROCESSES:
        return _between_processes(bench, how, victim, aggressor, queued, finish)
    partners, board, span = Partners(bench, how), NeighbourBoard.within(bench), SampleSpan.of(bench)
    neighbour = Aggressor(bench, aggressor(bench), partners.queues[1], board, queued, _COVER * span.seconds)
    pair = NeighbourPair(bench, victim(bench), partners.queues[0], board, span)

    def close() -> None:
        with contextlib.closing(partners):
            neighbour.close()

    return finish(pair, close, {"sharing": partners.note})


def _between_processes(
    bench: gb.Bench, how: str, victim: MakeLoad, aggressor: MakeLoad, queued: bool, finish: Finish
) -> gb.Task:
    """Return this rank's task as `share` does: rank 0 is the victim, and rank 1 the aggressor; both must call it."""
    need_shared_gpu(bench)
    board = NeighbourBoard.shared(bench)
    if bench.rank == 1:
        return Aggressor(bench, aggressor(bench), launch_queue(bench), board, queued, _AHEAD_S).task()
    pair = NeighbourPair(bench, victim(bench), launch_queue(bench), board, SampleSpan.of(bench))
    return finish(pair, board.end, {"sharing": "processes by MPS" if how == "mps" else "two processes"})


Finish = Callable[[NeighbourPair, Callable[[], None], Mapping[str, str]], gb.Task]


def operations(call: Callable[[], Any], probe: Callable[[], gb.Observation] | None = None) -> gb.Stage:
    """Return a stage whose `call` returns the seconds of each operation and checks the last result."""
    effort = gb.Effort.exactly(1)
    return gb.Stage(call, gb.Work(items=1), "item", clock="self", checked=True, probe=probe, effort=effort)


@topic.case(
    ranks=_ranks,
    where=_is_measured,
    victim=lambda target: tuple(victims(target)),
    aggressor=lambda target: (NONE, *aggressors(target)),
    how=_ways,
)
def neighbour(bench: gb.Bench, victim: str, aggressor: str, how: str) -> gb.Task:
    """Seconds per operation of a victim beside an aggressor; the percentiles are of single operations.

    `relative` and `aggressor` are the share of its rate alone that each keeps, `sum` their sum, `jain` their fairness.
    """
    if aggressor == NONE:
        return _alone(bench, victim, how)

    def finish(pair: NeighbourPair, close: Callable[[], None], notes: Mapping[str, str]) -> gb.Task:
        stage = operations(pair.seconds, pair.observed)
        return gb.Task.of(stage, check=nothing, close=close, notes=notes, labels=way_labels(bench, how))

    makers = victims(bench.target)[victim], aggressors(bench.target)[aggressor]
    return share(bench, how, *makers, is_queued(bench, aggressor), finish)


def _alone(bench: gb.Bench, victim: str, how: str) -> gb.Task:
    """Return the task of a victim without an aggressor, on half of the SMs if `how` is `green`."""
    load, partners = victims(bench.target)[victim](bench), Partners(bench, how) if how == "green" else None
    where = partners.queues[0] if partners else launch_queue(bench)
    home, span = launch_queue(bench), SampleSpan.of(bench)

    def seconds() -> list[float]:
        load.overwrite(bench)
        home.wait()
        durations = timed_window(load, where, span.windows * span.seconds)
        home.enter()
        load.check()
        return durations

    close = partners.close if partners else nothing
    return gb.Task.of(operations(seconds), check=nothing, close=close, notes={"sharing": "alone"})


preemption = gb.Topic(
    views=[gb.View("bars", "Start time of an urgent kernel behind long kernels", ("preempt",), by=("how", "blocks"))],
)


@preemption.case(
    ranks=lambda params: 2 if params["how"] == "processes" else 1,
    when=gb.on_gpu,
    how=gb.points((), smoke=("priority",), full=("streams", "priority", "green", "processes")),
    blocks=gb.points((1, 16), smoke=(1,)),
)
def preempt(bench: gb.Bench, how: str, blocks: int) -> gb.Task:
    """Seconds from the launch of an empty kernel to its end, behind kernels of `blocks` blocks per SM.

    An SM holds two such blocks at a time, which then last 2 ms; one alone lasts 1 ms. `delay` is the time beside them
    minus the time alone. A GPU does not interrupt a block for a kernel of the same process. So the delay by priority is
    the time until a block ends, and without priority the time until all blocks ahead have started. Only the turns of
    two processes interrupt a block."""

    def finish(pair: NeighbourPair, close: Callable[[], None], notes: Mapping[str, str]) -> gb.Task:
        def delayed() -> gb.Observation:
            alone = pair.alone_s()
            return {"alone": gb.Observed(alone, "s"), "delay": gb.Observed(pair.beside_s - alone, "s")}

        stage = operations(pair.seconds, delayed)
        return gb.Task.of(stage, check=nothing, close=close, notes=notes, labels=way_labels(bench, how))

    long_kernels = partial(spin, blocks=blocks * bench.target.device.units, seconds=_LONG_S)
    return share(bench, how, launch, long_kernels, True, finish)
