"""Join the runs of several nodes to a group over TCP, and exchange values in rounds between the ranks of one case.

The launcher sets the environment of each run (`Membership.from_environment`). Node 0 listens at the address of its
environment until the other nodes have joined, for a limited time. Each side proves that it has the secret without
sending it. A connection without that proof is dropped, and does not delay the others.

In a round each rank offers one value, or its result if it has ended. A node contributes the values and results of its
ranks once it has one of each. Node 0 merges the contributions of all nodes and sends the merged round to each of them,
so that all ranks see the same values and results in the same round. The ranks of a node that left the group count as
crashed."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from multiprocessing.connection import wait
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pydantic
from annotated_types import MaxLen

from gpubench.base.errors import UsageError
from gpubench.measuring import plain
from gpubench.measuring.channel import PROOF_BYTES, BadMessage, NodeChannel, decoded, encoded, proof
from gpubench.measuring.worker import RankResult
from gpubench.model import Strict

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
        return socket.create_server((place.host, place.port), family=family, backlog=1024)
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


SILENT_S = 4.0  # seconds of silence after which a node counts as gone: it sends a sign of life every second
EXCHANGE_S = 900.0  # seconds for all nodes to contribute to a round: only slow nodes take much longer than others
_BEAT_S = 1.0
_MOST_RANKS = 2**13


@dataclass(frozen=True, slots=True)
class ExchangeRound(Strict):
    """A node's contribution to a round of a case, or the merged contributions of all nodes."""

    case: int
    number: int
    offers: Annotated[
        tuple[tuple[int, Annotated[str, pydantic.StringConstraints(max_length=plain.MOST_BYTES)]], ...],
        MaxLen(_MOST_RANKS),
    ] = ()
    ended: Annotated[tuple[tuple[int, RankResult], ...], MaxLen(_MOST_RANKS)] = ()

    @property
    def moment(self) -> tuple[int, int]:
        return self.case, self.number


_ROUND = {ExchangeRound.__name__.encode(): ExchangeRound}


class NodeGroup:
    """The connections of this node to the others; a thread sends each of them an empty frame every second."""

    def __init__(self, rank: int, size: int, channels: Mapping[int, NodeChannel], silent_s: float = SILENT_S) -> None:
        self.rank, self.size = rank, size
        self.host = next(iter(channels.values())).host  # the address by which the others reach this node
        self.gone: dict[int, str] = {}  # node that left the group → the reason
        self._channels = dict(channels)
        self._silent_s = silent_s
        self._contributions: dict[int, ExchangeRound] = {}  # node → its newest contribution
        self._merged: ExchangeRound | None = None  # the newest round that node 0 has sent
        self._cases = 0
        self._stop = threading.Event()
        self._beats = threading.Thread(target=self._send_beats, daemon=True)
        self._beats.start()

    def __enter__(self) -> NodeGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._beats.join()
        for channel in self._channels.values():
            channel.close()

    @property
    def descriptors(self) -> list[int]:
        """The file descriptors to wait for."""
        return [channel.fileno() for channel in self._channels.values()]

    def begin(self, ranks_per_node: int) -> MultiNodeCase:
        self._cases += 1
        for channel in self._channels.values():  # this node reads nothing between two cases
            channel.heard_at = time.monotonic()
        return MultiNodeCase(self, self._cases, ranks_per_node)

    def contribute(self, share: ExchangeRound) -> None:
        """Store this node's contribution to a round, and send it to node 0 unless this is node 0 or node 0 is gone."""
        self._contributions[self.rank] = share
        if self.rank and 0 not in self.gone:
            self._channels[0].send(encoded(share))

    def merged_round(
        self, contribution: ExchangeRound, lost_ranks: Mapping[int, RankResult], ranks_per_node: int
    ) -> ExchangeRound | None:
        """Return the merged round to which this node gave `contribution`, once; None until all nodes have contributed.

        On node 0 it is merged here and sent to the other nodes; without node 0 a node only merges its own."""
        if self.rank and 0 not in self.gone:
            received, self._merged = self._merged, None
            if received is not None and received.moment != contribution.moment:
                self._drop_node(0, "sent an answer to another round")
                return None
            return received
        contributions = {
            node: share
            for node, share in self._contributions.items()
            if node not in self.gone and share.moment == contribution.moment
        }
        if len(contributions) < self.size - len(self.gone):
            return None
        for node, share in contributions.items():
            own_ranks = range(node * ranks_per_node, (node + 1) * ranks_per_node)
            if any(rank not in own_ranks for rank, _ in (*share.offers, *share.ended)):
                self._drop_node(node, "sent results for ranks of another node")
                return None
        shares = [contributions[node] for node in sorted(contributions)]
        merged = replace(
            contribution,
            offers=tuple(offer for share in shares for offer in share.offers),
            ended=(*(end for share in shares for end in share.ended), *lost_ranks.items()),
        )
        for channel in self._channels.values():
            channel.send(encoded(merged))
        return merged

    def listen(self) -> None:
        """Read what has arrived, without waiting, and drop the nodes that ended, were silent or sent bad frames."""
        for node, channel in list(self._channels.items()):
            try:
                for content in filter(None, channel.contents()):
                    self._store(node, decoded(content, _ROUND))
            except EOFError:
                self._drop_node(node, "has ended, or its connection broke")
            except (OSError, ValueError) as error:
                self._drop_node(node, f"sent {error}")
            else:
                if time.monotonic() - channel.heard_at > self._silent_s:
                    self._drop_node(node, f"sent nothing for {self._silent_s:g} s")

    def _store(self, node: int, share: ExchangeRound) -> None:
        if self.rank:
            self._merged = share
            return
        before = self._contributions.get(node)
        expected = [(before.case, before.number + 1), (before.case + 1, 0)] if before else [(1, 0)]
        if share.moment not in expected:
            raise BadMessage("a share of another round")
        self._contributions[node] = share

    def give_up(self, contribution: ExchangeRound) -> None:
        """Drop the nodes that have not contributed to the round of `contribution`: the others continue without them."""
        for node in list(self._channels):
            if self.rank or self._contributions.get(node, contribution).moment != contribution.moment:
                self._drop_node(node, f"did not take part in an exchange within {EXCHANGE_S:g} s")

    def _drop_node(self, node: int, reason: str) -> None:
        channel = self._channels.pop(node, None)
        if channel is not None:
            channel.close()
        self.gone[node] = f"node {node} {reason}"
        if self.rank:  # node 0 connects all: without it the others cannot be reached
            self.gone |= {
                unreachable: f"node {unreachable} cannot be reached without node 0"
                for unreachable in range(self.size)
                if unreachable not in (self.rank, *self.gone)
            }

    def _send_beats(self) -> None:
        while not self._stop.wait(_BEAT_S):
            for channel in list(self._channels.values()):
                channel.send(b"")


class MultiNodeCase:
    """One case whose ranks are spread over the nodes of a group, in the order of the nodes."""

    def __init__(self, group: NodeGroup, case: int, ranks_per_node: int) -> None:
        self.first = group.rank * ranks_per_node  # the number of this node's first rank
        self.world = group.size * ranks_per_node
        self.ended: dict[int, RankResult] = {}  # the results that all nodes have received, by rank
        self.host = group.host
        self._group, self._per_node = group, ranks_per_node
        self._share = ExchangeRound(case, -1)
        self._contributed_at = 0.0
        self._has_contributed = False

    @property
    def is_over(self) -> bool:
        """Whether every rank of every node has ended."""
        return len(self.ended) == self.world

    def contribute(self, offers: Mapping[int, bytes], results: Mapping[int, RankResult]) -> None:
        """Contribute to the current round, unless this node has done so; others learn how a rank ended, no figures."""
        if self._has_contributed:
            return
        self._has_contributed, self._contributed_at = True, time.monotonic()
        self._share = ExchangeRound(
            self._share.case,
            self._share.number + 1,
            tuple((self.first + rank, offer.decode()) for rank, offer in offers.items()),
            tuple(
                (self.first + rank, RankResult(end.status, end.cause, end.reason, informed=end.informed))
                for rank, end in results.items()
                if self.first + rank not in self.ended
            ),
        )
        self._group.contribute(self._share)

    def finish_round(self) -> tuple[dict[int, bytes], dict[int, RankResult]] | None:
        """Return what all nodes contributed to the round, and begin the next one; None until all have contributed."""
        self._group.listen()
        if not self._has_contributed:
            return None
        if time.monotonic() - self._contributed_at > EXCHANGE_S:
            self._group.give_up(self._share)
        lost_ranks = {
            rank: RankResult("failed", "crash", f"rank {rank}: {reason}")
            for node, reason in self._group.gone.items()
            for rank in range(node * self._per_node, (node + 1) * self._per_node)
            if rank not in self.ended
        }
        merged = self._group.merged_round(self._share, lost_ranks, self._per_node)
        if merged is None:
            return None
        self._has_contributed = False
        new = {rank: result for rank, result in merged.ended if rank not in self.ended}
        self.ended |= new
        return {rank: offer.encode() for rank, offer in merged.offers}, new
