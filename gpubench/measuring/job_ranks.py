"""Hold the state of the ranks of one job on this node while it runs: their phases, exchanged values and results."""

import math
import time
from collections import Counter as Tally
from dataclasses import dataclass, field

from gpubench.measuring import time_limits
from gpubench.measuring.nodes import MultiNodeCase
from gpubench.measuring.time_limits import Phase
from gpubench.measuring.worker import OfferedValue, RankResult
from gpubench.measuring.worker_pool import WorkerChild


@dataclass(slots=True)
class JobRanks:
    """The ranks of a job on this node while it runs: their results, offered values and phases, by rank.

    The ranks count from 0 on this node."""

    workers: list[WorkerChild]
    spread: MultiNodeCase | None = None
    results: dict[int, RankResult] = field(default_factory=dict)
    offers: dict[int, OfferedValue] = field(default_factory=dict)
    phases: dict[int, Phase] = field(default_factory=dict)  # the current phase of each rank
    begun_at: dict[int, float] = field(default_factory=dict)  # when that phase began, plus the waits for other ranks
    offered_at: dict[int, float] = field(default_factory=dict)
    messages: Tally[tuple[int, type]] = field(default_factory=Tally)
    informed_of: dict[int, set[int]] = field(default_factory=dict)  # rank → the ranks whose end it has been informed of

    @property
    def running(self) -> list[int]:
        """Return the ranks on this node that have not ended."""
        return [rank for rank in range(len(self.workers)) if rank not in self.results]

    @property
    def are_over(self) -> bool:
        """Return whether all ranks have ended, including ranks on other nodes."""
        return not self.running and (self.spread is None or self.spread.is_over)

    @property
    def all_results(self) -> list[RankResult]:
        """Return the results in the order of all ranks; a rank on another node has an outcome and no series.

        All ranks must have ended."""
        local_results = [self.results[rank] for rank in range(len(self.workers))]
        if self.spread is None:
            return local_results
        first, ended = self.spread.first, self.spread.ended
        before, after = range(first), range(first + len(local_results), self.spread.world)
        return [*(ended[rank] for rank in before), *local_results, *(ended[rank] for rank in after)]

    @property
    def world(self) -> int:
        """Return the number of ranks on all nodes."""
        return self.spread.world if self.spread else len(self.workers)

    def number(self, rank: int) -> int:
        """Return the number of a rank among the ranks of all nodes."""
        return rank + (self.spread.first if self.spread else 0)

    def rank_of(self, channel: object) -> int:
        """Return the rank that uses this channel."""
        return next(rank for rank, worker in enumerate(self.workers) if worker.channel is channel)

    def left_s(self, rank: int, now: float) -> float:
        """Return the seconds until a rank counts as hung; infinite while it waits for other ranks.

        `now` is in monotonic seconds."""
        if rank in self.offers:
            return math.inf
        return self.begun_at[rank] + min(self.phases[rank].limit_s, time_limits.MOST_S) - now

    def begin(self, rank: int, phase: Phase) -> None:
        """Record that a rank begins a phase, or continues it with a new limit."""
        self.phases[rank], self.begun_at[rank] = phase, time.monotonic()

    def resume(self, rank: int) -> None:
        """Record that a rank gets the answer to its offer.

        The time that it waited does not count for its phase, and a phase that restarts begins anew."""
        now, offered_at = time.monotonic(), self.offered_at.pop(rank)
        self.begun_at[rank] = now if self.phases[rank].restarts else self.begun_at[rank] + now - offered_at
