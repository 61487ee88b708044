"""Join the runs of several nodes to a group: over TCP, with a secret from their launcher.

The launcher sets the environment of each run (`Membership.from_environment`). Node 0 listens at the address of its
environment until the other nodes have joined, for a limited time. Each side proves that it has the secret without
sending it. A connection without that proof is dropped, and does not delay the others."""

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
JOIN_S = 60.0  # seconds until all nodes have joined: a cold driver takes long to find the devices of a node
MOST_NODES = 4096
_LEAST_SECRET = 16  # the fewest characters of a secret
_GREETING = b"gpubench nodes 1"
_RANK = struct.Struct(">I")
_PROOF_BYTES = 32
_HELLO_BYTES = len(_GREETING) + _RANK.size + NONCE_BYTES + _PROOF_BYTES
_VISIT_S = 5.0  # seconds for a visitor to prove that it is a node
_MOST_VISITORS = 64  # the most visitors at once; a further one replaces the oldest
_RETRY_S = 0.1
_TICK_S = 0.2


@dataclass(frozen=True, slots=True)
class Membership:
    """A node's place in its group: its number (`rank`), the number of nodes, node 0's address, and the secret."""

    rank: int
    size: int
    host: str
    port: int
    secret: bytes = field(repr=False)

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Membership | None:
        """Return the place in a group that the environment describes; None if it describes none, or a group of one.

        The secret is removed from `environment`, so that workers do not inherit it."""
        size = group_size(environment)
        secret = environment.pop(SECRET, "")
        if size == 1:
            return None
        if path := environment.get(SECRET_FILE):
            secret = _read_secret(Path(path))
        if len(secret) < _LEAST_SECRET:
            raise UsageError(f"the secret in {SECRET} or {SECRET_FILE} needs at least {_LEAST_SECRET} characters")
        host, _, port = environment.get(ADDRESS, "").rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise UsageError(f"{ADDRESS} must be the HOST:PORT of node 0, and is {environment.get(ADDRESS, '')!r}")
        rank = _whole_number(environment, RANK, 0, size - 1)
        return cls(rank, size, host.strip("[]"), int(port), secret.encode())


def group_size(environment: MutableMapping[str, str] = os.environ) -> int:
    """Return the number of nodes of the group that this run is to join, by GPUBENCH_NODES; 1 without a group.

    Raises UsageError if it is no whole number from 1 to 4096."""
    return _whole_number(environment, NODES, 1, MOST_NODES) if NODES in environment else 1


def _whole_number(environment: MutableMapping[str, str], name: str, least: int, most: int) -> int:
    text = environment.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and least <= int(text) <= most):
        raise UsageError(f"{name} must be a whole number from {least} to {most}, and is {text!r}")
    return int(text)


def _read_secret(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{SECRET_FILE}: {path} cannot be read: {error}") from error


def join(place: Membership, plan: bytes, patience_s: float = JOIN_S) -> dict[int, NodeChannel]:
    """Join the group at `place`, and return the channels of this node by the number of the other node.

    Every node must call it. Node 0 has a channel to every other node, and any other node has one to node 0."""
    deadline = time.monotonic() + patience_s
    channels = _accept_nodes(place, deadline) if place.rank == 0 else {0: _connect(place, deadline)}
    try:
        _compare_plans(channels, place, plan, deadline)
    except UsageError:
        for channel in channels.values():
            channel.close()
        raise
    return channels


def _compare_plans(channels: dict[int, NodeChannel], place: Membership, plan: bytes, deadline: float) -> None:
    """Compare the plans of all nodes at node 0, which reports the first difference to every node."""
    if place.rank:
        channels[0].send(plan)
        difference = _next_frame(channels[0], 0, deadline)
    else:
        plans = {node: _next_frame(channel, node, deadline) for node, channel in channels.items()}
        differing_nodes = [node for node in sorted(plans) if plans[node] != plan]
        difference = b""
        if differing_nodes:
            message = (
                f"node {differing_nodes[0]} plans {_excerpt(plans[differing_nodes[0]])}, node 0 plans {_excerpt(plan)}"
            )
            difference = message.encode()
        for channel in channels.values():
            channel.send(difference)
    if difference:
        advice = "start every node with the same version, arguments and kinds of devices"
        raise UsageError(f"{_excerpt(difference)}; {advice}")


def _excerpt(text: bytes) -> str:
    return text[:400].decode(errors="replace")


def _next_frame(channel: NodeChannel, node: int, deadline: float) -> bytes:
    """Wait for the next frame from the node with the number `node`, and return its content."""
    while wait([channel.fileno()], max(0.0, deadline - time.monotonic())):
        try:
            for content in channel.arrived():
                return content
        except (EOFError, OSError) as error:
            raise UsageError(f"node {node} left the group before the first case: {error or 'it ended'}") from error
    raise UsageError(f"node {node} joined and then sent nothing; check its output")


@dataclass(slots=True)
class _Visitor:
    """A connection that has not yet proved that it comes from a node.

    `nonce` is the random number that it was sent, `deadline` (monotonic seconds) is the end of its time, and
    `received` is what it has sent so far."""

    nonce: bytes
    deadline: float
    received: bytes = b""


def _accept_nodes(place: Membership, deadline: float) -> dict[int, NodeChannel]:
    """Listen on node 0 until all other nodes have joined, and return the channels by the number of the node."""
    channels: dict[int, NodeChannel] = {}
    visitors: dict[socket.socket, _Visitor] = {}
    refused = 0
    with _open_listener(place) as listener:
        while len(channels) < place.size - 1 and time.monotonic() < deadline:
            for ready in wait([listener, *visitors], _TICK_S):
                if ready is listener:
                    _accept_visitor(listener, visitors)
                elif isinstance(ready, socket.socket) and ready in visitors:
                    refused += _read_visitor(ready, visitors, place, channels)
            _drop_slow_visitors(visitors)
        for connection in visitors:
            connection.close()
    if len(channels) < place.size - 1:
        for channel in channels.values():
            channel.close()
        raise UsageError(_missing_message(place, channels, refused))
    return channels


def _missing_message(place: Membership, channels: dict[int, NodeChannel], refused: int) -> str:
    missing = [node for node in range(1, place.size) if node not in channels]
    nodes = f"{'nodes' if missing[1:] else 'node'} {', '.join(map(str, missing[:8]))}{', …' if missing[8:] else ''}"
    strangers = f"; {refused} visitors did not prove that they have the secret" if refused else ""
    return f"{nodes} did not join at {place.host}:{place.port} in time{strangers}"


def _open_listener(place: Membership) -> socket.socket:
    """Return the socket on which node 0 listens. Raises UsageError if the address is unknown or in use."""
    try:
        family = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((place.host, place.port), family=family, backlog=min(place.size, 1024))
    except OSError as error:
        raise UsageError(f"node 0 cannot listen at {place.host}:{place.port}: {error}") from error


def _accept_visitor(listener: socket.socket, visitors: dict[socket.socket, _Visitor]) -> None:
    """Accept a connection, send it the greeting with a random number, and add it to `visitors`."""
    try:
        connection, _ = listener.accept()
        connection.setblocking(False)
        visitor = _Visitor(secrets.token_bytes(NONCE_BYTES), time.monotonic() + _VISIT_S)
        connection.send(_GREETING + visitor.nonce)  # the buffer of a fresh connection holds it
    except OSError:  # the visitor has disconnected already
        return
    visitors[connection] = visitor
    while len(visitors) > _MOST_VISITORS:
        oldest = next(iter(visitors))
        oldest.close()
        del visitors[oldest]


def _read_visitor(
    connection: socket.socket,
    visitors: dict[socket.socket, _Visitor],
    place: Membership,
    channels: dict[int, NodeChannel],
) -> bool:
    """Read from a visitor, and return whether it was refused; if it proves that it is a node, add its channel."""
    visitor, member = visitors[connection], None
    with contextlib.suppress(OSError):  # the visitor may disconnect at any moment
        chunk = connection.recv(_HELLO_BYTES - len(visitor.received))
        visitor.received += chunk
        if chunk and visitor.received.startswith(_GREETING[: len(visitor.received)]):
            if len(visitor.received) < _HELLO_BYTES:
                return False
            member = _admit(connection, visitor, place, channels)
    del visitors[connection]
    if member is None:
        connection.close()
        return True
    channels[member[0]] = member[1]
    return False


def _drop_slow_visitors(visitors: dict[socket.socket, _Visitor]) -> None:
    now = time.monotonic()
    for connection in [late_connection for late_connection, visitor in visitors.items() if visitor.deadline < now]:
        connection.close()
        del visitors[connection]


def _admit(
    connection: socket.socket, visitor: _Visitor, place: Membership, members: dict[int, NodeChannel]
) -> tuple[int, NodeChannel] | None:
    """Return a visitor's node number and channel; None if it has another secret or its number is not free."""
    received = visitor.received[len(_GREETING) :]
    rank, nonce, proved = received[: _RANK.size], received[_RANK.size : -_PROOF_BYTES], received[-_PROOF_BYTES:]
    facts = (rank, visitor.nonce, nonce)
    if not compare_digest(proved, proof(place.secret, b"join", *facts)):
        return None
    (node,) = _RANK.unpack(rank)
    if not 0 < node < place.size or node in members:
        return None
    connection.setblocking(True)
    connection.sendall(proof(place.secret, b"welcome", *facts))
    return node, NodeChannel(connection, proof(place.secret, b"key", *facts), is_hub=True)


def _connect(place: Membership, deadline: float) -> NodeChannel:
    """Connect to node 0 as soon as it listens, and return the channel after both sides have proved themselves."""
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
        return _prove_membership(connection, place, max(left_s, _RETRY_S))
    except OSError as error:
        connection.close()
        raise UsageError(f"{where} refused this node: {error}") from error


def _prove_membership(connection: socket.socket, place: Membership, patience_s: float) -> NodeChannel:
    """Return the channel to node 0 after each side has proved to the other that it has the secret."""
    connection.settimeout(patience_s)
    greeting = _receive(connection, len(_GREETING) + NONCE_BYTES)
    if not greeting.startswith(_GREETING):
        raise ConnectionError("it is no run of this version of gpubench; start the same version on every node")
    rank, nonce = _RANK.pack(place.rank), secrets.token_bytes(NONCE_BYTES)
    facts = (rank, greeting[len(_GREETING) :], nonce)
    connection.sendall(_GREETING + rank + nonce + proof(place.secret, b"join", *facts))
    if not compare_digest(_receive(connection, _PROOF_BYTES), proof(place.secret, b"welcome", *facts)):
        raise ConnectionError("it has another secret")
    return NodeChannel(connection, proof(place.secret, b"key", *facts), is_hub=False)


def _receive(connection: socket.socket, count: int) -> bytes:
    """Return the next `count` bytes. Raises ConnectionAbortedError if the connection ends before they have arrived."""
    received = b""
    while len(received) < count:
        chunk = connection.recv(count - len(received))
        if not chunk:
            raise ConnectionAbortedError("it has another secret, or a node of this number already")
        received += chunk
    return received
