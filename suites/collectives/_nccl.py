"""Run collectives through NCCL (RCCL on ROCm) by CuPy's binding, with one rank per GPU."""

import importlib
import math
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._operations import WORD_BYTES, Collective

_THREADS = 256
_BLOCKS = 1056
_SPARE_BYTES = 2**28
_ROOT = 0
_OTHER_SEED = np.uint64(2**32)  # no rank's seed then equals another one's
_EXACT_RANKS = 16  # up to this number of ranks the sum is exact with the shift of collectives.cu
_SHM, _SHM_LEAST = "/dev/shm", 2**25


def library() -> Any:
    """Return CuPy's module of NCCL; raises Unavailable if NCCL is not installed."""
    nccl = importlib.import_module("cupy.cuda.nccl")
    if not nccl.available:
        raise gb.Unavailable("NCCL is not installed", gb.installation.for_gpu())
    return nccl


class Communicators:
    """Communicators by the ids of their devices, kept while the worker lives.

    Making one takes longer than most cases."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], tuple[bytes, Any]] = {}

    def of(self, bench: gb.Bench, nccl: Any) -> tuple[Any, bool]:
        """Return the communicator of the case's ranks (CuPy's NcclCommunicator), and whether it is new.

        A communicator that all ranks have kept for these devices is used again."""
        key = tuple(device.id for device in bench.peers)
        token, communicator = self._kept.pop(key, (b"", None))
        is_new = False
        if bench.exchange(token) != [token] * bench.world or communicator is None:
            if communicator is not None:
                communicator.abort()  # another rank no longer has this communicator
            token = bench.exchange(nccl.get_unique_id() if bench.rank == 0 else b"")[0]
            communicator, is_new = _new_communicator(bench, nccl, token), True
        self._kept[key] = (token, communicator)
        return communicator, is_new


def _new_communicator(bench: gb.Bench, nccl: Any, token: bytes) -> Any:
    """Return a new communicator of all ranks for the unique id `token`; every rank must call it."""
    try:
        return nccl.NcclCommunicator(bench.world, token, bench.rank)
    except nccl.NcclError as error:
        room = shutil.disk_usage(_SHM).free if Path(_SHM).is_dir() else 0
        if room < _SHM_LEAST:
            reason = f"NCCL does not start ({error}): only {gb.units.round_size(room)} are free in {_SHM}"
            raise gb.Unavailable(reason, "docker run --shm-size=1g, or --ipc=host") from error
        raise


def _shift(world: int) -> int:
    """Return the right shift of random 64-bit words with which sums over `world` ranks are exact in float32."""
    return 44 + max(0, math.ceil(math.log2(world / _EXACT_RANKS)))


# one object per worker, so that suites that run one after another share the communicators
COMMUNICATORS = Communicators()


class NcclRank:
    """One rank of the collective `operation` of `size_bytes` on a GPU: its buffers, its call and its check.

    `call` queues the collective."""

    def __init__(self, bench: gb.Bench, operation: Collective, size_bytes: int) -> None:
        self._bench = bench
        self._operation = operation
        self._words = size_bytes // WORD_BYTES
        world = bench.world
        if self._words < world:
            raise gb.Skip(f"{size_bytes} B hold less than one word for each of {world} ranks")
        bench.need(2 * size_bytes + _SPARE_BYTES)
        self._nccl = library()
        xp = bench.xp
        self._sent = xp.empty(operation.sends(self._words, world), xp.float32)
        self.received = xp.empty(operation.receives(self._words, world), xp.float32)
        self._meeting = xp.zeros(1, xp.float32)
        self._wrong = xp.zeros(1, xp.uint32)
        self._seed = np.uint64(bench.rng.integers(2**62, dtype=np.uint64))
        shift = {"SHIFT": _shift(world)} if world > _EXACT_RANKS else {}
        self._mistakes = bench.kernel("collectives.cu", "mistakes", **shift)
        self._filler = bench.kernel("collectives.cu", "fill", **shift)
        self._fill()
        bench.device.synchronize()
        bench.barrier()  # all ranks have their memory here, so that no rank waits for one that was skipped
        start = time.perf_counter()
        self._ranks, is_new = COMMUNICATORS.of(bench, self._nccl)
        self._stream = int(xp.cuda.get_current_stream().ptr)
        self.call = self._calls()[operation.name]
        self.setup_s: float | None = None
        if is_new:
            self.call()
            bench.device.synchronize()
            self.setup_s = time.perf_counter() - start

    def _fill(self) -> None:
        """Queue the kernel that draws the words that this rank sends."""
        seed = self._seed + np.uint64(self._bench.rank)
        self._filler((_BLOCKS,), (_THREADS,), (self._sent, np.uint64(self._sent.size), seed))

    def redraw(self) -> None:
        """Send the words of a new seed, so that no call can have kept their answer."""
        self._seed += _OTHER_SEED
        self._fill()

    @property
    def notes(self) -> dict[str, str]:
        """The version of the library, and the user's setting of NVLink multicast (SHARP)."""
        code = int(self._nccl.get_version())
        version = f"{code // 10000}.{code // 100 % 100}.{code % 100}"
        return {"nccl": version, "NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "not set")}

    def meet(self) -> None:
        """Queue an all-reduce of one word, which ends when the device of every rank is ready.

        Every rank must call it."""
        place = self._meeting.data.ptr
        self._ranks.allReduce(place, place, 1, self._nccl.NCCL_FLOAT32, self._nccl.NCCL_SUM, self._stream)

    def check(self) -> None:
        """Raise WrongAnswer if a received word differs from the sum of the words that the ranks sent."""
        bench = self._bench
        self._wrong.fill(0)
        for segment in self._operation.segments(self._words, bench.world, bench.rank):
            part = self.received[segment.offset : segment.offset + segment.count]
            place = tuple(np.uint64(number) for number in (segment.low, segment.high, segment.first))
            args = (part, np.uint64(segment.count), self._seed, *place, self._wrong)
            self._mistakes((_BLOCKS,), (_THREADS,), args)
        wrong = int(bench.device.to_host(self._wrong)[0])
        gb.expect(wrong == 0, f"{wrong} of {self.received.size} received words are wrong on rank {bench.rank}")

    def close(self) -> None:
        """Keep the communicator: the next case takes it."""

    def _calls(self) -> dict[str, Callable[[], object]]:
        """Return the functions that queue the collectives on the current stream, by the name of the collective."""
        nccl, ranks, stream = self._nccl, self._ranks, self._stream
        sent, received = int(self._sent.data.ptr), int(self.received.data.ptr)
        word, total = nccl.NCCL_FLOAT32, nccl.NCCL_SUM
        world, rank = self._bench.world, self._bench.rank
        part = self._words // world

        def all_to_all() -> None:
            """Queue the exchange of one part with every rank, this rank included."""
            nccl.groupStart()
            for peer in range(world):
                ranks.send(sent + peer * part * WORD_BYTES, part, word, peer, stream)
                ranks.recv(received + peer * part * WORD_BYTES, part, word, peer, stream)
            nccl.groupEnd()

        def send_recv() -> None:
            nccl.groupStart()
            ranks.send(sent, self._words, word, (rank + 1) % world, stream)
            ranks.recv(received, self._words, word, (rank - 1) % world, stream)
            nccl.groupEnd()

        def message() -> None:
            """Queue the array's way from rank 0 to rank 1 and back."""
            if rank == 0:
                ranks.send(sent, self._words, word, 1, stream)
                ranks.recv(received, self._words, word, 1, stream)
            else:
                ranks.recv(received, self._words, word, 0, stream)
                ranks.send(received, self._words, word, 0, stream)

        return {
            "message": message,
            "all_reduce": lambda: ranks.allReduce(sent, received, self._words, word, total, stream),
            "all_gather": lambda: ranks.allGather(sent, received, part, word, stream),
            "reduce_scatter": lambda: ranks.reduceScatter(sent, received, part, word, total, stream),
            "broadcast": lambda: ranks.broadcast(sent, received, self._words, word, _ROOT, stream),
            "all_to_all": all_to_all,
            "send_recv": send_recv,
        }
