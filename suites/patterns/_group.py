"""Collectives of a case's ranks beside their computation: by NCCL on GPUs, through shared memory on the host.

Both groups have the same methods. `begin` starts a collective beside the computation: on a GPU in a second stream, on
the host in a thread. What it reads must be computed before, and `join` waits for all that was begun.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np

from gpubench.api.suite import Bench

from ..collectives._nccl import COMMUNICATORS, library
from ._board import NUMBER, RankBoard

_ABOVE_PRODUCTS = -1  # priority of a stream: collectives get free SMs before the waiting blocks of a product


class HostGroup:
    """Ranks on the host: the sent numbers lie in shared memory, from which each rank reads the others' numbers."""

    notes: ClassVar[dict[str, str]] = {
        "collectives": "through shared memory; every rank reads what it needs from the others"
    }

    def __init__(self, bench: Bench, count: int) -> None:
        """Allocate room for `count` numbers that are sent, and for the results of all ranks."""
        self._world, self._rank, self._words = bench.world, bench.rank, count
        self.dtype = np.dtype(np.float32)
        self.board = RankBoard(bench, 2 * bench.world * count * self.dtype.itemsize)
        self.received: Any = np.zeros(bench.world * count, self.dtype)
        self._thread = ThreadPoolExecutor(1)
        self._begun: list[Future[None]] = []
        self._sends = 0
        self._messages: dict[int, int] = {}  # by source, the number of messages
        self.meet = self.board.meet

    def _part(self, index: int) -> Any:
        """Return part `index` of the shared memory, which has room for the numbers of one rank."""
        nbytes = self._words * self.dtype.itemsize
        return self.board.room[index * nbytes : (index + 1) * nbytes].view(self.dtype)

    @property
    def sent(self) -> Any:
        """The numbers that this rank sends: float32, shape (count,)."""
        return self._part(self._rank)

    def all_reduce(self, first: int, count: int) -> None:
        """Write the sums of all ranks' numbers `first` … `first + count` - 1 to the same places of `received`."""
        bounds = [first + count * rank // self._world for rank in range(self._world + 1)]
        self.meet()
        low, high = bounds[self._rank], bounds[self._rank + 1]
        total = self._part(self._world + self._rank)[low:high]
        np.copyto(total, self._part(0)[low:high])
        for rank in range(1, self._world):
            total += self._part(rank)[low:high]
        self.meet()
        for rank in range(self._world):
            part = slice(bounds[rank], bounds[rank + 1])
            np.copyto(self.received[part], self._part(self._world + rank)[part])

    def all_gather(self, first: int, count: int) -> None:
        """Write `count` numbers of each rank from `first` on, in rank order, to `received` from world · first on."""
        self.meet()
        for rank in range(self._world):
            place = self._world * first + rank * count
            np.copyto(self.received[place : place + count], self._part(rank)[first : first + count])
        self.meet()

    def send(self, target: int, first: int, count: int) -> None:
        """Announce that this rank's numbers from `first` on are ready; every receiver reads them itself."""
        del target, first, count
        self._sends += 1
        self.board.post(NUMBER, self._sends)

    def receive(self, source: int, first: int, count: int) -> None:
        """Wait for the next message of a rank and write it to the same places of `received`; raises RankLostError."""
        number = self._messages.get(source, 0) + 1
        self._messages[source] = number
        self.board.wait(lambda: self.board.read(source, NUMBER) >= number)
        np.copyto(self.received[first : first + count], self._part(source)[first : first + count])

    def begin(self, call: Callable[[], None]) -> None:
        """Start a collective that runs beside the following computation."""
        self._begun.append(self._thread.submit(call))

    def join(self) -> None:
        """Wait for every collective that was begun; raises the first error of one, such as RankLostError."""
        begun, self._begun = self._begun, []
        for future in begun:
            future.result()

    def close(self) -> None:
        """End the thread and unmap the memory."""
        self._thread.shutdown()
        self.board.close()


class GpuGroup:
    """Ranks that have a GPU each: collectives of NCCL, in a stream of their own while they run beside a computation."""

    def __init__(self, bench: Bench, count: int) -> None:
        """Allocate `count` numbers that are sent, and room for the results."""
        cuda = bench.xp.cuda
        self._nccl, self.dtype, self._cuda = library(), np.dtype(np.float16), cuda
        self.board = RankBoard(bench)
        self.sent: Any = bench.xp.zeros(count, self.dtype)
        self.received: Any = bench.xp.zeros(bench.world * count, self.dtype)
        self._own = cuda.get_current_stream()
        self._beside = cuda.Stream(non_blocking=True, priority=_ABOVE_PRODUCTS)
        self._current, self._sync = self._own, cuda.Event(disable_timing=True)
        self._meeting = bench.xp.zeros(1, bench.xp.float16)
        bench.device.synchronize()
        bench.barrier()  # all ranks have their memory here, so that no rank waits for one that was skipped
        self._ranks, _ = COMMUNICATORS.of(bench, self._nccl)
        self._world = bench.world
        self.notes = {"collectives": "NCCL"}
        self.meet()
        bench.device.synchronize()

    def _reduced(self, sent: int, received: int, count: int) -> None:
        nccl = self._nccl
        self._ranks.allReduce(sent, received, count, nccl.NCCL_FLOAT16, nccl.NCCL_SUM, int(self._current.ptr))

    def all_reduce(self, first: int, count: int) -> None:
        """Queue the sums of all ranks' numbers `first` … `first + count` - 1 to the same places of `received`."""
        offset = first * self.dtype.itemsize
        self._reduced(int(self.sent.data.ptr) + offset, int(self.received.data.ptr) + offset, count)

    def all_gather(self, first: int, count: int) -> None:
        """Queue `count` numbers of each rank from `first` on, in rank order, to `received` from world · first on."""
        size = self.dtype.itemsize
        sent, received = int(self.sent.data.ptr) + first * size, int(self.received.data.ptr)
        place = received + self._world * first * size
        self._ranks.allGather(sent, place, count, self._nccl.NCCL_FLOAT16, int(self._current.ptr))

    def send(self, target: int, first: int, count: int) -> None:
        """Queue a message of this rank's numbers from `first` on."""
        address = int(self.sent.data.ptr) + first * self.dtype.itemsize
        self._ranks.send(address, count, self._nccl.NCCL_FLOAT16, target, int(self._current.ptr))

    def receive(self, source: int, first: int, count: int) -> None:
        """Queue the receipt of a message to the same places of `received`."""
        address = int(self.received.data.ptr) + first * self.dtype.itemsize
        self._ranks.recv(address, count, self._nccl.NCCL_FLOAT16, source, int(self._current.ptr))

    def meet(self) -> None:
        """Queue a small all-reduce: when it ends, the device of every rank is ready."""
        place = int(self._meeting.data.ptr)
        self._reduced(place, place, 1)

    def begin(self, call: Callable[[], None]) -> None:
        """Queue a collective in the second stream, behind all that was queued so far."""
        self._sync.record(self._own)
        self._beside.wait_event(self._sync)
        self._current = self._beside
        try:
            call()
        finally:
            self._current = self._own

    def join(self) -> None:
        """Let the own stream wait for every collective that was begun."""
        self._sync.record(self._beside)
        self._own.wait_event(self._sync)

    def close(self) -> None:
        """Wait for the second stream, and stop the heartbeat; the communicator is kept for the next case."""
        self._beside.synchronize()
        self.board.close()


RankGroup = HostGroup | GpuGroup


def group_of(bench: Bench, count: int) -> RankGroup:
    """Return the group of the case's ranks, with room for `count` sent numbers: NCCL on GPUs, else shared memory."""
    return GpuGroup(bench, count) if bench.traits.is_gpu else HostGroup(bench, count)
