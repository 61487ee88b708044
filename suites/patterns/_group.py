"""Run collectives of a case's ranks beside their computation: by NCCL on GPUs, through shared memory on the host.

Both groups have the same methods. `begin` starts a collective beside the computation: on a GPU in a second stream,
on the host in a thread. What it reads must be computed before, and `join` waits for all that was begun."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np

from gpubench.api import suite as gb

from ..collectives._nccl import COMMUNICATORS, library

_SENT = "sent"  # the slot of the number of messages that a rank has sent
_ABOVE_PRODUCTS = -1  # priority of a stream: collectives get free SMs before the waiting blocks of a product


class HostGroup:
    """Collectives of ranks on the host: each rank reads the others' numbers in shared memory."""

    notes: ClassVar[dict[str, str]] = {
        "collectives": "through shared memory; every rank reads what it needs from the others"
    }

    def __init__(self, bench: gb.Bench, count: int) -> None:
        self._world, self._rank, self._words = bench.world, bench.rank, count
        self.dtype = np.dtype(np.float32)
        room_bytes = 2 * bench.world * count * self.dtype.itemsize
        self.board = bench.board(_SENT, room_bytes=room_bytes, has_beats=True)
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
        """Write the sum of all ranks' `sent[i]` to `received[i]` for the `count` indices i from `first` on."""
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
        """Gather `sent` of every rank in rank order, without gaps, in `received` from index world · `first` on."""
        self.meet()
        for rank in range(self._world):
            place = self._world * first + rank * count
            np.copyto(self.received[place : place + count], self._part(rank)[first : first + count])
        self.meet()

    def send(self, target: int, first: int, count: int) -> None:
        """Announce that this rank's `sent` is ready: each receiver reads the numbers by itself."""
        del target, first, count
        self._sends += 1
        self.board.post(_SENT, self._sends)

    def receive(self, source: int, first: int, count: int) -> None:
        """Wait for the next message of rank `source`, and copy its `sent[i]` to this rank's `received[i]`."""
        number = self._messages.get(source, 0) + 1
        self._messages[source] = number
        self.board.wait_for(_SENT, number, [source])
        np.copyto(self.received[first : first + count], self._part(source)[first : first + count])

    def begin(self, call: Callable[[], None]) -> None:
        """Start `call`, a collective, in the group's thread beside the computation that follows."""
        self._begun.append(self._thread.submit(call))

    def join(self) -> None:
        """Wait for every collective that `begin` started; raises the first error among them, such as RankLostError."""
        begun, self._begun = self._begun, []
        for future in begun:
            future.result()

    def close(self) -> None:
        """End the thread and unmap the memory."""
        self._thread.shutdown()
        self.board.close()


class GpuGroup:
    """Collectives of NCCL among ranks that have a GPU each; `begin` starts them in a second stream."""

    def __init__(self, bench: gb.Bench, count: int) -> None:
        cuda = bench.xp.cuda
        self._nccl, self.dtype, self._cuda = library(), np.dtype(np.float16), cuda
        self.board = bench.board(has_beats=True)
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

    def _queue_all_reduce(self, sent: int, received: int, count: int) -> None:
        """Queue an all-reduce (sum) of `count` float16 numbers; `sent` and `received` are addresses on the device."""
        nccl = self._nccl
        self._ranks.allReduce(sent, received, count, nccl.NCCL_FLOAT16, nccl.NCCL_SUM, int(self._current.ptr))

    def all_reduce(self, first: int, count: int) -> None:
        """Queue an all-reduce (sum) of `count` numbers from `first` on."""
        offset = first * self.dtype.itemsize
        self._queue_all_reduce(int(self.sent.data.ptr) + offset, int(self.received.data.ptr) + offset, count)

    def all_gather(self, first: int, count: int) -> None:
        """Queue a gathering of `count` numbers of every rank, with the places of HostGroup.all_gather."""
        size = self.dtype.itemsize
        sent, received = int(self.sent.data.ptr) + first * size, int(self.received.data.ptr)
        place = received + self._world * first * size
        self._ranks.allGather(sent, place, count, self._nccl.NCCL_FLOAT16, int(self._current.ptr))

    def send(self, target: int, first: int, count: int) -> None:
        """Queue the sending of `count` numbers, from `sent[first]` on, to rank `target`, which must call `receive`."""
        address = int(self.sent.data.ptr) + first * self.dtype.itemsize
        self._ranks.send(address, count, self._nccl.NCCL_FLOAT16, target, int(self._current.ptr))

    def receive(self, source: int, first: int, count: int) -> None:
        """Queue the receipt of `count` numbers from rank `source`, which must call `send`, into `received`."""
        address = int(self.received.data.ptr) + first * self.dtype.itemsize
        self._ranks.recv(address, count, self._nccl.NCCL_FLOAT16, source, int(self._current.ptr))

    def meet(self) -> None:
        """Queue a small all-reduce, which ends when every rank's GPU has reached it; every rank must call it."""
        place = int(self._meeting.data.ptr)
        self._queue_all_reduce(place, place, 1)

    def begin(self, call: Callable[[], None]) -> None:
        """Queue `call`, a collective, in the second stream, behind all work that the first stream has so far."""
        self._sync.record(self._own)
        self._beside.wait_event(self._sync)
        self._current = self._beside
        try:
            call()
        finally:
            self._current = self._own

    def join(self) -> None:
        """Make work that is queued from now on in the first stream wait for every collective that `begin` queued."""
        self._sync.record(self._beside)
        self._own.wait_event(self._sync)

    def close(self) -> None:
        """Wait for the second stream, and stop the heartbeat; the communicator is kept for the next case."""
        self._beside.synchronize()
        self.board.close()


RankGroup = HostGroup | GpuGroup


def group_of(bench: gb.Bench, count: int) -> RankGroup:
    """Return a group of the case's ranks in which each can send up to `count` numbers; every rank must call it."""
    return GpuGroup(bench, count) if bench.traits.is_gpu else HostGroup(bench, count)
