"""Measure ranks that adapt their topology, their number and their steps between exchanges by a model, and the regret.

Ranks divide products among themselves and exchange a block each after some steps, as data-parallel training does.
The model is the time of one message by its size, from a few messages, and one product; a schedule is the sum of its
steps."""

import functools
import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gpubench.api import suite as gb

from .._between import rank_counts, ranks_of
from ._blas import restore_threads, use_threads
from ._blocks import BlockExchange
from ._gradients import has_ranks
from ._numbers import Normals, expect_close, width_of
from ._parallel import TimeCurve
from ._schedules import TOPOLOGIES, Delivery, Schedule, incast
from ._topology import devices, links

_EQUAL = 0.02  # predictions that differ by less count as equally good, and the first one listed is the simplest

Choice = TypeVar("Choice", str, int)
_PROBED = (2**12, 2**16, 2**20, 2**24)  # message sizes in bytes from which the model is fitted
_SENT = (2**14, 2**18, 2**22)  # sizes in bytes of the exchanged blocks, between the sizes of the model
_BLOCK_BYTES = 2**20  # block of one step of work
_JOBS = (2, 8, 32)  # products per step
_JOB = 8  # the number of products for which the steps between exchanges are chosen
_INTERVALS = (1, 2, 4, 8, 16)  # steps between two exchanges
# Choices of each kind, and the block, in the smoke tier, which only shows that everything works.
_SMOKE, _SMOKE_BLOCK_BYTES = 2, 2**14
_MOST_SHARE = 0.05  # share of the time that exchanges may take
_ROUNDS = {"smoke": 1, "quick": 11, "full": 25}
_ROWS = {True: 1024, False: 64}  # rows of a product; True: on a GPU, False: on the host
_CHECKED = 4
_PERCENT = 100

Key = TypeVar("Key", str, int)

topic = gb.Topic(
    views=[
        gb.View("bars", "Worst regret of the advised topology", ("adapted",), by=("of",), series="topology regret"),
        gb.View("bars", "Worst regret of the advised number of ranks", ("adapted",), by=("of",), series="ranks regret"),
    ],
)


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


def _rank_counts(target: gb.Target) -> Any:
    """Return the points of the axis `of`, the number of ranks: on the host 2, and in the tier `full` also 4."""
    return gb.points((2,), full=(2, 4)) if target.is_host else rank_counts(target)


@topic.case(
    ranks=ranks_of,
    devices=devices,
    when=lambda target: has_ranks(target) and gb.beyond_quick(target),
    by=links,
    of=_rank_counts,
)
def adapted(bench: gb.Bench, by: str, of: int) -> gb.Task:
    """Seconds of a step of 8 products with the topology, number of ranks and exchange interval that a model advises.

    `topology regret` is how much longer the advised topology takes than the fastest one, at worst over the sizes of the
    exchanged blocks. `ranks regret` is the same for the number of ranks, at worst over the numbers of products per
    step. `interval` is the advised number of steps between exchanges. `exchange share` is the time that the exchanges
    then add, relative to the same work without them. `interval needed` is the smallest number of steps at which they
    add at most 5 %."""
    del by, of
    return AdaptedRank(bench).task()


def counts_up_to(ranks: int) -> tuple[int, ...]:
    """Return the powers of two below `ranks`, ascending, and then `ranks` itself: (1, 2, 4, 6) for 6."""
    return (*(2**power for power in range((ranks - 1).bit_length())), ranks)


class AdaptedRank:
    """One rank's products and blocks, the measured model, and the choices that the model advises.

    Creating the object measures the model and every choice, so all ranks must do it at the same time."""

    def __init__(self, bench: gb.Bench) -> None:
        self._bench, self._world = bench, bench.world
        self._threads = use_threads(1) if bench.target.is_host else 0
        self._rounds = _ROUNDS[bench.target.tier]
        is_smoke = bench.target.tier == "smoke"
        last = _SMOKE if is_smoke else None
        self._probed, self._intervals = _PROBED[:last], _INTERVALS[:last]
        self._block_bytes = _SMOKE_BLOCK_BYTES if is_smoke else _BLOCK_BYTES
        normals, width = Normals(bench), width_of(bench)
        self._input = normals.matrix(_ROWS[bench.traits.is_gpu], width, 1)
        self._weights = normals.matrix(width, width, 0, 1 / math.sqrt(width))
        self._output = bench.xp.empty_like(self._input)
        self._blocks = BlockExchange(bench, max(self._probed))
        self._received = [rank for rank in range(self._world) if rank != bench.rank]
        self._expect_right_topologies()
        self._compute(1)
        self._model = self._measured_model()
        self._item_s = self._shortest({1: functools.partial(self._compute, _JOBS[0])})[1] / _JOBS[0]
        self._topologies: dict[int, str] = {}  # by block size, the advised topology
        self._topology_regrets = [self._adapt_topology(size) for size in _SENT[:last] if size <= max(self._probed)]
        self._rank_counts: dict[int, int] = {}  # by job, the advised number of ranks
        self._rank_regrets = [self._adapt_ranks(items) for items in _JOBS[:last]]
        self._ranks = self._rank_counts[_JOB]
        self._exchange = self._plan_exchange(self._schedule(self._ranks), self._block_bytes)
        self._interval, self._needed, self._share = self._adapt_interval()

    def _plan_exchange(self, schedule: Schedule, size_bytes: int) -> Callable[[], None]:
        """Return a call that exchanges the first `size_bytes` of each rank's block by `schedule`."""
        steps = self._blocks.steps(schedule, size_bytes)
        return lambda: self._blocks.perform(steps)

    def _shortest(self, calls: Mapping[Key, Callable[[], object]]) -> dict[Key, float]:
        """Return by key the shortest time of each call in seconds."""
        rounds = [[max(self._blocks.completions(call)) for call in calls.values()] for _ in range(self._rounds)]
        return dict(zip(calls, np.min(rounds, axis=0).tolist(), strict=True))

    def _compute(self, items: int) -> None:
        """Compute `items` matrix products on this rank, all of the same input, and wait for the device."""
        for _ in range(items):
            self._bench.xp.matmul(self._input, self._weights, out=self._output)
        self._bench.device.synchronize()

    def _expect_right_topologies(self) -> None:
        """Exchange a block over each topology; raises WrongAnswer if a received word is wrong."""
        for schedule in TOPOLOGIES.values():
            self._blocks.poison(self._received)
            self._blocks.perform(self._blocks.steps(schedule(self._world), self._block_bytes))
            self._blocks.check(self._received, self._block_bytes)

    def _measured_model(self) -> ExchangeModel:
        """Return the model of an exchange, measured on messages of 4 KiB to 16 MiB from rank 1 to rank 0."""
        times = self._shortest({size: self._plan_exchange(incast(2), size) for size in self._probed})
        lanes = self._world
        if self._bench.target.is_host:
            lanes = min(lanes, len(os.sched_getaffinity(0)))
        return ExchangeModel(TimeCurve.through({float(size): seconds for size, seconds in times.items()}), lanes)

    def _predicted(self, ranks: int, size_bytes: int) -> dict[str, float]:
        """Return by topology the predicted seconds to exchange blocks of `size_bytes` among the first `ranks` ranks."""
        return {name: self._model.exchange_s(schedule(ranks), size_bytes) for name, schedule in TOPOLOGIES.items()}

    def _schedule(self, ranks: int) -> Schedule:
        """Return the advised schedule among the first `ranks` ranks for the block that each rank sends after a step."""
        return TOPOLOGIES[first_best(self._predicted(ranks, self._block_bytes))](ranks)

    def _adapt_topology(self, size_bytes: int) -> float:
        """Choose the topology for blocks of `size_bytes`, measure every topology, and return the regret."""
        chosen = first_best(self._predicted(self._world, size_bytes))
        self._topologies[size_bytes] = chosen
        calls = {name: self._plan_exchange(schedule(self._world), size_bytes) for name, schedule in TOPOLOGIES.items()}
        return regret(chosen, self._shortest(calls))

    def _own_items(self, items: int, ranks: int) -> int:
        """Return this rank's number of products in a step that the first `ranks` ranks divide; other ranks are idle."""
        return len(range(self._bench.rank, items, ranks)) if self._bench.rank < ranks else 0

    def _step(self, items: int, ranks: int) -> Callable[[], None]:
        """Return a call that computes this rank's products of one step."""
        exchange = self._plan_exchange(self._schedule(ranks), self._block_bytes)
        own_items = self._own_items(items, ranks)

        def step() -> None:
            self._compute(own_items)
            exchange()

        return step

    def _adapt_ranks(self, items: int) -> float:
        """Choose the number of ranks for a step of `items` products, measure every number, and return the regret."""
        predicted_s = {
            ranks: self._model.work_s(items, self._item_s, ranks)
            + self._model.exchange_s(self._schedule(ranks), self._block_bytes)
            for ranks in counts_up_to(self._world)
        }
        chosen = self._rank_counts[items] = first_best(predicted_s)
        return regret(chosen, self._shortest({ranks: self._step(items, ranks) for ranks in predicted_s}))

    def _adapt_interval(self) -> tuple[int, int, float]:
        """Return the advised steps between two exchanges, the needed steps, and the cost of the advised ones."""
        work_s = self._model.work_s(_JOB, self._item_s, self._ranks)
        exchange_s = self._model.exchange_s(self._schedule(self._ranks), self._block_bytes)
        advised = steps_between(work_s, exchange_s, _MOST_SHARE, self._intervals)
        calls: dict[int, Callable[[], None]] = {}
        for steps in self._intervals:
            calls[steps] = functools.partial(self._steps, steps)
            calls[-steps] = functools.partial(self._work, steps)  # the same work without an exchange
        taken_s = self._shortest(calls)
        shares = {steps: taken_s[steps] / taken_s[-steps] - 1 for steps in self._intervals}
        needed = next((steps for steps, share in shares.items() if share <= _MOST_SHARE), self._intervals[-1])
        return advised, needed, shares[advised]

    def _work(self, steps: int) -> None:
        """Compute this rank's products of `steps` steps."""
        for _ in range(steps):
            self._compute(self._own_items(_JOB, self._ranks))

    def _steps(self, steps: int) -> None:
        """Compute this rank's products of `steps` steps, and then exchange the blocks."""
        self._work(steps)
        self._exchange()

    def _seconds(self) -> float:
        """Return the seconds per step over one advised interval, up to the last rank's end; every rank must call it."""
        return max(self._blocks.completions(functools.partial(self._steps, self._interval))) / self._interval

    def _poison(self) -> None:
        """Overwrite the received blocks and the product; every rank must call it."""
        self._output.fill(np.nan)
        self._blocks.poison(self._received)

    def _check(self) -> gb.Observation:
        """Check the last exchange and this rank's product, and return what was found when the choices were made."""
        members = range(self._ranks)
        active = self._bench.rank in members
        self._blocks.check([rank for rank in self._received if active and rank in members], self._block_bytes)
        if active:
            rows = self._bench.rng.integers(0, len(self._input), _CHECKED)
            expected = self._input[rows].astype(np.float64) @ self._weights.astype(np.float64)
            expect_close(self._output[rows], expected, "numbers of the product")
        return {
            "topology regret": gb.Observed(max(self._topology_regrets)),
            "ranks regret": gb.Observed(max(self._rank_regrets)),
            "interval": gb.Observed(self._interval, "steps"),
            "interval needed": gb.Observed(self._needed, "steps"),
            "exchange share": gb.Observed(_PERCENT * self._share, "%"),
        }

    def _close(self) -> None:
        restore_threads(self._threads)
        self._exchange = lambda: None  # drops the copies, which hold arrays of the other ranks' memory
        self._blocks.close()

    def task(self) -> gb.Task:
        """Return this rank's task: one stage, the seconds of a step with the advised topology, ranks and interval."""
        stage = gb.Stage(self._seconds, gb.Work(items=1), "item", clock="self", effort=gb.POINT)
        notes = {
            "advised topologies": "; ".join(
                f"{gb.units.size(size)}: {name}" for size, name in self._topologies.items()
            ),
            "topology regrets": ", ".join(f"{share:.1%}" for share in self._topology_regrets),
            "advised ranks": "; ".join(f"{items} products: {ranks}" for items, ranks in self._rank_counts.items()),
            "ranks regrets": ", ".join(f"{share:.1%}" for share in self._rank_regrets),
            "step": f"{_JOB} products by {self._ranks} ranks, blocks of {gb.units.size(self._block_bytes)}",
        }
        return gb.Task.of(
            stage,
            check=self._check,
            poison=self._poison,
            close=self._close,
            release=self._blocks.release,
            notes=notes,
        )
