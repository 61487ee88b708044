"""Measure calls of CUDA's driver by this process, and by another one through the smallest forwarder."""

import contextlib
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import need_shared_gpu
from .._stream import NEEDS_NUMBA

BATCH = 256  # calls per sample, which fit into the launch queue of a GPU
_ALLOCATED_BYTES = 2**20
_UNITS_ATTRIBUTE = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_MEMORY_TYPE, _IS_DEVICE = 2, 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE
TRANSPORTS = ("unix", "tcp")
_BUFFER_BYTES = 2**22  # each of the two page-locked buffers of the server
_CLIENT_S, _SERVER_S = 20, 120  # time without a byte after which the client or the server gives up
_STOP_S = 10.0
_LOOPBACK = "127.0.0.1"
_POISON = 0xA5
_NO_BYTES = np.zeros(0, np.uint8)
_PAIRS = 3  # pairs of native and forwarded calls that a check makes in turn
DELAYS = gb.points((0,), full=(0, 5, 20, 100))  # µs

topic = gb.Topic(
    views=[
        gb.View("bars", "Driver call time", ("call",), by=("what",), log_x=True),
        gb.View("bars", "Forwarded driver call time", ("forward",), by=("what",), log_x=True),
        gb.View("bars", "Ratio of native to forwarded time", ("forward",), series="share of native"),
        gb.View(
            "transfer",
            "Bandwidth of forwarded copies by size",
            ("forward_copy",),
            "size_bytes",
            by=("direction", "transport", "delay_us"),
        ),
    ],
)


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
        """Return the seconds of 256 calls of `what`, a point of the case `call`; raises WrongAnswer if one failed."""
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
        """Return the seconds of 256 pairs of cuMemAlloc and cuMemFree of 1 MiB."""
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
        self._cells.fill(0)

    def check(self, what: str) -> None:
        """Raise WrongAnswer if the last calls of `what` returned a wrong value, or launches were lost."""
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
    if find_spec("numba") is None:
        raise gb.Skip(NEEDS_NUMBA)


class ForwardServer:
    """A thread that makes the calls which arrive on a socket with `driver`."""

    def __init__(self, bench: gb.Bench, driver: Any, link: socket.socket) -> None:
        self._link, self._driver = link, driver
        self._buffers = bench.device.pinned(2 * _BUFFER_BYTES).reshape(2, _BUFFER_BYTES)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        from . import _wire

        self._driver.enter()
        _wire.serve(self._link.fileno(), self._driver.table, self._driver.cells, self._buffers)

    def close(self) -> None:
        self._thread.join(_STOP_S)
        if self._thread.is_alive():  # the client ended without sending STOP
            self._link.shutdown(socket.SHUT_RDWR)
            self._thread.join(_STOP_S)
        gb.expect(not self._thread.is_alive(), f"a forwarded call did not return within {_STOP_S} s")
        self._link.close()
        self._driver.close()


class ForwardClient:
    """The end that sends calls and counts them; every answer carries the number of calls that the server made.

    Each answer is late by `delay_us`."""

    def __init__(self, link: socket.socket, delay_us: int = 0) -> None:
        from . import _wire

        self.wire, self._socket, self._delay_ns, self._sent = _wire, link, 1000 * delay_us, 0
        self._answer = np.zeros(_wire.WORDS, np.int64)
        self._places: list[int] = []

    def messages(self, op: int, *arguments: int, count: int = 1, is_posted: bool = False) -> Any:
        """Return `count` messages of the call `op` of `_wire`; only the last is answered if `is_posted`."""
        messages = np.zeros((count, self.wire.WORDS), np.int64)
        messages[:, 0], messages[:, self.wire.ANSWERED], messages[:, self.wire.DELAY_NS] = op, 1, self._delay_ns
        messages[:, 2 : 2 + len(arguments)] = arguments
        messages[: count - 1, self.wire.ANSWERED] = not is_posted
        return messages

    def make(self, messages: Any, host: Any = _NO_BYTES) -> int:
        """Make the calls of `messages`; return the value in the last answer, such as an address.

        A copy moves the first bytes of `host` (NumPy, uint8)."""
        status = self.wire.request(self._socket.fileno(), messages, self._answer, host)
        self._sent += len(messages)
        gb.expect(status != self.wire.LOST, "the forwarder's server is gone, or does not answer")
        gb.expect(status == 0, f"a forwarded call returned the error {status}")
        calls_made = int(self._answer[3])
        gb.expect(calls_made == self._sent, f"the server has made {calls_made} calls of {self._sent}")
        return int(self._answer[1])

    def request(self, op: int, *arguments: int, host: Any = _NO_BYTES) -> int:
        """Make the call `op` of `_wire`, and return the value in its answer."""
        return self.make(self.messages(op, *arguments), host)

    def move(self, to_device: bool, address: int, host: Any) -> None:
        self.request(self.wire.TO_DEVICE if to_device else self.wire.TO_HOST, address, host.size, host=host)

    def allocate(self, size_bytes: int) -> int:
        self._places.append(self.request(self.wire.ALLOCATE, size_bytes))
        return self._places[-1]

    def _free(self) -> None:
        for place in self._places:
            self.request(self.wire.FREE, place)

    def close(self) -> None:
        self._free()
        with contextlib.suppress(OSError):  # the server may be gone
            self._socket.sendall(self.messages(self.wire.STOP).tobytes())
        self._socket.close()


class LocalClient(ForwardClient):
    """Makes the same calls in this process."""

    def __init__(self, bench: gb.Bench) -> None:
        from . import _wire

        self.wire, self._driver, self._delay_ns = _wire, _wire.LocalDriver(bench), 0
        self._places: list[int] = []

    def make(self, messages: Any, host: Any = _NO_BYTES) -> int:
        status = self.wire.make(self._driver.table, messages, self._driver.cells, host)
        gb.expect(status == 0, f"a call of the driver returned the error {status}")
        return int(self._driver.cells[2])

    def close(self) -> None:
        self._free()
        self._driver.close()


def _connected(bench: gb.Bench, transport: str) -> socket.socket:
    """Return this rank's end of a connection between both ranks, whose waits end after a time limit."""
    if transport == "unix":
        (link,) = bench.sockets()
    elif bench.rank != 0:
        with socket.create_server((_LOOPBACK, 0)) as listener:
            listener.settimeout(_STOP_S)
            bench.exchange(listener.getsockname()[1])
            link, _ = listener.accept()
    else:
        link = socket.create_connection((_LOOPBACK, bench.exchange(None)[1]), timeout=_STOP_S)
    link.settimeout(None)
    if transport == "tcp":
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        link.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _CLIENT_S if bench.rank == 0 else _SERVER_S, 0))
    return link


def opened(bench: gb.Bench, transport: str, delay_us: int) -> tuple[Any, gb.Task | None]:
    """Return rank 0's client; in rank 1, also the idle task of its server."""
    need_compiled()
    need_shared_gpu(bench)  # the server is a second process on the GPU
    from ._wire import LocalDriver

    driver, link = LocalDriver(bench), _connected(bench, transport)  # in each rank, so that each raises Skip by itself
    if bench.rank == 0:
        driver.close()
        return ForwardClient(link, delay_us), None
    return None, gb.Task.idle(ForwardServer(bench, driver, link).close)


class ForwardedCalls:
    """Batches of 256 calls of `what`, and the word on the device that counts launches."""

    def __init__(self, client: ForwardClient, what: str, is_posted: bool) -> None:
        self._client, self._wire, self._launched = client, client.wire, 0
        self._word = client.allocate(8)
        client.move(True, self._word, np.zeros(8, np.uint8))
        self._op = getattr(self._wire, what.upper())
        arguments = (self._word, 1, 1, 1) if what == "launch" else ()
        self._batch = client.messages(self._op, *arguments, count=BATCH, is_posted=is_posted)

    def seconds(self) -> float:
        start = time.perf_counter()
        self._client.make(self._batch)
        elapsed = time.perf_counter() - start
        self._launched += BATCH if self._op == self._wire.LAUNCH else 0
        self._client.request(self._wire.SYNCHRONIZE)  # so that the next batch starts with an empty queue
        return elapsed

    def check(self) -> None:
        self._client.request(self._wire.SYNCHRONIZE)
        self._client.move(False, self._word, launched := np.zeros(8, np.uint8))
        arrived = int(launched.view(np.uint64)[0])
        gb.expect(arrived == self._launched, f"{arrived} of {self._launched} launches reached the device")


def is_measured(target: gb.Target) -> bool:
    return gb.on_gpu(target) and gb.beyond_quick(target)


@topic.case(
    version=2,
    ranks=2,
    what=gb.points(("launch",), full=("launch", "memory_info", "synchronize")),
    transport=gb.points(("tcp",), full=TRANSPORTS),
    mode=gb.points(("wait",), full=("wait", "posted")),
    delay_us=DELAYS,
    where=lambda _, params: params["mode"] == "wait" or params["what"] == "launch",
    when=is_measured,
    headline={"what": "launch", "transport": "tcp", "mode": "wait", "delay_us": 0},
)
def forward(bench: gb.Bench, what: str, transport: str, mode: str, delay_us: int) -> gb.Task:
    """Seconds of one driver call that a minimal forwarder makes in another process.

    `launch` is a kernel of one block that increments a counter. With `wait` each call is answered; with `posted` one
    answer follows 256 calls. Each answer is late by `delay_us`, as over a network."""
    client, serving = opened(bench, transport, delay_us)
    if serving is not None:
        return serving
    calls, native = ForwardedCalls(client, what, mode == "posted"), NativeCalls(bench)

    def check() -> gb.Observation:
        calls.check()
        pairs = [(native.seconds(what), calls.seconds()) for _ in range(_PAIRS)]
        share = statistics.median(pair[0] for pair in pairs) / statistics.median(pair[1] for pair in pairs)
        return {"share of native": gb.Observed(share, "", "more")}

    stage = gb.Stage(calls.seconds, gb.Work(items=BATCH), "item", clock="self", effort=gb.POINT)
    return gb.Task.of(stage, check=check, close=client.close)


class ForwardedCopies:
    """Copies of `size_bytes` to the device (`direction` is `h2d`) or back (`d2h`), with every byte compared."""

    def __init__(self, bench: gb.Bench, client: Any, direction: str, size_bytes: int) -> None:
        self._client, self._rng, self._to_device = client, bench.rng, direction == "h2d"
        self._host = bench.device.pinned(size_bytes)
        self._readback = self._rng.integers(256, size=size_bytes, dtype=np.uint8)
        self._place = client.allocate(size_bytes)
        self.poison()
        self._client.move(True, self._place, self._readback)

    def call(self) -> float:
        start = time.perf_counter()
        self._client.move(self._to_device, self._place, self._host)
        return time.perf_counter() - start

    def poison(self) -> None:
        if self._to_device:
            self._host[:] = self._rng.integers(256, size=self._host.size, dtype=np.uint8)
        else:
            self._host.fill(_POISON)

    def check(self) -> None:
        if self._to_device:
            self._client.move(False, self._place, self._readback)
        wrong = int(np.count_nonzero(self._host != self._readback))
        gb.expect(wrong == 0, f"{wrong} of {self._host.size} forwarded bytes are wrong")


@topic.case(
    version=2,
    ranks=2,
    direction=gb.points(("h2d",), full=("h2d", "d2h")),
    transport=gb.points(("tcp",), full=TRANSPORTS),
    size_bytes=gb.points((2**24,), smoke=(2**16,), full=(*gb.powers_of_two(12, 24, 4), 2**26)),
    delay_us=DELAYS,
    when=is_measured,
)
def forward_copy(bench: gb.Bench, direction: str, transport: str, size_bytes: int, delay_us: int) -> gb.Task:
    """A copy between pinned host memory and the device through a forwarder, until its answer: payload.

    The server fills one buffer of 4 MiB while it copies another. Each answer is late by `delay_us`."""
    bench.need(2 * size_bytes)
    client, serving = opened(bench, transport, delay_us)
    if serving is not None:
        return serving
    copies = ForwardedCopies(bench, client, direction, size_bytes)
    stage = gb.Stage(copies.call, gb.Work(payload=size_bytes), "payload", clock="self", effort=gb.POINT)
    return gb.Task.of(stage, check=copies.check, poison=copies.poison, close=client.close)
