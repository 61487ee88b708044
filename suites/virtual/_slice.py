"""Measure time slices: how long a GPU serves one process before it switches to the next, and the time of the switch.

Two processes run kernels that read the clock all processes share, between small pieces of work. The device changes
the process within a kernel: its registers are saved, and it continues later."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._between import need_shared_gpu
from .._checks import CheckedCall
from ._aggressor import ROOM_BYTES, Aggressor, NeighbourBoard
from ._loads import address_of, launch_queue, steps_of
from ._neighbour import need_way

_KERNEL_S, _PIECE_S = 100e-6, 0.5e-6
_KERNELS_PER_CALL = 4
_SPANS_EACH = 4  # spans recorded per kernel, which is too short to be interrupted more often
_AWAY_NS = 10_000  # three times the length of a piece and two ticks of the clock, which may be as coarse as 1 µs
_AHEAD_S = 0.005
_QUICK_S, _FULL_S = 0.05, 0.2
_NANO = 1e-9
_BINS_NS = 2.0 ** np.arange(8, 24)  # edges of the histogram, from 256 ns to 8 ms
# Each span is two 64-bit words, its begin and its end.
_MOST_KERNELS = ROOM_BYTES // (16 * _SPANS_EACH)
_MOST_OVERLAP = 0.1  # share of the switches that may overlap

Stamps = npt.NDArray[np.uint64]

_GAPS = "the number below 256 ns, below 512 ns, and so on in powers of two; the last one is the number above 8 ms"

topic = gb.Topic(views=[gb.View("bars", "Slice time and switch time of processes that take turns", ("slice",))])


@dataclass(frozen=True, slots=True)
class TimeSlices:
    """Whole slices, the switches between them, and the gaps between kernels of one slice, all in seconds.

    `overlap` is the share of switches at which a process began before the other process's last span had ended."""

    slices: tuple[float, ...]
    switches: tuple[float, ...]
    gaps: tuple[float, ...]
    overlap: float


def time_slices(first: Stamps, second: Stamps) -> TimeSlices:
    """Return the slices of two processes from their stamps in nanoseconds, each of shape (spans, 2): begin and end.

    A slice goes from the first begin to the last end of consecutive spans of one process."""
    stamps = np.concatenate([first, second]).astype(np.int64)
    owners = np.repeat([0, 1], [len(first), len(second)])
    order = np.argsort(stamps[:, 0], kind="stable")
    begins, ends, owners = stamps[order, 0], stamps[order, 1], owners[order]
    between = begins[1:] - ends[:-1]
    is_switch = owners[1:] != owners[:-1]
    switches = np.flatnonzero(is_switch)
    slices = [(ends[stop] - begins[start + 1]) * _NANO for start, stop in itertools.pairwise(switches)]
    return TimeSlices(
        tuple(map(float, slices)),
        tuple((between[is_switch] * _NANO).tolist()),
        tuple((between[~is_switch] * _NANO).tolist()),
        float((between[is_switch] < 0).mean()) if switches.size else 0.0,
    )


def gap_histogram(slices: TimeSlices) -> tuple[float, ...]:
    """Return the number of gaps and switches below 256 ns, below 512 ns, and so on; the last one is above 8 ms."""
    nanoseconds = np.array([*slices.gaps, *slices.switches]) / _NANO
    bins = np.searchsorted(_BINS_NS, nanoseconds, side="right")
    return tuple(map(float, np.bincount(bins, minlength=len(_BINS_NS) + 1)))


def stamped(stamps: Stamps) -> Stamps:
    """Return the pairs (begin, end) of `stamps` that were written, shape (spans, 2); others begin with 0."""
    pairs = stamps.reshape(-1, 2)
    written: Stamps = pairs[pairs[:, 0] > 0]
    return written


class StampedKernels:
    """Kernels that write the begin and end time of each span in which they ran into a ring buffer."""

    def __init__(self, bench: gb.Bench) -> None:
        self._bench, self._kernel = bench, bench.kernel("sharing.cu", "stamp")
        self._stamps = bench.xp.zeros((_MOST_KERNELS, _SPANS_EACH, 2), np.uint64)
        self._end, self._count = bench.xp.zeros(1, np.uint32), 0
        pieces, steps = round(_KERNEL_S / _PIECE_S), steps_of(bench, _PIECE_S)
        self._arguments = (np.uint32(_SPANS_EACH), np.uint32(pieces), np.uint32(steps), np.uint64(_AWAY_NS), self._end)

    def restart(self) -> None:
        """Clear all stamps; the device must have finished."""
        self._stamps.fill(0)
        self._count = 0

    def call(self) -> None:
        """Queue 4 kernels in the current stream; each fills the next place of the ring buffer."""
        for _ in range(_KERNELS_PER_CALL):
            place = address_of(self._stamps) + 16 * _SPANS_EACH * (self._count % _MOST_KERNELS)
            self._kernel((1,), (1,), (np.uint64(place), *self._arguments))
            self._count += 1

    def _by_kernel(self) -> Stamps:
        stamps: Stamps = self._bench.device.to_host(self._stamps)
        return stamps[: min(self._count, _MOST_KERNELS)]

    def stamps(self) -> Stamps:
        """Return the stamps in the buffer in nanoseconds, shape (spans, 2); the device must have finished."""
        return stamped(self._by_kernel())

    def check(self) -> None:
        """Raise WrongAnswer if a kernel left no stamp, or if a span ended before it began."""
        stamps = self._by_kernel()
        gb.expect(
            bool((stamps[:, 0, 0] > 0).all() and (stamps[..., 1] >= stamps[..., 0]).all()),
            "a kernel left no stamps, or ended before it began",
        )


def expect_turns(slices: TimeSlices) -> None:
    """Raise WrongAnswer if both processes ran at the same time at more than a tenth of the switches."""
    overlaps = [-seconds for seconds in slices.switches if seconds < 0]
    gb.expect(
        slices.overlap <= _MOST_OVERLAP,
        f"{slices.overlap:.0%} of {len(slices.switches)} switches overlap, by {np.median(overlaps or [0.0]):.3g} s: "
        "the processes did not take turns",
    )


class StampingAggressor(Aggressor):
    """Runs stamped kernels while the board commands it, and copies the stamps into `room` when it rests."""

    def __init__(self, bench: gb.Bench, kernels: StampedKernels, room: Any, **others: Any) -> None:
        self._kernels, self._room = kernels, room.view(np.uint64)
        super().__init__(bench, CheckedCall(kernels.call, kernels.check), **others)

    def _run(self) -> None:
        super()._run()
        stamps = self._kernels.stamps().reshape(-1)
        self._room[stamps.size :] = 0
        self._room[: stamps.size] = stamps

    def close(self) -> None:
        super().close()
        self._room = None


class SliceSamples:
    """Measures windows in which this process and another one stamp kernels; each slice is a sample."""

    def __init__(self, bench: gb.Bench, board: NeighbourBoard) -> None:
        self._bench, self._board, self._kernels = bench, board, StampedKernels(bench)
        self._window_s = _FULL_S if bench.target.tier == "full" else _QUICK_S
        self._last = TimeSlices((), (), (), 0.0)
        board.wait_until_ready()

    def seconds(self) -> list[float]:
        """Return the seconds of each whole slice of a window, or one NaN if the window holds no whole slice."""
        self._kernels.restart()
        self._board.run()
        for _ in range(round(self._window_s / (_KERNEL_S * _KERNELS_PER_CALL))):
            self._kernels.call()
        self._bench.device.synchronize()
        self._board.rest()
        own_stamps = self._kernels.stamps()
        peer_stamps = stamped(self._board.room.view(np.uint64))
        self._last = time_slices(own_stamps, np.array(peer_stamps[peer_stamps[:, 1] >= own_stamps[0, 0]]))
        return list(self._last.slices) or [math.nan]

    def observed(self) -> gb.Observation:
        """Return `switch` and `gap`, median seconds in the last window, and `overlap`, a share of the switches."""
        seconds = {"switch": self._last.switches, "gap": self._last.gaps}
        medians = {name: gb.Observed(float(np.median(values)), "s") for name, values in seconds.items() if values}
        return {**medians, "overlap": gb.Observed(self._last.overlap)}

    def check(self) -> gb.Observation:
        """Return the histogram of gaps of the last window; raises WrongAnswer if the processes did not take turns."""
        self._kernels.check()
        expect_turns(self._last)
        return {"gaps": gb.Profile(gap_histogram(self._last), "gaps")}


@topic.case(ranks=2, when=gb.on_gpu, how=gb.points((), smoke=("processes",), full=("processes",)))
def slice_(bench: gb.Bench, how: str) -> gb.Task:
    """Seconds of a time slice of a GPU that two processes share.

    `switch` is the time from one process's last kernel to the other's first; `gap`, the time between two kernels within
    a slice, is reported for comparison."""
    need_shared_gpu(bench)
    need_way(how)
    board = NeighbourBoard.shared(bench)
    if bench.rank == 1:
        ways = {"queue": launch_queue(bench), "board": board, "is_queued": True, "ahead_s": _AHEAD_S}
        return StampingAggressor(bench, StampedKernels(bench), board.room, **ways).task()
    samples = SliceSamples(bench, board)
    stage = gb.Stage(samples.seconds, gb.Work(items=1), "item", clock="self", probe=samples.observed, effort=gb.POINT)
    notes = {
        "kernels": "100 µs of work each, by two processes; the clock is read every 0.5 µs of work",
        "clock": "the global timer, which all processes read",
        "gaps": _GAPS,
    }
    return gb.Task.of(stage, check=samples.check, close=board.end, notes=notes, labels=("time-sliced",))
