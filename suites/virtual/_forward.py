"""Measure driver calls that are made in this process, or forwarded to another process that makes them."""

import statistics
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import need_shared_gpu
from .._stream import NEEDS_NUMBA
from ._drivers import LocalDriver

_BATCH = 256  # calls per sample, which fit into the launch queue of a GPU
_ALLOCATED_BYTES = 2**20
_UNITS_ATTRIBUTE = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_MEMORY_TYPE, _IS_DEVICE = 2, 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE
_POISON = 0xA5
_PAIRS = 3  # pairs of native and forwarded calls that a check makes in turn
_NATIVE = "native"
_TRANSPORTS = (_NATIVE, "shm", "unix", "tcp")

topic = gb.Topic(
    views=[
        gb.View("bars", "Driver call time", ("call",), by=("what",), log_x=True),
        gb.View("bars", "Forwarded driver call time", ("forward",), by=("what",), log_x=True),
        gb.View("bars", "Ratio of native to forwarded time", ("forward", "forward_copy"), series="share of native"),
        gb.View(
            "transfer",
            "Bandwidth of forwarded copies by size",
            ("forward_copy",),
            "size_bytes",
            by=("direction", "transport"),
        ),
    ],
)


class NativeCalls:
    """Calls functions of CUDA's driver by their addresses, in a compiled loop."""

    def __init__(self, bench: gb.Bench) -> None:
        from . import _wire

        self._bench, self._wire, self._driver = bench, _wire, LocalDriver(bench)
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
        failed = self._wire.call_again(address, padded, _BATCH)
        elapsed = time.perf_counter() - start
        self._bench.device.synchronize()
        self._launched += _BATCH if what == "launch" else 0
        gb.expect(failed == 0, f"{failed} of {_BATCH} calls of {symbol} failed")
        return elapsed

    def pair_seconds(self) -> float:
        """Return the seconds of 256 pairs of cuMemAlloc and cuMemFree of 1 MiB; raises WrongAnswer if a call failed."""
        addresses = [self._driver.address(symbol) for symbol in ("cuMemAlloc", "cuMemFree")]
        cell = self._cells[:1]
        arguments = _padded(int(cell.ctypes.data), _ALLOCATED_BYTES)
        start = time.perf_counter()
        failed = self._wire.call_pairs(addresses[0], arguments, addresses[1], cell, _BATCH)
        elapsed = time.perf_counter() - start
        gb.expect(failed == 0, f"{failed} of {2 * _BATCH} calls of cuMemAlloc and cuMemFree failed")
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
    _need_compiled()
    calls = NativeCalls(bench)
    is_pair = what == "allocate"
    run: Callable[[], float] = calls.pair_seconds if is_pair else lambda: calls.seconds(what)
    stage = gb.Stage(run, gb.Work(items=_BATCH * (2 if is_pair else 1)), "item", clock="self", effort=gb.POINT)
    return gb.Task.of(stage, check=lambda: calls.check(what), poison=calls.poison)


def _need_compiled() -> None:
    """Raise Skip without numba, which compiles the loops around the calls."""
    if find_spec("numba") is None:
        raise gb.Skip(NEEDS_NUMBA)


def _ranks(params: Mapping[str, str | int | float]) -> int:
    return 1 if params["transport"] == _NATIVE else 2


def _opened(bench: gb.Bench, transport: str) -> tuple[Any, Any, gb.Task | None]:
    """Return the client of `transport`, a native client to compare it with, and the server's idle task."""
    from . import _ends

    driver = LocalDriver(bench)  # opened in each rank, so that each raises Skip by itself
    native = _ends.NativeClient(driver)
    if transport == _NATIVE:
        return native, None, None
    need_shared_gpu(bench)  # the server is a second process on the GPU
    link = _ends.ForwardLink(bench, transport)
    if bench.rank == 0:
        return _ends.ForwardClient(link), native, None
    return None, None, gb.Task.idle(_ends.ForwardServer(bench, driver, link).close)


def share_of_native(native: Callable[[], float], forwarded: Callable[[], float]) -> gb.Observation:
    """Return `share of native`: the median seconds of `native()` over the median of `forwarded()`.

    Both functions make the same calls and return the seconds. They are called three times each, in turn."""
    pairs = [(native(), forwarded()) for _ in range(_PAIRS)]
    share = statistics.median(pair[0] for pair in pairs) / statistics.median(pair[1] for pair in pairs)
    return {"share of native": gb.Observed(share, "", "more")}


class ForwardedCalls:
    """Batches of the call `what`, and the word on the device that counts launches.

    With `is_posted` only the last call of a batch is answered."""

    def __init__(self, client: Any, what: str, is_posted: bool) -> None:
        from . import _wire

        self._client, self._what, self._is_posted = client, what, is_posted
        self._wire, self._launched = _wire, 0
        self._word = client.request(_wire.ALLOCATE, 8)
        client.move(_wire.TO_DEVICE, self._word, np.zeros(8, np.uint8))
        self._calls: Mapping[str, tuple[int, ...]] = {
            "launch": (_wire.LAUNCH, self._word, 1, 1, 1),
            "memory_info": (_wire.MEMORY_INFO,),
            "synchronize": (_wire.SYNCHRONIZE,),
            "allocate": (_wire.ALLOCATE, _ALLOCATED_BYTES),
        }

    def seconds(self) -> float:
        """Return the seconds of a batch of 256 calls, or of 256 pairs of allocating and freeing 1 MiB.

        Raises WrongAnswer if a call failed."""
        start = time.perf_counter()
        self._client.repeat(_BATCH, self._is_posted, *self._calls[self._what])
        elapsed = time.perf_counter() - start
        self._launched += _BATCH if self._what == "launch" else 0
        self._client.request(self._wire.SYNCHRONIZE)  # so that the next batch starts with an empty queue
        return elapsed

    def check(self) -> None:
        """Raise WrongAnswer unless the device has counted every launch.

        Each launch adds one to a word there."""
        self._client.request(self._wire.SYNCHRONIZE)
        launch_count = np.zeros(8, np.uint8)
        self._client.move(self._wire.TO_HOST, self._word, launch_count)
        arrived = int(launch_count.view(np.uint64)[0])
        gb.expect(arrived == self._launched, f"{arrived} of {self._launched} launches reached the device")

    def close(self) -> None:
        """Free the word and stop the server."""
        self._client.request(self._wire.FREE, self._word)
        self._client.close()


def _notes(bench: gb.Bench) -> dict[str, str]:
    if bench.traits.is_gpu:
        return {}
    return {"driver": "seven functions that work on the host's memory stand in for CUDA's driver"}


def _is_call(_target: gb.Target, params: Mapping[str, str | int | float]) -> bool:
    """Return whether a point is measured: with mode `wait` every one, with `posted` only forwarded launches."""
    return params["mode"] == "wait" or (params["what"] == "launch" and params["transport"] != _NATIVE)


@topic.case(
    ranks=_ranks,
    what=gb.points(("launch",), full=("launch", "memory_info", "synchronize", "allocate")),
    transport=gb.points(("tcp",), (_NATIVE, "unix"), _TRANSPORTS),
    mode=gb.points(("wait", "posted"), smoke=("wait", "posted")),
    where=_is_call,
    headline={"what": "launch", "transport": "tcp", "mode": "wait"},
)
def forward(bench: gb.Bench, what: str, transport: str, mode: str) -> gb.Task:
    """Seconds of one driver call that a minimal forwarder makes in another process.

    `launch` is a kernel of one block that increments a counter. With `wait` each call is answered; with `posted` one
    answer follows 256 calls. `native` is the same call in this process. `allocate` takes and releases 1 MiB; a pair
    counts as two calls."""
    _need_compiled()
    client, native_client, serving = _opened(bench, transport)
    if serving is not None:
        return serving
    calls = ForwardedCalls(client, what, mode == "posted")
    native = None if native_client is None else ForwardedCalls(native_client, what, False)

    def check() -> gb.Observation | None:
        calls.check()
        return None if native is None else share_of_native(native.seconds, calls.seconds)

    def close() -> None:
        if native is not None:
            native.close()
        calls.close()

    items = _BATCH * (2 if what == "allocate" else 1)
    stage = gb.Stage(calls.seconds, gb.Work(items=items), "item", clock="self", effort=gb.POINT)
    return gb.Task.of(stage, check=check, close=close, notes=_notes(bench))


class ForwardedCopies:
    """Copies of `size_bytes` to the device (`direction` is `h2d`) or back (`d2h`), with every byte compared.

    `client` is a ForwardClient or a NativeClient."""

    def __init__(self, bench: gb.Bench, client: Any, direction: str, size_bytes: int) -> None:
        from . import _wire

        self._client, self._wire, self._rng = client, _wire, bench.rng
        self._to_device = direction == "h2d"
        self._host, self._readback = bench.device.pinned(size_bytes), np.empty(size_bytes, np.uint8)
        self._place = client.request(_wire.ALLOCATE, size_bytes)
        self.poison()
        self._client.move(_wire.TO_DEVICE, self._place, self._readback)

    def call(self) -> float:
        """Copy once, and return the seconds until the last byte has arrived; raises WrongAnswer if the call failed."""
        start = time.perf_counter()
        self._client.move(self._wire.TO_DEVICE if self._to_device else self._wire.TO_HOST, self._place, self._host)
        return time.perf_counter() - start

    def poison(self) -> None:
        """Draw new data for the next copy to the device, or overwrite the target of the last copy to the host."""
        if self._to_device:
            self._host[:] = self._rng.integers(256, size=self._host.size, dtype=np.uint8)
        else:
            self._host.fill(_POISON)
            if not self._readback.any():
                self._readback[:] = self._rng.integers(256, size=self._readback.size, dtype=np.uint8)

    def check(self) -> None:
        """Raise WrongAnswer if a byte of the last copy is wrong.

        The bytes of a copy to the device are copied back first."""
        if self._to_device:
            self._client.move(self._wire.TO_HOST, self._place, self._readback)
        wrong = int(np.count_nonzero(self._host != self._readback))
        gb.expect(wrong == 0, f"{wrong} of {self._host.size} forwarded bytes are wrong")

    def close(self) -> None:
        """Free the memory and stop the server."""
        self._client.request(self._wire.FREE, self._place)
        self._client.close()


@topic.case(
    ranks=_ranks,
    direction=gb.points(("h2d",), full=("h2d", "d2h")),
    transport=gb.points(("tcp",), (_NATIVE, "shm"), _TRANSPORTS),
    size_bytes=gb.points((2**24,), smoke=(2**16,), full=(*gb.powers_of_two(12, 24, 4), 2**26)),
)
def forward_copy(bench: gb.Bench, direction: str, transport: str, size_bytes: int) -> gb.Task:
    """A copy between pinned host memory and the device through a forwarder, until its answer: payload.

    The server copies through one buffer of 4 MiB. `native` is the same call in this process."""
    _need_compiled()
    bench.need(2 * size_bytes)
    client, native_client, serving = _opened(bench, transport)
    if serving is not None:
        return serving
    copies = ForwardedCopies(bench, client, direction, size_bytes)
    native = None if native_client is None else ForwardedCopies(bench, native_client, direction, size_bytes)

    def check() -> gb.Observation | None:
        copies.check()
        return None if native is None else share_of_native(native.call, copies.call)

    def close() -> None:
        if native is not None:
            native.close()
        copies.close()

    stage = gb.Stage(copies.call, gb.Work(payload=size_bytes), "payload", clock="self", effort=gb.POINT)
    return gb.Task.of(stage, check=check, poison=copies.poison, close=close, notes=_notes(bench))
