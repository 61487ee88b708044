"""Measure work that unequal ranks divide in equal shares, or in shares that follow from their measured times."""

import math

import numpy as np

from gpubench.api import suite as gb

from .._between import rank_counts, ranks_of
from ._blas import restore_threads, use_threads
from ._gradients import devices_of_ranks, has_ranks, libraries
from ._numbers import Normals, expect_close, width_of
from ._parallel import balanced

_ITEMS = 24
_SHARES = ("equal", "balanced")
_SLOW = 2  # the last rank makes each product this many times
_TRIES = 7
_CHECKED = 4
_PERCENT = 100

topic = gb.Topic(views=[gb.View("bars", "Time of unequal ranks by shares of work", ("unequal",), by=("of", "shares"))])


@topic.case(
    ranks=ranks_of,
    devices=devices_of_ranks,
    when=lambda target: has_ranks(target) and gb.beyond_quick(target),
    by=libraries,
    of=rank_counts,
    shares=gb.points(_SHARES[-1:], full=_SHARES),
)
def unequal(bench: gb.Bench, by: str, of: int, shares: str) -> gb.Task:
    """Seconds of 24 equal products over ranks of which the last one takes twice as long per product.

    `equal` gives each rank the same number of products; `balanced` divides them by the ranks' measured times. `items`
    is the number that this rank makes, and `idle` the share of the time in which it waits for the slowest rank."""
    del by, of
    rank = UnequalRank(bench, shares)
    stage = gb.Stage(
        rank.seconds,
        gb.Work(items=1),
        "item",
        clock="self",
        probe=rank.observed,
        effort=gb.POINT,
        outputs=rank.outputs,
    )
    return gb.Task.of(stage, check=rank.check, close=rank.close)


class UnequalRank:
    """One rank's share of 24 products, computed twice per product by the last rank.

    `shares` is `equal` or `balanced`. Every rank must create the object, which measures the ranks."""

    def __init__(self, bench: gb.Bench, shares: str) -> None:
        self._bench = bench
        self._threads = use_threads(1) if bench.target.is_host else 0
        width = width_of(bench)
        rows = 128 if bench.target.is_host else width
        bench.need(3 * _ITEMS * rows * width * 4)
        normals = Normals(bench)
        self._inputs = [normals.matrix(rows, width, 1 + item) for item in range(_ITEMS)]
        self._weights = normals.matrix(width, width, 0, 1 / math.sqrt(width))
        self.outputs = [bench.xp.empty_like(matrix) for matrix in self._inputs]
        self._repeats = _SLOW if bench.rank == bench.world - 1 else 1
        self._mine, self._busy_s, self._all_s = range(_ITEMS), 0.0, 1.0
        self._board = bench.board(has_beats=True)
        self.seconds()
        item_s = min(self._busy() for _ in range(_TRIES)) / _ITEMS
        counts = balanced(_ITEMS, bench.exchange(item_s) if shares == "balanced" else [1.0] * bench.world)
        self._mine = range(sum(counts[: bench.rank]), sum(counts[: bench.rank + 1]))

    def _busy(self) -> float:
        """Compute this rank's products and wait for the device; return the seconds."""
        start = self._bench.device.now()
        for item in self._mine:
            for _ in range(self._repeats):
                self._bench.xp.matmul(self._inputs[item], self._weights, out=self.outputs[item])
        self._bench.device.synchronize()
        return self._bench.device.now() - start

    def seconds(self) -> float:
        """Return the seconds until every rank has computed its products; every rank must call it.

        The products are computed once before, untimed: a GPU that was idle has not raised its clock yet."""
        self._busy()
        self._board.meet()
        start = self._bench.device.now()
        self._busy_s = self._busy()
        self._board.meet()
        self._all_s = self._bench.device.now() - start
        return self._all_s

    def observed(self) -> gb.Observation:
        """Return this rank's number of products, and the time in % of the last sample in which it was idle."""
        idle = _PERCENT * (1 - self._busy_s / self._all_s)
        return {"items": gb.Observed(len(self._mine), "products", "more"), "idle": gb.Observed(idle, "%")}

    def check(self) -> None:
        """Raise WrongAnswer if a product is wrong, or the ranks did not compute each of the 24 products exactly once.

        Every rank must call it."""
        rng = self._bench.rng
        products = sorted(item for items in self._bench.exchange(list(self._mine)) for item in items)
        gb.expect(products == list(range(_ITEMS)), f"the products {products} were made, not each of {_ITEMS} once")
        weights = self._weights.astype(np.float64)
        for item in self._mine:
            rows = rng.integers(0, len(self._inputs[item]), _CHECKED)
            expected = self._inputs[item][rows].astype(np.float64) @ weights
            expect_close(self.outputs[item][rows], expected, f"numbers of product {item}")

    def close(self) -> None:
        """Stop the heartbeat, and restore the threads."""
        restore_threads(self._threads)
        self._board.close()
