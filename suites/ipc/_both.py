"""Both ways at once between two processes on distinct GPUs, which begin together."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpubench.api.suite import POINT, Bench, Observation, Stage, Task, Work, expect

from .._between import SPOILED, exclusive, expect_pattern, fill_pattern
from .._copies import ARRAYS, call_of
from .._link import BOTH_WAYS, LIMIT, link_of

FLAG_BYTES = 2**21  # a page of its own
_PATIENCE_S = 0.4  # that a device watches a flag for: less than a gate holds
_USUAL_HZ = 2e9  # of GPUs whose clock is not known


class Meeting:
    """Makes two ranks' devices begin a batch together: each posts a flag into the other's memory and watches its own.

    Only between distinct GPUs: on one GPU two processes take turns, and each would watch in vain.
    """

    def __init__(self, bench: Bench) -> None:
        xp = bench.xp
        self._mine = bench.device.share(FLAG_BYTES)
        self._mine.array.fill(0)
        bench.device.synchronize()
        self._theirs = bench.device.open_shared(bench.exchange(self._mine.handle)[1 - bench.rank], FLAG_BYTES)
        self._ticks, self._state = xp.zeros(1, xp.uint32), xp.zeros(2, xp.uint64)
        self._kernel = bench.kernel("signals.cu", "ping_pong")
        self._serves = np.uint32(bench.rank == 0)
        self._limit = np.uint64(cycles(bench, _PATIENCE_S))
        self._count = 0

    def lead(self) -> None:
        """Queue one round."""
        rest = (np.uint32(1), self._limit, self._ticks, self._state)
        self._kernel((1,), (1,), (self._mine.array, self._theirs.array, self._serves, np.uint32(self._count), *rest))
        self._count += 1

    def expect_met(self) -> None:
        """Raise WrongAnswer where a round was given up: the batches did not begin together."""
        expect(int(self._state[1]) == 0, "the devices of the two ranks did not meet in time")

    def close(self) -> None:
        """Unmap the other's flag."""
        self._theirs.close()

    def release(self) -> None:
        """Free the own one."""
        self._mine.close()


def cycles(bench: Bench, seconds: float) -> int:
    """So many seconds of the device's clock: the bound of a wait."""
    return int(seconds * float(dict(bench.target.device.details).get("clock.sm_hz", _USUAL_HZ)))


class Duplex:
    """One of two ranks that copy at once: out of the other's memory, or into it."""

    def __init__(self, bench: Bench, way: str, size_bytes: int) -> None:
        exclusive(bench)
        bench.need((ARRAYS + 1) * size_bytes)
        xp, self._bench, self._other = bench.xp, bench, 1 - bench.rank
        self._writes = way in ("push", "store")
        self._mine = bench.device.share(size_bytes)
        self._local = xp.empty(size_bytes, xp.uint8)
        own = self._local if self._writes else self._mine.array
        fill_pattern(bench, own, bench.seed + bench.rank)
        bench.device.synchronize()
        self._theirs = bench.device.open_shared(bench.exchange(self._mine.handle)[self._other], size_bytes)
        self._meeting = Meeting(bench)
        self.lead = self._meeting.lead
        self.call = call_of(bench, way, self._local, self._theirs.array)

    @property
    def _arriving(self) -> Any:
        """Where the other rank's bytes end up."""
        return self._mine.array if self._writes else self._local

    def poison(self) -> None:
        """Overwrite what arrived, in both ranks before either copies again."""
        self._arriving.fill(SPOILED)
        self._bench.device.synchronize()
        self._bench.barrier()

    def check(self) -> Observation:
        """Every byte is the other's; both ranks' copies are over when either looks."""
        self._bench.barrier()
        self._meeting.expect_met()
        expect_pattern(self._bench, self._arriving, self._bench.seed + self._other, "copied both ways at once")
        self._bench.barrier()
        return {}

    def close(self) -> None:
        """Unmap what is the other's."""
        self._theirs.close()
        self._meeting.close()

    def release(self) -> None:
        """Free what is ours."""
        self._mine.close()
        self._meeting.release()


def both(bench: Bench, way: str, size_bytes: int) -> Task:
    """Each rank copies at once: the slower direction, and the sum of both."""
    side = Duplex(bench, way, size_bytes)
    stage = Stage(
        side.call,
        Work(payload=size_bytes),
        "payload",
        LIMIT,
        lead=side.lead,
        also={"sum": Work(payload=2 * size_bytes)},
        effort=POINT,
    )
    return Task.of(
        stage,
        check=side.check,
        poison=side.poison,
        close=side.close,
        release=side.release,
        notes={"devices": " ↔ ".join(device.id for device in bench.devices), **link_of(BOTH_WAYS, way)},
    )
