"""Measure signals between processes, and barriers of all of them: between GPUs by kernels, on the host by threads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import RankMemory, devices_of, labels, need_shared_gpu, notes, paths, rank_counts, ranks_of
from .._stream import need_numba
from ._both import FLAG_BYTES, cycles
from ._rounds import Rounds

_ROUNDS = 4096  # rounds per call, some milliseconds
_PATIENCE_S = 0.5
_WARP = 32  # threads per block of the barrier across a GPU
_BLOCK = 1024  # threads of the barrier within a block
_SIGNALS = {
    "store": "a store into the other GPU's memory",
    "add": "an atomic addition in the other GPU's memory",
    "mapped": "a store into host memory that both GPUs map",
}


class RoundClock:
    """The arrays in which a kernel writes the times of its rounds, and the limit of its waits in cycles (`limit`).

    `ticks` (uint32, shape (4096,)) receives the cycles of each round."""

    def __init__(self, bench: gb.Bench) -> None:
        self._device = bench.device
        self.limit = np.uint64(cycles(bench, _PATIENCE_S))
        self.ticks = bench.xp.zeros(_ROUNDS, bench.xp.uint32)
        self.state = bench.xp.zeros(2, bench.xp.uint64)

    def seconds(self, launch: Callable[[], None]) -> list[float]:
        """Time `launch`, which queues a kernel of 4096 rounds, and return the seconds of each round but the first.

        Device events around the kernel say how long a cycle is. Raises WrongAnswer if a wait was given up."""
        timing = self._device.time(launch, 1, "hot", False)
        total, gave_up = map(int, self._device.to_host(self.state))
        gb.expect(gave_up == 0, f"round {gave_up} timed out: no signal within {_PATIENCE_S} s")
        ticks = self._device.to_host(self.ticks)[1:]
        return [float(tick) for tick in ticks * (timing.device[0] / total)]


class KernelRounds(Rounds):
    """Rounds of a kernel that increments flags in the ranks' memory by `step` in each round.

    The kernel runs in one block of `threads` threads."""

    def __init__(
        self,
        bench: gb.Bench,
        flags: RankMemory | HostFlags,
        kernel: gb.Kernel,
        args: tuple[Any, ...],
        threads: int = 1,
        step: int = 1,
    ) -> None:
        self._bench, self._flags = bench, flags
        self._kernel, self._args, self._threads, self._step = kernel, args, threads, step
        self._clock = RoundClock(bench)
        self._count = 0  # the value that the flags must have reached

    def seconds(self) -> list[float]:
        return self._clock.seconds(self._launch)

    def _launch(self) -> None:
        clock = self._clock
        rest = (np.uint32(self._count), np.uint32(_ROUNDS), clock.limit, clock.ticks, clock.state)
        self._kernel((1,), (self._threads,), (*self._args, *rest))
        self._count += _ROUNDS * self._step

    def _expect_flag(self, index: int = 0) -> None:
        """Raise WrongAnswer if flag `index` in this rank's memory differs from the count of signals."""
        flags: Any = self._flags.local
        flag = int(self._bench.device.to_host(flags[4 * index : 4 * index + 4].view(np.uint32))[0])
        gb.expect(flag == self._count, f"the flag is {flag} after {self._count} signals")

    def close(self) -> None:
        self._flags.close()

    def release(self) -> None:
        self._flags.release()


class HostFlags:
    """Two flags in page-locked host memory that both ranks map; both ranks must create it.

    `local` and `remote` are the addresses (uint64) of this rank's flag and of the other rank's."""

    def __init__(self, bench: gb.Bench) -> None:
        board = bench.board("flag")
        board.register()
        self.local, self.remote = (np.uint64(board.address("flag", rank)) for rank in (bench.rank, 1 - bench.rank))
        self.release = board.close
        bench.barrier()  # no rank signals before both have page-locked the memory

    def close(self) -> None:
        """Do nothing: both ranks must have ended their kernels before the memory is given back."""


class KernelPingPong(KernelRounds):
    """A ping-pong of two GPUs by flags in the memory of the GPU that watches them, or in host memory.

    Both ranks must create it."""

    def __init__(self, bench: gb.Bench, means: str) -> None:
        need_shared_gpu(bench)
        self._is_on_host = means == "mapped"
        flags = HostFlags(bench) if self._is_on_host else RankMemory(bench, FLAG_BYTES)
        kernel = bench.kernel("signals.cu", "ping_pong", **({"ADDS": 1} if means == "add" else {}))
        super().__init__(bench, flags, kernel, (flags.local, flags.remote, np.uint32(bench.rank == 0)))
        self.notes = {"devices": " ↔ ".join(device.id for device in bench.devices), "signal": _SIGNALS[means]}

    def check(self) -> None:
        if not self._is_on_host:
            self._expect_flag()


class KernelBarrier(KernelRounds):
    """A barrier of the GPUs of all ranks by kernels; every rank must create it.

    With the `means` `flags` each rank has a flag that all others poll; with `counter` one counter in the memory of
    rank 0 counts the arrivals."""

    def __init__(self, bench: gb.Bench, means: str) -> None:
        need_shared_gpu(bench)
        flags = RankMemory(bench, FLAG_BYTES)
        self._is_counter = means == "counter"
        self.notes = {"devices": ", ".join(device.id for device in bench.devices), "means": means}
        if self._is_counter:
            kernel = bench.kernel("signals.cu", "all_count")
            super().__init__(bench, flags, kernel, (flags.arrays[0], np.uint32(bench.world)), step=bench.world)
        else:
            addresses = bench.xp.asarray(np.array([array.data.ptr for array in flags.arrays], np.uint64))
            kernel = bench.kernel("signals.cu", "all_meet")
            super().__init__(bench, flags, kernel, (flags.local, addresses, np.uint32(bench.rank)), bench.world)

    def check(self) -> None:
        if not self._is_counter:
            self._expect_flag((self._bench.rank + 1) % self._bench.world)
        elif self._bench.rank == 0:
            self._expect_flag()


class KernelBarrierWithin(Rounds):
    """A barrier within one GPU: of a block of 1024 threads (`scope` is `block`), or of a grid (`grid`).

    The grid has one block of 32 threads for each SM or CU."""

    def __init__(self, bench: gb.Bench, scope: str) -> None:
        self._device = bench.device
        self._is_grid = scope == "grid"
        self._blocks = max(bench.target.device.units, 1) if self._is_grid else 1
        self._kernel = bench.kernel("signals.cu", "grid_meets" if self._is_grid else "block_meets")
        self._counter = bench.xp.zeros(1, bench.xp.uint32)
        self._clock = RoundClock(bench)
        self.notes = {"blocks": str(self._blocks), "threads per block": str(_WARP if self._is_grid else _BLOCK)}

    def seconds(self) -> list[float]:
        return self._clock.seconds(self._launch)

    def _launch(self) -> None:
        """Queue the kernel that makes and times all rounds."""
        clock, rounds = self._clock, np.uint32(_ROUNDS)
        if self._is_grid:
            self._counter.fill(0)
            args = (self._counter, rounds, clock.limit, clock.ticks, clock.state)
            self._kernel((self._blocks,), (_WARP,), args)
        else:
            self._kernel((1,), (_BLOCK,), (rounds, clock.ticks, clock.state))

    def check(self) -> None:
        arrived, expected = int(self._device.to_host(self._counter)[0]), _ROUNDS * self._blocks
        gb.expect(not self._is_grid or arrived == expected, f"{arrived} arrivals of {expected}")


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
        self._serves, self._rng, self._exchange = bench.rank == 0, bench.rng, bench.exchange
        self._questions, self._answers = bytes(_STREAM_ROUNDS), bytearray(_STREAM_ROUNDS)
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

        Rank 0 asks with its random bytes, which rank 1 returns. Both ranks must call it."""
        rounds = []
        last = time.perf_counter()
        for turn in range(_STREAM_ROUNDS):
            if self._serves:
                os.write(self._writing, self._questions[turn : turn + 1])
            arrived = os.read(self._reading, 1)
            if not self._serves:
                os.write(self._writing, arrived)
            self._answers[turn] = arrived[0]
            now = time.perf_counter()
            rounds.append(now - last)
            last = now
        return rounds[1:]

    def redraw(self) -> None:
        """Draw other questions, which only rank 0 knows."""
        if self._serves:
            self._questions = self._rng.bytes(_STREAM_ROUNDS)

    def check(self) -> None:
        """Raise WrongAnswer if a rank received another byte than rank 0 had sent; both ranks must call it."""
        exchanged = self._exchange(self._questions + self._answers)
        sent = exchanged[0][:_STREAM_ROUNDS]
        wrong = sum(message[_STREAM_ROUNDS:] != sent for message in exchanged)
        gb.expect(wrong == 0, f"{wrong} ranks received other bytes than rank 0 had sent")

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


@topic.case(
    ranks=2,
    devices=lambda params: 2 if params["means"] in _GPU_MEANS else 1,
    means=lambda target: _HOST_MEANS if target.is_host else _GPU_MEANS,
)
def signal(bench: gb.Bench, means: str) -> gb.Task:
    """Seconds for one word to reach the other process: half of a round trip.

    Kernels exchange the words between GPUs, and threads on the host; `means` is how."""
    rounds: Rounds
    if means in _GPU_MEANS:
        rounds = KernelPingPong(bench, means)
    else:
        rounds = FlagPingPong(bench) if means == "flag" else StreamPingPong(bench, means)
    return rounds.task(2, _HALF)


def _takes_events(target: gb.Target) -> bool:
    """Return whether to measure events: in quick only between two GPUs, because on one they take a second."""
    return gb.on_gpu(target) and (gb.beyond_quick(target) or bool(target.device.peers))


@topic.case(ranks=2, devices=devices_of, when=_takes_events, path=paths)
def event_signal(bench: gb.Bench, path: str) -> gb.Task:
    """Seconds for a GPU event that both processes share to reach the other process: half of a round trip.

    A flag in host memory announces each event, because an event does not tell that it was recorded again. `path` is
    `same` if both processes use one GPU, or `peer` for two."""
    return EventPingPong(bench).task(2, {**notes(bench, path), **_HALF}, labels(bench, path))


@topic.case(
    ranks=ranks_of,
    devices=lambda params: 1 if params["means"] == _WORDS else ranks_of(params),
    means=lambda target: (_WORDS,) if target.is_host else ("flags", "counter"),
    of=lambda target: rank_counts(target, tuple(count for count in (2, 4, 8) if count <= max(target.device.units, 2))),
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
