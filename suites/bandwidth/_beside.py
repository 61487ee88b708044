"""A copy within the device beside a matrix product: what each takes from the other.

Each call times one of the two, first alone and then while the other is running all the time, so that
the ratio is of the same clock and the same moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api.suite import POINT, Bench, Observation, Observed, Stage, Task, Work, expect

from ._engines import Copies, require

_N = 4096  # of the product, in float16
_COPIED_BYTES = 2**28
_PRODUCTS, _COPIES = 4, 6  # in one sample: a millisecond or so of each on an H200
_COVER = 3.0  # so many times as long as what is timed alone the other goes on, at first
_MOST_COVER = 64.0
_DRAWN = 262139  # normal values, a prime number, so that no two rows are alike
_ROWS, _COLUMNS = 16, 256  # of the product that are checked
_TOLERANCE = 4 * 2.0**-11 + math.sqrt(_N) * 2.0**-24  # Higham 2002, §3.1: inputs of 11 bits, sums of 24
_SPARE_BYTES = 2**28  # what the BLAS works in
_MILLI = 1e-3
_NOTES = {"product": f"{_N}³ in float16, {_DRAWN} values of N(0,1) over and over", "copied": "256 MiB a call"}

Call = Callable[[], object]


class Product:
    """C = A·B of N×N matrices of float16 from N(0,1): A and B are the same numbers in another order."""

    def __init__(self, bench: Bench) -> None:
        drawn = bench.rng.standard_normal(_DRAWN, dtype=np.float32).astype(np.float16)
        self._host = [np.resize(np.roll(drawn, shift), (_N, _N)) for shift in (0, _DRAWN // 2)]
        self._a, self._b = (bench.xp.asarray(matrix) for matrix in self._host)
        self._c = bench.xp.zeros((_N, _N), np.float16)
        self._xp, self._rng, self._to_host = bench.xp, bench.rng, bench.device.to_host
        self.work = Work(flops=2.0 * _N**3, moved=3.0 * self._c.nbytes)

    def call(self) -> None:
        """Queue one product on the current stream."""
        self._xp.matmul(self._a, self._b, out=self._c)

    def poison(self) -> None:
        """Spoil the result."""
        self._c.fill(0)

    def check(self) -> None:
        """A block of random rows and columns against double precision."""
        rows, columns = (self._rng.choice(_N, count, replace=False) for count in (_ROWS, _COLUMNS))
        a, b = self._host[0][rows].astype(np.float64), self._host[1][:, columns].astype(np.float64)
        found, right = self._to_host(self._c)[rows][:, columns].astype(np.float64), a @ b
        error = float(np.linalg.norm(found - right) / np.linalg.norm(right))
        expect(error <= _TOLERANCE, f"the product is off by {error:.3g}, more than {_TOLERANCE:.3g}")


@dataclass(frozen=True, slots=True)
class _Side:
    """A call, how many make a sample, and how long one takes alone."""

    call: Call
    count: int
    seconds: float

    def run(self, count: int) -> None:
        """Queue so many calls."""
        for _ in range(count):
            self.call()


class Beside:
    """Two kinds of work that are timed against each other."""

    def __init__(self, bench: Bench, product: Call, copy: Call) -> None:
        self._device, self._cuda = bench.device, bench.xp.cuda
        for call in (product, copy):  # the library's first call waits for the device
            call()
        self._device.synchronize()
        self._sides = {"gemm": self._side(product, _PRODUCTS), "copy": self._side(copy, _COPIES)}
        self._cover = dict.fromkeys(self._sides, _COVER)
        self._alone, self._free, self._begun, self._ended, self._covered = (self._cuda.Event() for _ in range(5))
        self._slowdown = dict.fromkeys(self._sides, math.nan)

    def _side(self, call: Call, count: int) -> _Side:
        return _Side(call, count, self._device.time(call, count).device[0])

    def seconds(self, name: str) -> float:
        """Seconds of a sample of one side while the other one runs; NaN where that ended before."""
        mine, theirs = self._sides[name], self._sides["copy" if name == "gemm" else "gemm"]
        covering = math.ceil(self._cover[name] * mine.count * mine.seconds / theirs.seconds) + 1

        def cover() -> None:
            theirs.run(covering)
            self._covered.record()

        self._timed(mine, self._alone, self._free)
        self._device.together(lambda: self._timed(mine, self._begun, self._ended), cover)
        self._device.synchronize()
        beside = self._elapsed(self._begun, self._ended)
        if self._elapsed(self._begun, self._covered) < beside:
            self._cover[name] = min(2 * self._cover[name], _MOST_COVER)
            return math.nan
        self._slowdown[name] = beside / self._elapsed(self._alone, self._free)
        return beside

    def _timed(self, side: _Side, begun: Any, ended: Any) -> None:
        """A sample between two events, behind one more call that hides what launching takes."""
        side.run(1)
        begun.record()
        side.run(side.count)
        ended.record()

    def _elapsed(self, begun: Any, ended: Any) -> float:
        return float(self._cuda.get_elapsed_time(begun, ended)) * _MILLI

    def stage(self, name: str, work: Work, limit: str) -> Stage:
        """A stage of one side; the series `slowdown` is its seconds beside the other over its seconds alone."""
        count = self._sides[name].count
        total = Work(count * work.moved, count * work.payload, count * work.flops)
        quantity: Any = "flops" if work.flops else "moved"

        def probe() -> Observation:
            return {"slowdown": Observed(self._slowdown[name])}

        return Stage(lambda: self.seconds(name), total, quantity, limit, clock="self", probe=probe, effort=POINT)


def beside_gemm(bench: Bench, engine: str, units: int = 0) -> Task:
    """The product's rate while copies run, and the copies' while products do."""
    require(bench, engine)
    bench.need(2 * _COPIED_BYTES + 3 * 2 * _N * _N + _SPARE_BYTES)
    copies = Copies(bench, _COPIED_BYTES)
    copy = copies.on(engine, units)
    product = Product(bench)
    beside = Beside(bench, product.call, copy)

    def check() -> Observation:
        product.check()
        return copies.check()

    def poison() -> None:
        product.poison()
        copies.poison()

    stages = {
        "gemm": beside.stage("gemm", product.work, "tensor.float16"),
        "copy": beside.stage("copy", copies.work, "dram"),
    }
    return Task(stages, check, poison, notes=_NOTES)
