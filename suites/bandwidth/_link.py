"""The link between host and device: every kind of host memory, one way and both ways at once.

What lies in host memory is checked on the device: it is copied up and compared with the words of its
seed there, since a processor reads write-combined memory at a hundredth of its speed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api.suite import POINT, Bench, Observation, Skip, Stage, Task, Work

from ._words import Words, blocks

_THREADS = 128  # as THREADS in engines.cu
_THREAD_BYTES = 16
_SPARE_BYTES = 2**26
_PAGE_BYTES = 4096
_MOST_CALLS = 32  # of both ways at once: each queues six commands
_MILLI = 1e-3
_MAPPED, _WRITE_COMBINED = 2, 4  # cudaHostAllocMapped, cudaHostAllocWriteCombined; HIP's have the same values


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory of the host as bytes, and how to let go of it."""

    array: npt.NDArray[np.uint8]
    close: Callable[[], None]


def _nothing() -> None:
    pass


def _allocated(bench: Bench, flags: int, size_bytes: int) -> HostMemory:
    runtime = bench.xp.cuda.runtime
    address = runtime.hostAlloc(size_bytes, flags)
    array = np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))
    return HostMemory(array, partial(runtime.freeHost, address))


def _registered(bench: Bench, size_bytes: int) -> HostMemory:
    """Memory of the process that is page-locked after the fact, whole pages of it."""
    whole = -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES
    raw = np.zeros(whole + _PAGE_BYTES, np.uint8)
    first = -raw.ctypes.data % _PAGE_BYTES
    pages = raw[first : first + whole]
    return HostMemory(pages[:size_bytes], bench.device.register(pages))


def host_memory(bench: Bench, memory: str, size_bytes: int) -> HostMemory:
    """Host memory of that kind; raises Skip where the driver does not give it."""
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
        raise Skip(f"the driver gives no {memory} memory of {size_bytes} bytes: {error}") from error


class _Way:
    """One direction of the link: its words, its far and near side, its call and its check."""

    def __init__(self, bench: Bench, memory: str, size_bytes: int, to_device: bool, draw: int = 0) -> None:
        self._bench = bench
        self._to_device = to_device
        words, memory_of_host = Words(bench, size_bytes, draw), host_memory(bench, memory, size_bytes)
        self._far, self.close = memory_of_host.array, memory_of_host.close
        self._near = bench.xp.zeros(size_bytes, np.uint8)  # what a check looks at: for d2h, what came back
        self._verify = words.verifier(self._near)
        device_side = self._near if to_device else words.array
        if to_device:
            bench.device.copy(self._far, words.array)
            bench.device.synchronize()
        self.call = self._copying(device_side) if memory != "zero-copy" else self._kernel(device_side)

    def _copying(self, near: Any) -> Callable[[], None]:
        """The runtime's copy."""
        ends = (near, self._far) if self._to_device else (self._far, near)
        return lambda: self._bench.device.copy(*ends)

    def _kernel(self, near: Any) -> Callable[[], None]:
        """A kernel that reaches over the link; with unified addressing the host's pointer is the device's too."""
        kernel, there = self._bench.kernel("engines.cu", "load_store"), np.uint64(self._far.ctypes.data)
        ends = (near, there) if self._to_device else (there, near)
        grid, args = blocks(near.nbytes // _THREAD_BYTES, _THREADS), (*ends, np.uint64(near.nbytes))
        return lambda: kernel(grid, (_THREADS,), args)

    def poison(self) -> None:
        """Spoil what the transfer should have written."""
        self._near.fill(0)
        if not self._to_device:
            self._bench.device.synchronize()
            self._far.fill(0)

    def check(self) -> Observation:
        """Every word arrived."""
        if not self._to_device:
            self._bench.device.copy(self._near, self._far)
        return self._verify()


def _need_gpu(bench: Bench, nbytes: int) -> None:
    if not bench.traits.is_gpu:
        raise Skip("needs a device with memory of its own")
    bench.need(nbytes + _SPARE_BYTES)


def one_way(bench: Bench, memory: str, size_bytes: int, to_device: bool) -> Task:
    """One transfer; pageable ones wait for the device by themselves."""
    _need_gpu(bench, 2 * size_bytes)
    way = _Way(bench, memory, size_bytes, to_device)
    limit = "link.h2d" if to_device else "link.d2h"
    stage = Stage(way.call, Work(payload=size_bytes), "payload", limit, waits=memory == "pageable", effort=POINT)
    return Task.of(stage, check=way.check, poison=way.poison, close=way.close)


class _Both:
    """Both directions at once, and the events between which each of them is timed."""

    def __init__(self, bench: Bench, memory: str, size_bytes: int) -> None:
        self._bench, self._cuda = bench, bench.xp.cuda
        self.ways = {
            "h2d": _Way(bench, memory, size_bytes, to_device=True),
            "d2h": _Way(bench, memory, size_bytes, to_device=False, draw=1),
        }
        self._events = {name: (self._cuda.Event(), self._cuda.Event()) for name in self.ways}

    def call(self) -> None:
        """Queue both."""
        self._bench.device.together(*(way.call for way in self.ways.values()))

    def seconds(self, name: str) -> float:
        """Seconds of one direction while the other one runs."""
        self._bench.device.together(*(partial(self._between_events, each) for each in self.ways))
        self._bench.device.synchronize()
        return float(self._cuda.get_elapsed_time(*self._events[name])) * _MILLI

    def _between_events(self, name: str) -> None:
        before, after = self._events[name]
        before.record()
        self.ways[name].call()
        after.record()

    def each(self, what: str) -> None:
        """Call a method of both directions."""
        for way in self.ways.values():
            getattr(way, what)()


def both_ways(bench: Bench, memory: str, size_bytes: int) -> Task:
    """The sum of both directions, then each by itself while the other one runs."""
    _need_gpu(bench, 4 * size_bytes)
    both = _Both(bench, memory, size_bytes)
    stages = {"sum": Stage(both.call, Work(payload=2 * size_bytes), "payload", max_calls=_MOST_CALLS, effort=POINT)}
    for name in both.ways:
        work, call = Work(payload=size_bytes), partial(both.seconds, name)
        stages[name] = Stage(call, work, "payload", f"link.{name}", clock="self", effort=POINT)

    def check() -> Observation:
        both.each("check")
        return {}

    return Task(stages, check, partial(both.each, "poison"), partial(both.each, "close"))
