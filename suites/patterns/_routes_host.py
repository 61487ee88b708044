"""Send messages between two processes of the host through a socket, by the kernel's copy, or through shared memory.

Rank 1 asks, rank 0 sends. Both have the message in ordinary memory, so that every way pays for what it needs."""

import ctypes
import os
import socket
import time

import numpy as np

from gpubench.api import suite as gb

from .._between import POISON, pattern
from ._path_model import WayToSend

SENDER, RECEIVER = 0, 1
_PROGRESS = "progress"  # the slot of the requests that the receiver has posted, or the chunks of the sender
_PATIENCE_S = 5.0
_SOCKET, _DIRECT, _MEMORY = "socket", "direct", "memory"
_CHUNKS = (2**16, 2**20)
_DEPTHS = (1, 4)
_PR_SET_PTRACER = 0x59616D61  # linux/prctl.h: names the process that Yama allows to access this one
_ANY = ctypes.c_ulong(-1)


class _MemorySpan(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))  # struct iovec, readv(2)


class HostRoutes:
    """One of two ranks: a message of at most `most_bytes`, and the resources of each way to send it.

    Rank 0 sends and rank 1 receives."""

    def __init__(self, bench: gb.Bench, most_bytes: int) -> None:
        bench.need(4 * most_bytes)
        self._is_sender = bench.rank == SENDER
        self._message = pattern(most_bytes, bench.seed) if self._is_sender else np.zeros(most_bytes, np.uint8)
        self._expected = pattern(most_bytes, bench.seed)
        self._last_bytes = 0
        self._board = bench.board(_PROGRESS, limit_s=_PATIENCE_S)
        self._slots = bench.shared_memory(max(_CHUNKS) * max(_DEPTHS))
        self._socket = connected_socket(bench)
        self._asked, self._sent = 0, 0  # the progress that the receiver and the sender have posted
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.process_vm_readv.restype = ctypes.c_ssize_t
        if self._is_sender:
            self._libc.prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)
        offers = bench.exchange((os.getpid(), int(self._message.ctypes.data)))
        self._pid, self._address = offers[SENDER]
        is_readable = self._is_sender or self._read(0, 1)
        self.ways = [WayToSend(_SOCKET)]
        self.ways += [WayToSend(_DIRECT)] if all(bench.exchange(is_readable)) else []
        self.ways += [WayToSend(_MEMORY, chunk, depth) for chunk in _CHUNKS for depth in _DEPTHS]
        self.notes = {
            "timed": "from the request of the receiver to the last byte, in ordinary memory on both sides",
            "cores": "one for each rank",
        }

    def send(self, way: WayToSend, nbytes: int) -> float:
        """Send the first `nbytes` of the message in the way `way`, one of `ways`, or receive them.

        Both ranks must call it. Returns the seconds from the receiver's request to the last byte."""
        self._last_bytes = nbytes
        start = time.perf_counter()
        self._asked += 1
        if self._is_sender:
            self._board.wait_for(_PROGRESS, self._asked, [RECEIVER])
        else:
            self._board.post(_PROGRESS, self._asked)
        if way.path == _SOCKET:
            self._by_socket(nbytes)
        elif way.path == _DIRECT:
            self._by_kernel(nbytes)
        else:
            self._through_slots(nbytes, way.chunk_bytes, way.depth)
        return time.perf_counter() - start

    def _by_socket(self, nbytes: int) -> None:
        """Send the first `nbytes` over the socket, or receive them."""
        remaining = self._message[:nbytes].data
        if self._is_sender:
            self._socket.sendall(remaining)
            return
        while remaining:
            count = self._socket.recv_into(remaining)
            gb.expect(count > 0, "the sender closed the connection")
            remaining = remaining[count:]

    def _by_kernel(self, nbytes: int) -> None:
        """Let the receiver read the first `nbytes` of the sender's memory."""
        self._sent += 1
        if self._is_sender:
            self._board.post(_PROGRESS, self._sent)
        else:
            self._board.wait_for(_PROGRESS, self._sent, [SENDER])
            gb.expect(self._read(0, nbytes), f"the kernel did not copy {nbytes} B out of the sender's memory")

    def _read(self, first: int, nbytes: int) -> bool:
        """Read `nbytes` from index `first` on from the sender's message into this rank's by process_vm_readv(2)."""
        local_span = _MemorySpan(self._message.ctypes.data + first, nbytes)
        remote_span = _MemorySpan(self._address + first, nbytes)
        count = self._libc.process_vm_readv(self._pid, ctypes.byref(local_span), 1, ctypes.byref(remote_span), 1, 0)
        return int(count) == nbytes

    def _through_slots(self, nbytes: int, chunk_bytes: int, depth: int) -> None:
        """Copy each chunk into a slot of shared memory (sender) or out of it (receiver)."""
        asked, sent = self._asked, self._sent
        for index, first in enumerate(range(0, nbytes, chunk_bytes)):
            part = self._message[first : min(first + chunk_bytes, nbytes)]
            begin = index % depth * chunk_bytes
            slot = self._slots.array[begin : begin + part.size]
            if self._is_sender:
                self._board.wait_for(_PROGRESS, asked + max(index + 1 - depth, 0), [RECEIVER])
                np.copyto(slot, part)
                self._board.post(_PROGRESS, sent + index + 1)
            else:
                self._board.wait_for(_PROGRESS, sent + index + 1, [SENDER])
                np.copyto(part, slot)
                self._board.post(_PROGRESS, asked + index + 1)
            self._asked, self._sent = asked + index + 1, sent + index + 1

    def poison(self) -> None:
        """Overwrite the receiver's copy of the message."""
        if not self._is_sender:
            self._message.fill(POISON)

    def wrong_bytes(self) -> int:
        """Return how many bytes of the last message differ from what was sent; 0 in the sender."""
        return int(np.count_nonzero(self._message[: self._last_bytes] != self._expected[: self._last_bytes]))

    def close(self) -> None:
        """Close the connection, unmap the slots, and end the receiver's permission to read the sender's memory."""
        if self._is_sender:
            self._libc.prctl(_PR_SET_PTRACER, 0, 0, 0, 0)
        self._socket.close()
        self._slots.close()
        self._board.close()


def connected_socket(bench: gb.Bench) -> socket.socket:
    """Return this rank's end of a local stream to the other rank, with a time-out of 5 s; both ranks must call it."""
    (connection,) = bench.sockets()
    connection.settimeout(_PATIENCE_S)
    return connection
