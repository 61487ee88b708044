"""Serve queries that arrive by a schedule, by continuous batching on one device.

The generator is open-loop: the arrival times are fixed before anything runs, and a latency counts from the arrival,
not from the moment at which the scheduler notices the query, so that waiting for a busy device counts."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]

_LATE_S = 1e-3  # a query that is noticed later than this after its schedule counts as late
_SPIN_S = 2e-4  # a wait ends by spinning: a sleep may take this much longer


class Machine(Protocol):
    """A model on a device: it has slots for sequences, and runs a batch in the smallest of its `sizes` that holds it.

    `vocabulary` is the number of tokens, `tolerance` the largest shortfall of a logit that rounding explains, and
    `description` a text for the notes."""

    sizes: Sequence[int]
    vocabulary: int
    tolerance: float
    description: str

    @property
    def device_s(self) -> float:
        """The seconds that the device has computed so far."""
        ...

    def prefill(self, slot: int, prompt: Tokens) -> int:
        """Replace the sequence in a slot by `prompt`, and return the token that follows it."""
        ...

    def step(self, slots: Tokens, tokens: Tokens) -> Tokens:
        """Append one of `tokens` to the sequence in each of `slots`, and return the tokens that follow."""
        ...

    def shortfall(self, slot: int, sequence: Tokens, token: int) -> float:
        """Return how far the logit of `token` lies below the largest logit after `sequence`, in double precision.

        Rounding explains at most `tolerance`. The slot holds the sequence: no later query has used it."""
        ...


class Clock(Protocol):
    """A clock of a session, in seconds: `now` returns the time, and `wait_until` returns at the given time."""

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
        """Return once `now` is at least `moment`; sleep, but spin for the last part, because sleeping overshoots."""
        if (left := moment - self.now() - _SPIN_S) > 0:
            time.sleep(left)
        while self.now() < moment:
            pass


@dataclass(slots=True)
class QueryAnswer:
    """The tokens of the answer to a query, and the times of the query's events in seconds of the clock.

    `slot` is the place of the query's keys and values."""

    scheduled: float
    slot: int = 0
    noticed: float = 0.0
    first: float = 0.0
    last: float = 0.0
    tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class CallTimes:
    """The number of calls of one kind in a session, their seconds, and the tokens of context of their sequences.

    The seconds go from the end of the call before, so that they include what the scheduler does between two calls."""

    calls: int = 0
    seconds: float = 0.0
    context: int = 0

    def add(self, seconds: float, context: int) -> None:
        """Count a call that took `seconds` with `context` tokens of context."""
        self.calls, self.seconds, self.context = self.calls + 1, self.seconds + seconds, self.context + context


@dataclass(frozen=True, slots=True)
class Session:
    """The answers to all queries in their order, and the times of the calls that gave them.

    `padded` is the share of the rows of all steps that only filled a batch."""

    answers: Sequence[QueryAnswer]
    padded: float
    calls: Mapping[int, CallTimes] = field(default_factory=dict)

    @property
    def busy_s(self) -> float:
        """The seconds in which there was a query to answer."""
        return sum(times.seconds for times in self.calls.values())

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


class Batch:
    """The queries that a machine answers together, each with `output` tokens: they join and leave between two steps."""

    def __init__(self, machine: Machine, output: int, clock: Clock) -> None:
        self._machine, self._output, self._clock = machine, output, clock
        self._free = list(range(max(machine.sizes)))[::-1]
        self._running: dict[int, QueryAnswer] = {}
        self._prompts: dict[int, int] = {}  # the number of prompt tokens in each slot
        self._rows = self._filled = self._context = 0

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    @property
    def is_empty(self) -> bool:
        """Whether no query is being answered."""
        return not self._running

    @property
    def size(self) -> int:
        """The size of batch in which the queries run."""
        return min(size for size in self._machine.sizes if size >= len(self._running))

    @property
    def context(self) -> int:
        """The tokens of prompts and answers of all queries that are being answered."""
        return self._context

    @property
    def padded(self) -> float:
        """The share of the rows of all steps that only filled a batch."""
        return self._filled / self._rows if self._rows else 0.0

    def join(self, answer: QueryAnswer, prompt: Tokens) -> None:
        """Prefill the prompt of a query in a free slot, and add the first token to `answer`.

        `has_room` must be true."""
        slot = answer.slot = self._free.pop()
        answer.tokens.append(self._machine.prefill(slot, prompt))
        answer.first = self._clock.now()
        self._running[slot], self._prompts[slot] = answer, len(prompt)
        self._context += len(prompt) + 1

    def step(self) -> None:
        """Add the next token to the answer of every query of the batch."""
        slots = np.fromiter(self._running, np.int64)
        lasts = np.array([answer.tokens[-1] for answer in self._running.values()])
        for answer, token in zip(self._running.values(), self._machine.step(slots, lasts), strict=True):
            answer.tokens.append(int(token))
        self._context += len(slots)
        self._rows, self._filled = self._rows + self.size, self._filled + self.size - len(slots)

    def leave(self) -> list[QueryAnswer]:
        """Take the queries that have `output` tokens out of the batch, and return their completed answers."""
        slots = [slot for slot, answer in self._running.items() if len(answer.tokens) == self._output]
        moment = self._clock.now() if slots else 0.0
        ended = [self._running.pop(slot) for slot in slots]
        for answer in ended:
            answer.last = moment
            self._context -= self._prompts[answer.slot] + self._output
        self._free += slots
        return ended


def serve(
    machine: Machine, prompts: Sequence[Tokens], scheduled: Sequence[float], output: int, clock: Clock
) -> Session:
    """Answer every prompt with `output` tokens, and return the session; prompt i arrives at `scheduled[i]` seconds.

    The times of `clock` count from the start of the session, and `scheduled` is ascending."""
    answers = [QueryAnswer(moment) for moment in scheduled]
    batch, upcoming, noticed = Batch(machine, output, clock), 0, 0
    calls: defaultdict[int, CallTimes] = defaultdict(CallTimes)
    while upcoming < len(answers) or not batch.is_empty:
        now = clock.now()
        while noticed < len(answers) and answers[noticed].scheduled <= now:
            answers[noticed].noticed = now
            noticed += 1
        if upcoming < noticed and batch.has_room:
            size, context = 0, 0
            batch.join(answers[upcoming], prompts[upcoming])
            upcoming += 1
        elif not batch.is_empty:
            size, context = batch.size, batch.context
            batch.step()
        else:
            clock.wait_until(answers[upcoming].scheduled)
            continue
        batch.leave()
        calls[size].add(clock.now() - now, context)
    return Session(answers, batch.padded, calls)


def poisson(rng: np.random.Generator, rate: float, count: int) -> list[float]:
    """Return the times of `count` arrivals in seconds, drawn as a Poisson process with a mean `rate` per second."""
    gaps: Any = rng.exponential(size=count)
    return [float(moment) for moment in np.cumsum(gaps) / rate]
