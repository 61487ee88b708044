"""Provide the two ends of a forwarder between two ranks: rank 0 sends calls, and a thread of rank 1 makes them."""

import socket
import struct
import threading
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from . import _wire
from ._drivers import LocalDriver

TRANSPORTS = ("shm", "unix", "tcp")
_RING_BYTES = 2**20
_BUFFER_BYTES = 2**22  # page-locked memory in the server: the smallest forwarder copies through one buffer
_CLIENT_S, _SERVER_S = 20, 120  # time without a byte after which the client or the server gives up
# Polls of a ring before a wait gives up; most polls are 50 µs or more apart.
_CLIENT_LOOKS, _SERVER_LOOKS = 2**18, 2**20
_STOP_S = 10.0
_LOOPBACK = "127.0.0.1"


class ForwardLink:
    """One end of the connection; `words` (int64, shape (LINK_WORDS,)) describe it to the compiled code.

    `transport` is `shm` (ring buffers in shared memory), `unix` or `tcp`. Both ranks must create it."""

    def __init__(self, bench: gb.Bench, transport: str) -> None:
        self.words = np.full(_wire.LINK_WORDS, -1, np.int64)
        self._socket: socket.socket | None = None
        self._rings: gb.SharedBuffer | None = None
        is_client = bench.rank == 0
        if transport == "shm":
            self._rings = bench.shared_memory(2 * (_wire.RING_HEAD_BYTES + _RING_BYTES))
            first = int(self._rings.array.ctypes.data)
            second = first + _wire.RING_HEAD_BYTES + _RING_BYTES
            places = (first, second) if is_client else (second, first)
            self.words[1:] = (*places, _RING_BYTES, _CLIENT_LOOKS if is_client else _SERVER_LOOKS)
            return
        self._socket = bench.sockets()[0] if transport == "unix" else _tcp_socket(bench)
        patience = struct.pack("ll", _CLIENT_S if is_client else _SERVER_S, 0)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, patience)
        self.words[0] = self._socket.fileno()

    def end(self) -> None:
        """End all waits on this link at once: shut the socket down, or send STOP through the ring to this end."""
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)
            return
        message = np.zeros(_wire.WORDS, np.int64)
        message[0] = _wire.STOP
        loopback = self.words.copy()
        loopback[1], loopback[2] = self.words[2], self.words[1]  # send to this end itself, because the client is gone
        _wire.write(loopback, message.ctypes.data, message.nbytes)

    def close(self) -> None:
        """Give the socket or the memory back."""
        if self._socket is not None:
            self._socket.close()
        if self._rings is not None:
            self._rings.close()


def _tcp_socket(bench: gb.Bench) -> socket.socket:
    """Return a connection between the ranks over the loopback device, with Nagle's algorithm off."""
    if bench.rank != 0:
        with socket.create_server((_LOOPBACK, 0)) as listener:
            listener.settimeout(_STOP_S)
            bench.exchange(listener.getsockname()[1])
            connection, _ = listener.accept()
    else:
        port = bench.exchange(None)[1]
        connection = socket.create_connection((_LOOPBACK, port), timeout=_STOP_S)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class ForwardServer:
    """A thread that makes the calls which arrive on `link` with `driver`, until the client stops it."""

    def __init__(self, bench: gb.Bench, driver: LocalDriver, link: ForwardLink) -> None:
        self._link, self._driver = link, driver
        self._buffer = bench.device.pinned(_BUFFER_BYTES)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self._driver.enter()
        _wire.serve(self._link.words, self._driver.table, self._driver.cells, self._buffer)

    def close(self) -> None:
        """Wait until the client has stopped the thread, and close the link.

        If the client has not done so within 10 s, the link's waits are ended."""
        self._thread.join(_STOP_S)
        if self._thread.is_alive():  # the client ended without sending STOP
            self._link.end()
            self._thread.join(_STOP_S)
        if self._thread.is_alive():
            raise gb.WrongAnswer(f"a forwarded call did not return within {_STOP_S} s")
        self._link.close()


class ForwardClient:
    """The end that sends calls and counts them; every answer carries the number of calls that the server made.

    A call is named by `op`, its number in `_wire`."""

    def __init__(self, link: ForwardLink) -> None:
        self._link = link
        self._sent = 0
        self._message, self.answer = (np.zeros(_wire.WORDS, np.int64) for _ in range(2))

    def _fill(self, op: int, *arguments: int) -> None:
        self._message[:] = 0
        self._message[0] = op
        self._message[2 : 2 + len(arguments)] = arguments

    def _expect(self, status: int, sent: int) -> None:
        """Raise WrongAnswer if the server is gone, the call failed, or the server has not counted the calls sent."""
        self._sent += sent
        gb.expect(status != _wire.LOST, "the forwarder's server is gone, or does not answer")
        gb.expect(status == 0, f"a forwarded call returned the error {status}")
        calls_made = int(self.answer[3])
        gb.expect(calls_made == self._sent, f"the server has made {calls_made} calls of {self._sent}")

    def request(self, op: int, *arguments: int) -> int:
        """Make the call `op` once with `arguments`, and return the value in its answer, such as an address."""
        self._fill(op, *arguments)
        self._expect(_wire.request(self._link.words, self._message, self.answer), 1)
        return int(self.answer[1])

    def repeat(self, count: int, is_posted: bool, op: int, *arguments: int) -> None:
        """Make the call number `op` of `_wire` `count` times with `arguments`.

        Each is answered, or only the last if `is_posted`. An allocation is freed before the next one."""
        if op == _wire.ALLOCATE:
            status = _wire.repeat_pairs(self._link.words, self._message, self.answer, count, arguments[0])
            self._expect(status, 2 * count)
            return
        self._fill(op, *arguments)
        self._expect(_wire.repeat(self._link.words, self._message, self.answer, count, is_posted), count)

    def move(self, op: int, address: int, host: Any) -> None:
        """Copy the bytes of `host` (NumPy, uint8) to the device's `address` (`op` is TO_DEVICE) or back (TO_HOST)."""
        self._fill(op, address)
        self._expect(_wire.move(self._link.words, self._message, self.answer, host), 1)

    def close(self) -> None:
        """Stop the server, without waiting for it, and close the link."""
        self._fill(_wire.STOP)
        _wire.write(self._link.words, self._message.ctypes.data, self._message.nbytes)
        self._link.close()


class NativeClient:
    """The same calls made in this process, with which forwarding is compared; raises WrongAnswer if a call fails."""

    def __init__(self, driver: LocalDriver) -> None:
        self._driver = driver
        self._message = np.zeros(_wire.WORDS, np.int64)

    def request(self, op: int, *arguments: int) -> int:
        """Make the call number `op` of `_wire` once with `arguments`, and return its value, such as an address.

        An allocation is not freed. Raises WrongAnswer if the call fails."""
        if op == _wire.ALLOCATE:
            self._expect(self._call(op, *arguments))
        else:
            self.repeat(1, False, op, *arguments)
        return int(self._driver.cells[2])

    def repeat(self, count: int, is_posted: bool, op: int, *arguments: int) -> None:
        """Make the call number `op` of `_wire` `count` times with `arguments`; `is_posted` is ignored.

        An allocation is freed before the next one. Raises WrongAnswer if a call fails."""
        del is_posted  # every call is made here, at once
        self._message[:] = 0
        self._message[0] = op
        self._message[2 : 2 + len(arguments)] = arguments
        self._expect(_wire.repeat_here(self._driver.table, self._driver.cells, self._message, count))

    def _call(self, op: int, *arguments: int) -> int:
        """Make the call `op` once with up to four arguments; return the driver's error code, 0 for success."""
        padded = (*arguments, 0, 0, 0, 0)[:4]
        return int(_wire.call(self._driver.table, op, *padded, self._driver.cells))

    @staticmethod
    def _expect(status: int) -> None:
        gb.expect(status == 0, f"a call of the driver returned the error {status}")

    def move(self, op: int, address: int, host: Any) -> None:
        """Copy the bytes of `host` (NumPy, uint8) to the device's `address` (`op` is TO_DEVICE) or back (TO_HOST)."""
        place = int(host.ctypes.data)
        pair = (address, place) if op == _wire.TO_DEVICE else (place, address)
        self._expect(self._call(op, *pair, host.size))

    def close(self) -> None:
        """Do nothing: no resource is held."""
