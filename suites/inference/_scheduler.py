"""Queries that arrive by a schedule, and the scheduler that serves them by continuous batching on one device.

The generator is open-loop: when a query arrives is decided before anything runs, and a latency counts from that moment,
not from the one at which the scheduler notices the query. A busy device thus hides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]

_LATE_S = 1e-3  # a query that is noticed later than this after its schedule counts as late
_SPIN_S = 2e-4  # a wait ends by spinning: a sleep may take this much longer


class Machine(Protocol):
    """What computes: it has slots for sequences, and takes a batch in the smallest of its sizes that holds it."""

    sizes: Sequence[int]
    vocabulary: int
    tolerance: float
    description: str

    def prefill(self, slot: int, prompt: Tokens) -> int:
        """Replace the sequence in a slot by a prompt, and return the token that follows it."""
        ...

    def step(self, slots: Tokens, tokens: Tokens) -> Tokens:
        """Append a token to the sequence in each of these slots, and return the tokens that follow."""
        ...

    def shortfall(self, slot: int, sequence: Tokens, token: int) -> float:
        """Return by how much the logit of a token falls short of the largest one after a sequence, in double precision.

        Rounding explains at most `tolerance`. The slot holds the sequence: no later query has used it.
        """
        ...


class Clock(Protocol):
    """Seconds that pass."""

    def now(self) -> float: ...
    def wait_until(self, moment: float) -> None: ...


class HostClock:
    """The host's monotonic clock, from 0 on."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        """Return the seconds since the clock was made."""
        return time.perf_counter() - self._start

    def wait_until(self, moment: float) -> None:
        """Sleep, and spin at the end, until that moment."""
        if (left := moment - self.now() - _SPIN_S) > 0:
            time.sleep(left)
        while self.now() < moment:
            pass


@dataclass(slots=True)
class Answer:
    """The tokens that a query was answered with, and when: scheduled, noticed, first token, last token, in seconds.

    `slot` is where its keys and values were.
    """

    scheduled: float
    slot: int = 0
    noticed: float = 0.0
    first: float = 0.0
    last: float = 0.0
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Session:
    """The answers to all queries in their order, and the share of the rows of all steps that only filled a batch."""

    answers: Sequence[Answer]
    padded: float

    @property
    def whole_s(self) -> list[float]:
        """The seconds from the schedule of each query to its last token."""
        return [answer.last - answer.scheduled for answer in self.answers]

    @property
    def first_token_s(self) -> list[float]:
        """The seconds from the schedule of each query to its first token."""
        return [answer.first - answer.scheduled for answer in self.answers]

    @property
    def token_s(self) -> list[float]:
        """The mean seconds between the tokens of each query."""
        return [(answer.last - answer.first) / max(1, len(answer.tokens) - 1) for answer in self.answers]

    @property
    def seconds(self) -> float:
        """The time from the first schedule to the last token."""
        return max(answer.last for answer in self.answers) - self.answers[0].scheduled

    @property
    def late(self) -> int:
        """The number of queries that were noticed more than a millisecond after their schedule."""
        return sum(answer.noticed - answer.scheduled > _LATE_S for answer in self.answers)


def serve(
    machine: Machine, prompts: Sequence[Tokens], scheduled: Sequence[float], output: int, clock: Clock
) -> Session:
    """Answer every prompt with `output` tokens, and return when.

    Between two steps, waiting queries are prefilled one by one in the order of their arrival while the batch has a free
    slot. `gpubench.analysis.serving` simulates the same rule.
    """
    answers = [Answer(moment) for moment in scheduled]
    free = list(range(max(machine.sizes)))[::-1]
    running: dict[int, Answer] = {}
    upcoming, noticed, rows, filled = 0, 0, 0, 0
    while upcoming < len(answers) or running:
        now = clock.now()
        while noticed < len(answers) and answers[noticed].scheduled <= now:
            answers[noticed].noticed = now
            noticed += 1
        if upcoming < noticed and free:
            answer = answers[upcoming]
            slot = answer.slot = free.pop()
            answer.tokens.append(machine.prefill(slot, prompts[upcoming]))
            answer.first = clock.now()
            running[slot] = answer
            upcoming += 1
        elif running:
            slots = np.fromiter(running, np.int64)
            lasts = np.array([answer.tokens[-1] for answer in running.values()])
            for answer, token in zip(running.values(), machine.step(slots, lasts), strict=True):
                answer.tokens.append(int(token))
            size = min(size for size in machine.sizes if size >= len(slots))
            rows, filled = rows + size, filled + size - len(slots)
        else:
            clock.wait_until(answers[upcoming].scheduled)
        free += _ended(running, output, clock)
    return Session(answers, filled / rows if rows else 0.0)


def _ended(running: dict[int, Answer], output: int, clock: Clock) -> list[int]:
    """Take the queries that have all their tokens out of the batch, and return their slots."""
    slots = [slot for slot, answer in running.items() if len(answer.tokens) == output]
    moment = clock.now() if slots else 0.0
    for slot in slots:
        running.pop(slot).last = moment
    return slots


def poisson(rng: np.random.Generator, rate: float, count: int) -> list[float]:
    """Return the seeded times of `count` arrivals at `rate` a second."""
    gaps: Any = rng.exponential(size=count)
    return [float(moment) for moment in np.cumsum(gaps) / rate]
