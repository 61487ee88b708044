"""The advice of a model to ranks: the topology of an exchange, the number of ranks, the steps between exchanges.

The model is the time of one message by its size. A schedule is the sum of its steps. In a step the busiest rank makes
its sends one after another, and a receiver is as busy as a sender; so a step takes one message of all these bytes. Pure
functions.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ._parallel import TimeCurve
from ._schedules import Delivery, Schedule

_EQUAL = 0.02  # predictions that differ by less count as equally good, and the first one listed is the simplest

Choice = TypeVar("Choice", str, int)


def first_best(predicted_s: Mapping[Choice, float]) -> Choice:
    """Return the first choice listed whose predicted time is within 2 % of the shortest one."""
    least_s = min(predicted_s.values())
    return next(choice for choice, seconds in predicted_s.items() if seconds <= (1 + _EQUAL) * least_s)


def regret(chosen: Choice, measured_s: Mapping[Choice, float]) -> float:
    """Return how much longer a choice takes than the fastest one, as a share of the fastest one's time."""
    return measured_s[chosen] / min(measured_s.values()) - 1


def blocks_in_turn(deliveries: Sequence[Delivery], lanes: int) -> int:
    """Return how many blocks of a step are copied one after another, if at most `lanes` copies run at the same time."""
    sent = Counter(delivery.source for delivery in deliveries)
    received = Counter(delivery.target for delivery in deliveries)
    return max(*sent.values(), *received.values(), -(-len(deliveries) // lanes))


@dataclass(frozen=True, slots=True)
class ExchangeModel:
    """Seconds of a message by its bytes, and how many copies run at the same time."""

    message: TimeCurve
    lanes: int

    def exchange_s(self, schedule: Schedule, size_bytes: int) -> float:
        """Return the predicted seconds of a schedule whose blocks have `size_bytes`; 0 without deliveries."""
        steps = itertools.groupby(sorted(schedule, key=lambda delivery: delivery.step), lambda delivery: delivery.step)
        return sum(
            self.message.seconds(size_bytes * blocks_in_turn(list(deliveries), self.lanes)) for _, deliveries in steps
        )

    def work_s(self, items: int, item_s: float, ranks: int) -> float:
        """Return the predicted seconds of equal items over `ranks` ranks, of which `lanes` run at the same time."""
        return math.ceil(items / ranks) * item_s * max(1.0, ranks / self.lanes)


def steps_between(work_s: float, exchange_s: float, most_share: float, offered: Sequence[int]) -> int:
    """Return the fewest offered steps between two exchanges that then cost at most `most_share` of the steps' time.

    If none is enough, the most steps are returned. Fewer exchanges let the ranks' results drift apart, so no more steps
    than needed are chosen.
    """
    return next((steps for steps in sorted(offered) if exchange_s <= most_share * steps * work_s), max(offered))
