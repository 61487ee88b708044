"""The ranks of one case on several nodes: their runners exchange values in rounds, over the group's connections.

A node contributes its ranks' offers to a round once each of them has offered a value or ended. Node 0 merges the
contributions of all nodes and sends the union to each of them, so that all ranks see the same offers and the same ends
in the same round. The ranks of a node that is gone count as crashed.
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

SILENT_S = 4.0  # seconds of silence after which a node counts as gone: it sends a sign of life every second
EXCHANGE_S = 900.0  # for all nodes to contribute to a round: only slow nodes take much longer than others
_BEAT_S = 1.0
_MOST_RANKS = 2**13
_BEAT = b""


@dataclass(frozen=True, slots=True)
class Round:
    """A node's contribution to a round of a case, or the union of all contributions: offers and ends by rank."""

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
        """Return the place of the round in the order of all rounds: case, then number."""
        return self.case, self.number

    def is_within(self, ranks: range) -> bool:
        """Return whether every rank of the contribution is among `ranks`."""
        return all(rank in ranks for rank, _ in (*self.offers, *self.ended))


_ROUND = pydantic.TypeAdapter(Round)


class NodeGroup:
    """The connections of this node to the others; a thread sends each of them a sign of life every second.

    `size` is the number of nodes and `rank` is this node's number.
    """

    def __init__(self, rank: int, size: int, channels: Mapping[int, NodeChannel], silent_s: float = SILENT_S) -> None:
        self.rank, self.size = rank, size
        self.host = next(iter(channels.values())).host  # the address by which the others reach this node
        self.gone: dict[int, str] = {}  # node → the reason
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
        """Leave the group: the other nodes read the end of their connections."""
        self._stop.set()
        self._beats.join()
        for channel in self._channels.values():
            channel.close()

    @property
    def descriptors(self) -> list[int]:
        """Return the file descriptors to wait for."""
        return [channel.fileno() for channel in self._channels.values()]

    def begin(self, ranks_per_node: int) -> SpreadCase:
        """Begin a case with `ranks_per_node` ranks on each node; every node of the group begins the same case."""
        self._cases += 1
        now = time.monotonic()
        for channel in self._channels.values():  # this node reads nothing between two cases
            channel.heard_at = max(channel.heard_at, now)
        return SpreadCase(self, self._cases, ranks_per_node)

    def give(self, share: Round) -> None:
        """Contribute this node's share to a round."""
        self._given[self.rank] = share
        if self.rank and 0 not in self.gone:
            self._channels[0].send(encoded(share))

    def union(self, own: Round, ends: Mapping[int, Part], ranks_per_node: int) -> Round | None:
        """Return the union of the round to which this node contributed `own`; None until it is complete.

        `ends` holds the ends of the ranks on nodes that are gone.
        """
        if self.rank and 0 not in self.gone:
            received, self._union = self._union, None
            if received is not None and received.moment != own.moment:
                self._lose(0, "sent an answer to another round")
                return None
            return received
        contributions = {
            node: contribution
            for node, contribution in self._given.items()
            if node not in self.gone and contribution.moment == own.moment
        }
        if len(contributions) < self.size - len(self.gone):
            return None
        for node, share in contributions.items():
            if not share.is_within(range(node * ranks_per_node, (node + 1) * ranks_per_node)):
                self._lose(node, "spoke for ranks of another node")
                return None
        shares = [contributions[node] for node in sorted(contributions)]
        union = replace(
            own,
            offers=tuple(offer for share in shares for offer in share.offers),
            ended=(*(end for share in shares for end in share.ended), *ends.items()),
        )
        for channel in self._channels.values():
            channel.send(encoded(union))
        return union

    def listen(self) -> None:
        """Read what has arrived, and find out which nodes are gone."""
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
                    self._lose(node, f"sent nothing for {self._silent_s:g} s")

    def _take(self, node: int, content: bytes) -> None:
        share = _decoded(content)
        if self.rank:
            self._union = share
        elif share.moment in self._due(node):
            self._given[node] = share
        else:
            raise BadFrame("a share of another round")

    def _due(self, node: int) -> list[tuple[int, int]]:
        """Return the rounds to which a node may contribute now: its case's next one, or the next case's first."""
        before = self._given.get(node)
        return [(1, 0)] if before is None else [(before.case, before.number + 1), (before.case + 1, 0)]

    def give_up(self, own: Round) -> None:
        """Continue without the nodes that have not contributed to a round within `EXCHANGE_S` seconds."""
        late = [node for node in self._channels if self.rank or self._given.get(node, own).moment != own.moment]
        for node in late:
            self._lose(node, f"did not take part in an exchange within {EXCHANGE_S:g} s")

    def _lose(self, node: int, reason: str) -> None:
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

    def _beat(self) -> None:
        while not self._stop.wait(_BEAT_S):
            for channel in list(self._channels.values()):
                channel.send(_BEAT)


class SpreadCase:
    """One case whose ranks are spread over the nodes of a group, in the order of the nodes."""

    def __init__(self, group: NodeGroup, case: int, ranks_per_node: int) -> None:
        self.first = group.rank * ranks_per_node  # the number of this node's first rank
        self.world = group.size * ranks_per_node
        self.ends: dict[int, Part] = {}  # the ends that all nodes have received, by rank
        self.host = group.host
        self._group, self._per_node = group, ranks_per_node
        self._share = Round(case, -1)
        self._given_at = 0.0
        self._is_given = False

    @property
    def is_over(self) -> bool:
        """Return whether every rank of every node has ended."""
        return len(self.ends) == self.world

    def give(self, offers: Mapping[int, bytes], parts: Mapping[int, Part]) -> None:
        """Contribute the offers of this node's ranks and their new ends to the round, unless that is done.

        The ranks in `offers` and `parts` count from 0 on this node. Another node learns how a rank ended, and no
        figures.
        """
        if self._is_given:
            return
        self._is_given, self._given_at = True, time.monotonic()
        ended = {self.first + rank: part for rank, part in parts.items() if self.first + rank not in self.ends}
        self._share = Round(
            self._share.case,
            self._share.number + 1,
            tuple((self.first + rank, offer.decode()) for rank, offer in offers.items()),
            tuple((rank, _without_figures(part)) for rank, part in ended.items()),
        )
        self._group.give(self._share)

    def union(self) -> tuple[dict[int, bytes], dict[int, Part]] | None:
        """Return the offers of all ranks and the new ends; None until all nodes have contributed."""
        self._group.listen()
        if not self._is_given:
            return None
        if time.monotonic() - self._given_at > EXCHANGE_S:
            self._group.give_up(self._share)
        merged_round = self._group.union(self._share, self._lost_ranks(), self._per_node)
        if merged_round is None:
            return None
        self._is_given = False
        new = {rank: part for rank, part in merged_round.ended if rank not in self.ends}
        self.ends |= new
        return {rank: offer.encode() for rank, offer in merged_round.offers}, new

    def _lost_ranks(self) -> dict[int, Part]:
        """Return the ends of the ranks on nodes that are gone, except the ends that all nodes already have."""
        return {
            rank: Part("failed", "crash", f"rank {rank}: {reason}")
            for node, reason in self._group.gone.items()
            for rank in range(node * self._per_node, (node + 1) * self._per_node)
            if rank not in self.ends
        }


def _without_figures(part: Part) -> Part:
    return Part(part.status, part.cause, part.reason, informed=part.informed)


def _decoded(content: bytes) -> Round:
    name, _, text = content.partition(b"\n")
    if name != Round.__name__.encode():
        raise BadFrame("a frame that is no share of a round")
    try:
        return _ROUND.validate_json(text)
    except pydantic.ValidationError as error:
        raise BadFrame(f"a malformed share of a round ({error.error_count()} errors)") from error
