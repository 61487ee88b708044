"""Make rounds of signals and barriers by kernels: between GPUs, and within one GPU.

A kernel's wait is limited in time, and only kernels on distinct GPUs wait for each other: processes that share a GPU
take turns there, and neither would see the other's signal in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import RankMemory, need_shared_gpu
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
