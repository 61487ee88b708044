"""Define the links whose sender and receiver are in one process: a copy, the host link of a GPU, and a socket.

A link of the host carries the blocks of a GPU through page-locked buffers (`ThroughHost`)."""

import itertools
import socket
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._pipeline import InFlight, InOrder, Schedule, Slots, StoppedError

_TO_HOST, _TO_DEVICE = 2, 1  # cudaMemcpyKind; HIP's have the same values
_PAGE_BYTES = 4096
_LENGTH = struct.Struct("<Q")  # the length that precedes each block in a stream


class Link:
    """The transport of packed blocks from an encoder to a decoder; a subclass overrides the steps that it needs.

    A packed block and a `room` are uint8 arrays on the device. Steps of different slots run in different threads."""

    schedule: Schedule = "a thread per slot"  # how the sending and receiving steps are scheduled on a GPU
    is_joined = False  # whether one thread both sends and receives a block, in one chain of steps instead of two

    def begin(self) -> None:
        """Prepare for the next message; the time of the message does not include this."""

    def reserve(self, block: InFlight) -> None:
        """Wait until the buffer that the block's slot sends from may be written again."""

    def copy_out(self, block: InFlight, packed: Any) -> None:
        """Queue the copy of a GPU's packed block to the buffer from which `send` sends it."""

    def send(self, block: InFlight, packed: Any) -> None:
        """Send the block."""

    def receive(self, block: InFlight, room: Any) -> None:
        """Wait until the block has arrived; `room` is where it may be written."""

    def copy_in(self, block: InFlight, room: Any) -> Any:
        """Copy the block that has arrived into `room`, or queue that; return the part of `room` that it takes."""
        raise NotImplementedError

    def finish(self) -> None:
        """Complete the message after its last block; the time of the message includes this."""

    def stop(self) -> None:
        """Release all threads that wait in this link, because a thread has failed."""

    def close(self) -> None:
        """Release the resources of the link."""


class HostCopy(Link):
    """A link that is one copy in host memory, from the encoder's to the decoder's, by the thread that encoded."""

    is_joined = True

    def __init__(self, depth: int) -> None:
        self._sent: list[Any] = [None] * depth

    def send(self, block: InFlight, packed: Any) -> None:
        self._sent[block.slot] = packed

    def copy_in(self, block: InFlight, room: Any) -> Any:
        """Copy the block into `room` in the calling thread, and return the part of `room` that it takes."""
        packed = self._sent[block.slot]
        np.copyto(room[: packed.size], packed)
        return room[: packed.size]


class PinnedMemory(Link):
    """Page-locked host memory with a place for each block, which the copy engines of a GPU write and read."""

    schedule: Schedule = "one thread"

    def __init__(self, bench: gb.Bench, places: Sequence[int]) -> None:
        """Allocate a place for each block; `places` are their sizes in bytes."""
        self._copies = CopyEngine(bench)
        starts = list(itertools.accumulate((-(-nbytes // _PAGE_BYTES) * _PAGE_BYTES for nbytes in places), initial=0))
        memory = bench.device.pinned(max(starts[-1], 1))
        self._places = [memory[start : start + nbytes] for start, nbytes in zip(starts, places, strict=False)]
        self._sizes = [0] * len(places)

    def copy_out(self, block: InFlight, packed: Any) -> None:
        """Queue the copy of the block to its place; raises WrongAnswer if the block is longer than its place."""
        room = self._places[block.index].size
        gb.expect(packed.size <= room, f"block {block.index} grew to {packed.size} bytes; its buffer holds {room}")
        self._sizes[block.index] = packed.size
        self._copies.to_host(self._places[block.index], packed)

    def copy_in(self, block: InFlight, room: Any) -> Any:
        return self._copies.to_device(room, self._places[block.index][: self._sizes[block.index]])


class CopyEngine:
    """Copies between page-locked NumPy arrays and CuPy arrays (uint8), queued on the current stream."""

    def __init__(self, bench: gb.Bench) -> None:
        self._cuda = bench.xp.cuda

    def to_host(self, target: Any, source: Any) -> None:
        """Queue the copy of `source`, on the device, to the beginning of `target`, on the host."""
        self._queue(target.ctypes.data, source.data.ptr, source.size, _TO_HOST)

    def to_device(self, target: Any, source: Any) -> Any:
        """Queue the copy of `source`, on the host, to the beginning of `target`.

        Return the part of `target` that it takes."""
        self._queue(target.data.ptr, source.ctypes.data, source.size, _TO_DEVICE)
        return target[: source.size]

    def _queue(self, target: int, source: int, nbytes: int, kind: int) -> None:
        stream = self._cuda.get_current_stream().ptr
        self._cuda.runtime.memcpyAsync(target, source, nbytes, kind, stream)


class HostBuffers:
    """Page-locked buffers of the host through which the blocks of a GPU pass."""

    def __init__(self, bench: gb.Bench, outgoing: Slots, incoming: Slots, nbytes: int) -> None:
        """Allocate `nbytes` of page-locked memory for each slot of the sending (`outgoing`) and the receiving half."""
        self.copies = CopyEngine(bench)
        self.outgoing, self.incoming = outgoing, incoming
        self.sent, self.received = (
            [bench.device.pinned(nbytes) for _ in range(slots.depth)] for slots in (outgoing, incoming)
        )


class ThroughHost(Link):
    """A link of the host for the blocks of a GPU, which pass through page-locked buffers on both sides of it."""

    def __init__(self, link: Link, buffers: HostBuffers) -> None:
        self._link, self._buffers = link, buffers
        self.schedule = link.schedule

    def begin(self) -> None:
        self._link.begin()

    def copy_out(self, block: InFlight, packed: Any) -> None:
        self._buffers.copies.to_host(self._buffers.sent[block.slot], packed)

    def send(self, block: InFlight, packed: Any) -> None:
        self._buffers.outgoing.wait(block.slot)
        self._link.send(block, self._buffers.sent[block.slot][: packed.size])

    def receive(self, block: InFlight, room: Any) -> None:
        self._buffers.incoming.wait(block.slot)  # the copy of the last block to the device may still be running
        self._link.receive(block, self._buffers.received[block.slot][: room.size])

    def copy_in(self, block: InFlight, room: Any) -> Any:
        arrived = self._link.copy_in(block, self._buffers.received[block.slot])
        return self._buffers.copies.to_device(room, arrived)

    def finish(self) -> None:
        self._link.finish()

    def stop(self) -> None:
        self._link.stop()

    def close(self) -> None:
        self._link.close()


class Loopback(Link):
    """A TCP connection of this machine with itself (127.0.0.1): blocks go in order, each preceded by its length."""

    schedule: Schedule = "a thread per step"

    def __init__(self, depth: int) -> None:
        """Open both ends of the connection on a free port; `depth` is the number of slots."""
        self._arrived = [0] * depth  # bytes of the block in each slot
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._sending = socket.create_connection(listener.getsockname())
            self._receiving, _ = listener.accept()
        for connection in (self._sending, self._receiving):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sent, self._received = InOrder(), InOrder()

    def begin(self) -> None:
        self._sent.reset()
        self._received.reset()

    def send(self, block: InFlight, packed: Any) -> None:
        with self._sent.turn(block.index):
            self._sending.sendall(_LENGTH.pack(packed.size))
            self._sending.sendall(packed)

    def receive(self, block: InFlight, room: Any) -> None:
        with self._received.turn(block.index):
            size = self._arrived[block.slot] = receive_length(self._receiving, room.size)
            receive_into(self._receiving, room[:size])

    def copy_in(self, block: InFlight, room: Any) -> Any:
        return room[: self._arrived[block.slot]]

    def stop(self) -> None:
        """End the connection, which releases the threads that wait for their turn or for bytes."""
        self._sent.stop()
        self._received.stop()
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
    if size > max_bytes:
        raise gb.WrongAnswer(f"a block declares {size} bytes; the maximum is {max_bytes}")
    return int(size)


def receive_into(connection: socket.socket, target: Any) -> None:
    """Fill the uint8 array `target` from a socket; raises StoppedError if the sender closes the connection first."""
    missing = memoryview(target)
    while missing:
        count = connection.recv_into(missing, 0, socket.MSG_WAITALL)
        if not count:
            raise StoppedError("the sender closed the connection in the middle of a block")
        missing = missing[count:]
