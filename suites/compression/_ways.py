"""Ways that blocks travel within a process: by copy, over the host link, through a socket."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from gpubench.api.suite import Bench, WrongAnswer, expect

from ._lanes import Lanes, StoppedError, Threads, Turnstile

_TO_HOST, _TO_DEVICE = 2, 1  # cudaMemcpyKind; HIP's have the same values
_PAGE = 4096
_HEADER = struct.Struct("<Q")  # before each block in a stream: its bytes


class Way(Protocol):
    """How blocks get from one end to the other."""

    @property
    def threads(self) -> Threads:
        """What works for lanes that are queues: `one` thread where the way only queues, else `a step each`."""

    def begin(self) -> None:
        """Get ready for a message, outside its time."""

    def take(self, lane: int, index: int, packed: Any) -> None:
        """Queue what brings a block to where it is handed over."""

    def deliver(self, lane: int, index: int, packed: Any) -> None:
        """Hand it over; when it returns, or once the lane has waited, `packed` may be written again."""

    def meet(self, lane: int, index: int, room: Any) -> None:
        """Wait until the block has come to where it is fetched from, or queue what brings it to `room`."""

    def fetch(self, lane: int, index: int, room: Any) -> Any:
        """The block that was met, in `room`, as much of it as it takes."""

    def finish(self) -> None:
        """What has to be done before the message counts as delivered, in its time."""

    def stop(self) -> None:
        """Send away whoever waits: the other end failed."""

    def close(self) -> None:
        """Let go of what was opened."""


class Still:
    """A way with nothing to get ready, to take, to meet, to finish or to close, and a thread for each lane."""

    threads: Threads = "a lane each"

    def begin(self) -> None:
        """Nothing."""

    def take(self, lane: int, index: int, packed: Any) -> None:
        """Nothing."""

    def meet(self, lane: int, index: int, room: Any) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Copy(Still):
    """One copy from the encoder's memory to the decoder's, by the lane that encoded."""

    def __init__(self, most: int) -> None:
        self._under_way: list[Any] = [None] * most

    def deliver(self, lane: int, index: int, packed: Any) -> None:
        del index
        self._under_way[lane] = packed

    def fetch(self, lane: int, index: int, room: Any) -> Any:
        del index
        packed = self._under_way[lane]
        np.copyto(room[: packed.size], packed)
        return room[: packed.size]


class HostLink(Still):
    """Page-locked host memory: a GPU's copies down into it (`take`) and up out of it (`fetch`)."""

    threads: Threads = "one"

    def __init__(self, bench: Bench, rooms: Sequence[int]) -> None:
        """Room for as many blocks, of so many bytes each."""
        self._cuda = bench.xp.cuda
        places = list(itertools.accumulate((-(-room // _PAGE) * _PAGE for room in rooms), initial=0))
        memory = bench.device.pinned(max(places[-1], 1))
        self._slots = [memory[place : place + room] for place, room in zip(places, rooms, strict=False)]
        self._sizes = [0] * len(rooms)

    def take(self, lane: int, index: int, packed: Any) -> None:
        del lane
        room = self._slots[index].size
        expect(packed.size <= room, f"block {index} has {packed.size} bytes now: there is room for {room}")
        self._sizes[index] = packed.size
        self._move(self._slots[index].ctypes.data, packed.data.ptr, packed.size, _TO_HOST)

    def deliver(self, lane: int, index: int, packed: Any) -> None:
        """Nothing: the copy is the whole way."""

    def fetch(self, lane: int, index: int, room: Any) -> Any:
        del lane
        size = self._sizes[index]
        self._move(room.data.ptr, self._slots[index].ctypes.data, size, _TO_DEVICE)
        return room[:size]

    def _move(self, target: int, source: int, size: int, kind: int) -> None:
        stream = self._cuda.get_current_stream().ptr
        self._cuda.runtime.memcpyAsync(target, source, size, kind, stream)


class Shore:
    """Where a lane's block lies on the host, for what only moves host memory: the block itself."""

    def take(self, lane: int, packed: Any) -> None:
        """Queue the copy of the block into host memory."""

    def out(self, lane: int, packed: Any) -> Any:
        """The block that was taken, in host memory and ready to be read."""
        del lane
        return packed

    def landing(self, lane: int, room: Any, size: int) -> Any:
        """Host memory for a block that arrives."""
        del lane
        return room[:size]

    def inward(self, lane: int, room: Any, size: int) -> Any:
        """The block that has landed, on the device."""
        del lane
        return room[:size]


class GpuShore(Shore):
    """Page-locked buffers, one a lane and direction, and the copies between them and the GPU."""

    def __init__(self, bench: Bench, outgoing: Lanes | None, incoming: Lanes | None, most: int) -> None:
        self._cuda = bench.xp.cuda
        self._outgoing, self._incoming = outgoing, incoming
        self._out = [bench.device.pinned(most) for _ in range(outgoing.most if outgoing else 0)]
        self._in = [bench.device.pinned(most) for _ in range(incoming.most if incoming else 0)]

    def take(self, lane: int, packed: Any) -> None:
        self._move(self._out[lane].ctypes.data, packed.data.ptr, packed.size, _TO_HOST)

    def out(self, lane: int, packed: Any) -> Any:
        assert self._outgoing is not None
        self._outgoing.wait(lane)
        return self._out[lane][: packed.size]

    def landing(self, lane: int, room: Any, size: int) -> Any:
        del room
        assert self._incoming is not None
        self._incoming.wait(lane)  # the last block may still be on its way up
        return self._in[lane][:size]

    def inward(self, lane: int, room: Any, size: int) -> Any:
        self._move(room.data.ptr, self._in[lane].ctypes.data, size, _TO_DEVICE)
        return room[:size]

    def _move(self, target: int, source: int, size: int, kind: int) -> None:
        stream = self._cuda.get_current_stream().ptr
        self._cuda.runtime.memcpyAsync(target, source, size, kind, stream)


def shore_of(bench: Bench, outgoing: Lanes | None, incoming: Lanes | None, most: int) -> Shore:
    """The shore of the bench's device."""
    return GpuShore(bench, outgoing, incoming, most) if bench.traits.is_gpu else Shore()


class Loopback(Still):
    """A TCP connection of this machine with itself (127.0.0.1): blocks in order, each behind its length."""

    threads: Threads = "a step each"

    def __init__(self, shore: Shore, most: int) -> None:
        """For at most so many lanes."""
        self._shore = shore
        self._arrived = [0] * most  # by lane, the bytes of its block
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._near = socket.create_connection(listener.getsockname())
            self._far, _ = listener.accept()
        for end in (self._near, self._far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._turns = Turnstile(), Turnstile()

    def begin(self) -> None:
        for turns in self._turns:
            turns.reset()

    def take(self, lane: int, index: int, packed: Any) -> None:
        del index
        self._shore.take(lane, packed)

    def deliver(self, lane: int, index: int, packed: Any) -> None:
        block = self._shore.out(lane, packed)
        with self._turns[0].turn(index):
            send_block(self._near, block)

    def meet(self, lane: int, index: int, room: Any) -> None:
        with self._turns[1].turn(index):
            size = self._arrived[lane] = receive_size(self._far, room.size)
            receive_into(self._far, self._shore.landing(lane, room, size))

    def fetch(self, lane: int, index: int, room: Any) -> Any:
        del index
        return self._shore.inward(lane, room, self._arrived[lane])

    def stop(self) -> None:
        for turns in self._turns:
            turns.stop()
        for end in (self._near, self._far):
            end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._near.close()
        self._far.close()


def send_block(connection: socket.socket, block: Any) -> None:
    """The block behind its length."""
    connection.sendall(_HEADER.pack(block.size))
    connection.sendall(block)


def receive_size(connection: socket.socket, most: int) -> int:
    """The bytes of the block that follows; raises WrongAnswer where they are more than a block can have."""
    header = bytearray(_HEADER.size)
    receive_into(connection, np.frombuffer(header, np.uint8))
    (size,) = _HEADER.unpack(header)
    if size > most:
        raise WrongAnswer(f"a block says it has {size} bytes; the most is {most}")
    return int(size)


def receive_into(connection: socket.socket, target: Any) -> None:
    """Fill the array; raises StoppedError where the other end hangs up before."""
    missing = memoryview(target)
    while missing:
        got = connection.recv_into(missing, 0, socket.MSG_WAITALL)
        if not got:
            raise StoppedError("the other end hung up in the middle of a block")
        missing = missing[got:]
