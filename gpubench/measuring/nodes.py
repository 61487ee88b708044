"""Exchange values in rounds between the ranks of one case on several nodes, over the group's connections.

In a round each rank offers one value, or its result if it has ended. A node contributes the values and results of its
ranks once it has one of each. Node 0 merges the contributions of all nodes and sends the merged round to each of them,
so that all ranks see the same values and results in the same round. The ranks of a node that left the group count as
crashed."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import pydantic
from annotated_types import MaxLen

from gpubench.measuring import plain
from gpubench.measuring.channel import BadMessage, NodeChannel, decoded, encoded
from gpubench.measuring.worker import RankResult
from gpubench.model import Strict

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
