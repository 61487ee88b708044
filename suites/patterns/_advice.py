"""Predict by a model the best topology of an exchange, the best number of ranks, and the steps between two exchanges.

The model is the time of one message by its size. A schedule is the sum of its steps."""

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
    """Return the first choice in the order of `predicted_s` whose predicted seconds are within 2 % of the shortest."""
    least_s = min(predicted_s.values())
    return next(choice for choice, seconds in predicted_s.items() if seconds <= (1 + _EQUAL) * least_s)


def regret(chosen: Choice, measured_s: Mapping[Choice, float]) -> float:
    """Return (t − shortest) / shortest, where t is the seconds of `chosen`.

    `measured_s` has the seconds of every choice."""
    return measured_s[chosen] / min(measured_s.values()) - 1


def blocks_in_turn(deliveries: Sequence[Delivery], lanes: int) -> int:
    """Return how many blocks of one step are copied one after another, if at most `lanes` copies run at the same time.

    `deliveries` are the deliveries of one step."""
    sent = Counter(delivery.source for delivery in deliveries)
    received = Counter(delivery.target for delivery in deliveries)
    return max(*sent.values(), *received.values(), -(-len(deliveries) // lanes))


@dataclass(frozen=True, slots=True)
class ExchangeModel:
    """Predicts seconds of exchanges and of work; `message` gives the seconds of one message by its bytes.

    At most `lanes` copies, or ranks that compute, run at the same time."""

    message: TimeCurve
    lanes: int

    def exchange_s(self, schedule: Schedule, size_bytes: int) -> float:
        """Return the predicted seconds of all steps of `schedule`, whose blocks have `size_bytes`.

        The result is 0 if `schedule` is empty."""
        steps = itertools.groupby(sorted(schedule, key=lambda delivery: delivery.step), lambda delivery: delivery.step)
        return sum(
            self.message.seconds(size_bytes * blocks_in_turn(list(deliveries), self.lanes)) for _, deliveries in steps
        )

    def work_s(self, items: int, item_s: float, ranks: int) -> float:
        """Return the predicted seconds of `items` equal items divided over `ranks` ranks.

        One item takes `item_s` seconds on one rank."""
        return math.ceil(items / ranks) * item_s * max(1.0, ranks / self.lanes)


def steps_between(work_s: float, exchange_s: float, most_share: float, offered: Sequence[int]) -> int:
    """Return the fewest steps of `offered` between two exchanges such that exchange_s ≤ most_share · steps · work_s.

    `work_s` is the time of one step, `exchange_s` of one exchange, in seconds."""
    return next((steps for steps in sorted(offered) if exchange_s <= most_share * steps * work_s), max(offered))
