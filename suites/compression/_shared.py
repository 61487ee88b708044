"""Hand blocks over between processes through memory that both see: by a socket, or by words that streams await."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from . import _codecs, _message
from ._message import Coder, InFlight, Link, Ring, Schedule

WORDS_BYTES = 2**16  # of the memory for the words of a rank; each slot has a line of them
_LINE_BYTES = 128
_NOTICE = struct.Struct("<QQQ")  # of a block: its index, its offset in shared memory, its size in bytes
_THREADS, _GRID = 512, 48  # of the kernel that takes a block: the other units restore blocks
_FOR_EVER = 2**30  # counts beyond the last one


def tell(connection: socket.socket, index: int = 0, place: int = 0, size: int = 0) -> None:
    """Announce a block: its index, its offset in shared memory and its size; raises OSError if the other side ended."""
    connection.sendall(_NOTICE.pack(index, place, size))


def hear(connection: socket.socket) -> Any:
    """Return the three numbers of the next announcement; raises StoppedError as `receive_into`."""
    return _NOTICE.unpack(receive_into(connection, bytearray(_NOTICE.size)))


def receive_into(connection: socket.socket, target: Any) -> Any:
    """Fill the buffer `target` from a socket, and return it.

    Raises StoppedError if the sender has ended, and TimeoutError if a socket with a timeout brings nothing so long."""
    missing = memoryview(target)
    while missing:
        count = connection.recv_into(missing, 0, socket.MSG_WAITALL)
        if not count:
            raise _message.StoppedError("the sender has ended in the middle of a message")
        missing = missing[count:]
    return target


def hang_up(connection: socket.socket) -> None:
    """End the connection for both sides; do nothing if it has ended."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class SharedMemory(Link):
    """A rank's half of a link through memory that both ranks see, in which the blocks of rank 0 lie.

    Rank 0 announces over the socket `wire` where each block lies, in order, and rank 1 copies it out. If buffers are
    reused (`is_reused`), it then confirms the slot; raw blocks stay in their places."""

    schedule: Schedule = "a thread per part"

    def __init__(self, bench: gb.Bench, wire: socket.socket, memory: Any, depth: int, is_reused: bool) -> None:
        self._bench, self._wire, self._memory, self._is_reused = bench, wire, memory, is_reused
        self._unread, self._answers = set[int](), threading.Lock()  # slots whose blocks rank 1 has not confirmed
        self._copied = [bench.xp.cuda.Event() for _ in range(depth)] if bench.traits.is_gpu else []

    def meet(self) -> float:
        """Return the time at which rank 1 requests the message, or at rank 0, when the request has arrived."""
        if self._bench.rank == 0:
            hear(self._wire)
        start = time.perf_counter()
        if self._bench.rank == 1:
            tell(self._wire)
        return start

    def _reserve(self, slot: int) -> None:
        """Wait until rank 1 has confirmed the block in the buffer of this slot; a free buffer needs no wait."""
        with self._answers:
            while slot in self._unread:
                self._unread.discard(hear(self._wire)[0])

    def sending(self, encoder: Coder, block: InFlight, turns: Ring) -> Iterator[None]:
        self._reserve(block.slot)
        yield from super().sending(encoder, block, turns)

    def send(self, block: InFlight, packed: Any) -> None:
        if self._is_reused:
            self._unread.add(block.slot)
        tell(self._wire, block.index, _codecs.address(packed) - _codecs.address(self._memory), packed.size)

    def finish(self) -> None:
        """Wait at rank 0 until rank 1 has confirmed every block."""
        for slot in list(self._unread):
            self._reserve(slot)

    def receiving(self, decoder: Coder, block: InFlight, turns: Ring) -> Iterator[None]:
        """Raises WrongAnswer if another block is announced, or bytes that do not fit into the room or the memory."""
        room = decoder.room(block)
        index, place, size = turns.passing(block.slot, hear, self._wire)
        inside = index == block.index and size <= room.size and place + size <= self._memory.size
        gb.expect(inside, f"rank 0 announced {size} bytes of block {index} at {place} instead of block {block.index}")
        arrived = _message.queue_copy(self._bench, room, self._memory[place : place + size])
        if self._copied:
            self._copied[block.slot].record()
        yield
        if self._is_reused:
            if self._copied:
                self._copied[block.slot].synchronize()
            with self._answers:
                tell(self._wire, block.slot)
        decoder.decode(block, arrived)

    def stop(self) -> None:
        hang_up(self._wire)


class StreamWords(SharedMemory):
    """A link through shared memory on which streams write and await words, while the hosts only queue work.

    There are two counters for each slot: `ready` in the memory of rank 1, and `free` in the memory of rank 0."""

    schedule: Schedule = "one thread"

    def __init__(self, bench: gb.Bench, wire: socket.socket, rooms: Any, ready: int, free: int) -> None:
        """Take the addresses of the words, and the memory in which the packed blocks of each slot lie (2-D)."""
        if bench.traits.vendor != "nvidia":
            raise gb.Skip("needs CUDA's driver; HIP has similar calls, but they have not been tried yet")
        super().__init__(bench, wire, rooms, 0, True)  # words take the place of events
        self._driver, self._ready, self._free = lib.Driver(), ready, free
        self._taking = bench.kernel("compress.cu", "take")
        self._sent, self._taken = ([0] * len(rooms) for _ in range(2))

    def _stream(self, call: str, counters: int, slot: int, count: int) -> None:
        """Queue a call of the driver that writes or awaits a slot's word on the current stream."""
        stream = self._driver.bindings.CUstream(_codecs.current_stream(self._bench.xp))
        word = counters + slot * _LINE_BYTES
        self._driver(call, stream, word, count, 0)  # 0: fence before the write; wait for at least `count`

    def sending(self, encoder: Coder, block: InFlight, turns: Ring) -> Iterator[None]:
        del turns
        slot = block.slot
        self._stream("cuStreamWaitValue32", self._free, slot, self._sent[slot])
        encoder.queue(block)
        self._sent[slot] += 1
        self._stream("cuStreamWriteValue32", self._ready, slot, self._sent[slot])
        yield

    def receiving(self, decoder: Coder, block: InFlight, turns: Ring) -> Iterator[None]:
        del turns
        slot, room = block.slot, decoder.room(block)
        chunks = len(_codecs.lengths(decoder.blocks[block.index].size, decoder.message.chunk_bytes))
        self._taken[slot] += 1
        self._stream("cuStreamWaitValue32", self._ready, slot, self._taken[slot])
        numbers = np.uint32(chunks), np.uint64(min(room.size, self._memory[slot].size))
        self._taking((_GRID,), (_THREADS,), (self._memory[slot], *numbers, room))
        self._stream("cuStreamWriteValue32", self._free, slot, self._taken[slot])
        yield
        decoder.decode(block, room)

    def finish(self) -> None:
        """Do nothing: the counts of the next message continue."""

    def stop(self) -> None:
        """Release the streams of both ranks that wait."""
        super().stop()
        for slot in range(len(self._sent)):
            for counters in (self._ready, self._free):
                self._stream("cuStreamWriteValue32", counters, slot, _FOR_EVER)
