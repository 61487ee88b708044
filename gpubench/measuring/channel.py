"""Exchange messages between gpubench's processes and nodes by one framing, and start child processes without orphans.

A frame is eight bytes of length, which is limited, and its content; between nodes, a proof of its sender follows. A
child runs the code of suites and vendors, so the parent trusts nothing that comes from it: it accepts only JSON of a
few classes, checked as strictly as a run file: pickle would execute what a damaged child sends. The reader takes
what has arrived and never waits for the rest of a frame. What the parent sends is pickled."""

import contextlib
import dataclasses
import functools
import hashlib
import hmac
import json
import math
import os
import pickle
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar, cast

from gpubench.base.streams import describe_status, last_line
from gpubench.measuring import keeper

M = TypeVar("M")
LIMIT_BYTES = 16 * 2**20  # the longest message from a child or a node: as long as a record of the run file
MOST_VALUES = 2**20  # the most values in a message: as Python objects they take about 100 bytes each
_READ_BYTES = 2**20
_SMALL_BYTES = 2**16  # up to this size the content is sent together with its header, so that the receiver wakes once
SEND_S = 30.0  # how long to wait for a child that does not read a message
_NODE_SEND_S = 5.0  # how long to wait for a node that does not read
_HEADER = struct.Struct(">Q")
_LENGTH = struct.Struct(">I")
PROOF_BYTES = hashlib.sha256().digest_size


class BadMessage(OSError):  # noqa: N818 - the message is bad
    """The received bytes are no message: too long, damaged or replayed, or with unknown or invalid content."""


class TooLarge(ValueError):  # noqa: N818 - the message is too large
    """A message is so large that its receiver would refuse it; the text gives the sizes."""


class FrameChannel:
    """One end of a connection that carries frames."""

    _proof_bytes = 0  # the bytes after the content of each frame

    def __init__(self, connection: socket.socket, limit_bytes: float, send_s: float | None = None) -> None:
        """Take over a connected socket; a frame from the other end may have up to `limit_bytes` bytes of content."""
        connection.settimeout(send_s)
        self._socket = connection
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._ended = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end; the other end then reads the end of the channel."""
        self._socket.close()

    def is_waiting(self) -> bool:
        """Return whether a message, or the end of the channel, has arrived and was not read."""
        return bool(self._buffer) or bool(wait([self._socket], 0.0))

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Wait up to `timeout_s` seconds and return whether a whole frame or the end of the channel has arrived."""
        deadline = time.monotonic() + timeout_s
        while not self._has_frame() and not self._ended:
            if not wait([self._socket], max(0.0, deadline - time.monotonic())):
                return False
            self._fill_buffer()
        return True

    def contents(self) -> Iterator[bytes]:
        """Read once what has arrived, without waiting, and yield the content of each whole frame in order.

        Then it raises EOFError at the end of the channel, or BadMessage if what follows is no frame."""
        if wait([self._socket], 0.0):
            self._fill_buffer()
        while self._has_frame():
            yield self._read()
        if self._ended:
            raise EOFError

    def _write(self, content: bytes, proof: bytes = b"") -> None:
        header = _HEADER.pack(len(content))
        parts = (header + content + proof,) if len(content) <= _SMALL_BYTES else (header, content, proof)
        for part in filter(None, parts):  # sending no bytes fails if the other end has read the frame and closed
            self._socket.sendall(part)

    def _read(self) -> bytes:
        while not self._has_frame():
            if self._ended:
                raise EOFError
            self._fill_buffer()
        end = _HEADER.size + int(_HEADER.unpack_from(self._buffer)[0])
        with memoryview(self._buffer) as frame:
            content, proof = bytes(frame[_HEADER.size : end]), bytes(frame[end : end + self._proof_bytes])
        del self._buffer[: end + self._proof_bytes]
        self._check(content, proof)
        return content

    def _check(self, content: bytes, proof: bytes) -> None:
        """Raise BadMessage if `proof` does not show that the other end sent this frame."""

    def _fill_buffer(self) -> None:
        try:
            received = self._socket.recv(_READ_BYTES)
        except ConnectionError:
            received = b""
        self._ended = not received
        self._buffer += received

    def _has_frame(self) -> bool:
        """Return whether a whole frame is in the buffer. Raises BadMessage if the next frame is longer than allowed."""
        if len(self._buffer) < _HEADER.size:
            return False
        length: int = _HEADER.unpack_from(self._buffer)[0]
        if length > self._limit_bytes:
            raise BadMessage(f"a message of {length} bytes, of which {self._limit_bytes} are allowed")
        return len(self._buffer) >= _HEADER.size + length + self._proof_bytes


class ToChild(FrameChannel, Generic[M]):
    """The parent's end of a channel, which does not trust the child; the child may only send messages of `classes`."""

    def __init__(self, descriptor: int, classes: tuple[type[M], ...]) -> None:
        super().__init__(socket.socket(fileno=descriptor), LIMIT_BYTES, SEND_S)
        self._classes = {message_class.__name__.encode(): message_class for message_class in classes}

    def send(self, message: object) -> None:
        """Send an object. Raises OSError if the child has ended, or does not read for half a minute."""
        self._write(pickle.dumps(message))

    def recv(self) -> M:
        """Wait for the next message and return it; call `poll` first, in order not to wait.

        Raises EOFError at the end of the channel and BadMessage if what arrived is not a message."""
        return decoded(self._read(), self._classes)

    def arrived(self) -> Iterator[M]:
        """Yield each message of `contents`, which raises EOFError or BadMessage after them."""
        for content in self.contents():
            yield decoded(content, self._classes)


class ToParent(FrameChannel):
    """The child's end of a channel, which trusts the parent."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(socket.socket(fileno=descriptor), math.inf)

    def send(self, message: object) -> None:
        self.send_encoded(encoded(message))

    def send_encoded(self, frame: bytes) -> None:
        """Send a frame that `encoded` returned."""
        self._write(frame)

    def recv(self) -> Any:
        """Return the next object from the parent. Raises EOFError if the parent has closed the channel."""
        return pickle.loads(self._read())  # noqa: S301 - from the process that started this one


class NodeChannel(FrameChannel):
    """One end of a connection to another node; `heard_at` is when it last read a frame, in monotonic seconds.

    After `seal`, each frame ends with an HMAC-SHA256 of its direction, its number, its length and its content, by a key
    of this connection alone: a frame that is replayed, sent back or altered is refused. Nothing is encrypted."""

    def __init__(self, connection: socket.socket, limit_bytes: int) -> None:
        """Take over a connected socket; until `seal`, a frame may have up to `limit_bytes` bytes of content."""
        super().__init__(connection, limit_bytes, _NODE_SEND_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._key = b""
        self._outgoing, self._incoming = b"", b""
        self._lock = threading.Lock()  # another thread sends the signs of life
        self._sent = self._received = 0
        self.heard_at = time.monotonic()

    def seal(self, key: bytes, *, is_hub: bool) -> None:
        """Prove and check each frame from now on with the key of this connection; `is_hub` marks the end at node 0."""
        self._key, self._limit_bytes, self._proof_bytes = key, LIMIT_BYTES, PROOF_BYTES
        self._outgoing, self._incoming = (b"hub", b"node") if is_hub else (b"node", b"hub")

    @property
    def host(self) -> str:
        """The address of this node by which the peer reaches it."""
        address: str = self._socket.getsockname()[0]
        return address

    def send(self, content: bytes) -> None:
        """Send a frame with this content, from any thread.

        If the peer has ended or does not read for 5 s, nothing is raised, but the connection is shut down."""
        with self._lock:
            mac = b""
            if self._key:
                mac = proof(self._key, self._outgoing, _HEADER.pack(self._sent), content)
                self._sent += 1
            try:
                self._write(content, mac)
            except OSError:  # part of a frame may have been sent, so that no frame can follow it
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def receive(self, deadline: float) -> bytes:
        """Wait until `deadline` (monotonic s) for the next frame, and return its content.

        Raises TimeoutError, EOFError at the end of the connection, and BadMessage for bytes that are no frame."""
        if not self.poll(deadline - time.monotonic()):
            raise TimeoutError("it sent nothing in time")
        return self._read()

    def _check(self, content: bytes, proof_bytes: bytes) -> None:
        if self._key:
            expected = proof(self._key, self._incoming, _HEADER.pack(self._received), content)
            if not hmac.compare_digest(proof_bytes, expected):
                raise BadMessage("a frame that is not the other node's next one")
            self._received += 1
        self.heard_at = time.monotonic()


def proof(secret: bytes, *parts: bytes) -> bytes:
    """Return the HMAC-SHA256 of the parts with the key `secret`, 32 bytes.

    Each part is preceded by its length, so that no two lists of parts give the same input."""
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(_LENGTH.pack(len(part)) + part)
    return mac.digest()


def encoded(message: object) -> bytes:
    """Return the content of a frame for a message from a child or a node."""
    name = type(message).__name__.encode() + b"\n"
    if isinstance(message, bytes):
        frame = name + message
    else:
        text = json.dumps(message, default=_json_fields, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        frame = name + text.encode(errors="replace")  # half a surrogate pair becomes `?`
        if (count := frame.count(b",")) > MOST_VALUES:
            raise TooLarge(f"{count} values, of which {MOST_VALUES} are allowed")
    if len(frame) > LIMIT_BYTES:
        raise TooLarge(f"{len(frame) / 2**20:.1f} MiB, of which {LIMIT_BYTES >> 20} are allowed")
    return frame


def _json_fields(value: object) -> Any:
    if isinstance(value, frozenset):
        return list(value)
    if isinstance(value, Enum) or not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"a message holds no {type(value).__name__}")
    return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}


def decoded(frame: bytes, classes: Mapping[bytes, type[M]]) -> M:
    """Return the message in a frame, which begins with the name of one of `classes` and a line break."""
    from pydantic import ValidationError  # children never decode, and start faster without it

    name, _, content = frame.partition(b"\n")
    message_class = classes.get(name)
    if message_class is None:
        raise BadMessage(f"bytes that are no message: {name[:40]!r}")
    if issubclass(message_class, bytes):
        return cast(M, message_class(content))
    if (count := content.count(b",")) > MOST_VALUES:
        raise BadMessage(f"a message of {count} values, of which {MOST_VALUES} are allowed")
    try:
        return cast(M, _validator(cast(type, message_class))(content))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:80]
        raise BadMessage(f"a {name.decode()} that is malformed: {where}: {first['msg'][:120]}") from error


@functools.cache
def _validator(message_class: type) -> Callable[[bytes], object]:
    from pydantic import TypeAdapter

    adapter: TypeAdapter[object] = TypeAdapter(message_class)
    return adapter.validate_json


_TAIL = 8192  # bytes of a child's output that are kept to explain its end
_CHUNK_BYTES, _CHUNKS = 65536, 16  # bytes per read, and reads at a time: endless output must not delay the parent
_GRACE_S = 3.0  # the keeper needs over a second for a process that a driver releases slowly


class Child(Generic[M]):
    """A Python process that runs `main` of a module under a keeper; killing it ends everything that it ever started.

    `channel` is the parent's end of the channel, and `output` the descriptor from which `drain` reads, -1 once it is
    closed."""

    def __init__(self, module: str, classes: tuple[type[M], ...], environment: Mapping[str, str] | None = None) -> None:
        """Start a process that runs `main` of `module`, with the descriptor of its channel as `sys.argv[1]`."""
        own_end, child_end = socket.socketpair()
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self.output = reading
        self.channel = ToChild(own_end.detach(), classes)
        self._tail = b""
        self._mark = secrets.token_hex(8)
        program = f"from gpubench.measuring.keeper import keep; keep({child_end.fileno()})\n"
        program += f"from {module} import main; main()"
        with child_end:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", program, str(child_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                pass_fds=(child_end.fileno(),),
                start_new_session=True,
                env={**os.environ, **(environment or {}), keeper.RUNNER: str(os.getpid()), keeper.CHILD: self._mark},
            )
        os.close(writing)

    def drain(self) -> None:
        """Read without waiting what the child has printed, so that a full pipe never blocks it.

        The pipe is closed at its end."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_CHUNKS):
                if self.output < 0:
                    return
                chunk = os.read(self.output, _CHUNK_BYTES)
                self._tail = (self._tail + chunk)[-_TAIL:]
                if not chunk:  # the process has closed its output, and may still run
                    os.close(self.output)
                    self.output = -1

    @property
    def last_line(self) -> str:
        """Return the last line that the child printed on standard output or error, or an empty text."""
        self.drain()
        return last_line(self._tail)

    def describe_end(self) -> str:
        """Wait for the child's end; return how it ended (`killed by SIGKILL`, `exit status 3`), with its last line.

        A child that still runs after 3 s is ended, and the text then says that it had closed its channel."""
        still_runs = not self._ends_within(_GRACE_S)
        if still_runs:
            self._end()
        status = self.process.poll()
        if status is None:
            return "it does not end, not even by SIGKILL: the driver holds it"
        outcome = "it closed its channel but did not end" if still_runs else describe_status(status)
        return f"{outcome}; last line: {self.last_line}" if self.last_line else outcome

    def kill(self) -> None:
        """End the child and everything that it started, reap it, and close its channel and its output."""
        self._end()
        self.channel.close()
        self.drain()
        if self.output >= 0:
            os.close(self.output)
            self.output = -1

    def stop(self) -> None:
        """Ask the child to end by closing the channel, and kill it if it does not."""
        self.channel.close()
        self._ends_within(_GRACE_S)
        self.kill()

    def _end(self) -> None:
        """End the keeper and all processes below it; if the keeper was killed or does not react, end them from here."""
        if self.process.poll() is None:
            self.process.terminate()
        elif self.process.returncode == -signal.SIGKILL:
            keeper.end_marked(self._mark)
            return
        if self._ends_within(_GRACE_S):
            return
        keeper.end_descendants(self.process.pid)
        self.process.kill()
        self._ends_within(_GRACE_S)  # if a driver holds it for ever, it is left behind

    def _ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.poll() is not None


def to_parent(argument: str) -> ToParent:
    """Return the child's channel to its parent; `argument` is the number of its descriptor, from the command line.

    Programs that the child starts then do not inherit the channel, and SIGINT no longer ends the child."""
    descriptor = int(argument)
    os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return ToParent(descriptor)
