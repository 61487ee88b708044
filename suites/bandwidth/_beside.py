"""Measure how much a copy within the device and a matrix product slow each other down.

Each call times one of the two, first alone and then while the other runs without a pause, so that both times of the
ratio have the same clock and are taken at the same moment."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import flipping, in_turn
from .._copies import Call
from ._engines import copy_call, engines, newest_engine, require
from ._words import CopiedWords

_N = 4096  # rows and columns of the float16 product
_COPIED_BYTES = 2**28
_PRODUCTS, _COPIES = 4, 6  # calls in one sample: about a millisecond each on an H200
_COVER = 3.0  # the other workload is at first this many times as long as the timed one
_MOST_COVER = 64.0
_DRAWN = 262139  # normal values that are drawn and repeated; the number is prime, so that no two rows are alike
_ROWS, _COLUMNS = 16, 256  # the part of the product that is checked
_TOLERANCE = 4 * 2.0**-11 + math.sqrt(_N) * 2.0**-24  # Higham 2002, §3.1: inputs of 11 bits, sums of 24
_SPARE_BYTES = 2**28  # workspace of the BLAS
_MILLI = 1e-3
_NOTES = {"product": f"{_N}³ in float16, {_DRAWN} values of N(0,1) repeated", "copied": "256 MiB per call"}
_CASES = ("beside_gemm", "beside_gemm_on")

topic = gb.Topic(
    views=[
        gb.View("bars", "GEMM throughput under concurrent copies", _CASES, series="gemm.self"),
        gb.View("bars", "Copy bandwidth under concurrent GEMM", _CASES, series="copy.self"),
    ]
)


def _has_products(target: gb.Target) -> bool:
    """Return whether the target is a GPU that supports float16."""
    return not target.is_host and "float16" in target.device.dtypes


def _engines(target: gb.Target) -> Any:
    """Return the axis of copy engines for `beside_gemm`: `memcpy`, which every program uses; in `full` all engines."""
    return gb.points(("memcpy",), full=engines(target).full)


def _kernel_engines(target: gb.Target) -> Any:
    """Return the axis of engines that are kernels: the newest one; in `full` also `load-store`."""
    newest = newest_engine(target)
    return gb.points((newest,), full=tuple(dict.fromkeys(("load-store", newest))))


@topic.case(engine=_engines, when=_has_products)
def beside_gemm(bench: gb.Bench, engine: str) -> gb.Task:
    """Throughput of a matrix product while copies by `engine` run, and bandwidth of copies while products run.

    `slowdown` is the time of a workload while the other one runs, over its time alone: 1 means no effect."""
    return _product_beside_copies(bench, engine)


@topic.case(
    engine=_kernel_engines,
    units=lambda target: gb.points(
        (16,), full=tuple(count for count in (4, 8, 16, 32) if count < max(5, target.device.units))
    ),
    when=_has_products,
)
def beside_gemm_on(bench: gb.Bench, engine: str, units: int) -> gb.Task:
    """The same as beside_gemm, with copies by a kernel that runs on `units` compute units only."""
    return _product_beside_copies(bench, engine, units)


def _product_beside_copies(bench: gb.Bench, engine: str, units: int = 0) -> gb.Task:
    """Return a task of the stages `gemm` and `copy`; each is timed while the other workload runs."""
    require(bench, engine)
    bench.need(2 * _COPIED_BYTES + 3 * 2 * _N * _N + _SPARE_BYTES)
    copied_words = CopiedWords(bench, _COPIED_BYTES)
    copy, product = copy_call(bench, copied_words, engine, units), HalfProduct(bench)
    pair = WorkloadPair(bench, product.call, copy)

    stages = {
        "gemm": replace(
            pair.stage("gemm", product.work, "tensor.float16"), outputs=(product.c,), inputs=product.redraw
        ),
        "copy": replace(
            pair.stage("copy", gb.Work(moved=2 * _COPIED_BYTES, payload=_COPIED_BYTES), "dram"),
            outputs=(copied_words.copied,),
            inputs=copied_words.redraw,
        ),
    }
    return gb.Task(stages, in_turn(product.check, copied_words.check), notes=_NOTES)


class HalfProduct:
    """A product C = A·B of 4096 × 4096 float16 matrices with elements from N(0,1), and the check of C.

    A and B hold the same numbers in another order. `work` is the work of one product."""

    def __init__(self, bench: gb.Bench) -> None:
        drawn = bench.rng.standard_normal(_DRAWN, dtype=np.float32).astype(np.float16)
        self._host = [np.resize(np.roll(drawn, shift), (_N, _N)) for shift in (0, _DRAWN // 2)]
        self._a, self._b = (bench.xp.array(matrix) for matrix in self._host)
        self.redraw = flipping(self._a, self._host[0])
        self.c = bench.xp.zeros((_N, _N), np.float16)
        self._xp, self._rng, self._to_host = bench.xp, bench.rng, bench.device.to_host
        self.work = gb.Work(flops=2.0 * _N**3, moved=3.0 * self.c.nbytes)

    def call(self) -> None:
        """Queue one product on the current stream."""
        self._xp.matmul(self._a, self._b, out=self.c)

    def check(self) -> None:
        """Raise WrongAnswer if C differs from a product in double precision by a relative error above 0.2 %.

        It compares the elements in 16 random rows and 256 random columns; the error is a Frobenius norm."""
        rows, columns = (self._rng.choice(_N, count, replace=False) for count in (_ROWS, _COLUMNS))
        expected = self._host[0][rows].astype(np.float64) @ self._host[1][:, columns].astype(np.float64)
        result = self._to_host(self.c)[rows][:, columns].astype(np.float64)
        error = float(np.linalg.norm(result - expected) / np.linalg.norm(expected))
        gb.expect(error <= _TOLERANCE, f"the relative error of the product is {error:.3g}, above {_TOLERANCE:.3g}")


@dataclass(frozen=True, slots=True)
class _Workload:
    """A call, the number of calls in a sample (`count`), and the seconds of one call while nothing else runs."""

    call: Call
    count: int
    seconds: float

    def run(self, count: int) -> None:
        """Queue this number of calls."""
        for _ in range(count):
            self.call()


class WorkloadPair:
    """A product and a copy, each timed while the other runs on a second stream.

    Creating the pair runs and times each alone, to choose how many calls of the other workload cover a sample."""

    def __init__(self, bench: gb.Bench, product: Call, copy: Call) -> None:
        self._device, self.cuda = bench.device, bench.xp.cuda
        for call in (product, copy):  # the library's first call waits for the device
            call()
        self._device.synchronize()
        self._workloads = {
            name: _Workload(call, count, self._device.time(call, count).device[0])
            for name, call, count in (("gemm", product, _PRODUCTS), ("copy", copy, _COPIES))
        }
        self.cover = dict.fromkeys(self._workloads, _COVER)
        self._alone, self._free, self._begun, self._ended, self.covered = (self.cuda.Event() for _ in range(5))
        self._slowdown = dict.fromkeys(self._workloads, math.nan)

    def stage(self, name: str, work: gb.Work, limit: str) -> gb.Stage:
        """Return the stage of the workload `name` (`gemm` or `copy`), which times samples while the other one runs.

        `work` is the work of one call, and `limit` names the peak with which the rate is compared."""
        count = self._workloads[name].count
        total = gb.Work(count * work.moved, count * work.payload, count * work.flops)
        quantity: Any = "flops" if work.flops else "moved"

        def slowdown() -> gb.Observation:
            return {"slowdown": gb.Observed(self._slowdown[name])}

        return gb.Stage(
            partial(self._seconds, name), total, quantity, limit, clock="self", probe=slowdown, effort=gb.POINT
        )

    def _seconds(self, name: str) -> float:
        """Return the seconds of one sample of the workload `name` while the other workload runs."""
        timed, other = self._workloads[name], self._workloads["copy" if name == "gemm" else "gemm"]
        covering = math.ceil(self.cover[name] * timed.count * timed.seconds / other.seconds) + 1

        def cover() -> None:
            other.run(covering)
            self.covered.record()

        self._queue_sample(timed, self._alone, self._free)
        self._device.together(lambda: self._queue_sample(timed, self._begun, self._ended), cover)
        self._device.synchronize()
        beside = self._elapsed(self._begun, self._ended)
        if self._elapsed(self._begun, self.covered) < beside:
            self.cover[name] = min(2 * self.cover[name], _MOST_COVER)
            return math.nan
        self._slowdown[name] = beside / self._elapsed(self._alone, self._free)
        return beside

    def _queue_sample(self, workload: _Workload, begun: Any, ended: Any) -> None:
        """Queue the calls of a sample between the CuPy events `begun` and `ended`, after one further call."""
        workload.run(1)
        begun.record()
        workload.run(workload.count)
        ended.record()

    def _elapsed(self, begun: Any, ended: Any) -> float:
        """Return the seconds between two events."""
        return float(self.cuda.get_elapsed_time(begun, ended)) * _MILLI
