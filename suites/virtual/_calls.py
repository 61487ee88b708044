"""Measure calls of CUDA's driver that are made in this process, in a compiled loop."""

import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec

import numpy as np

from gpubench.api import suite as gb

from .._stream import NEEDS_NUMBA

BATCH = 256  # calls per sample, which fit into the launch queue of a GPU
_ALLOCATED_BYTES = 2**20
_UNITS_ATTRIBUTE = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_MEMORY_TYPE, _IS_DEVICE = 2, 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE

topic = gb.Topic(views=[gb.View("bars", "Driver call time", ("call",), by=("what",), log_x=True)])


class NativeCalls:
    """Calls functions of CUDA's driver by their addresses, in a compiled loop."""

    def __init__(self, bench: gb.Bench) -> None:
        from . import _wire

        self._bench, self._wire, self._driver = bench, _wire, _wire.LocalDriver(bench)
        self._cells = np.zeros(8, np.int64)
        self._array = bench.xp.zeros(1, bench.xp.uint64)
        self._launched = 0
        self._event = bench.xp.cuda.Event(disable_timing=True)
        self._event.record(bench.xp.cuda.get_current_stream())
        bench.device.synchronize()

    def seconds(self, what: str) -> float:
        """Return the seconds of 256 calls of the driver function that `what` names, such as `launch` or `attribute`.

        `what` is a point of the case `call` except `allocate`. Raises WrongAnswer if a call failed."""
        symbol, arguments = self._function_of(what)
        address, padded = self._driver.address(symbol), _padded(*arguments)
        start = time.perf_counter()
        failed = self._wire.call_again(address, padded, BATCH)
        elapsed = time.perf_counter() - start
        self._bench.device.synchronize()
        self._launched += BATCH if what == "launch" else 0
        gb.expect(failed == 0, f"{failed} of {BATCH} calls of {symbol} failed")
        return elapsed

    def pair_seconds(self) -> float:
        """Return the seconds of 256 pairs of cuMemAlloc and cuMemFree of 1 MiB; raises WrongAnswer if a call failed."""
        addresses = [self._driver.address(symbol) for symbol in ("cuMemAlloc", "cuMemFree")]
        cell = self._cells[:1]
        arguments = _padded(int(cell.ctypes.data), _ALLOCATED_BYTES)
        start = time.perf_counter()
        failed = self._wire.call_again(addresses[0], arguments, BATCH, addresses[1], cell)
        elapsed = time.perf_counter() - start
        gb.expect(failed == 0, f"{failed} of {2 * BATCH} calls of cuMemAlloc and cuMemFree failed")
        return elapsed

    def _function_of(self, what: str) -> tuple[str, tuple[int, ...]]:
        """Return the name of the driver function that `what` stands for, and its arguments as integers."""
        place, device = int(self._cells.ctypes.data), int(self._bench.xp.cuda.Device().id)
        kernel, stream = (int(cell) for cell in self._driver.cells[:2])
        if what == "launch":
            cells = self._driver.cells
            cells[4:7] = int(self._array.data.ptr), 1, 1
            base = int(cells.ctypes.data)
            cells[7:10] = base + 32, base + 40, base + 48
            return "cuLaunchKernel", (kernel, 1, 1, 1, 32, 1, 1, 0, stream, base + 56, 0)
        calls: Mapping[str, tuple[str, tuple[int, ...]]] = {
            "attribute": ("cuDeviceGetAttribute", (place, _UNITS_ATTRIBUTE, device)),
            "memory_info": ("cuMemGetInfo", (place, place + 8)),
            "event_query": ("cuEventQuery", (int(self._event.ptr),)),
            "pointer_query": ("cuPointerGetAttribute", (place, _MEMORY_TYPE, int(self._array.data.ptr))),
            "synchronize": ("cuStreamSynchronize", (stream,)),
        }
        return calls[what]

    def poison(self) -> None:
        """Overwrite the cells that calls write their results to."""
        self._cells.fill(0)

    def check(self, what: str) -> None:
        """Raise WrongAnswer if the last calls of `what`, a point of the case `call`, returned a wrong value.

        For `launch` it is raised if launches were lost."""
        if what == "allocate":
            gb.expect(int(self._cells[0]) != 0, "cuMemAlloc returned no address")
        expectations: Mapping[str, Callable[[], tuple[int, int]]] = {
            "attribute": lambda: (self._bench.target.device.units, int(self._cells[:1].view(np.int32)[0])),
            "memory_info": lambda: (int(self._bench.xp.cuda.runtime.memGetInfo()[1]), int(self._cells[1])),
            "pointer_query": lambda: (_IS_DEVICE, int(self._cells[:1].view(np.uint32)[0])),
            "launch": lambda: (self._launched, int(self._bench.device.to_host(self._array)[0])),
        }
        if what in expectations:
            expected, returned = expectations[what]()
            gb.expect(returned == expected, f"{what} returned {returned}, expected {expected}")


def _padded(*arguments: int) -> tuple[np.int64, ...]:
    return tuple(np.int64(value) for value in (*arguments, *[0] * 11)[:11])


@topic.case(
    what=gb.points(
        ("attribute", "launch"),
        full=("attribute", "memory_info", "event_query", "pointer_query", "allocate", "launch", "synchronize"),
    ),
    when=gb.on_gpu,
)
def call(bench: gb.Bench, what: str) -> gb.Task:
    """Seconds of one CUDA driver call, called in a compiled loop by the address that the CUDA runtime receives too.

    The overhead of an interposer shows here. `allocate` is cuMemAlloc and cuMemFree of 1 MiB; a pair counts as two
    calls."""
    need_compiled()
    calls = NativeCalls(bench)
    is_pair = what == "allocate"
    run: Callable[[], float] = calls.pair_seconds if is_pair else lambda: calls.seconds(what)
    stage = gb.Stage(run, gb.Work(items=BATCH * (2 if is_pair else 1)), "item", clock="self", effort=gb.POINT)
    return gb.Task.of(stage, check=lambda: calls.check(what), poison=calls.poison)


def need_compiled() -> None:
    """Raise Skip without numba, which compiles the loops around the calls."""
    if find_spec("numba") is None:
        raise gb.Skip(NEEDS_NUMBA)
