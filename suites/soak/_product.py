"""Repeat products of the vendor's BLAS on fixed matrices, alone or beside memory passes, steadily or in pulses.

A library gives the same bits for the same product on GPUs of one architecture with the same number of SMs, if it
uses one stream and no atomics, as here (NVIDIA, cuBLAS documentation, "Results Reproducibility")."""

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import in_turn
from .._matrix.data import Operands
from .._matrix.formats import PRECISIONS, Shape
from .._matrix.product import precision_of
from .._matrix.vendor import WORKSPACE_BYTES, vendor
from ._identical import bits, effort, expect_identical, invert
from ._memory import MemoryPattern, WrongWords, grid_of

_OUTPUTS = 4  # the products take turns in writing them
_ROWS = 8  # rows of the first product on the host that are compared with a product in float64
_TOLERANCES = {"float32": 1e-5, "float64": 1e-13}  # of the host: error of a row relative to its norm
_DEEP = 4  # a GPU's products sum over four times the size, so that comparing their results takes a small share
_BURNT = ("bfloat16", "float8_e4m3", "int8")
_BURNT_S = 30.0  # seconds of a load in one pass of the full tier
# SMs or CUs that the memory passes use beside products: on an H200 they move 1.03 TB/s there, 0.50 on 8 and 1.88 on 32,
# and the products keep 77, 96 and 63 % of their rate; the power is 693, 701 and 688 of 700 W.
_UNITS = 16
_PERIOD_S = 0.2  # of a pulse: the load is on for half of it, at the same time on all GPUs of a machine
_BATCH_S, _MOST_PRODUCTS = 0.25, 400  # of a call: a queue holds about a thousand launches
_THREADS, _PART_VECTORS = 512, 2**16
_MOST_PARTS = 2**16  # of a block: two seconds, in case that the device runs one kernel after another
_GIB = 2**30

topic = gb.Topic(
    views=[
        gb.View("bars", "Soak: product throughput", ("product",), by=("dtype", "size"), series="self"),
        gb.View(
            "bars",
            "Soak: product throughput beside memory passes",
            ("burn",),
            by=("load", "dtype", "size"),
            series="self",
        ),
    ],
)


def _dtypes(target: gb.Target) -> Any:
    if target.is_host:
        return gb.points(("float64",), full=("float32", "float64"))
    supported = tuple(dtype for dtype in PRECISIONS if dtype in target.device.dtypes) or ("float64",)
    return gb.points(tuple(dtype for dtype in ("float16",) if dtype in supported) or supported[:1], full=supported)


def _burnt(target: gb.Target) -> Any:
    supported = tuple(dtype for dtype in _BURNT if dtype in target.device.dtypes)
    return gb.points(supported[:1], full=supported)


def _sizes(target: gb.Target) -> Any:
    return gb.points((512,), (128,), (1024,)) if target.is_host else gb.points((4096,), (1024,), (8192,))


@topic.case(version=2, dtype=_dtypes, size=_sizes, headline={"dtype": "float64"})
def product(bench: gb.Bench, dtype: str, size: int) -> gb.Task:
    """Throughput of products of fixed matrices with elements from N(0,1), each compared bit by bit with the first one.

    The result has `size` × `size` elements, each a sum of 4 · `size` products on a GPU and of `size` on the host; a
    product counts 2 operations for each. On a GPU the time of the comparisons counts, so that the load has no gap."""
    if not bench.traits.is_gpu:
        return _HostProduct(bench, dtype, size).task()
    return _Products(bench, dtype, size).task()


@topic.case(when=gb.on_gpu, load=gb.points(("constant",), full=("constant", "pulse")), dtype=_burnt, size=_sizes)
def burn(bench: gb.Bench, load: str, dtype: str, size: int) -> gb.Task:
    """Throughput of such products while a kernel on 16 compute units compares memory and writes its inverse.

    With the load `pulse` the products are on for 100 ms and off for 100 ms, at the same time on all GPUs of a machine,
    which stresses power supplies. `beside` is the rate of the memory passes."""
    units = min(_UNITS, max(bench.device.device.units // 2, 1))
    nbytes = max(bench.device.free_bytes() // 2 // _GIB, 1) * _GIB if bench.target.tier == "full" else 2**28
    return _Products(bench, dtype, size, _Marching(bench, units, nbytes), load == "pulse").task()


class _Marching:
    """Passes over memory on a few compute units, which last as long as other work: each compares and inverts it."""

    def __init__(self, bench: gb.Bench, units: int, nbytes: int) -> None:
        self.units, self._bench = units, bench
        self.memory = MemoryPattern(bench, "random", nbytes)
        self._march = bench.kernel("soak.cu", "march")
        self._done, self._stop = bench.xp.zeros(self.units, np.uint64), bench.xp.zeros(1, np.uint64)
        self._passed = 0
        self._stop.fill(1)  # a kernel that loads beside the march would wait for its end
        self.memory.run("write", 0)

    def beside(self, call: Callable[[], None]) -> None:
        """Queue `call` on the device's stream, and passes on another stream until it has ended."""
        self._stop.fill(0)
        self._bench.device.together(in_turn(call, partial(self._stop.fill, 1)), self._launch)

    def _launch(self) -> None:
        memory, seed = self.memory.memory, np.uint32(self.memory.seed)
        numbers = np.uint64(memory.size // 2), np.uint64(_PART_VECTORS), seed
        most = np.uint64(1 if self._bench.traits.is_dry_run else _MOST_PARTS)
        args = (memory, *numbers, self._done, self._stop, most, self.memory.wrong.array)
        self._march((self.units,), (_THREADS,), args)

    def moved(self) -> float:
        """Return the bytes read and written since the last call; raise WrongAnswer if a word was wrong."""
        self.memory.wrong.expect_none("memory passes beside products", self.memory.memory)
        before, self._passed = self._passed, int(self._bench.device.to_host(self._done).sum())
        return 2.0 * 16 * _PART_VECTORS * (self._passed - before)


class _Products:
    """Products of two fixed matrices on a GPU, the first result, and memory for further results, which are compared.

    With `marching` they run beside its memory passes, and with `is_pulsed` in pulses. Raises Skip without enough free
    memory or support, and WrongAnswer if the first product is wrong."""

    def __init__(
        self, bench: gb.Bench, dtype: str, size: int, marching: _Marching | None = None, is_pulsed: bool = False
    ) -> None:
        self._bench, self._marching, self._is_pulsed = bench, marching, is_pulsed
        precision = precision_of(bench, dtype)
        self._shape = Shape(size, size, _DEEP * size, precision.order)
        self._kernel = f"product of {dtype} matrices, {self._shape}"
        bench.need(1.1 * self._shape.moved(precision) + _OUTPUTS * 8 * size * size)
        operands = Operands(bench, precision, self._shape)
        units = bench.device.device.units - marching.units if marching else 0
        workspace = bench.xp.empty(WORKSPACE_BYTES, np.uint8)
        by_vendor = vendor(bench, operands.product, workspace, units)
        by_vendor.call()
        bench.device.synchronize()
        operands.check()
        self._first, self._notes = operands.c, {**by_vendor.notes, "kernel": self._kernel}
        self._digest = hashlib.sha256(bench.device.to_host(self._first).tobytes()).hexdigest()
        outputs = [bench.xp.empty_like(self._first) for _ in range(_OUTPUTS)]
        self._turns = itertools.cycle(
            [(vendor(bench, replace(operands.product, c=out), workspace, units).call, out) for out in outputs]
        )
        self._compare, self._wrong = bench.kernel("soak.cu", "compare"), WrongWords(bench)
        self._count, self._beside = _OUTPUTS, 0.0
        seconds = bench.device.time(self._queue, 1, gated=False).device[0]
        bench.device.synchronize()
        batch_s = _PERIOD_S / 2 if is_pulsed else _BATCH_S
        self._count = min(max(round(_OUTPUTS * batch_s / seconds), 1), _MOST_PRODUCTS)

    def _queue(self) -> None:
        """Queue the products of a batch, each with its comparison, which leaves the inverse of the right result."""
        vectors = np.uint64(self._first.nbytes // 16)
        for call, out in itertools.islice(self._turns, self._count):
            call()
            self._compare(grid_of(self._bench), (_THREADS,), (out, self._first, vectors, self._wrong.array))

    def task(self) -> gb.Task:
        """Return the task; each call of its stage computes and compares a batch of products."""
        stage = gb.Stage(
            self._call,
            gb.Work(flops=self._shape.flops),
            "flops",
            clock="self",
            effort=effort(self._bench, _BURNT_S) if self._marching else effort(self._bench),
            checked=True,
            probe=self._rates if self._marching else None,
        )
        load = {"soak.load": "pulse" if self._is_pulsed else "constant"} if self._marching else {}
        notes = {"soak.digest": self._digest, **load, **self._notes}
        return gb.Task.of(stage, check=lambda: None, notes=notes)

    def _call(self) -> float:
        """Compute and compare a batch of products, and return the mean seconds of a product."""
        device, marching = self._bench.device, self._marching
        if self._is_pulsed:
            device.rest(_PERIOD_S - device.now() % _PERIOD_S)
        run = (lambda: marching.beside(self._queue)) if marching else self._queue
        seconds = device.time(run, 1, gated=False).device[0]
        device.synchronize()
        self._wrong.expect_none(self._kernel, self._first)
        if marching:
            self._beside = marching.moved() / seconds
        return seconds / self._count

    def _rates(self) -> gb.Observation:
        """Return the bytes per second that the memory passes moved beside the last batch."""
        return {"beside": gb.Observed(self._beside, "B/s", "more")}


class _HostProduct:
    """Products of two fixed `size` × `size` matrices on the host, the first product, and memory for further products.

    Raises Skip without enough free memory, and WrongAnswer if the first product is wrong."""

    def __init__(self, bench: gb.Bench, dtype: str, size: int) -> None:
        self._bench, self._size = bench, size
        bench.need((3 + _OUTPUTS) * size * size * np.dtype(dtype).itemsize)
        rng = bench.rng
        self._left, self._right = (rng.standard_normal((size, size), np.float32).astype(dtype) for _ in range(2))
        self._first = np.empty((size, size), dtype)
        self._outputs = [np.empty_like(self._first) for _ in range(_OUTPUTS)]
        self._kernel = f"product of {dtype} matrices of {size} × {size}"
        self._multiply(self._first)
        self._expect_right(_TOLERANCES[dtype])
        self._digest = hashlib.sha256(bits(self._first).tobytes()).hexdigest()

    def _multiply(self, out: Any) -> None:
        np.matmul(self._left, self._right, out=out)

    def _expect_right(self, tolerance: float) -> None:
        """Raise WrongAnswer if the relative error of about eight rows of the first product is above `tolerance`."""
        rows = slice(0, self._size, max(self._size // _ROWS, 1))
        expected = np.matmul(self._left[rows].astype(np.float64), self._right.astype(np.float64))
        error = float(np.linalg.norm(self._first[rows].astype(np.float64) - expected) / np.linalg.norm(expected))
        gb.expect(
            error <= tolerance,
            f"{self._kernel}: the first product has a relative error of {error:.3g}, above {tolerance:g}",
        )

    def task(self) -> gb.Task:
        """Return the task; each call of its stage times four products and compares all of them."""
        work = gb.Work(flops=2.0 * self._size**3)
        stage = gb.Stage(self._call, work, "flops", clock="self", effort=effort(self._bench), checked=True)
        return gb.Task.of(stage, check=lambda: None, notes={"soak.digest": self._digest, "kernel": self._kernel})

    def _call(self) -> float:
        """Compute a product into each output, compare all outputs, and return the mean seconds of a product."""
        for out in self._outputs:
            invert(out, self._first, self._bench)
        turns = itertools.cycle(self._outputs)
        timing = self._bench.device.time(lambda: self._multiply(next(turns)), _OUTPUTS, gated=False)
        for out in self._outputs:
            expect_identical(self._bench, self._kernel, out, self._first)
        return timing.device[0]
