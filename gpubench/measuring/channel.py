"""Exchange messages between gpubench and its child processes, as frames of limited length over a socket.

A child runs the code of suites and vendors, so the parent trusts nothing that comes from it. What a child sends is JSON
of a few classes, checked strictly like a run file: pickle would execute what a damaged child sends, and a pickle of
some bytes can ask for any amount of memory. The parent reads what has arrived and never waits for the rest of a frame.
What the parent sends is pickled, because a child has every reason to trust it."""

import dataclasses
import functools
import json
import math
import pickle
import socket
import struct
import time
from collections.abc import Callable, Iterator
from enum import Enum
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar, cast

M = TypeVar("M")
LIMIT_BYTES = 16 * 2**20  # the longest message from a child: as long as a record of the run file
MOST_VALUES = 2**20  # the most values in a message from a child: as Python objects they take about 100 bytes each
_READ_BYTES = 2**20
_SMALL_BYTES = 2**16  # up to this size the content is sent together with its header, so that the receiver wakes once
SEND_S = 30.0  # how long to wait for a child that does not read a message
_HEADER = struct.Struct(">Q")


class BadMessage(OSError):  # noqa: N818 - the message is bad
    """What a child sent is not a message: it is too long, is damaged, or has unknown or invalid content."""


class TooLarge(ValueError):  # noqa: N818 - the message is too large
    """A message is so large that its receiver would refuse it; the text gives the sizes."""


class FrameChannel:
    """One end of a socket that carries frames: eight bytes of length, then the content."""

    def __init__(self, descriptor: int, limit_bytes: float) -> None:
        """Take over the socket `descriptor`; a frame from the other end may have up to `limit_bytes` bytes."""
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(True)
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._ended = False

    def fileno(self) -> int:
        """Return the file descriptor to wait for."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end; the other end then reads the end of the channel."""
        self._socket.close()

    def is_waiting(self) -> bool:
        """Return whether a message, or the end of the channel, has arrived and was not read."""
        return bool(self._buffer) or bool(wait([self._socket], 0.0))

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Wait up to `timeout_s` seconds and return whether a whole frame or the end of the channel has arrived.

        Raises BadMessage if the frame is longer than allowed."""
        deadline = time.monotonic() + timeout_s
        while not self._is_readable():
            left_s = deadline - time.monotonic()
            if not wait([self._socket], max(0.0, left_s)):
                return False
            self._fill_buffer()
        return True

    def _write(self, content: bytes) -> None:
        """Send a frame with this content; wait while the other end does not read."""
        header = _HEADER.pack(len(content))
        if len(content) <= _SMALL_BYTES:
            self._socket.sendall(header + content)
        else:
            self._socket.sendall(header)
            self._socket.sendall(content)

    def _read(self) -> bytes:
        """Wait for the next frame, remove it from the buffer, and return its content."""
        while not self._is_readable():
            self._fill_buffer()
        if not self._has_frame():
            raise EOFError
        end = _HEADER.size + self._length()
        frame = bytes(memoryview(self._buffer)[_HEADER.size : end])
        del self._buffer[:end]
        return frame

    def _fill_buffer(self) -> None:
        """Append what has arrived at the socket to the buffer; wait if nothing has. Note the end of the channel."""
        try:
            received = self._socket.recv(_READ_BYTES)
        except ConnectionError:
            received = b""
        self._ended = not received
        self._buffer += received

    def _length(self) -> int:
        length: int = _HEADER.unpack_from(self._buffer)[0]
        return length

    def _has_frame(self) -> bool:
        """Return whether a whole frame is in the buffer. Raises BadMessage if the next frame is longer than allowed."""
        if len(self._buffer) < _HEADER.size:
            return False
        if self._length() > self._limit_bytes:
            raise BadMessage(f"a message of {self._length()} bytes, of which {self._limit_bytes} are allowed")
        return len(self._buffer) >= _HEADER.size + self._length()

    def _is_readable(self) -> bool:
        return self._has_frame() or self._ended


class ToChild(FrameChannel, Generic[M]):
    """The parent's end of a channel, which does not trust the child; the child may only send messages of `classes`."""

    def __init__(self, descriptor: int, classes: tuple[type[M], ...]) -> None:
        super().__init__(descriptor, LIMIT_BYTES)
        self._socket.settimeout(SEND_S)
        self._classes = {message_class.__name__.encode(): message_class for message_class in classes}

    def send(self, message: object) -> None:
        """Send an object. Raises OSError if the child has ended, or does not read for half a minute."""
        self._write(pickle.dumps(message))

    def recv(self) -> M:
        """Wait for the next message and return it; call `poll` first, in order not to wait.

        Raises EOFError at the end of the channel and BadMessage if what arrived is not a message."""
        return self._decode(self._read())

    def arrived(self) -> Iterator[M]:
        """Read once what has arrived, without waiting, and yield each complete message in order.

        After the complete messages it raises EOFError at the end of the channel, or BadMessage if what follows is
        not a message."""
        if wait([self._socket], 0.0):
            self._fill_buffer()
        while self._has_frame():
            yield self.recv()
        if self._ended:
            raise EOFError

    def _decode(self, frame: bytes) -> M:
        """Return the message in a frame, which begins with the name of its class and a line break."""
        name, _, content = frame.partition(b"\n")
        message_class = self._classes.get(name)
        if message_class is None:
            raise BadMessage(f"bytes that are no message: {name[:40]!r}")
        if issubclass(message_class, bytes):
            return cast(M, message_class(content))
        if (count := content.count(b",")) > MOST_VALUES:
            raise BadMessage(f"a message of {count} values, of which {MOST_VALUES} are allowed")
        return cast(M, _parse_message(message_class, content))


class ToParent(FrameChannel):
    """The child's end of a channel, which trusts the parent."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, math.inf)

    def send(self, message: object) -> None:
        self.send_encoded(encoded(message))

    def send_encoded(self, frame: bytes) -> None:
        """Send a frame that `encoded` returned."""
        self._write(frame)

    def recv(self) -> Any:
        """Return the next object from the parent. Raises EOFError if the parent has closed the channel."""
        return pickle.loads(self._read())  # noqa: S301 - from the process that started this one


def encoded(message: object) -> bytes:
    """Return the content of a frame for a message from a child.

    Half a surrogate pair becomes `?`."""
    name = type(message).__name__.encode() + b"\n"
    if isinstance(message, bytes):
        frame = name + message
    else:
        text = json.dumps(message, default=_json_fields, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        frame = name + text.encode(errors="replace")
        if (count := frame.count(b",")) > MOST_VALUES:
            raise TooLarge(f"{count} values, of which {MOST_VALUES} are allowed")
    if len(frame) > LIMIT_BYTES:
        raise TooLarge(f"{len(frame) / 2**20:.1f} MiB, of which {LIMIT_BYTES >> 20} are allowed")
    return frame


def _json_fields(value: object) -> Any:
    """Return the fields of a dataclass as a dict by name, or the items of a frozenset as a list, for JSON."""
    if isinstance(value, frozenset):
        return list(value)
    if isinstance(value, Enum) or not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"a message holds no {type(value).__name__}")
    return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}


def _parse_message(message_class: type, content: bytes) -> object:
    """Return the message of the given class that `content`, its fields as JSON, holds."""
    from pydantic import ValidationError  # children never decode, and start faster without it

    try:
        return _validator(message_class)(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:80]
        raise BadMessage(f"a {message_class.__name__} that is malformed: {where}: {first['msg'][:120]}") from error


@functools.cache
def _validator(message_class: type) -> Callable[[bytes], object]:
    from pydantic import TypeAdapter

    adapter: TypeAdapter[object] = TypeAdapter(message_class)
    return adapter.validate_json
