"""Time slices: how long a GPU serves one process before it turns to the next, and what the turn costs.

Two processes run short kernels, each of which stamps its begin and its end by the clock that all processes share. A
turn shows as a change of the process in the order of the stamps.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api.suite import (
    POINT,
    Bench,
    Observation,
    Observed,
    Profile,
    Stage,
    Task,
    Topic,
    View,
    Work,
    expect,
    on_gpu,
    points,
)

from .._between import exclusive
from .._checks import CheckedCall
from ._aggressor import HEADER_BYTES, ROOM_BYTES, Aggressor, SharedBoard
from ._loads import address_of, lane, steps_of
from ._neighbour import need_way

_KERNEL_S = 10e-6
_STAMPS_PER_CALL = 16
_AHEAD_S = 0.005  # 31 calls, which are 530 launches: the launch queue holds about a thousand
_QUICK_S, _FULL_S = 0.05, 0.2
_NANO = 1e-9
_BINS_NS = 2.0 ** np.arange(8, 24)  # edges of the histogram, from 256 ns to 8 ms
_MOST_STAMPS = (ROOM_BYTES - HEADER_BYTES) // 16  # a begin and an end in 64-bit words

Stamps = npt.NDArray[np.uint64]

_GAPS = "how many are below 256 ns, below 512 ns, and so on in powers of two, the last above 8 ms"

topic = Topic(views=[View("bars", "Slice time and switch time of processes that take turns", ("slice",))])


@dataclass(frozen=True, slots=True)
class TimeSlices:
    """Whole slices, the switches between them, and the gaps between kernels of one slice, all in seconds.

    `overlap` is the share of kernels that began before the other process's last one had ended: they ran side by side.
    """

    slices: tuple[float, ...]
    switches: tuple[float, ...]
    gaps: tuple[float, ...]
    overlap: float


def time_slices(one: Stamps, other: Stamps) -> TimeSlices:
    """Return the slices of two processes from their stamps in nanoseconds, each of shape (kernels, 2): begin and end.

    A slice goes from the first begin to the last end of kernels of one process in a row. The first and the last one are
    left out: they began or ended outside the window.
    """
    stamps = np.concatenate([one, other]).astype(np.int64)
    owners = np.repeat([0, 1], [len(one), len(other)])
    order = np.argsort(stamps[:, 0], kind="stable")
    begins, ends, owners = stamps[order, 0], stamps[order, 1], owners[order]
    between = begins[1:] - ends[:-1]
    is_switch = owners[1:] != owners[:-1]
    turns = np.flatnonzero(is_switch)
    slices = [(ends[last] - begins[first + 1]) * _NANO for first, last in itertools.pairwise(turns)]
    return TimeSlices(
        tuple(map(float, slices)),
        tuple((between[is_switch] * _NANO).tolist()),
        tuple((between[~is_switch] * _NANO).tolist()),
        float((between[is_switch] < 0).mean()) if turns.size else 0.0,
    )


def gap_histogram(slices: TimeSlices) -> tuple[float, ...]:
    """Return how many gaps between two kernels are below 256 ns, below 512 ns, and so on, the last above 8 ms.

    Gaps within slices and switches between them lie in different bins if a switch costs anything.
    """
    nanoseconds = np.array([*slices.gaps, *slices.switches]) / _NANO
    bins = np.searchsorted(_BINS_NS, nanoseconds, side="right")
    return tuple(map(float, np.bincount(bins, minlength=len(_BINS_NS) + 1)))


class StampedKernels:
    """Short kernels that stamp their begins and ends into a buffer, from its start again when it is full."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._kernel = bench, bench.kernel("sharing.cu", "stamp")
        self._stamps, self._end = bench.xp.zeros((_MOST_STAMPS, 2), np.uint64), bench.xp.zeros(1, np.uint32)
        self._steps, self._count = np.uint32(steps_of(bench, _KERNEL_S)), 0

    def restart(self) -> None:
        """Forget all stamps; the device has finished."""
        self._stamps.fill(0)
        self._count = 0

    def call(self) -> None:
        """Queue a few kernels."""
        for _ in range(_STAMPS_PER_CALL):
            place = np.uint64(address_of(self._stamps) + 16 * (self._count % _MOST_STAMPS))
            self._kernel((1,), (1,), (place, self._steps, self._end))
            self._count += 1

    def stamps(self) -> Stamps:
        """Return the stamps that are still there in nanoseconds, shape (kernels, 2); the device has finished."""
        found: Stamps = self._bench.device.to_host(self._stamps)
        return found[: min(self._count, _MOST_STAMPS)]

    def check(self) -> None:
        """Raise WrongAnswer if a kernel left no stamp, or ended before it began."""
        found = self.stamps()
        expect(bool((found[:, 0] > 0).all() and (found[:, 1] >= found[:, 0]).all()), "a kernel has no sound stamps")

    @property
    def load(self) -> CheckedCall:
        """The kernels as an aggressor's load."""
        return CheckedCall(self.call, self.check, lambda: None)


class StampingAggressor(Aggressor):
    """Stamps while the board says so, and hands its stamps over when it rests."""

    def __init__(self, bench: Bench, kernels: StampedKernels, room: Any, **others: Any) -> None:
        self._kernels, self._room = kernels, room[HEADER_BYTES:].view(np.uint64)
        super().__init__(bench, kernels.load, **others)

    def _run(self) -> None:
        super()._run()
        found = self._kernels.stamps().reshape(-1)
        self._room[:] = 0
        self._room[: found.size] = found

    def close(self) -> None:
        """End the thread, and let go of the room."""
        super().close()
        self._room = None


class SliceSamples:
    """Stamps of this process beside those of another one; each call is a window, each sample a slice."""

    def __init__(self, bench: Bench, shared: SharedBoard) -> None:
        self._bench, self._shared, self._kernels = bench, shared, StampedKernels(bench)
        self._window_s = _FULL_S if bench.target.tier == "full" else _QUICK_S
        self._last = TimeSlices((), (), (), 0.0)
        shared.board.started()

    def seconds(self) -> list[float]:
        """Return the seconds of each whole slice of a window; NaN where there was none."""
        self._kernels.restart()
        self._shared.board.run()
        for _ in range(round(self._window_s / (_KERNEL_S * _STAMPS_PER_CALL))):
            self._kernels.call()
        self._bench.device.synchronize()
        self._shared.board.rest()
        mine, theirs = self._kernels.stamps(), self._shared.board.room[HEADER_BYTES:].view(np.uint64).reshape(-1, 2)
        self._last = time_slices(mine, np.array(theirs[theirs[:, 1] >= mine[0, 0]]))
        return list(self._last.slices) or [math.nan]

    def observed(self) -> Observation:
        """Return the medians of switches and of gaps within a slice, and the share of kernels side by side."""
        seconds = {"switch": self._last.switches, "gap": self._last.gaps}
        found = {name: Observed(float(np.median(values)), "s") for name, values in seconds.items() if values}
        return {**found, "overlap": Observed(self._last.overlap)}

    def check(self) -> Observation:
        """Raise WrongAnswer where a stamp is missing, or where the processes ran side by side; return the gaps."""
        self._kernels.check()
        share = self._last.overlap
        expect(share <= 0.5, f"{share:.0%} of the switches overlap: the processes did not take turns")
        return {"gaps": Profile(gap_histogram(self._last), "gaps")}


@topic.case(ranks=2, when=on_gpu, how=points((), smoke=("processes",), full=("processes",)))
def slice_(bench: Bench, how: str) -> Task:
    """Seconds of a time slice of a GPU that two processes share; `switch` is the time from one to the other.

    `gap` is the time between two kernels of one slice: what a switch is compared with.
    """
    exclusive(bench)
    need_way(how)
    shared = SharedBoard(bench)
    if bench.rank == 1:
        ways = {"lane": lane(bench), "board": shared.board, "is_queued": True, "ahead_s": _AHEAD_S}
        other = StampingAggressor(bench, StampedKernels(bench), shared.board.room, **ways)

        def end() -> None:
            try:
                other.close()
            finally:
                shared.close()

        return Task.idle(end)
    samples = SliceSamples(bench, shared)

    def close() -> None:
        shared.board.stop()
        shared.close()

    stage = Stage(samples.seconds, Work(items=1), "item", clock="self", probe=samples.observed, effort=POINT)
    notes = {
        "kernels": "10 µs each, by two processes",
        "clock": "the global timer, which all processes read",
        "gaps": _GAPS,
    }
    return Task.of(stage, check=samples.check, close=close, notes=notes, labels=("time-sliced",))
