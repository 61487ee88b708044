"""Define the links whose sender and receiver are in one process: copies, page-locked memory, a socket, and a file."""

import itertools
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gpubench.api import suite as gb

from .. import _files
from ._pipeline import InFlight, InOrderLink, Link, Schedule, StoppedError, queue_copy

_PAGE_BYTES = 4096
_LENGTH = struct.Struct("<Q")  # the length that precedes each block in a stream
T = TypeVar("T")


class HostCopy(Link):
    """A link that is one copy in host memory, from the encoder's to the decoder's, by the thread that encoded."""

    is_joined = True

    def __init__(self, bench: gb.Bench) -> None:
        self._copy, self._sent = partial(queue_copy, bench), dict[int, Any]()

    def send(self, block: InFlight, packed: Any) -> None:
        self._sent[block.slot] = packed

    def deliver(self, block: InFlight, arrived: Any) -> Any:
        return self._copy(arrived, self._sent[block.slot])


class PinnedMemory(Link):
    """Page-locked host memory with a place for each block, which the copy engines of a GPU write and read."""

    schedule: Schedule = "one thread"

    def __init__(self, bench: gb.Bench, places: Sequence[int]) -> None:
        starts = list(itertools.accumulate((-(-nbytes // _PAGE_BYTES) * _PAGE_BYTES for nbytes in places), initial=0))
        memory = bench.device.pinned(max(starts[-1], 1))
        self._places = [memory[start : start + nbytes] for start, nbytes in zip(starts, places, strict=False)]
        self._copy, self._sent = partial(queue_copy, bench), dict[int, Any]()

    def send(self, block: InFlight, packed: Any) -> None:
        """Queue the copy of the block to its place; raises WrongAnswer if the block is longer than its place."""
        place = self._places[block.index]
        grown = f"block {block.index} grew to {packed.size} bytes; its buffer holds {place.size}"
        gb.expect(packed.size <= place.size, grown)
        self._sent[block.index] = self._copy(place, packed)

    def deliver(self, block: InFlight, arrived: Any) -> Any:
        return self._copy(arrived, self._sent[block.index])


class Loopback(InOrderLink):
    """A TCP connection of this machine with itself (127.0.0.1): blocks go in order, each preceded by its length."""

    def __init__(self) -> None:
        """Open both ends of the connection on a free port."""
        super().__init__()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._sending = socket.create_connection(listener.getsockname())
            self._receiving, _ = listener.accept()
        for connection in (self._sending, self._receiving):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, block: InFlight, packed: Any) -> None:
        with self._sent.turn(block.index):
            self._sending.sendall(_LENGTH.pack(packed.size))
            self._sending.sendall(packed)

    def receive(self, block: InFlight, room: Any) -> Any:
        with self._received.turn(block.index):
            arrived = room[: receive_length(self._receiving, room.size)]
            receive_into(self._receiving, arrived)
        return arrived

    def stop(self) -> None:
        """End the connection, which releases the threads that wait for their turn or for bytes."""
        super().stop()
        for connection in (self._sending, self._receiving):
            connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sending.close()
        self._receiving.close()


def receive_length(connection: socket.socket, max_bytes: int) -> int:
    """Return the number of bytes of the block that follows; raises WrongAnswer if it exceeds `max_bytes`."""
    header = bytearray(_LENGTH.size)
    receive_into(connection, np.frombuffer(header, np.uint8))
    (size,) = _LENGTH.unpack(header)
    gb.expect(size <= max_bytes, f"a block declares {size} bytes; the maximum is {max_bytes}")
    return int(size)


def receive_into(connection: socket.socket, target: Any) -> None:
    """Fill the uint8 array `target` from a socket; raises StoppedError if the sender closes the connection first."""
    missing = memoryview(target)
    while missing:
        count = connection.recv_into(missing, 0, socket.MSG_WAITALL)
        if not count:
            raise StoppedError("the sender closed the connection in the middle of a block")
        missing = missing[count:]


def open_file(nbytes: int, where: Path) -> int:
    """Return the descriptor of a new file without a name in the folder `where`.

    Raises Skip if the folder has less than `nbytes` of free space, or if no file can be written there."""
    try:
        _files.need_space(nbytes, where)
        with tempfile.TemporaryFile(dir=where) as file:
            return os.dup(file.fileno())
    except OSError as error:
        raise _files.unwritable(where, error) from error


class FileLink(Link):
    """A link that writes blocks into one file in any order; the message is complete when fsync has returned."""

    def __init__(self, descriptor: int, where: Path | str) -> None:
        self._file, self._where, self._lock = descriptor, where, threading.Lock()
        self._end, self._places = 0, dict[int, tuple[int, int]]()  # offset and size in bytes by the block's index

    def begin(self) -> None:
        os.ftruncate(self._file, 0)
        self._end = 0

    def send(self, block: InFlight, packed: Any) -> None:
        """Write the block behind all blocks that were written before, and let Linux begin to write it to the disk."""
        with self._lock:
            place, self._end = self._end, self._end + packed.size
        self._places[block.index] = (place, packed.size)
        self._run_or_skip(lambda: _files.write_all(self._file, packed, place))
        # starts writing to the disk now; otherwise Linux would start in fsync
        self._run_or_skip(lambda: os.posix_fadvise(self._file, place, packed.size, os.POSIX_FADV_DONTNEED))

    def receive(self, block: InFlight, room: Any) -> Any:
        place, size = self._places[block.index]
        self._run_or_skip(lambda: _files.read_all(self._file, room[:size], place))
        return room[:size]

    def _run_or_skip(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, a file operation; raises Skip, with a remedy, if it raises OSError."""
        try:
            return call()
        except OSError as error:
            raise _files.unwritable(self._where, error) from error

    def finish(self) -> None:
        self._run_or_skip(lambda: os.fsync(self._file))

    def close(self) -> None:
        os.close(self._file)


class ReadBack(FileLink):
    """A file that is written once; each message is then read from the disk, not from the page cache."""

    def begin(self) -> None:
        """Write the file back to the disk and drop it from the page cache, as posix_fadvise(2) describes."""
        self._run_or_skip(lambda: os.fsync(self._file))
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def finish(self) -> None:
        """Do nothing: reading leaves nothing to write back."""

    @property
    def is_cached(self) -> bool:
        """Whether the first page can be read without the disk after it was dropped (preadv2(2), RWF_NOWAIT)."""
        self.begin()
        try:
            return os.preadv(self._file, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except OSError:  # EAGAIN: the data are not in the cache; EOPNOTSUPP: the kernel does not know the flag
            return False
