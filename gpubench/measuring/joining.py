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
from typing import Any, NamedTuple

from gpubench.base.errors import UsageError
from gpubench.measuring.channel import PROOF_BYTES, BadMessage, NodeChannel, proof

RANK, NODES = "GPUBENCH_NODE_RANK", "GPUBENCH_NODES"
ADDRESS = "GPUBENCH_NODE_ADDRESS"
SECRET, SECRET_FILE = "GPUBENCH_NODE_SECRET", "GPUBENCH_NODE_SECRET_FILE"
JOIN_S = 60.0  # seconds until all nodes have joined: a cold driver takes long to find the devices of a node
MOST_NODES = 4096
_LEAST_SECRET = 16  # the fewest characters of a secret
_GREETING = b"gpubench nodes 2"
_NONCE_BYTES = 32
_HELLO = struct.Struct(f">{len(_GREETING)}s4s{_NONCE_BYTES}s{PROOF_BYTES}s")  # greeting, rank, random number, proof
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
            try:
                secret = Path(path).read_text(encoding="ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"{SECRET_FILE}: {path} cannot be read: {error}") from error
        if len(secret) < _LEAST_SECRET:
            raise UsageError(f"the secret in {SECRET} or {SECRET_FILE} needs at least {_LEAST_SECRET} characters")
        host, _, port = environment.get(ADDRESS, "").rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise UsageError(f"{ADDRESS} must be the HOST:PORT of node 0, and is {environment.get(ADDRESS, '')!r}")
        rank = _whole_number(environment, RANK, 0, size - 1)
        return cls(rank, size, host.strip("[]"), int(port), secret.encode())


def group_size(environment: MutableMapping[str, str] = os.environ) -> int:
    """Return the number of nodes of the group that this run is to join, by GPUBENCH_NODES; 1 without a group."""
    return _whole_number(environment, NODES, 1, MOST_NODES) if NODES in environment else 1


def _whole_number(environment: MutableMapping[str, str], name: str, least: int, most: int) -> int:
    text = environment.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and least <= int(text) <= most):
        raise UsageError(f"{name} must be a whole number from {least} to {most}, and is {text!r}")
    return int(text)


def join(place: Membership, plan: bytes, patience_s: float = JOIN_S) -> dict[int, NodeChannel]:
    """Join the group at `place`, and return the channels of this node by the number of the other node."""
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
        difference = _next_content(channels[0], 0, deadline)
    else:
        plans = {node: _next_content(channel, node, deadline) for node, channel in channels.items()}
        node = min((node for node in plans if plans[node] != plan), default=0)
        difference = f"node {node} plans {_text(plans[node])}, node 0 plans {_text(plan)}".encode() if node else b""
        for channel in channels.values():
            channel.send(difference)
    if difference:
        advice = "start every node with the same version, arguments and kinds of devices"
        raise UsageError(f"{_text(difference)}; {advice}")


def _text(content: bytes) -> str:
    return content[:400].decode(errors="replace")


def _next_content(channel: NodeChannel, node: int, deadline: float) -> bytes:
    try:
        return channel.receive(deadline)
    except TimeoutError as error:
        raise UsageError(f"node {node} joined and then sent nothing; check its output") from error
    except (EOFError, OSError) as error:
        raise UsageError(f"node {node} left the group before the first case: {error or 'it ended'}") from error


class _Visitor(NamedTuple):
    """A connection that is no node yet must use the random number in its proof, before its time ends (monotonic s)."""

    nonce: bytes
    deadline: float


def _accept_nodes(place: Membership, deadline: float) -> dict[int, NodeChannel]:
    """Listen on node 0 until all other nodes have joined, and return the channels by the number of the node."""
    channels: dict[int, NodeChannel] = {}
    visitors: dict[NodeChannel, _Visitor] = {}
    refused = 0
    with _open_listener(place) as listener:
        while len(channels) < place.size - 1 and time.monotonic() < deadline:
            sources: list[Any] = [listener, *visitors]
            for ready in wait(sources, _TICK_S):
                if ready is listener:
                    with contextlib.suppress(OSError):  # the visitor may have disconnected already
                        visitor = _Visitor(secrets.token_bytes(_NONCE_BYTES), time.monotonic() + _VISIT_S)
                        channel = NodeChannel(listener.accept()[0], _HELLO.size)
                        channel.send(_GREETING + visitor.nonce)  # the buffer of a fresh connection holds it
                        visitors[channel] = visitor
                elif isinstance(ready, NodeChannel) and ready in visitors:
                    refused += _read_visitor(ready, visitors, place, channels)
            now, surplus = time.monotonic(), len(visitors) - _MOST_VISITORS
            for index, (channel, visitor) in enumerate(list(visitors.items())):
                if visitor.deadline < now or index < surplus:  # the oldest come first
                    channel.close()
                    del visitors[channel]
        for channel in visitors:
            channel.close()
    if missing := [str(node) for node in range(1, place.size) if node not in channels]:
        for channel in channels.values():
            channel.close()
        nodes = f"{'nodes' if missing[1:] else 'node'} {', '.join(missing[:8])}{', …' if missing[8:] else ''}"
        strangers = f"; {refused} visitors did not prove that they have the secret" if refused else ""
        raise UsageError(f"{nodes} did not join at {place.host}:{place.port} in time{strangers}")
    return channels


def _open_listener(place: Membership) -> socket.socket:
    try:
        family = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((place.host, place.port), family=family, backlog=min(place.size, 1024))
    except OSError as error:
        raise UsageError(f"node 0 cannot listen at {place.host}:{place.port}: {error}") from error


def _read_visitor(
    channel: NodeChannel, visitors: dict[NodeChannel, _Visitor], place: Membership, channels: dict[int, NodeChannel]
) -> bool:
    """Read from a visitor, and return whether it was refused; add its channel if it proves to be a new node."""
    with contextlib.suppress(EOFError, OSError):
        hello = next(channel.contents(), None)
        if hello is None:
            return False
        greeting, rank, nonce, proved = _HELLO.unpack(hello.ljust(_HELLO.size))
        node, facts = int.from_bytes(rank, "big"), (rank, visitors[channel].nonce, nonce)
        is_free = greeting == _GREETING and 0 < node < place.size and node not in channels
        if compare_digest(proved, proof(place.secret, b"join", *facts)) and is_free:
            channel.send(proof(place.secret, b"welcome", *facts))
            channel.seal(proof(place.secret, b"key", *facts), is_hub=True)
            channels[node] = channel
            del visitors[channel]
            return False
    del visitors[channel]
    channel.close()
    return True


def _connect(place: Membership, deadline: float) -> NodeChannel:
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
    channel = NodeChannel(connection, _HELLO.size)
    try:
        _prove_membership(channel, place, max(deadline, time.monotonic() + _RETRY_S))
    except (EOFError, OSError) as error:
        channel.close()
        reason = str(error) or "it has another secret, or a node of this number already"
        raise UsageError(f"{where} refused this node: {reason}") from error
    return channel


def _prove_membership(channel: NodeChannel, place: Membership, deadline: float) -> None:
    """Prove to node 0 that this node has the secret, check the same of node 0, and seal the channel."""
    greeting = b""
    with contextlib.suppress(BadMessage):
        greeting = channel.receive(deadline)
    if not greeting.startswith(_GREETING):
        raise ConnectionError("it is no run of this version of gpubench; start the same version on every node")
    rank, nonce = place.rank.to_bytes(4, "big"), secrets.token_bytes(_NONCE_BYTES)
    facts = (rank, greeting[len(_GREETING) :], nonce)
    channel.send(_HELLO.pack(_GREETING, rank, nonce, proof(place.secret, b"join", *facts)))
    if not compare_digest(channel.receive(deadline), proof(place.secret, b"welcome", *facts)):
        raise ConnectionError("it has another secret")
    channel.seal(proof(place.secret, b"key", *facts), is_hub=False)
