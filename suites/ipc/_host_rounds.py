"""Make rounds of signals by threads of the host: flags in shared memory, bytes over a socket or pipes, GPU events."""

import os
import time
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import need_shared_gpu
from .._stream import need_numba
from ._rounds import Rounds

_LINE_BYTES = 128  # distance of two ranks' numbers on a board
_LOOKS = 2**28  # polls of a flag before a wait gives up, after some tenths of a second
_FLAG_ROUNDS = 1024
_STREAM_ROUNDS = 512
_EVENT_ROUNDS = 256
_SPIN_S = 2.0


class FlagRounds(Rounds):
    """Rounds by a 64-bit flag of each rank in a page that all ranks map, made and timed by compiled code.

    Every rank must create it. Raises Skip without numba."""

    def __init__(self, bench: gb.Bench) -> None:
        need_numba(bench)
        from .. import _host_flags

        self._bench, self._compiled = bench, _host_flags
        self._board = bench.board("flag")
        self._round_ns = np.zeros(_FLAG_ROUNDS, np.int64)
        self._count = 0
        self._make_rounds(self._round_ns[:0])
        bench.barrier()  # no rank waits for another one that is still compiling
        self._clock = gb.Observed(_host_flags.look_seconds(), "s")

    def _make_rounds(self, round_ns: Any) -> int:
        """Make one round for each element of `round_ns` (int64), and write the round's nanoseconds to it."""
        raise NotImplementedError

    def seconds(self) -> list[float]:
        """Make 1024 rounds and return the seconds of each but the first; every rank must call it.

        Raises WrongAnswer if a signal is late or a flag does not stand at the number of rounds."""
        gave_up = self._make_rounds(self._round_ns)
        gb.expect(gave_up == 0, f"round {gave_up} timed out: no signal within {_LOOKS} polls")
        self._count += self._round_ns.size
        values = list(self._board.row("flag"))
        gb.expect(values == [self._count] * len(values), f"the flags are {values} after {self._count} rounds")
        return [float(nanoseconds) * 1e-9 for nanoseconds in self._round_ns[1:]]

    def check(self) -> gb.Observation:
        return {"clock": self._clock}

    def close(self) -> None:
        self._board.close()


class FlagPingPong(FlagRounds):
    """A ping-pong of two ranks by flags."""

    def _make_rounds(self, round_ns: Any) -> int:
        rank = self._bench.rank
        watched, written = self._board.address("flag", 1 - rank), self._board.address("flag", rank)
        return int(self._compiled.ping_pong(watched, written, rank == 0, self._count, _LOOKS, round_ns))


class FlagBarrier(FlagRounds):
    """A barrier of all ranks by a flag each."""

    def _make_rounds(self, round_ns: Any) -> int:
        rank, world = self._bench.rank, self._bench.world
        flags = self._board.address("flag"), _LINE_BYTES
        return int(self._compiled.all_meet(*flags, rank, world, self._count, _LOOKS, round_ns))


class StreamPingPong(Rounds):
    """A ping-pong of single bytes between two ranks, over a socket or a pair of pipes: `means` is `socket` or `pipe`.

    Both ranks must create it."""

    def __init__(self, bench: gb.Bench, means: str) -> None:
        self._serves = bench.rank == 0
        self._count = 0
        self._last = -1
        if means == "socket":
            self._reading = self._writing = bench.sockets()[0].detach()
            return
        request, reply = (os.pipe(), os.pipe()) if self._serves else ((-1, -1), (-1, -1))
        received = bench.hand_over(gb.Handle(descriptors=(request[0], reply[1])) if self._serves else None)
        self._reading, self._writing = (reply[0], request[1]) if self._serves else received.descriptors
        if self._serves:
            received.close()

    def seconds(self) -> list[float]:
        """Make 512 rounds and return the seconds of each but the first, by this rank's clock.

        Both ranks must call it."""
        rounds = []
        last = time.perf_counter()
        for _ in range(_STREAM_ROUNDS):
            value = bytes([self._count % 256])
            if self._serves:
                os.write(self._writing, value)
            self._last = os.read(self._reading, 1)[0]
            if not self._serves:
                os.write(self._writing, value)
            self._count += 1
            now = time.perf_counter()
            rounds.append(now - last)
            last = now
        return rounds[1:]

    def check(self) -> None:
        """Raise WrongAnswer if the last byte that arrived is not the number of the last round, modulo 256."""
        expected = (self._count - 1) % 256
        gb.expect(self._last == expected, f"byte {self._last} arrived instead of {expected}")

    def close(self) -> None:
        for descriptor in {self._reading, self._writing}:
            os.close(descriptor)


class EventPingPong(Rounds):
    """A ping-pong of two ranks by GPU events; a flag on the host announces each event.

    Without the flag a rank could not know that the other rank recorded its event again. Both ranks must create it."""

    def __init__(self, bench: gb.Bench) -> None:
        need_shared_gpu(bench)
        self._serves = bench.rank == 0
        self._mine = bench.device.shared_event()
        self._theirs = bench.device.shared_event(bench.exchange(self._mine.export())[1 - bench.rank])
        self._board = bench.board("flag")
        self._flags = self._board.row("flag")
        self._own, self._other = bench.rank, 1 - bench.rank
        self._count = 0

    def seconds(self) -> list[float]:
        """Make 256 rounds and return the seconds of each but the first, by this rank's clock; both ranks must call it.

        Raises WrongAnswer if a signal does not come within 2 s."""
        rounds = []
        last = time.perf_counter()
        for _ in range(_EVENT_ROUNDS):
            self._count += 1
            if self._serves:
                self._signal()
            self._await_signal()
            if not self._serves:
                self._signal()
            now = time.perf_counter()
            rounds.append(now - last)
            last = now
        return rounds[1:]

    def _signal(self) -> None:
        self._mine.record()
        self._flags[self._own] = self._count

    def _await_signal(self) -> None:
        end = time.monotonic() + _SPIN_S
        while self._flags[self._other] < self._count:
            gb.expect(time.monotonic() < end, f"no signal within {_SPIN_S} s")
        self._theirs.synchronize()

    def check(self) -> None:
        """Raise WrongAnswer if a rank's flag differs from the number of rounds."""
        values = [self._flags[index] for index in (self._own, self._other)]
        gb.expect(values == [self._count, self._count], f"the flags are {values} after {self._count} rounds")

    def close(self) -> None:
        self._theirs.close()
        self._board.close()

    def release(self) -> None:
        self._mine.close()
