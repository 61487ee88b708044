"""Measure the link between host and device with every kind of host memory, in one direction and in both at once.

Data in host memory are checked on the device: they are copied there and compared with the words of their seed, since
a processor reads write-combined memory at a hundredth of its speed."""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._checks import in_turn
from .._stream import need_gpu
from ._engines import load_store
from ._sizes import log_curve
from ._words import CopiedWords

_SPARE_BYTES = 2**26
_PAGE_BYTES = 4096
_MOST_CALLS = 32  # calls per batch for both directions at once, because each call queues six commands
_MILLI = 1e-3
_MAPPED, _WRITE_COMBINED = 2, 4  # cudaHostAllocMapped, cudaHostAllocWriteCombined; HIP's have the same values

_EVERY_KIND = ("pinned", "pageable", "registered", "write-combined", "zero-copy")
_KINDS = gb.points(("pinned", "pageable", "zero-copy"), full=_EVERY_KIND)
_SIZES = gb.points((8, 2**16, 2**20, 2**24, 2**28), smoke=(2**24,), full=gb.powers_of_two(3, 30, 3))
_QUICK_SIZES = {"pinned": (8, 2**16, 2**20, 2**28), "pageable": (2**16, 2**20, 2**28), "zero-copy": (8, 2**20, 2**24)}
_BOTH_KINDS = gb.points(("pinned",), full=("pinned", "registered", "write-combined", "zero-copy"))
_BOTH_SIZES = gb.points((2**26,), smoke=(2**24,), full=gb.powers_of_two(12, 30, 3))

topic = gb.Topic(
    views=[
        log_curve("Host link bandwidth by transfer size", ("h2d", "d2h"), "size_bytes", by=("memory",)),
        gb.View("transfer", "Host-to-device bandwidth", ("h2d",), "size_bytes", by=("memory",), series="hot"),
        gb.View("transfer", "Device-to-host bandwidth", ("d2h",), "size_bytes", by=("memory",), series="hot"),
        log_curve("Bidirectional host link bandwidth", ("duplex",), "size_bytes", by=("memory",), series="sum.hot"),
    ],
)


def _is_measured(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether the tier measures a size with a kind of memory: `quick` has the sizes of _QUICK_SIZES only."""
    return target.tier != "quick" or params["size_bytes"] in _QUICK_SIZES[params["memory"]]


@topic.case(memory=_KINDS, size_bytes=_SIZES, when=gb.on_gpu, where=_is_measured)
def h2d(bench: gb.Bench, memory: str, size_bytes: int) -> gb.Task:
    """Bandwidth from host to device by the runtime's copy, or (zero-copy) by a kernel that reads host memory."""
    return _one_way(bench, memory, size_bytes, to_device=True)


@topic.case(memory=_KINDS, size_bytes=_SIZES, when=gb.on_gpu, where=_is_measured)
def d2h(bench: gb.Bench, memory: str, size_bytes: int) -> gb.Task:
    """Bandwidth from device to host by the runtime's copy, or (zero-copy) by a kernel that writes host memory."""
    return _one_way(bench, memory, size_bytes, to_device=False)


def _one_way(bench: gb.Bench, memory: str, size_bytes: int, to_device: bool) -> gb.Task:
    """Return the task of copies of `size_bytes` to the device (`to_device`) or from it, with a kind of host memory."""
    need_gpu(bench)
    bench.need(2 * size_bytes + _SPARE_BYTES)
    host = host_memory(bench, memory, size_bytes)
    transfer = LinkCopy(bench, host, to_device)
    limit = "link.h2d" if to_device else "link.d2h"
    waits = memory == "pageable"  # the runtime copies it through pinned memory and waits for the device
    stage = replace(transfer.stage(transfer.call, limit), waits=waits)
    return gb.Task.of(stage, check=transfer.check, close=transfer.close)


@topic.case(memory=_BOTH_KINDS, size_bytes=_BOTH_SIZES, when=gb.on_gpu)
def duplex(bench: gb.Bench, memory: str, size_bytes: int) -> gb.Task:
    """Bandwidth of both directions of the host link at once, with one kind of host memory (`memory`).

    The stage `sum` counts the bytes of both directions, and `h2d` and `d2h` count the bytes of one direction while the
    other one runs."""
    need_gpu(bench)
    bench.need(4 * size_bytes + _SPARE_BYTES)
    device, cuda = bench.device, bench.xp.cuda
    sent, received = (host_memory(bench, memory, size_bytes) for _ in range(2))
    up = LinkCopy(bench, sent, to_device=True)
    down = LinkCopy(bench, received, to_device=False, draw=1)
    events = {copy: (cuda.Event(), cuda.Event()) for copy in (up, down)}

    def between_events(copy: LinkCopy) -> None:
        before, after = events[copy]
        before.record()
        copy.call()
        after.record()

    def seconds(copy: LinkCopy) -> float:
        device.together(partial(between_events, up), partial(between_events, down))
        device.synchronize()
        return float(cuda.get_elapsed_time(*events[copy])) * _MILLI

    def one_way(copy: LinkCopy, limit: str) -> gb.Stage:
        return replace(copy.stage(partial(seconds, copy), limit), clock="self")

    both = partial(device.together, up.call, down.call)
    total = gb.Stage(both, gb.Work(payload=2 * size_bytes), "payload", max_calls=_MOST_CALLS, effort=gb.POINT)
    return gb.Task(
        {"sum": total, "h2d": one_way(up, "link.h2d"), "d2h": one_way(down, "link.d2h")},
        check=in_turn(up.check, down.check),
        close=in_turn(up.close, down.close),
    )


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory as uint8 (`array`), and the function that frees it (`close`).

    If it `is_mapped`, a kernel copies it instead of the runtime."""

    array: npt.NDArray[np.uint8]
    close: Callable[[], None]
    is_mapped: bool = False


def _nothing() -> None:
    pass


def _allocated(bench: gb.Bench, flags: int, size_bytes: int) -> HostMemory:
    """Return page-locked memory from cudaHostAlloc with these `flags` (_MAPPED or _WRITE_COMBINED)."""
    runtime = bench.xp.cuda.runtime
    address = runtime.hostAlloc(size_bytes, flags)
    array = np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))
    return HostMemory(array, partial(runtime.freeHost, address), is_mapped=flags == _MAPPED)


def _registered(bench: gb.Bench, size_bytes: int) -> HostMemory:
    """Return memory of this process whose pages are page-locked after their allocation; it begins at a page."""
    whole = -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES
    raw = np.zeros(whole + _PAGE_BYTES, np.uint8)
    first = -raw.ctypes.data % _PAGE_BYTES
    pages = raw[first : first + whole]
    return HostMemory(pages[:size_bytes], bench.device.register(pages))


def host_memory(bench: gb.Bench, memory: str, size_bytes: int) -> HostMemory:
    """Return new host memory of `size_bytes`; `memory` is its kind, a value of the axis of `h2d`.

    Raises Skip if the driver refuses the allocation."""
    kinds: dict[str, Callable[[], HostMemory]] = {
        "pinned": lambda: HostMemory(bench.device.pinned(size_bytes), _nothing),
        "pageable": lambda: HostMemory(np.zeros(size_bytes, np.uint8), _nothing),
        "registered": lambda: _registered(bench, size_bytes),
        "write-combined": lambda: _allocated(bench, _WRITE_COMBINED, size_bytes),
        "zero-copy": lambda: _allocated(bench, _MAPPED, size_bytes),
    }
    try:
        return kinds[memory]()
    except bench.xp.cuda.runtime.CUDARuntimeError as error:
        raise gb.Skip(f"the driver refuses {size_bytes} bytes of {memory} host memory: {error}") from error


class LinkCopy:
    """A copy of random words over the link, from `host` if `to_device`, else to it, and the check that they arrived.

    `call` makes the copy into `outputs`, and `close` frees the host memory."""

    def __init__(self, bench: gb.Bench, host: HostMemory, to_device: bool, draw: int = 0) -> None:
        self._device, self._to_device = bench.device, to_device
        self._host, self.close = host.array, host.close
        self._words = CopiedWords(bench, host.array.nbytes, draw)
        self.redraw()
        on_device = self._words.copied if to_device else self._words.array
        # with unified addressing, the device uses the same address
        on_host: Any = np.uint64(host.array.ctypes.data) if host.is_mapped else host.array
        target, source = (on_device, on_host) if to_device else (on_host, on_device)
        if host.is_mapped:
            self.call = load_store(bench, target, source, host.array.nbytes)
        else:
            self.call = partial(bench.device.copy, target, source)
        # the check compares `copied`, into which it copies the host memory
        self.outputs = (self._words.copied,) if to_device else (self._words.copied, self._host)

    def stage(self, call: Callable[[], object], limit: str) -> gb.Stage:
        """Return the stage of `call`, which copies once; the rate counts each byte once (payload)."""
        work, outputs = gb.Work(payload=self._host.nbytes), self.outputs
        return gb.Stage(call, work, "payload", limit, effort=gb.POINT, outputs=outputs, inputs=self.redraw)

    def redraw(self) -> None:
        """Put the other words of two into the source of the copy."""
        self._words.redraw()
        if self._to_device:
            self._device.copy(self._host, self._words.array)
            self._device.synchronize()

    def check(self) -> None:
        """Raise WrongAnswer if a word in the target of the copy differs from the word that was sent.

        Words in host memory are copied to the device first."""
        if not self._to_device:
            self._device.copy(self._words.copied, self._host)
        self._words.check()
