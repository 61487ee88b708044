"""Measure messages by MPI between two processes: from GPU to GPU where the MPI reads a GPU's memory."""

import ctypes
import importlib
import time
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import devices_of, paths
from .._checks import in_turn
from .._mpi import MpiRank, pair

_LIMIT_S, _END_S = 60.0, 10.0
_NO_CUDA = "needs an MPI with CUDA support (MPIX_Query_cuda_support): Open MPI with UCX, or MPICH with ch4:ucx"
_SIZES = gb.points((), smoke=(2**20,), full=(2**3, 2**16, 2**20, 2**24, 2**28))

topic = gb.Topic()


class BufferRank(MpiRank):
    """One end of messages: rank 0 has the words of a seed, and rank 1 receives them."""

    def done(self, work: str, *args: Any) -> Any:
        return self.world.allgather(getattr(self, work)(*args))[work == "wrong"]

    def open(self, devices: list[str], nbytes: int) -> str:
        """Make this rank's buffer, on the host if no GPU is named; return why MPI cannot read it, or nothing."""
        self._xp: Any = np
        if devices:
            query = getattr(ctypes.CDLL(self.mpi.__file__), "MPIX_Query_cuda_support", None)
            if query is None or not query():
                return _NO_CUDA
            self._xp = importlib.import_module("cupy")
            self._xp.cuda.Device(int(devices[-self.world.rank])).use()
        self._buffer = self._xp.zeros(nbytes // 8, self._xp.uint64)
        return ""

    def _words(self, seed: int) -> Any:
        return self._xp.asarray(gb.random_words(seed, 0, self._buffer.size))

    def fill(self, seed: int) -> None:
        """Put the words of a seed into the sender's buffer, and others into the receiver's."""
        self._buffer[...] = ~self._words(seed) if self.world.rank else self._words(seed)
        self.wrong(seed)  # waits

    def wrong(self, seed: int) -> int:
        return int((self._buffer != self._words(seed)).sum())

    def send(self) -> float:
        """Send the buffer, and wait for an empty reply; return the seconds at rank 0."""
        ends = (self.world.Recv, self.world.Send)[:: 1 if self.world.rank else -1]
        self.world.Barrier()
        start = time.perf_counter()
        for end, message in zip(ends, (self._buffer, np.zeros(0, np.uint8)), strict=True):
            end([message, self.mpi.BYTE], 1 - self.world.rank)
        return time.perf_counter() - start


@topic.case(devices=devices_of, path=paths, size_bytes=_SIZES, when=gb.beyond_quick)
def mpi(bench: gb.Bench, path: str, size_bytes: int) -> gb.Task:
    """Bandwidth of a message by MPI_Send from process to process until an empty reply has arrived: payload.

    The buffers lie on GPUs: `path` is `same` if both processes use one, or `peer` for two. On the host they lie in its
    memory. Raises Skip without mpi4py, mpirun, or an MPI that reads the memory of GPUs."""
    helper = pair(bench, BufferRank)
    ask = partial(helper.ask, _LIMIT_S, "answer")
    devices = bench.devices or (bench.device.device,)
    if reason := ask("open", [of.id.partition(":")[2] for of in devices if ":" in of.id], size_bytes):
        raise gb.Skip(str(reason))
    seed = int(bench.rng.integers(2**32))

    def redraw() -> None:
        nonlocal seed
        seed += 1
        ask("fill", seed)

    def check() -> None:
        wrong = int(ask("wrong", seed))
        gb.expect(wrong == 0, f"{wrong} of {size_bytes // 8} words of a message are wrong")

    redraw()
    close = in_turn(partial(helper.tell, "answer", "end"), partial(helper.end, _END_S))
    stage = partial(gb.Stage, clock="self", effort=gb.POINT, inputs=redraw)
    whole = stage(partial(ask, "send"), gb.Work(payload=size_bytes), "payload")
    return gb.Task.of(whole, check=check, poison=lambda: ask("fill", seed), close=close, notes={"path": path})
