"""Send compressed messages between two processes: rank 0 encodes into shared memory, rank 1 copies out and decodes.

On a GPU rank 1 opens the shared memory by its IPC handle, on the same GPU or on a peer. Two local sockets join the
ranks. Over the first, rank 0 says where each block lies, and rank 1 answers when it was taken."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import labels, need_shared_gpu, notes
from ._blocks import Cut
from ._coders import RawDecoder, RawEncoder
from ._links import Link
from ._message import Message, MessageCodec
from ._pipeline import InFlight, InOrder, Schedule, Slots, StoppedError, slots_of
from ._transfer import (
    Content,
    Halves,
    Receiver,
    Sender,
    Transfer,
    bytes_of_blocks,
    host_payers,
    observed,
    packed_blocks,
    stages_of,
)

_NOTICE = struct.Struct("<QQQ")  # of a block: its index, its offset in the shared memory, its size in bytes
_INDEX = struct.Struct("<Q")
_SECONDS = struct.Struct("<d")
_ALIGNMENT_BYTES = 256
_DEFAULT_KIND = 4  # cudaMemcpyDefault: the addresses determine the direction; HIP's has the same value
# limit of a wait for the other rank's part of a message, which it may first have to compress completely
_PATIENCE_S = 20.0


class RankSocket:
    """A local socket to the other rank; a rank that waits learns at once if the other rank has ended."""

    def __init__(self, stream: socket.socket) -> None:
        self._socket = stream
        self._socket.settimeout(_PATIENCE_S)

    def tell(self, form: struct.Struct, *values: float) -> None:
        """Send `values` in the form `form`; raises OSError if the other rank has ended."""
        self._socket.sendall(form.pack(*values))

    def hear(self, form: struct.Struct) -> tuple[Any, ...]:
        """Return the next values that the other rank sent in the form `form`.

        Raises StoppedError if the other rank has ended, or sends nothing for 20 s."""
        received = b""
        while len(received) < form.size:
            try:
                part = self._socket.recv(form.size - len(received))
            except TimeoutError as error:
                raise StoppedError(f"the other rank sent nothing for {_PATIENCE_S} s") from error
            if not part:
                raise StoppedError("the other rank has ended")
            received += part
        return form.unpack(received)

    def hang_up(self) -> None:
        """End the connection for both ranks; do nothing if it has ended."""
        with contextlib.suppress(OSError):  # the other rank has removed it already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


class SharedSender(Link):
    """Rank 0's half of a link through shared memory: it announces where each block lies, in the order of the blocks.

    Raw blocks stay in their places and need no confirmation."""

    schedule: Schedule = "a thread per step"

    def __init__(self, base: int, wire: RankSocket, is_reused: bool) -> None:
        """Keep the address of the shared memory (`base`) and the socket to rank 1 (`wire`)."""
        self._base, self._wire, self._is_reused = base, wire, is_reused
        self._sent = InOrder()
        self._answers = threading.Lock()
        self._unread: dict[int, int] = {}  # by slot, the index of the block in its buffer
        self._taken: set[int] = set()  # blocks whose confirmation has arrived before this rank waited for it

    def begin(self) -> None:
        for slot in list(self._unread):
            self._wait_until_taken(slot)
        self._sent.reset()

    def reserve(self, block: InFlight) -> None:
        self._wait_until_taken(block.slot)

    def _wait_until_taken(self, slot: int) -> None:
        """Wait until rank 1 has confirmed the block in the buffer of this slot; a free buffer needs no wait."""
        if slot not in self._unread:
            return
        index = self._unread.pop(slot)
        with self._answers:
            while index not in self._taken:
                self._taken.add(self._wire.hear(_INDEX)[0])
            self._taken.remove(index)

    def send(self, block: InFlight, packed: Any) -> None:
        """Announce the block to rank 1 when all blocks before it are announced.

        `packed` must lie in the shared memory."""
        if self._is_reused:
            self._unread[block.slot] = block.index
        with self._sent.turn(block.index):
            self._wire.tell(_NOTICE, block.index, address(packed) - self._base, packed.size)

    def stop(self) -> None:
        self._sent.stop()
        self._wire.hang_up()


class SharedReceiver(Link):
    """Rank 1's half of a link through shared memory: it copies each announced block out of the memory.

    If `is_reused`, it confirms each block, so that rank 0 may overwrite the buffer of the block."""

    schedule: Schedule = "a thread per step"

    def __init__(self, bench: gb.Bench, shared: Any, wire: RankSocket, depth: int, is_reused: bool) -> None:
        """Keep the shared memory (`shared`, uint8) and the socket to rank 0 (`wire`)."""
        self._shared, self._wire, self._is_reused = shared, wire, is_reused
        self._cuda = bench.xp.cuda if bench.traits.is_gpu else None
        self._copied = [self._cuda.Event() for _ in range(depth)] if self._cuda else []
        self._arrived = [0] * depth  # bytes of the block in each slot
        self._received = InOrder()
        self._answers = threading.Lock()

    def begin(self) -> None:
        self._received.reset()

    def receive(self, block: InFlight, room: Any) -> None:
        """Wait for the announcement of the block, and copy it into `room`, or queue that on a GPU.

        Raises WrongAnswer if another block is announced, or bytes that do not fit into `room` or the shared memory."""
        with self._received.turn(block.index):
            index, place, size = self._wire.hear(_NOTICE)
        inside = index == block.index and size <= room.size and place + size <= self._shared.size
        gb.expect(inside, f"rank 0 announced {size} bytes of block {index} at {place} instead of block {block.index}")
        self._copy(room[:size], self._shared[place : place + size])
        if self._cuda is not None:
            self._copied[block.slot].record()
        self._arrived[block.slot] = size

    def copy_in(self, block: InFlight, room: Any) -> Any:
        """Return the part of `room` that the block takes; if buffers are reused, tell rank 0 that this one is free."""
        if self._is_reused:
            if self._cuda is not None:
                self._copied[block.slot].synchronize()
            with self._answers:
                self._wire.tell(_INDEX, block.index)
        return room[: self._arrived[block.slot]]

    def _copy(self, target: Any, source: Any) -> None:
        """Copy `source` to `target`, on the host at once, on a GPU by queueing the copy on the current stream."""
        if self._cuda is None:
            np.copyto(target, source)
            return
        stream = self._cuda.get_current_stream().ptr
        self._cuda.runtime.memcpyAsync(address(target), address(source), source.size, _DEFAULT_KIND, stream)

    def stop(self) -> None:
        self._received.stop()
        self._wire.hang_up()


class SharedMemoryRank:
    """One rank's buffers in the shared memory, its two sockets, and its half of the transfer."""

    def __init__(
        self, bench: gb.Bench, message: Message, codec: MessageCodec, shared: gb.SharedBuffer, depth: int
    ) -> None:
        """Open the sockets and build this rank's half of the transfer; both ranks must call it at the same time."""
        self._shared, self._rank, self._total = shared, bench.rank, message.cut.total
        self._wire, self._clock = map(RankSocket, bench.sockets(2))
        slots = slots_of(bench, depth)
        cut = message.cut
        # raw bytes travel fastest in one copy on a GPU, and through the threads of all slots at once on the host
        raw = Cut(cut.total, cut.total, cut.chunk) if slots.are_streams else cut
        if bench.rank == 0:
            self._blocks: list[Any] = []
            halves = self._senders(bench, message, codec, slots, raw)
        else:
            self._blocks = packed_blocks(codec.encoder(slots, message.source), slots, cut)
            halves = self._receivers(bench, message, codec, slots, raw)
        self.transfer = Transfer(halves, depth, self._blocks, meet=self._meet, share=self._share)

    def _senders(
        self, bench: gb.Bench, message: Message, codec: MessageCodec, slots: Slots, raw: Cut
    ) -> Mapping[Content, Halves]:
        """Return rank 0's halves of the transfer, compressed and raw."""
        memory, cut = self._shared.array, message.cut
        first, step = aligned(cut.total), aligned(codec.max_packed_bytes)
        rooms = [memory[start : start + step] for start in range(first, first + slots.depth * step, step)]
        source = memory[: cut.total]
        bench.device.copy(source, message.source)
        bench.device.synchronize()
        link = partial(SharedSender, address(memory), self._wire)
        return {
            "coded": Halves(Sender(slots, cut.count, link(is_reused=True), codec.encoder(slots, source, rooms)), None),
            "raw": Halves(Sender(slots, raw.count, link(is_reused=False), RawEncoder(raw, source)), None),
        }

    def _receivers(
        self, bench: gb.Bench, message: Message, codec: MessageCodec, slots: Slots, raw: Cut
    ) -> Mapping[Content, Halves]:
        """Return rank 1's halves of the transfer, compressed and raw."""
        link = partial(SharedReceiver, bench, self._shared.array, self._wire, slots.depth)
        coded, raw_blocks = codec.decoder(slots), RawDecoder(raw, message.target)
        waits = codec.decoding_waits
        return {
            "coded": Halves(None, Receiver(slots, message.cut.count, link(is_reused=True), coded, message, waits)),
            "raw": Halves(None, Receiver(slots, raw.count, link(is_reused=False), raw_blocks, message, waits)),
        }

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
            return float(self._clock.hear(_SECONDS)[0])
        self._clock.tell(_SECONDS, seconds)
        return seconds

    def check(self) -> gb.Observation:
        """Return the ratio at rank 1, and no observation at rank 0; rank 1 compared each message when it was timed."""
        return observed(self._total, bytes_of_blocks(self._blocks)) if self._rank else {}

    def close(self) -> None:
        """End the connections and drop the arrays in shared memory; rank 1 also unmaps the memory."""
        self.transfer.close()
        for connection in (self._wire, self._clock):
            connection.hang_up()
            connection.close()
        if self._rank:
            # a failed thread may still use the memory; it is unmapped when the process ends
            with contextlib.suppress(BufferError):
                self._shared.close()


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to a multiple of 256, so that data behind them are aligned."""
    return -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def address(array: Any) -> int:
    """Return the address of the first byte of an array of NumPy or CuPy."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def task(bench: gb.Bench, link: str, message: Message, codec: MessageCodec, depth: int) -> gb.Task:
    """Return this rank's part of the task of a message to another process; both ranks must call it.

    `link` is `process` (both ranks use one device) or `peer` (two GPUs), and `depth` the most blocks in flight."""
    need_shared_gpu(bench)
    path = "peer" if link == "peer" else "same"
    task_notes = {
        **notes(bench, path),
        "codec": codec.description,
        "corpus": message.description,
        "link": _DESCRIPTIONS[link],
        "ends": _payers(bench, link, depth),
    }
    memory = bench.device.shared_memory("raw" if bench.traits.is_gpu else "memfd")
    nbytes = aligned(message.cut.total) + depth * aligned(codec.max_packed_bytes)
    shared = memory.allocate(nbytes) if bench.rank == 0 else None
    handle = bench.hand_over(memory.export(shared) if shared else None)
    rank = SharedMemoryRank(bench, message, codec, shared or memory.open(handle, nbytes), depth)
    handle.close()
    return gb.Task(
        stages_of(rank.transfer, message.cut.total),
        rank.check,
        close=rank.close,
        notes=task_notes,
        labels=labels(bench, path),
        release=shared.close if shared else lambda: None,
    )


def _payers(bench: gb.Bench, link: str, depth: int) -> str:
    """Return who pays for encoding and decoding: `apart` if each side has its own processors, else `shared`."""
    if link == "peer":
        return "apart"
    return "shared" if bench.traits.is_gpu else host_payers(depth)


_DESCRIPTIONS = {
    "process": "memory shared with another process on the same device, which copies the data out",
    "peer": "another process on a peer GPU, which copies the data out of this GPU's memory",
}
