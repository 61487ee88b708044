"""Send compressed messages between two processes: through shared memory on one or two devices, or through MPI.

In shared memory rank 0 encodes, and rank 1 copies out and decodes; on a GPU rank 1 opens it by its IPC handle. Over a
socket rank 0 says where each block lies, and rank 1 answers when it was taken."""

import contextlib
import importlib
import importlib.util
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .. import _between
from . import _pipeline
from ._codecs_device import address
from ._codecs_host import CODECS, cores
from ._coders import HostBlocks, MessageCodec, RawBlocks
from ._pipeline import Cut, InFlight, InOrderLink, Message, Slots, StoppedError, Transfer

_NOTICE = struct.Struct("<QQQ")  # of a block: its index, its offset in the shared memory, its size in bytes
_INDEX = struct.Struct("<Q")
_SECONDS = struct.Struct("<d")
_ALIGNMENT_BYTES = 256
# limit of a wait for the other rank's part of a message, which it may first have to compress completely
_PATIENCE_S = 20.0
_DESCRIPTIONS = {
    "process": "memory shared with another process on the same device, which copies the data out",
    "peer": "another process on a peer GPU, which copies the data out of this GPU's memory",
    "mpi": "MPI_Send and MPI_Recv between two processes on this machine",
}


def host_payers(depth: int) -> str:
    """Return `apart` if each slot of both halves has a core for itself, else `shared`."""
    return "apart" if 2 * depth <= cores() else "shared"


class RankSocket:
    """A local socket to the other rank; a rank that waits learns at once if the other rank has ended."""

    def __init__(self, stream: socket.socket) -> None:
        self._socket, self._reader = stream, stream.makefile("rb")
        self._socket.settimeout(_PATIENCE_S)

    def tell(self, form: struct.Struct, *values: float) -> None:
        """Send `values` in the form `form`; raises OSError if the other rank has ended."""
        self._socket.sendall(form.pack(*values))

    def hear(self, form: struct.Struct) -> Any:
        """Return the next value or values that the other rank sent in the form `form`.

        Raises StoppedError if the other rank has ended, or sends nothing for 20 s."""
        try:
            received = self._reader.read(form.size)
        except TimeoutError as error:
            raise StoppedError(f"the other rank sent nothing for {_PATIENCE_S} s") from error
        if len(received) < form.size:
            raise StoppedError("the other rank has ended")
        values = form.unpack(received)
        return values if len(values) > 1 else values[0]

    def hang_up(self) -> None:
        """End the connection for both ranks; do nothing if it has ended."""
        with contextlib.suppress(OSError):  # the other rank has removed it already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.hang_up()
        self._reader.close()
        self._socket.close()


class SharedSender(InOrderLink):
    """Rank 0's half of a link through shared memory: it announces where each block lies, in the order of the blocks.

    Raw blocks stay in their places and need no confirmation (`is_reused`)."""

    def __init__(self, base: int, wire: RankSocket, is_reused: bool) -> None:
        super().__init__()
        self._base, self._wire, self._is_reused, self._answers = base, wire, is_reused, threading.Lock()
        self._unread: dict[int, int] = {}  # by slot, the index of the block in its buffer
        self._taken: set[int] = set()  # blocks whose confirmation has arrived before this rank waited for it

    def begin(self) -> None:
        for slot in list(self._unread):
            self.reserve(slot)
        super().begin()

    def reserve(self, slot: int) -> None:
        """Wait until rank 1 has confirmed the block in the buffer of this slot; a free buffer needs no wait."""
        if slot in self._unread:
            index = self._unread.pop(slot)
            with self._answers:
                while index not in self._taken:
                    self._taken.add(self._wire.hear(_INDEX))
                self._taken.remove(index)

    def send(self, block: InFlight, packed: Any) -> None:
        """Announce the block, which lies in the shared memory, to rank 1 when all blocks before it are announced."""
        if self._is_reused:
            self._unread[block.slot] = block.index
        with self._sent.turn(block.index):
            self._wire.tell(_NOTICE, block.index, address(packed) - self._base, packed.size)

    def stop(self) -> None:
        super().stop()
        self._wire.hang_up()


class SharedReceiver(InOrderLink):
    """Rank 1's half of a link through shared memory: it copies each announced block out of the memory.

    If `is_reused`, it confirms each block, so that rank 0 may overwrite the buffer of the block."""

    def __init__(self, bench: gb.Bench, shared: Any, wire: RankSocket, depth: int, is_reused: bool) -> None:
        super().__init__()
        self._shared, self._wire, self._is_reused, self._answers = shared, wire, is_reused, threading.Lock()
        self._copy = partial(_pipeline.queue_copy, bench)
        self._copied = [bench.xp.cuda.Event() for _ in range(depth)] if bench.traits.is_gpu else []

    def receive(self, block: InFlight, room: Any) -> Any:
        """Wait for the announcement of the block, and copy it into `room`, or queue that on a GPU.

        Raises WrongAnswer if another block is announced, or bytes that do not fit into `room` or the shared memory."""
        with self._received.turn(block.index):
            index, place, size = self._wire.hear(_NOTICE)
        inside = index == block.index and size <= room.size and place + size <= self._shared.size
        gb.expect(inside, f"rank 0 announced {size} bytes of block {index} at {place} instead of block {block.index}")
        arrived = self._copy(room, self._shared[place : place + size])
        if self._copied:
            self._copied[block.slot].record()
        return arrived

    def deliver(self, block: InFlight, arrived: Any) -> Any:
        """Return the part of `room` that the block takes; if buffers are reused, tell rank 0 that this one is free."""
        if self._is_reused:
            if self._copied:
                self._copied[block.slot].synchronize()
            with self._answers:
                self._wire.tell(_INDEX, block.index)
        return arrived

    def stop(self) -> None:
        super().stop()
        self._wire.hang_up()


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to a multiple of 256, so that data behind them are aligned."""
    return -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


class SharedMemoryRank:
    """One rank's buffers in the shared memory, its two sockets, and its half of the transfers."""

    def __init__(
        self, bench: gb.Bench, message: Message, codec: MessageCodec, shared: gb.SharedBuffer, depth: int
    ) -> None:
        """Open the sockets and build this rank's half; both ranks must call it at the same time."""
        self._shared, self._rank, self._total = shared, bench.rank, message.cut.total
        self._wire, self._clock = map(RankSocket, bench.sockets(2))
        slots, cut, memory = Slots(depth, bench), message.cut, shared.array
        # raw bytes travel fastest in one copy on a GPU, and through the threads of all slots at once on the host
        raw = Cut(cut.total, cut.total, cut.chunk) if slots.are_streams else cut
        transfer = partial(Transfer, message, meet=self._meet, share=self._share)
        if bench.rank == 0:
            self._sent_bytes = 0
            first, step = aligned(cut.total), aligned(codec.max_packed_bytes)
            rooms = [memory[start : start + step] for start in range(first, first + depth * step, step)]
            source = memory[: cut.total]
            bench.device.copy(source, message.source)
            bench.device.synchronize()
            send = partial(SharedSender, address(memory), self._wire)
            self.coded = transfer(send(is_reused=True), codec.encoder(slots, source, rooms), None)
            self.raw = transfer(send(is_reused=False), RawBlocks(raw, slots, source), None)
        else:
            blocks = _pipeline.packed_blocks(codec.encoder(slots, message.source))
            self._sent_bytes = sum(int(block.size) for block in blocks)
            take = partial(SharedReceiver, bench, memory, self._wire, depth)
            self.coded = transfer(take(is_reused=True), None, codec.decoder(slots, message.target), blocks=blocks)
            self.raw = transfer(take(is_reused=False), None, RawBlocks(raw, slots, message.target))

    def _meet(self) -> float:
        """Request a message as rank 1, or wait for the request as rank 0; return the time of the request in seconds."""
        if self._rank == 0:
            self._clock.hear(_INDEX)
            return time.perf_counter()
        start = time.perf_counter()
        self._clock.tell(_INDEX, 0)
        return start

    def _share(self, seconds: float, rank: int) -> float:
        """Return at both ranks the `seconds` that rank `rank` passes; the other rank's argument is ignored."""
        if self._rank != rank:
            return float(self._clock.hear(_SECONDS))
        self._clock.tell(_SECONDS, seconds)
        return seconds

    def check(self) -> gb.Observation:
        """Return the ratio at rank 1, and no observation at rank 0; rank 1 compared each message when it was timed."""
        return _pipeline.ratio_of(self._total, self._sent_bytes) if self._rank else {}

    def close(self) -> None:
        """End the connections and drop the arrays in shared memory; rank 1 also unmaps the memory."""
        for part in (self.coded, self.raw, self._wire, self._clock):
            part.close()
        if self._rank:
            # a failed thread may still use the memory; it is unmapped when the process ends
            with contextlib.suppress(BufferError):
                self._shared.close()


def shared_task(bench: gb.Bench, link: str, message: Message, codec: MessageCodec, depth: int) -> gb.Task:
    """Return this rank's part of the task of a message to another process; both ranks must call it.

    `link` is `process` (both ranks use one device) or `peer` (two GPUs), and `depth` the most blocks in flight."""
    _between.need_shared_gpu(bench)
    path = "peer" if link == "peer" else "same"
    alone = "shared" if bench.traits.is_gpu else host_payers(depth)
    memory = bench.device.shared_memory("raw" if bench.traits.is_gpu else "memfd")
    nbytes = aligned(message.cut.total) + depth * aligned(codec.max_packed_bytes)
    shared = memory.allocate(nbytes) if bench.rank == 0 else None
    handle = bench.hand_over(memory.export(shared) if shared else None)
    rank = SharedMemoryRank(bench, message, codec, shared or memory.open(handle, nbytes), depth)
    handle.close()
    notes = {"codec": codec.description, "corpus": message.description, "link": _DESCRIPTIONS[link]}
    return gb.Task(
        _pipeline.stages_of(_pipeline.calls_of(rank.coded, rank.raw), message.cut.total),
        rank.check,
        close=rank.close,
        notes={**_between.notes(bench, path), **notes, "ends": "apart" if link == "peer" else alone},
        labels=_between.labels(bench, path),
        release=shared.close if shared else lambda: None,
    )


# MPI.

_HOW = "pip install mpi4py, and an MPI whose mpirun is on the PATH"
_TAGS = 2**15 - 1  # the largest message tag; MPI guarantees no more (MPI 4.1, §3.2.3)
_LOOK_S = 1e-3
_LIMIT_S = 60.0  # for one message, or for the start of both processes and their first compression
_END_S = 10.0  # time limit for the processes to end by themselves
# permits mpirun to run as root, as in a container
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpi_task(bench: gb.Bench, message: Message, codec: MessageCodec, depth: int) -> gb.Task:
    """Return the task of a message between two processes of MPI, which mpirun starts once and which read its source.

    `depth` is the most blocks in flight. Raises Skip without mpi4py or mpirun."""
    if importlib.util.find_spec("mpi4py") is None or (mpirun := shutil.which("mpirun")) is None:
        raise gb.Skip(f"needs mpi4py and mpirun: {_HOW}")
    launcher = (mpirun, "-n", "2", sys.executable, "-P", "-m", "mpi4py")  # mpi4py ends both if one fails
    helper = bench.helper(MpiRank, "the pair of MPI processes", environment=_AS_ROOT, launcher=launcher)
    cut = message.cut
    with tempfile.NamedTemporaryFile() as file:
        message.source.tofile(file)
        plan = (file.name, (cut.total, cut.block, cut.chunk), codec.name, depth)
        sent_bytes = float(helper.ask(_LIMIT_S, "answer", "open", *plan))

    def close() -> None:
        helper.tell("answer", "end")
        helper.end(_END_S)

    names = ("overlapped", "staged", "raw", "compress", "decompress")
    calls = {name: partial(helper.ask, _LIMIT_S, "answer", name) for name in names}
    notes = {"codec": codec.description, "corpus": message.description, "link": _DESCRIPTIONS["mpi"]}
    check = partial(_pipeline.ratio_of, cut.total, sent_bytes)
    stages = _pipeline.stages_of(calls, cut.total)
    return gb.Task(stages, check, close=close, notes={**notes, "ends": host_payers(depth)})


class MpiLink(InOrderLink):
    """A link from rank 0 to rank 1, over which blocks go in order."""

    def __init__(self, mpi: Any) -> None:
        super().__init__()
        self._mpi = mpi

    def send(self, block: InFlight, packed: Any) -> None:
        with self._sent.turn(block.index):
            self._mpi.COMM_WORLD.Send([packed, self._mpi.BYTE], 1, block.index % _TAGS)

    def receive(self, block: InFlight, room: Any) -> Any:
        status = self._mpi.Status()
        with self._received.turn(block.index):
            self._mpi.COMM_WORLD.Recv([room, self._mpi.BYTE], 0, block.index % _TAGS, status)
        return room[: status.Get_count(self._mpi.BYTE)]


class MpiRank:
    """One of the two processes: rank 0 serves the case, and rank 1 follows rank 0 until the end."""

    def __init__(self) -> None:
        self._mpi = importlib.import_module("mpi4py.MPI")
        self._world = self._mpi.COMM_WORLD
        while self._world.rank:
            self.answer("end")

    def _open(self, source_file: str, cut_bytes: tuple[int, int, int], codec_name: str, depth: int) -> float:
        """Prepare this rank's half of the transfers, and return the bytes of a compressed message as it travels."""
        source, cut, slots = np.fromfile(source_file, np.uint8), Cut(*cut_bytes), Slots(depth)
        message, codec = Message(source, np.empty_like(source), cut), CODECS[codec_name]()
        encoder = HostBlocks(codec, cut, slots, source)
        blocks = _pipeline.packed_blocks(encoder)
        transfer = partial(Transfer, message, MpiLink(self._mpi), meet=self._meet)
        if self._world.rank == 0:
            coded, raw = transfer(encoder, None), transfer(RawBlocks(cut, slots, source), None)
        else:
            coded = transfer(None, HostBlocks(codec, cut, slots, message.target), blocks=blocks)
            raw = transfer(None, RawBlocks(cut, slots, message.target))
        self._calls = _pipeline.calls_of(coded, raw)
        return sum(int(block.size) for block in blocks)

    def _meet(self) -> float:
        self._world.Barrier()
        return time.perf_counter()

    def answer(self, work: str, *args: Any) -> float:
        """Do on both ranks the work that rank 0 is asked for, and return its answer; `end` ends both processes.

        `open` returns the bytes of a message. Other work is a stage: rank 0 times `compress`, and rank 1 the others."""
        work, args = self._world.bcast((work, args))
        if work == "end":
            sys.exit()  # not every mpirun passes on the end of standard input
        if work == "open":
            return self._open(*args)
        result: float | str
        try:
            result = self._calls[work]()
        except gb.WrongAnswer as error:
            result = str(error)
        meeting = self._world.Ibarrier()
        while not meeting.Test():  # MPI waits by spinning, which would take a core from the rank that works
            time.sleep(_LOOK_S)
        results = self._world.allgather(result)
        errors = [error for error in results if isinstance(error, str)]
        if errors and self._world.rank == 0:
            raise gb.WrongAnswer(errors[0])
        return 0.0 if errors else float(results[0 if work == "compress" else 1])
