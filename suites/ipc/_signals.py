"""How long a word takes from one process to another: flags that kernels watch, events, and barriers of many GPUs.

A kernel's wait is bounded by a time-out, and only devices of their own wait for each other: processes that share a
GPU take turns there, and each would watch in vain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpubench.api.suite import POINT, Bench, Kernel, Observation, SharedBuffer, Stage, Task, Work, expect

from .._between import exclusive, hand_over, labels, notes
from ._both import FLAG_BYTES, cycles

ROUNDS = 4096  # of a call: some milliseconds
TAIL = 10_000  # samples: what a 99.9th percentile needs
_PATIENCE_S = 0.5
_LINE_WORDS = 32  # 128 bytes: flags of two ranks share no line
_EVENT_ROUNDS = 256
_SPIN_S = 2.0


class Volley:
    """A kernel that signals `rounds` times and leaves the cycles of each round: the first waits for the other's start.

    `kernel` takes its own arguments, then: from which count, rounds, limit, ticks, state.
    """

    def __init__(self, bench: Bench, kernel: Kernel, args: Sequence[Any], threads: int, step: int = 1) -> None:
        self._device = bench.device
        self._kernel = kernel
        self._args = tuple(args)
        self._threads = threads
        self._step = step
        self._limit = np.uint64(cycles(bench, _PATIENCE_S))
        self._ticks = bench.xp.zeros(ROUNDS, bench.xp.uint32)
        self._state = bench.xp.zeros(2, bench.xp.uint64)
        self._count = 0

    def seconds(self) -> list[float]:
        """Seconds of each round but the first: cycles of the device's clock, of which events say how long they are."""
        timing = self._device.time(self._launch, 1, "hot", False)
        total, gave_up = map(int, self._device.to_host(self._state))
        expect(gave_up == 0, f"round {gave_up} was given up: no signal within {_PATIENCE_S} s")
        ticks = self._device.to_host(self._ticks)[1:]
        return [float(tick) for tick in ticks * (timing.device[0] / total)]

    def _launch(self) -> None:
        rest = (np.uint32(self._count), np.uint32(ROUNDS), self._limit, self._ticks, self._state)
        self._kernel((1,), (self._threads,), (*self._args, *rest))
        self._count += ROUNDS * self._step

    @property
    def count(self) -> int:
        """How far the flags must have counted."""
        return self._count


def tail_stage(call: Callable[[], list[float]], items: float) -> Stage:
    """A stage whose every call gives many samples, as many as a tail needs."""
    return Stage(call, Work(items=items), "item", clock="self", effort=POINT.with_tail(TAIL))


class Flags:
    """Two words that two ranks signal by: each rank's own one, and the other's as this rank reaches it."""

    def __init__(self, bench: Bench, means: str) -> None:
        self._bench = bench
        self._undo: list[Callable[[], None]] = []
        self._shared: SharedBuffer | None = None
        if means == "mapped":
            self._in_host_memory()
        else:
            self._in_device_memory()

    def _in_device_memory(self) -> None:
        """Each word in the memory of the device that watches it."""
        bench = self._bench
        shared = bench.device.share(FLAG_BYTES)
        shared.array.fill(0)
        bench.device.synchronize()
        opened = bench.device.open_shared(bench.exchange(shared.handle)[1 - bench.rank], FLAG_BYTES)
        self.mine, self.theirs = shared.array, opened.array
        self._shared = shared
        self._undo = [opened.close]

    def _in_host_memory(self) -> None:
        """Both words in page-locked host memory that both processes map."""
        bench = self._bench
        memory = bench.device.shared_memory("memfd")
        shared = memory.allocate(FLAG_BYTES) if bench.rank == 0 else None
        handle = hand_over(bench, memory.export(shared) if shared else None)
        self._shared = shared or memory.open(handle, FLAG_BYTES)
        handle.close()
        self._undo = [bench.device.register(self._shared.array)]
        address = int(self._shared.array.ctypes.data)
        own, other = bench.rank * _LINE_WORDS * 4, (1 - bench.rank) * _LINE_WORDS * 4
        self.mine, self.theirs = np.uint64(address + own), np.uint64(address + other)
        bench.barrier()  # none signals before both have locked it

    def close(self) -> None:
        """Unmap what is the other's."""
        self.theirs = None
        for undo in self._undo:
            undo()

    def release(self) -> None:
        """Free what is ours."""
        self.mine = None
        if self._shared is not None:
            self._shared.close()


def signal(bench: Bench, means: str) -> Task:
    """One way between two GPUs: half of each round of a ping-pong of two kernels."""
    exclusive(bench)
    flags = Flags(bench, means)
    kernel = bench.kernel("signals.cu", "ping_pong", **({"ADDS": 1} if means == "add" else {}))
    volley = Volley(bench, kernel, (flags.mine, flags.theirs, np.uint32(bench.rank == 0)), 1)

    def check() -> Observation:
        if means != "mapped":
            found = int(bench.device.to_host(flags.mine[:4].view(np.uint32))[0])
            expect(found == volley.count, f"the flag stands at {found} after {volley.count} signals")
        return {}

    words = {"store": "a store into the other's memory", "add": "an addition in the other's memory"}
    found = {
        "devices": " ↔ ".join(device.id for device in bench.devices),
        "signal": words.get(means, "a store into host memory that both GPUs map"),
        "counted": "half a round: there and back",
    }
    return Task.of(tail_stage(volley.seconds, 2), check=check, close=flags.close, release=flags.release, notes=found)


def barrier(bench: Bench, means: str) -> Task:
    """A barrier of the GPUs of all ranks, by kernels: seconds a barrier."""
    exclusive(bench)
    xp, world = bench.xp, bench.world
    shared = bench.device.share(FLAG_BYTES)
    shared.array.fill(0)
    bench.device.synchronize()
    handles = bench.exchange(shared.handle)
    opened = {rank: bench.device.open_shared(handles[rank], FLAG_BYTES) for rank in range(world) if rank != bench.rank}
    arrays = [shared.array if rank == bench.rank else opened[rank].array for rank in range(world)]
    if means == "counter":
        kernel = bench.kernel("signals.cu", "all_count")
        volley = Volley(bench, kernel, (arrays[0], np.uint32(world)), 1, step=world)
    else:
        addresses = xp.asarray(np.array([array.data.ptr for array in arrays], np.uint64))
        kernel = bench.kernel("signals.cu", "all_meet")
        volley = Volley(bench, kernel, (shared.array, addresses, np.uint32(bench.rank)), world)

    def check() -> Observation:
        here = bench.rank == 0 if means == "counter" else True
        place = 0 if means == "counter" else (bench.rank + 1) % world
        found = int(bench.device.to_host(shared.array[4 * place : 4 * place + 4].view(np.uint32))[0])
        expect(not here or found == volley.count, f"the flag stands at {found} after {volley.count} signals")
        return {}

    def close() -> None:
        for each in opened.values():
            each.close()

    found = {"devices": ", ".join(device.id for device in bench.devices), "means": means}
    stage = tail_stage(volley.seconds, 1)
    return Task.of(stage, check=check, close=close, release=shared.close, notes=found)


def within(bench: Bench, scope: str) -> Task:
    """A barrier within one GPU, of a block of 1024 threads or of a block on every multiprocessor: seconds a barrier."""
    xp = bench.xp
    blocks = max(bench.target.device.units, 1) if scope == "grid" else 1
    kernel = bench.kernel("signals.cu", "grid_meets" if scope == "grid" else "block_meets")
    counter = xp.zeros(1, xp.uint32)
    ticks, state = xp.zeros(ROUNDS, xp.uint32), xp.zeros(2, xp.uint64)
    limit = np.uint64(cycles(bench, _PATIENCE_S))
    rounds = np.uint32(ROUNDS)

    def launch() -> None:
        if scope == "grid":
            counter.fill(0)
            kernel((blocks,), (_LINE_WORDS,), (counter, rounds, limit, ticks, state))
        else:
            kernel((1,), (1024,), (rounds, ticks, state))

    def seconds() -> list[float]:
        timing = bench.device.time(launch, 1, "hot", False)
        total, gave_up = map(int, bench.device.to_host(state))
        expect(gave_up == 0, f"barrier {gave_up} was given up")
        return [float(tick) for tick in bench.device.to_host(ticks)[1:] * (timing.device[0] / total)]

    def check() -> Observation:
        met = int(bench.device.to_host(counter)[0])
        expect(scope == "block" or met == ROUNDS * blocks, f"{met} arrivals of {ROUNDS * blocks}")
        return {}

    found = {"blocks": str(blocks), "threads a block": str(_LINE_WORDS if scope == "grid" else 1024)}
    return Task.of(tail_stage(seconds, 1), check=check, notes=found)


class EventSide:
    """One side of a ping-pong by events. An event does not tell that it was recorded anew, so a host flag does."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._mine = bench.device.shared_event()
        self._theirs = bench.device.shared_event(bench.exchange(self._mine.export())[1 - bench.rank])
        memory = bench.device.shared_memory("memfd")
        shared = memory.allocate(FLAG_BYTES) if bench.rank == 0 else None
        handle = hand_over(bench, memory.export(shared) if shared else None)
        self._shared = shared or memory.open(handle, FLAG_BYTES)
        handle.close()
        self._words: Any = self._shared.array.view(np.uint32)
        self._own, self._other = bench.rank * _LINE_WORDS, (1 - bench.rank) * _LINE_WORDS
        self._count = 0

    def seconds(self) -> list[float]:
        """Seconds of each round but the first."""
        found = []
        last = time.perf_counter()
        for _ in range(_EVENT_ROUNDS):
            self._count += 1
            if self._bench.rank == 0:
                self._tell()
            self._hear()
            if self._bench.rank == 1:
                self._tell()
            now = time.perf_counter()
            found.append(now - last)
            last = now
        return found[1:]

    def _tell(self) -> None:
        self._mine.record()
        self._words[self._own] = self._count

    def _hear(self) -> None:
        end = time.monotonic() + _SPIN_S
        while int(self._words[self._other]) < self._count:
            expect(time.monotonic() < end, f"no signal within {_SPIN_S} s")
        self._theirs.synchronize()

    def check(self) -> Observation:
        """Both flags stand where the last round left them."""
        found = [int(self._words[place]) for place in (self._own, self._other)]
        expect(found == [self._count, self._count], f"the flags stand at {found} after {self._count} rounds")
        return {}

    def close(self) -> None:
        """Let go of the other's event and of the shared memory."""
        self._theirs.close()
        self._words = None
        self._shared.close()

    def release(self) -> None:
        """Let go of the own event."""
        self._mine.close()


def event_signal(bench: Bench, path: str) -> Task:
    """One way by an event between two processes: record, a host flag that says so, and the other's wait for it."""
    exclusive(bench)
    side = EventSide(bench)
    stage = tail_stage(side.seconds, 2)
    found = {**notes(bench, path), "counted": "half a round: there and back"}
    return Task.of(
        stage, check=side.check, close=side.close, release=side.release, notes=found, labels=labels(bench, path)
    )
