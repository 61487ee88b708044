"""Send frames between the runners of two nodes over TCP: limited in length, and each proved to come from the peer.

A frame is its length, its content, and an HMAC-SHA256 over the direction, the frame's number, its length and its
content. The key of a connection is derived from the launcher's secret and a random number of each side, so that a frame
of another connection, of the other direction, or replayed is refused. The content is not encrypted: it holds decisions
of the measurement and addresses, and no secret."""

import contextlib
import hashlib
import hmac
import socket
import struct
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import wait

NONCE_BYTES = 32
LIMIT_BYTES = 16 * 2**20  # the most bytes of the content of a frame
MAC_BYTES = hashlib.sha256().digest_size
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_READ_BYTES = 2**18
_SEND_S = 5.0  # seconds to wait for a peer that does not read


class BadFrame(OSError):  # noqa: N818 - the frame is bad
    """The bytes are no frame of the peer: too long, damaged, replayed, or from a sender without the secret."""


def proof(secret: bytes, *parts: bytes) -> bytes:
    """Return the HMAC-SHA256 of the parts with the key `secret`, 32 bytes.

    Each part is preceded by its length, so that no two lists of parts give the same input."""
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(_LENGTH.pack(len(part)) + part)
    return mac.digest()


class NodeChannel:
    """One end of a connection to another node. `heard_at` is when it last received a frame, in monotonic seconds."""

    def __init__(self, connection: socket.socket, key: bytes, *, is_hub: bool) -> None:
        """Take over a connected socket; `key` belongs to this connection only, and `is_hub` marks the end at node 0."""
        connection.settimeout(_SEND_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._key = key
        self._outgoing, self._incoming = (b"hub", b"node") if is_hub else (b"node", b"hub")
        self._lock = threading.Lock()  # another thread sends the signs of life
        self._sent = self._received = 0
        self._buffer = bytearray()
        self.heard_at = time.monotonic()

    def fileno(self) -> int:
        """Return the file descriptor to wait for."""
        return self._socket.fileno()

    @property
    def host(self) -> str:
        """Return the address of this node by which the peer reaches it."""
        address: str = self._socket.getsockname()[0]
        return address

    def send(self, content: bytes) -> None:
        """Send a frame with this content, from any thread.

        If the peer has ended or does not read for 5 s, nothing is raised, but the connection is shut down, so that
        the next `arrived` raises EOFError."""
        with self._lock:
            mac = self._mac(self._outgoing, self._sent, content)
            self._sent += 1
            try:
                self._socket.sendall(_LENGTH.pack(len(content)) + content + mac)
            except OSError:  # part of a frame may have been sent, so that no frame can follow it
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def arrived(self) -> Iterator[bytes]:
        """Read what has arrived, without waiting, and yield the content of each whole frame in order.

        Raises EOFError at the end of the connection and BadFrame if a frame is not the peer's next one."""
        ended = False
        while not ended and wait([self._socket], 0.0):
            try:
                chunk = self._socket.recv(_READ_BYTES)
            except ConnectionError:
                chunk = b""
            ended = not chunk
            self._buffer += chunk
            yield from self._whole_frames()
        if ended:
            raise EOFError

    def _whole_frames(self) -> Iterator[bytes]:
        """Yield the content of each whole frame in the buffer, and remove it from there."""
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > LIMIT_BYTES:
                raise BadFrame(f"a frame of {length} bytes, of which {LIMIT_BYTES} are allowed")
            end = _LENGTH.size + length
            if len(self._buffer) < end + MAC_BYTES:
                return
            content, mac = bytes(self._buffer[_LENGTH.size : end]), bytes(self._buffer[end : end + MAC_BYTES])
            del self._buffer[: end + MAC_BYTES]
            if not hmac.compare_digest(mac, self._mac(self._incoming, self._received, content)):
                raise BadFrame("a frame that is not the other node's next one")
            self._received += 1
            self.heard_at = time.monotonic()
            yield content

    def _mac(self, direction: bytes, number: int, content: bytes) -> bytes:
        return proof(self._key, direction, _NUMBER.pack(number), content)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
