"""Define the links: copies, page-locked memory, a socket, a file, and memory shared with another process or MPI."""

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .. import _files
from ._codecs import address
from ._message import Chain, Coder, InFlight, Link, Ring, Schedule, StoppedError, Timed, queue_copy

_PAGE_BYTES = 4096
_NOTICE = struct.Struct("<QQQ")  # of a block: its index, its offset in shared memory, its size in bytes
_TAGS = 2**15 - 1  # the largest message tag; MPI guarantees no more (MPI 4.1, §3.2.3)


class HostCopy(Link):
    """A link that is one copy in host memory, from the encoder's to the decoder's, by the thread that encoded."""

    def chains(self, encoder: Any, decoder: Any) -> list[Chain]:
        """Return one chain, in which both sides of the link take part."""

        def copying(block: InFlight, _: Ring) -> Iterator[None]:
            packed, room = encoder.encode(block), decoder.room(block)
            room[: packed.size] = packed
            decoder.decode(block, room[: packed.size])
            yield

        return [Chain(encoder, copying, 1, "a thread per slot")]


class PinnedMemory(Link):
    """Page-locked host memory with a place of `nbytes` for each block, which a GPU's copy engines write and read."""

    def __init__(self, bench: gb.Bench, count: int, nbytes: int, timed: Timed) -> None:
        self.timed, step = timed, -(-nbytes // _PAGE_BYTES) * _PAGE_BYTES
        self._places = bench.device.pinned(max(count * step, 1)).reshape(count, step)
        self._copy, self._sent = partial(queue_copy, bench), dict[int, Any]()

    def send(self, block: InFlight, packed: Any) -> None:
        """Queue the copy of the block to its place; raises WrongAnswer if the block is longer than its place."""
        self._sent[block.index] = self._copy(self._places[block.index], packed)

    def receive(self, block: InFlight, room: Any) -> Any:
        return self._copy(room, self._sent[block.index])


class Loopback(Link):
    """A TCP connection of this machine with itself (127.0.0.1): blocks go in order, each preceded by its length."""

    schedule: Schedule = "a thread per part"

    def __init__(self) -> None:
        """Open both ends of the connection on a free port."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._sending = socket.create_connection(listener.getsockname())
            self._receiving, _ = listener.accept()
        self._sending.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, block: InFlight, packed: Any) -> None:
        tell(self._sending, block.index, 0, packed.size)
        self._sending.sendall(packed)

    def receive(self, _: InFlight, room: Any) -> Any:
        *_, size = hear(self._receiving)
        gb.expect(size <= room.size, f"a block declares {size} bytes; the maximum is {room.size}")
        return receive_into(self._receiving, room[:size])

    def stop(self) -> None:
        """End the connection, which releases the threads that wait for bytes."""
        hang_up(self._sending)

    def close(self) -> None:
        self._sending.close()
        self._receiving.close()


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
            raise StoppedError("the sender has ended in the middle of a message")
        missing = missing[count:]
    return target


def hang_up(connection: socket.socket) -> None:
    """End the connection for both sides; do nothing if it has ended."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class FileLink(Link):
    """A link that writes blocks into one file in any order; the message is complete when fsync has returned.

    If the receiver is timed, the file is written once, and each message is read from the disk, not the page cache."""

    schedule: Schedule = "a thread per slot"

    def __init__(self, nbytes: int, where: Path, timed: Timed) -> None:
        """Create a file without a name; raises Skip if `where` has less than `nbytes` free, or cannot be written."""
        self._where, self.timed, self._lock = where, timed, threading.Lock()
        self._end, self._places = 0, dict[int, tuple[int, int]]()  # offset and size in bytes by the block's index
        self._or_skip(lambda: _files.need_space(nbytes, where))
        self.descriptor = _files.make_file(np.empty(0, np.uint8), where)

    def begin(self) -> None:
        """Empty the file, or drop it from the page cache when it is on the disk, as posix_fadvise(2) describes."""
        if self.timed == "receiver":
            self._or_skip(lambda: os.fsync(self.descriptor))
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            self.is_cached = self._end > 0 and _files.resident_pages(self.descriptor, 1)[0] > 0
        else:
            os.ftruncate(self.descriptor, 0)
            self._end = 0

    def send(self, block: InFlight, packed: Any) -> None:
        """Write the block behind all blocks that were written before, and let Linux begin to write it to the disk."""
        with self._lock:
            place, self._end = self._end, self._end + packed.size
        self._places[block.index] = (place, packed.size)
        self._or_skip(lambda: _files.write_all(self.descriptor, packed, place))
        # starts writing to the disk now; otherwise Linux would start in fsync
        self._or_skip(lambda: os.posix_fadvise(self.descriptor, place, packed.size, os.POSIX_FADV_DONTNEED))

    def receive(self, block: InFlight, room: Any) -> Any:
        place, size = self._places[block.index]
        self._or_skip(lambda: _files.read_all(self.descriptor, room[:size], place))
        return room[:size]

    def _or_skip(self, call: Callable[[], object]) -> None:
        """Call `call`, a file operation; raises Skip, with a remedy, if it raises OSError."""
        try:
            call()
        except OSError as error:
            raise _files.unwritable(self._where, error) from error

    def finish(self) -> None:
        if self.timed == "sender":  # reading leaves nothing to write back
            self._or_skip(lambda: os.fsync(self.descriptor))

    def close(self) -> None:
        os.close(self.descriptor)


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
        tell(self._wire, block.index, address(packed) - address(self._memory), packed.size)

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
        arrived = queue_copy(self._bench, room, self._memory[place : place + size])
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


class MpiLink(Link):
    """A link of MPI from rank 0 to rank 1, over which blocks go in order."""

    schedule: Schedule = "a thread per part"

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi

    def meet(self) -> float:
        self._mpi.COMM_WORLD.Barrier()
        return time.perf_counter()

    def send(self, block: InFlight, packed: Any) -> None:
        self._mpi.COMM_WORLD.Send([packed, self._mpi.BYTE], 1, block.index % _TAGS)

    def receive(self, block: InFlight, room: Any) -> Any:
        status = self._mpi.Status()
        self._mpi.COMM_WORLD.Recv([room, self._mpi.BYTE], 0, block.index % _TAGS, status)
        return room[: status.Get_count(self._mpi.BYTE)]
