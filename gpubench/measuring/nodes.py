"""The ranks of one case on several nodes: their runners meet in rounds, over the connections of a group.

A node gives what its ranks offer once each of them has offered a value or ended. Node 0 puts together what all nodes
gave, and sends this union to each, so that all ranks see the same offers and the same ends in the same round. A node
that is gone counts as ranks that crashed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import pydantic
from annotated_types import MaxLen

from gpubench.measuring import plain
from gpubench.measuring.channel import encoded
from gpubench.measuring.node_channel import BadFrame, NodeChannel
from gpubench.measuring.worker import Part
from gpubench.model import STRICT

SILENT_S = 4.0  # after which a node counts as gone: its beat comes each second
EXCHANGE_S = 900.0  # for all nodes to come to a round: their cases take the same time but for slow ones
_BEAT_S = 1.0
_MOST_RANKS = 2**13
_BEAT = b""


@dataclass(frozen=True, slots=True)
class Round:
    """What a node gives to a round of a case, or the union of what all gave: offers and ends by rank."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    case: int
    number: int
    offers: Annotated[
        tuple[tuple[int, Annotated[str, pydantic.StringConstraints(max_length=plain.MOST_BYTES)]], ...],
        MaxLen(_MOST_RANKS),
    ] = ()
    ended: Annotated[tuple[tuple[int, Part], ...], MaxLen(_MOST_RANKS)] = ()

    @property
    def moment(self) -> tuple[int, int]:
        """The place of the round in the order of all rounds."""
        return self.case, self.number

    def is_within(self, ranks: range) -> bool:
        """Return whether it speaks of these ranks alone."""
        return all(rank in ranks for rank, _ in (*self.offers, *self.ended))


_ROUND = pydantic.TypeAdapter(Round)


class NodeGroup:
    """The connections of this node to the others; a thread tells them each second that it lives.

    `size` is the number of nodes, `rank` this node's number.
    """

    def __init__(self, rank: int, size: int, channels: Mapping[int, NodeChannel], silent_s: float = SILENT_S) -> None:
        self.rank, self.size = rank, size
        self.host = next(iter(channels.values())).host  # the address by which the others reach this node
        self.gone: dict[int, str] = {}  # node → why
        self._channels = dict(channels)
        self._silent_s = silent_s
        self._given: dict[int, Round] = {}
        self._union: Round | None = None  # from node 0
        self._cases = 0
        self._stop = threading.Event()
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()

    def __enter__(self) -> NodeGroup:
        """Return the group."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the group: the others read the end of their connections."""
        self._stop.set()
        self._beats.join()
        for channel in self._channels.values():
            channel.close()

    @property
    def descriptors(self) -> list[int]:
        """The descriptors to wait for."""
        return [channel.fileno() for channel in self._channels.values()]

    def begin(self, ranks_per_node: int) -> SpreadCase:
        """Begin a case of so many ranks on each node; every node of the group begins the same case."""
        self._cases += 1
        now = time.monotonic()
        for channel in self._channels.values():  # nobody has listened between two cases
            channel.heard_at = max(channel.heard_at, now)
        return SpreadCase(self, self._cases, ranks_per_node)

    def give(self, given: Round) -> None:
        """Give this node's share of a round."""
        self._given[self.rank] = given
        if self.rank and 0 not in self.gone:
            self._channels[0].send(encoded(given))

    def union(self, own: Round, ends: Mapping[int, Part], ranks_per_node: int) -> Round | None:
        """Return the union of the round that this node gave `own` to, None until it is there.

        `ends` are those of the ranks on nodes that are gone.
        """
        if self.rank and 0 not in self.gone:
            found, self._union = self._union, None
            if found is not None and found.moment != own.moment:
                self._lose(0, "sent an answer to another round")
                return None
            return found
        given = {
            node: each for node, each in self._given.items() if node not in self.gone and each.moment == own.moment
        }
        if len(given) < self.size - len(self.gone):
            return None
        for node, share in given.items():
            if not share.is_within(range(node * ranks_per_node, (node + 1) * ranks_per_node)):
                self._lose(node, "spoke for ranks of another node")
                return None
        shares = [given[node] for node in sorted(given)]
        union = replace(
            own,
            offers=tuple(offer for share in shares for offer in share.offers),
            ended=(*(end for share in shares for end in share.ended), *ends.items()),
        )
        for channel in self._channels.values():
            channel.send(encoded(union))
        return union

    def listen(self) -> None:
        """Read what has arrived, and find out who is gone."""
        for node, channel in list(self._channels.items()):
            try:
                for content in channel.arrived():
                    if content != _BEAT:
                        self._take(node, content)
            except EOFError:
                self._lose(node, "has ended, or its connection broke")
            except (OSError, ValueError) as error:
                self._lose(node, f"sent {error}")
            else:
                if time.monotonic() - channel.heard_at > self._silent_s:
                    self._lose(node, f"was not heard of for {self._silent_s:g} s")

    def _take(self, node: int, content: bytes) -> None:
        given = _decoded(content)
        if self.rank:
            self._union = given
        elif given.moment in self._due(node):
            self._given[node] = given
        else:
            raise BadFrame("a share of another round")

    def _due(self, node: int) -> list[tuple[int, int]]:
        """Return the moments of the rounds that a node may give to now: the next of its case, or of the next case."""
        before = self._given.get(node)
        return [(1, 0)] if before is None else [(before.case, before.number + 1), (before.case + 1, 0)]

    def give_up(self, own: Round) -> None:
        """Go on without the nodes that have not come to a round in `EXCHANGE_S`."""
        late = [node for node in self._channels if self.rank or self._given.get(node, own).moment != own.moment]
        for node in late:
            self._lose(node, f"did not come to an exchange within {EXCHANGE_S:g} s")

    def _lose(self, node: int, reason: str) -> None:
        channel = self._channels.pop(node, None)
        if channel is not None:
            channel.close()
        self.gone[node] = f"node {node} {reason}"
        if self.rank:  # node 0 connects all: without it the others cannot be reached
            self.gone |= {
                other: f"node {other} cannot be reached without node 0"
                for other in range(self.size)
                if other not in (self.rank, *self.gone)
            }

    def _beat(self) -> None:
        while not self._stop.wait(_BEAT_S):
            for channel in list(self._channels.values()):
                channel.send(_BEAT)


class SpreadCase:
    """One case whose ranks are spread over the nodes of a group, in the order of the nodes."""

    def __init__(self, group: NodeGroup, case: int, ranks_per_node: int) -> None:
        self.first = group.rank * ranks_per_node  # the number of this node's first rank
        self.world = group.size * ranks_per_node
        self.ends: dict[int, Part] = {}  # of every rank whose end all nodes were told of
        self.host = group.host
        self._group, self._per_node = group, ranks_per_node
        self._share = Round(case, -1)
        self._given_at = 0.0
        self._is_given = False

    @property
    def is_over(self) -> bool:
        """Whether every rank of every node has ended."""
        return len(self.ends) == self.world

    def give(self, offers: Mapping[int, bytes], parts: Mapping[int, Part]) -> None:
        """Give what this node's ranks offer, and the ends that are new, unless that is done; ranks count from 0 here.

        Another node learns how a rank ended, and none of its figures.
        """
        if self._is_given:
            return
        self._is_given, self._given_at = True, time.monotonic()
        ended = {self.first + rank: part for rank, part in parts.items() if self.first + rank not in self.ends}
        self._share = Round(
            self._share.case,
            self._share.number + 1,
            tuple((self.first + rank, offer.decode()) for rank, offer in offers.items()),
            tuple((rank, _outcome(part)) for rank, part in ended.items()),
        )
        self._group.give(self._share)

    def union(self) -> tuple[dict[int, bytes], dict[int, Part]] | None:
        """Return the offers of all ranks and the ends that are new, None until all nodes have given theirs."""
        self._group.listen()
        if not self._is_given:
            return None
        if time.monotonic() - self._given_at > EXCHANGE_S:
            self._group.give_up(self._share)
        found = self._group.union(self._share, self._lost(), self._per_node)
        if found is None:
            return None
        self._is_given = False
        new = {rank: part for rank, part in found.ended if rank not in self.ends}
        self.ends |= new
        return {rank: offer.encode() for rank, offer in found.offers}, new

    def _lost(self) -> dict[int, Part]:
        """Return the ends of the ranks on nodes that are gone, as far as no node was told of them."""
        return {
            rank: Part("failed", "crash", f"rank {rank}: {reason}")
            for node, reason in self._group.gone.items()
            for rank in range(node * self._per_node, (node + 1) * self._per_node)
            if rank not in self.ends
        }


def _outcome(part: Part) -> Part:
    return Part(part.status, part.cause, part.reason, informed=part.informed)


def _decoded(content: bytes) -> Round:
    name, _, text = content.partition(b"\n")
    if name != Round.__name__.encode():
        raise BadFrame("a frame that is no share of a round")
    try:
        return _ROUND.validate_json(text)
    except pydantic.ValidationError as error:
        raise BadFrame(f"a malformed share of a round ({error.error_count()} errors)") from error
