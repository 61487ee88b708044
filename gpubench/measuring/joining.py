"""How the runs of several nodes become a group: over TCP, with a secret from their launcher.

The launcher sets the environment of each run (`Membership.take`). Node 0 listens on the address that it was told, for
the number of the other nodes and for a limited time. Either side proves that it has the secret without sending it. A
stranger who connects is dropped, and holds up nobody meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from hmac import compare_digest
from multiprocessing.connection import wait
from pathlib import Path

from gpubench.base.errors import UsageError
from gpubench.measuring.node_channel import NONCE_BYTES, NodeChannel, proof

RANK, NODES = "GPUBENCH_NODE_RANK", "GPUBENCH_NODES"
ADDRESS = "GPUBENCH_NODE_ADDRESS"
SECRET, SECRET_FILE = "GPUBENCH_NODE_SECRET", "GPUBENCH_NODE_SECRET_FILE"
JOIN_S = 60.0  # until all nodes are there: a cold driver takes long to find the devices of one of them
MOST_NODES = 4096
_LEAST_SECRET = 16  # characters
_GREETING = b"gpubench nodes 1"
_RANK = struct.Struct(">I")
_PROOF_BYTES = 32
_HELLO_BYTES = len(_GREETING) + _RANK.size + NONCE_BYTES + _PROOF_BYTES
_VISIT_S = 5.0  # for a visitor to say who it is
_MOST_VISITORS = 64  # at once; of more, the oldest is dropped
_RETRY_S = 0.1
_TICK_S = 0.2


@dataclass(frozen=True, slots=True)
class Membership:
    """A node's place in its group: its number, the number of nodes, the address of node 0, and the secret of all."""

    rank: int
    size: int
    host: str
    port: int
    secret: bytes = field(repr=False)

    @classmethod
    def take(cls, environment: MutableMapping[str, str] = os.environ) -> Membership | None:
        """Return the place that the environment names, None if it names none; workers do not inherit the secret.

        Raises UsageError that says which variable is wrong.
        """
        size = size_of(environment)
        secret = environment.pop(SECRET, "")
        if size == 1:
            return None
        if path := environment.get(SECRET_FILE):
            secret = _content(Path(path))
        if len(secret) < _LEAST_SECRET:
            raise UsageError(f"the secret in {SECRET} or {SECRET_FILE} needs at least {_LEAST_SECRET} characters")
        host, _, port = environment.get(ADDRESS, "").rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise UsageError(f"{ADDRESS} must be the HOST:PORT of node 0, and is {environment.get(ADDRESS, '')!r}")
        rank = _whole(environment, RANK, 0, size - 1)
        return cls(rank, size, host.strip("[]"), int(port), secret.encode())


def size_of(environment: MutableMapping[str, str] = os.environ) -> int:
    """Return the number of nodes of the group that this run is to join: 1 without a group."""
    return _whole(environment, NODES, 1, MOST_NODES) if NODES in environment else 1


def _whole(environment: MutableMapping[str, str], name: str, least: int, most: int) -> int:
    text = environment.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and least <= int(text) <= most):
        raise UsageError(f"{name} must be a whole number from {least} to {most}, and is {text!r}")
    return int(text)


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{SECRET_FILE}: {path} cannot be read: {error}") from error


def join(place: Membership, plan: bytes, patience_s: float = JOIN_S) -> dict[int, NodeChannel]:
    """Return the connections of this node: of node 0 to each other node, of any other node to node 0.

    `plan` describes in a line what the node will measure. Raises UsageError where a node does not come within
    `patience_s`, has another secret, or plans something else.
    """
    deadline = time.monotonic() + patience_s
    channels = _welcome(place, deadline) if place.rank == 0 else {0: _visit(place, deadline)}
    try:
        _compare(channels, place, plan, deadline)
    except UsageError:
        for channel in channels.values():
            channel.close()
        raise
    return channels


def _compare(channels: dict[int, NodeChannel], place: Membership, plan: bytes, deadline: float) -> None:
    """Find out whether all nodes plan the same; node 0 compares, and tells all of the first difference."""
    if place.rank:
        channels[0].send(plan)
        difference = _frame(channels[0], 0, deadline)
    else:
        plans = {node: _frame(channel, node, deadline) for node, channel in channels.items()}
        others = [node for node in sorted(plans) if plans[node] != plan]
        difference = b""
        if others:
            words = f"node {others[0]} plans {_shown(plans[others[0]])}, node 0 plans {_shown(plan)}"
            difference = words.encode()
        for channel in channels.values():
            channel.send(difference)
    if difference:
        advice = "start every node with the same version, arguments and kinds of devices"
        raise UsageError(f"{_shown(difference)}; {advice}")


def _shown(text: bytes) -> str:
    return text[:400].decode(errors="replace")


def _frame(channel: NodeChannel, node: int, deadline: float) -> bytes:
    while wait([channel.fileno()], max(0.0, deadline - time.monotonic())):
        try:
            for content in channel.arrived():
                return content
        except (EOFError, OSError) as error:
            raise UsageError(f"node {node} left the group before the first case: {error or 'it ended'}") from error
    raise UsageError(f"node {node} joined, and then said nothing")


@dataclass(slots=True)
class _Visitor:
    """A connection that has not yet proved to be a node's."""

    nonce: bytes
    deadline: float
    said: bytes = b""


def _welcome(place: Membership, deadline: float) -> dict[int, NodeChannel]:
    """Listen until all other nodes have come, on node 0."""
    channels: dict[int, NodeChannel] = {}
    visitors: dict[socket.socket, _Visitor] = {}
    refused = 0
    with _listener(place) as listener:
        while len(channels) < place.size - 1 and time.monotonic() < deadline:
            for ready in wait([listener, *visitors], _TICK_S):
                if ready is listener:
                    _greet(listener, visitors)
                elif isinstance(ready, socket.socket) and ready in visitors:
                    refused += _is_refused(ready, visitors, place, channels)
            _drop_late(visitors)
        for connection in visitors:
            connection.close()
    if len(channels) < place.size - 1:
        for channel in channels.values():
            channel.close()
        raise UsageError(_lacking(place, channels, refused))
    return channels


def _lacking(place: Membership, channels: dict[int, NodeChannel], refused: int) -> str:
    missing = [node for node in range(1, place.size) if node not in channels]
    words = f"{'nodes' if missing[1:] else 'node'} {', '.join(map(str, missing[:8]))}{', …' if missing[8:] else ''}"
    strangers = f"; {refused} visitors did not prove that they have the secret" if refused else ""
    return f"{words} did not join at {place.host}:{place.port} in time{strangers}"


def _listener(place: Membership) -> socket.socket:
    try:
        family = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((place.host, place.port), family=family, backlog=min(place.size, 1024))
    except OSError as error:
        raise UsageError(f"node 0 cannot listen at {place.host}:{place.port}: {error}") from error


def _greet(listener: socket.socket, visitors: dict[socket.socket, _Visitor]) -> None:
    try:
        connection, _ = listener.accept()
        connection.setblocking(False)
        visitor = _Visitor(secrets.token_bytes(NONCE_BYTES), time.monotonic() + _VISIT_S)
        connection.send(_GREETING + visitor.nonce)  # the buffer of a fresh connection holds it
    except OSError:  # it left again
        return
    visitors[connection] = visitor
    while len(visitors) > _MOST_VISITORS:
        oldest = next(iter(visitors))
        oldest.close()
        del visitors[oldest]


def _is_refused(
    connection: socket.socket,
    visitors: dict[socket.socket, _Visitor],
    place: Membership,
    channels: dict[int, NodeChannel],
) -> bool:
    """Hear what a visitor says, which may make it a member; return whether it is sent away."""
    visitor, found = visitors[connection], None
    with contextlib.suppress(OSError):  # it may leave at any moment
        chunk = connection.recv(_HELLO_BYTES - len(visitor.said))
        visitor.said += chunk
        if chunk and visitor.said.startswith(_GREETING[: len(visitor.said)]):
            if len(visitor.said) < _HELLO_BYTES:
                return False
            found = _member(connection, visitor, place, channels)
    del visitors[connection]
    if found is None:
        connection.close()
        return True
    channels[found[0]] = found[1]
    return False


def _drop_late(visitors: dict[socket.socket, _Visitor]) -> None:
    now = time.monotonic()
    for connection in [each for each, visitor in visitors.items() if visitor.deadline < now]:
        connection.close()
        del visitors[connection]


def _member(
    connection: socket.socket, visitor: _Visitor, place: Membership, members: dict[int, NodeChannel]
) -> tuple[int, NodeChannel] | None:
    """Return a visitor's number and its channel, None if it has another secret or a number that is not free."""
    said = visitor.said[len(_GREETING) :]
    rank, nonce, proved = said[: _RANK.size], said[_RANK.size : -_PROOF_BYTES], said[-_PROOF_BYTES:]
    facts = (rank, visitor.nonce, nonce)
    if not compare_digest(proved, proof(place.secret, b"join", *facts)):
        return None
    (node,) = _RANK.unpack(rank)
    if not 0 < node < place.size or node in members:
        return None
    connection.setblocking(True)
    connection.sendall(proof(place.secret, b"welcome", *facts))
    return node, NodeChannel(connection, proof(place.secret, b"key", *facts), is_hub=True)


def _visit(place: Membership, deadline: float) -> NodeChannel:
    """Connect to node 0 as soon as it listens, and prove that this node has the secret."""
    where = f"node 0 at {place.host}:{place.port}"
    while True:
        left_s = deadline - time.monotonic()
        try:
            connection = socket.create_connection((place.host, place.port), max(left_s, _RETRY_S))
            break
        except OSError as error:
            if left_s <= 0:
                raise UsageError(f"{where} does not answer: {error}") from error
            time.sleep(_RETRY_S)
    try:
        return _introduced(connection, place, max(left_s, _RETRY_S))
    except OSError as error:
        connection.close()
        raise UsageError(f"{where} refused this node: {error}") from error


def _introduced(connection: socket.socket, place: Membership, patience_s: float) -> NodeChannel:
    connection.settimeout(patience_s)
    greeting = _exactly(connection, len(_GREETING) + NONCE_BYTES)
    if not greeting.startswith(_GREETING):
        raise ConnectionError("what answers there is no gpubench of this version")
    rank, nonce = _RANK.pack(place.rank), secrets.token_bytes(NONCE_BYTES)
    facts = (rank, greeting[len(_GREETING) :], nonce)
    connection.sendall(_GREETING + rank + nonce + proof(place.secret, b"join", *facts))
    if not compare_digest(_exactly(connection, _PROOF_BYTES), proof(place.secret, b"welcome", *facts)):
        raise ConnectionError("it has another secret")
    return NodeChannel(connection, proof(place.secret, b"key", *facts), is_hub=False)


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        chunk = connection.recv(count - len(found))
        if not chunk:
            raise ConnectionAbortedError("it has another secret, or a node of this number already")
        found += chunk
    return found
