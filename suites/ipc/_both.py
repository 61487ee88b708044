"""Copy both ways at once between two processes on distinct GPUs; the copies begin together."""

from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import POISON, RankMemory, expect_pattern, fitting, need_shared_gpu, sizes
from .._copies import ARRAYS, WAYS, call_of, reads
from .._link import BOTH_WAYS, LIMIT, link_of

FLAG_BYTES = 2**21  # a memory page of a GPU
_PATIENCE_S = 0.4  # a device waits this long for a flag, which is less than a gate holds
_USUAL_HZ = 2e9  # assumed for GPUs whose clock is unknown

_TITLE = "Bidirectional copy bandwidth per direction"
topic = gb.Topic(views=[gb.View("curve", _TITLE, ("both",), "size_bytes", by=("way",), log_x=True, log_y=True)])


def _both_sizes(target: gb.Target) -> Any:
    """Return the axis of copy sizes in bytes: `sizes`, but in `quick` only 64 KiB and 1 GiB."""
    common = sizes(target)
    return gb.points(fitting(target, (2**16, 2**30)), common.smoke, common.full)


@topic.case(ranks=2, devices=lambda _: 2, when=gb.on_gpu, way=WAYS, size_bytes=_both_sizes)
def both(bench: gb.Bench, way: str, size_bytes: int) -> gb.Task:
    """Bandwidth of copies of two processes at once, each on its own GPU: payload of the slower direction.

    `way` is how the `size_bytes` of each direction are copied. The series `sum` counts the payload of both directions.
    """
    copies = Duplex(bench, way, size_bytes)
    stage = gb.Stage(
        copies.call,
        gb.Work(payload=size_bytes),
        "payload",
        LIMIT,
        lead=copies.lead,
        inputs=copies.redraw,
        also={"sum": gb.Work(payload=2 * size_bytes)},
        effort=gb.POINT,
    )
    return gb.Task.of(
        stage,
        check=copies.check,
        poison=copies.poison,
        close=copies.close,
        release=copies.release,
        notes={"devices": " ↔ ".join(device.id for device in bench.devices), **link_of(BOTH_WAYS, way)},
    )


class DeviceMeeting:
    """Makes the devices of two ranks begin a batch at the same time, by flags in each other's memory.

    Each device stores a flag in the other one's memory and polls its own."""

    def __init__(self, bench: gb.Bench) -> None:
        xp = bench.xp
        self._flags = RankMemory(bench, FLAG_BYTES)
        self._ticks, self._state = xp.zeros(1, xp.uint32), xp.zeros(2, xp.uint64)
        self._kernel = bench.kernel("signals.cu", "ping_pong")
        self._serves = np.uint32(bench.rank == 0)
        self._limit = np.uint64(cycles(bench, _PATIENCE_S))
        self._count = 0
        self.close, self.release = self._flags.close, self._flags.release

    def lead(self) -> None:
        """Queue one meeting: a kernel that ends when the other rank's device runs its kernel too, or after 0.4 s."""
        flags = (self._flags.local, self._flags.remote, self._serves, np.uint32(self._count))
        self._kernel((1,), (1,), (*flags, np.uint32(1), self._limit, self._ticks, self._state))
        self._count += 1

    def expect_met(self) -> None:
        """Raise WrongAnswer if a meeting ran out of time, so that the batches did not begin together."""
        gb.expect(int(self._state[1]) == 0, "the devices of the two ranks did not begin together in time")


def cycles(bench: gb.Bench, seconds: float) -> int:
    """Return `seconds` as cycles of the device's clock, at the frequency of the facts, or else 2 GHz."""
    return int(seconds * float(dict(bench.target.device.details).get("clock.sm_hz", _USUAL_HZ)))


class Duplex:
    """One of two ranks that copy `size_bytes` at once: out of the other rank's memory or into it.

    `way` is `pull`, `push`, `load` or `store`."""

    def __init__(self, bench: gb.Bench, way: str, size_bytes: int) -> None:
        need_shared_gpu(bench)
        bench.need((ARRAYS + 1) * size_bytes)
        self._bench = bench
        self._sent, self._expected = (
            bench.words(size_bytes // 8, bench.seed + rank) for rank in (bench.rank, 1 - bench.rank)
        )
        self._writes = not reads(way)
        self._local = bench.xp.empty(size_bytes, bench.xp.uint8)
        self._memory = RankMemory(
            bench, size_bytes, lambda mine: self._sent.fill(self._local if self._writes else mine)
        )
        self._meeting = DeviceMeeting(bench)
        self.lead = self._meeting.lead
        self.call = call_of(bench, way, self._local, self._memory.remote)

    @property
    def _arriving(self) -> Any:
        """Where the other rank's bytes arrive."""
        return self._memory.local if self._writes else self._local

    def redraw(self) -> None:
        """Send other words, and expect others; a second call returns to the first ones."""
        self._sent.redraw(self._local if self._writes else self._memory.local)
        self._expected.redraw()

    def poison(self) -> None:
        """Overwrite the bytes that this rank receives; return when both ranks have done so. Every rank must call it."""
        self._arriving.fill(POISON)
        self._bench.device.synchronize()
        self._bench.barrier()

    def check(self) -> None:
        """Raise WrongAnswer if a byte that arrived is not the other rank's, or if the copies did not begin together.

        Every rank must call it: both ranks stop copying before either checks, and none continues before both have
        checked."""
        self._bench.barrier()
        self._meeting.expect_met()
        expect_pattern(self._bench, self._arriving, self._expected.seed, "copied both ways at once")
        self._bench.barrier()

    def close(self) -> None:
        """Unmap the other rank's memory."""
        self._memory.close()
        self._meeting.close()

    def release(self) -> None:
        """Free this rank's memory."""
        self._memory.release()
        self._meeting.release()
