"""Measure the host processor as a device: NumPy arrays, numba kernels, perf_counter, shared memory."""

import contextlib
import importlib.util
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter, perf_counter_ns, sleep  # kept from import on: a case may replace them
from typing import Any

import numpy as np
import psutil

from gpubench.base import installation
from gpubench.base.errors import Skip
from gpubench.model import Device
from gpubench.plugins.backend import Kernel, Mode, SharedBuffer, SharedEvent, SharedMemory, Timing, Traits

from ._host_memory import SharedFile, anonymous_file, host_memory, path_of

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CPUINFO = Path("/proc/cpuinfo")
_LEAST_FLUSH_BYTES = 2**26
_MOST_FLUSH_BYTES = 2**29  # more than the last-level caches of one socket in most servers


class HostDevice:
    """The host processor, opened in this process: a call returns when its work is done, and nothing is queued."""

    xp = np
    stream = 0

    def __init__(self, device: Device) -> None:
        self.device = device
        kernels = importlib.util.find_spec("numba") is not None
        self.traits = Traits("host", device.arch, "numba" if kernels else "", ("hot", "each", "cold"), "perf_counter")
        self._evictor: Any = None

    def enter(self) -> None:
        pass

    def leave(self) -> None:
        pass

    def ranged(self, name: str) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext(name)

    def elsewhere(self) -> float:
        return 0.0

    def now(self) -> float:
        return perf_counter()

    def time(
        self,
        call: Callable[[], object],
        calls: int,
        mode: Mode = "hot",
        gated: bool = True,
        lead: Callable[[], object] | None = None,
    ) -> Timing:
        del gated  # the host has no launch queue
        if lead is not None:
            lead()
        if mode in ("each", "cold"):
            values = tuple(self._timed_call(call, mode == "cold") for _ in range(calls))
            return Timing(values, sum(values) / calls)
        seconds = self._mean_seconds(call, calls)
        return Timing((seconds,), seconds)

    def _mean_seconds(self, call: Callable[[], object], calls: int) -> float:
        """Return the mean seconds of `calls` calls of `call` in a row, timed as a whole."""
        start = perf_counter_ns()
        for _ in range(calls):
            call()
        return (perf_counter_ns() - start) * 1e-9 / calls

    def _timed_call(self, call: Callable[[], object], cold: bool) -> float:
        if cold:
            self.flush()
        start = perf_counter_ns()
        call()
        return (perf_counter_ns() - start) * 1e-9

    def launches_of(self, _call: Callable[[], object]) -> int | None:
        return None

    def synchronize(self) -> None:
        pass

    def release(self) -> None:
        pass

    def rest(self, seconds: float) -> None:
        sleep(seconds)

    def flush(self) -> None:
        if self._evictor is None:
            nbytes = min(max(2 * self.device.cache_bytes, _LEAST_FLUSH_BYTES), _MOST_FLUSH_BYTES)
            self._evictor = np.zeros(nbytes // 8, np.int64)
        self._evictor += 1

    def kernel(self, source: str, name: str, defines: Mapping[str, str | int]) -> Kernel:
        del source, defines
        raise Skip(f"the host runs numba functions, not the device kernel {name}")

    def to_host(self, array: Any) -> Any:
        return np.array(array)

    def pinned(self, nbytes: int) -> Any:
        return np.zeros(nbytes, np.uint8)

    def copy(self, target: Any, source: Any) -> None:
        np.copyto(target, source)

    def register(self, array: Any) -> Callable[[], None]:
        raise Skip(f"{self.device.id} accesses host memory directly: {array.nbytes} B need no registration")

    def together(self, *calls: Callable[[], object], peer: Device | None = None) -> None:
        del calls, peer
        raise Skip(f"{self.device.id} does not support concurrent queues")

    def peer_memory(self, peer: Device, nbytes: int) -> Any:
        raise Skip(f"{self.device.id} has no peer access ({nbytes} B of {peer.id} were asked for)")

    def free_bytes(self) -> int:
        return int(psutil.virtual_memory().available)

    def share(self, nbytes: int) -> SharedBuffer:
        descriptor = anonymous_file(nbytes)
        return SharedFile(descriptor, nbytes, path_of(descriptor))

    def open_shared(self, handle: bytes, nbytes: int) -> SharedBuffer:
        return SharedFile(os.open(handle.decode(), os.O_RDWR), nbytes, handle)

    def shared_memory(self, kind: str) -> SharedMemory:
        return host_memory(kind)

    def shared_event(self, handle: bytes = b"") -> SharedEvent:
        raise Skip(f"{self.device.id} does not support events shared between processes ({handle!r} was asked for)")


class HostBackend:
    """The backend of the host processor."""

    listed = True

    def devices(self) -> Sequence[Device]:
        """Return the host processor as the only device, with its memory, caches, usable cores and data types."""
        caches = _cache_bytes()
        details = tuple((f"cache.l{level}", str(size)) for level, size in sorted(caches.items()))
        return (
            Device(
                id="host",
                backend="host",
                name=_processor_name(),
                arch=platform.machine(),
                memory_bytes=int(psutil.virtual_memory().total),
                cache_bytes=caches[max(caches)] if caches else 0,
                units=len(os.sched_getaffinity(0)),
                dtypes=("float32", "float64"),
                details=details,
            ),
        )

    def versions(self) -> Mapping[str, str]:
        return installation.versions("numpy", "numba", "lz4", "backports.zstd")

    def open(self, device: Device) -> HostDevice:
        return HostDevice(device)


def _processor_name() -> str:
    """Return the model of the processor as Linux names it; its architecture if Linux gives no model."""
    if _CPUINFO.exists():
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
        line = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
        if line:
            return line[1].strip()
    return platform.processor() or platform.machine()


def _cache_bytes() -> dict[int, int]:
    """Return the bytes of the data or unified cache by its level (1, 2, 3), as the kernel reports them for CPU 0."""
    nbytes: dict[int, int] = {}
    for index in sorted(_CACHES.glob("index*")):
        # arm64 virtual machines list caches without a size
        if (index / "size").exists() and (index / "type").read_text().strip() != "Instruction":
            text = (index / "size").read_text().strip()  # such as 48K
            scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
            nbytes[int((index / "level").read_text())] = int(text.rstrip("KMG")) * scale
    return nbytes


backend = HostBackend()
