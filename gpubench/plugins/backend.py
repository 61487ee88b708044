"""The shape of a backend and of an open device: structural, nothing to inherit."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from gpubench.model.facts import Device

Mode = Literal["hot", "each", "cold", "graph"]


@dataclass(frozen=True, slots=True)
class Traits:
    """What an open device is and can do. Suites ask traits, never a backend's name.

    kernels: the language `OpenDevice.kernel` takes (`cuda`, `hip`), `numba` for compiled host
    loops, empty where there is none. `modes`: the timing modes that `time` accepts.
    `features`: what only some devices have: `async_copy` (global to shared memory past the registers,
    sm_80), `bulk_copy` (started by one thread, completing on a barrier in shared memory, sm_90),
    `clusters` (blocks that reach each other's shared memory, sm_90), `matrix` (of 16-bit formats, sm_80, gfx90a),
    `early_launch` (a kernel may begin before the launch before has ended, sm_90 with cuda-bindings); of
    the driver, where CuPy binds it: `register` (host memory), `event_handles` (to other processes), `pool` (of memory).
    """

    vendor: str
    arch: str
    kernels: Literal["cuda", "hip", "numba", ""]
    modes: tuple[Mode, ...]
    clock: str  # what `time` reads: "cuda events", "perf_counter", …
    warp: int = 1
    is_gpu: bool = False
    max_shared_bytes: int = 0
    features: frozenset[str] = frozenset()
    is_dry_run: bool = False  # a stand-in for a GPU, of which no figure is kept


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call by the device's clock (one value hot, one a call each and cold) and by the host's."""

    device: tuple[float, ...]
    host: float


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What the compiler gave to a kernel, and how many of its blocks a compute unit holds at the same time.

    `registers` and `local_bytes` (spilled registers and arrays) are of a thread, `shared_bytes` of a block without its
    dynamic part.
    """

    registers: int
    shared_bytes: int
    local_bytes: int
    resident_blocks: int


class Kernel(Protocol):
    """A compiled device kernel; `args` are arrays and scalars of exact width (numpy scalars)."""

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_bytes: int = 0
    ) -> None: ...

    def early(self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any]) -> None:
        """Launch a kernel that may begin before the launch before has ended, and waits for it by itself.

        It is launched like any other where the device has no `early_launch`.
        """

    def symbol(self, name: str, nbytes: int) -> Any:
        """A `__constant__` or `__device__` array of the kernel's source, by its name: uint8, shape (nbytes,)."""

    def resources(self, threads: int, shared_bytes: int = 0) -> KernelResources | None:
        """What a launch with blocks of so many threads and that much dynamic shared memory takes; None if unknown."""


@dataclass(frozen=True, slots=True)
class Handle:
    """What another process opens shared memory by: bytes, and file descriptors that a local socket carries."""

    data: bytes = b""
    descriptors: tuple[int, ...] = ()

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class SharedBuffer(Protocol):
    """Device memory that another process can open by `handle`; `array` is uint8, shape (bytes,)."""

    @property
    def array(self) -> Any: ...
    @property
    def handle(self) -> bytes: ...
    def close(self) -> None: ...


class SharedMemory(Protocol):
    """One kind of memory that processes share, each step by itself; all raise what the driver says."""

    def allocate(self, nbytes: int) -> SharedBuffer:
        """Memory of this process; its `handle` is empty until it is exported."""

    def export(self, buffer: SharedBuffer) -> Handle:
        """What another process opens it by; the caller closes it."""

    def open(self, handle: Handle, nbytes: int) -> SharedBuffer:
        """Map what another process exported."""


class SharedEvent(Protocol):
    """An event that another process can wait for. It tells of its last record: that there is a new one, it does not.

    `record` and `wait` (for the last record) are queued on the device's stream, `synchronize` waits on the host.
    """

    def export(self) -> bytes:
        """The handle that another process opens it by."""

    def record(self) -> None: ...
    def wait(self) -> None: ...
    def synchronize(self) -> None: ...
    def close(self) -> None: ...


class OpenDevice(Protocol):
    """A device that is ready to work, in the process that opened it."""

    @property
    def device(self) -> Device: ...
    @property
    def traits(self) -> Traits: ...
    @property
    def xp(self) -> Any:
        """The array module: numpy or cupy."""

    @property
    def stream(self) -> int:
        """The address of the queue that calls are timed on: libraries that do not know CuPy's must launch there."""

    def enter(self) -> None:
        """Be what this process works on, behind all that it queued before; a device that was just opened is."""

    def leave(self) -> None:
        """Let the process go back to what it worked on before."""

    def ranged(self, name: str) -> AbstractContextManager[object]:
        """A range of that name for a profiler that looks on (NVTX, rocTX); nothing where there is none."""

    def elsewhere(self) -> float:
        """Seconds that work beside the timed queue still takes once that is empty; about 0 where there is none."""

    def now(self) -> float:
        """Seconds of the clock that budgets and warm-up are counted in (virtual on clockwork)."""

    def time(
        self,
        call: Callable[[], object],
        calls: int,
        mode: Mode = "hot",
        gated: bool = True,
        lead: Callable[[], object] | None = None,
    ) -> Timing:
        """Time `calls` calls.

        `hot` is back to back, `each` likewise with a time for every call, `cold` each after a flush, `graph` a replay.
        `gated` keeps launch gaps out (docs/method.md); False for calls that wait for the device.
        `lead` is queued once, before the time begins.
        """

    def synchronize(self) -> None:
        """Wait for the device; raises what the device has to report."""

    def rest(self, seconds: float) -> None:
        """Leave the device idle for that long, after it has finished."""

    def flush(self) -> None:
        """Evict the last-level cache."""

    def kernel(self, source: str, name: str, defines: Mapping[str, str | int]) -> Kernel:
        """Compile `name` from source text at run time (cached on disk)."""

    def to_host(self, array: Any) -> Any:
        """A numpy copy of a device array."""

    def pinned(self, nbytes: int) -> Any:
        """Page-locked host memory as a numpy uint8 array of shape (nbytes,)."""

    def copy(self, target: Any, source: Any) -> None:
        """Queue a copy of equal-sized contiguous arrays, either side on host or device."""

    def register(self, array: Any) -> Callable[[], None]:
        """Page-lock a numpy array's memory, so that copies and kernels reach it; the answer undoes it."""

    def together(self, *calls: Callable[[], object], peer: Device | None = None) -> None:
        """Queue calls that begin together: the first as ever, each other on a queue of its own, of `peer` if named.

        What is queued next waits for them all.
        """

    def peer_memory(self, peer: Device, nbytes: int) -> Any:
        """Memory of another device that this one's kernels and copies reach: uint8, shape (nbytes,).

        Raises Skip where the two do not reach each other.
        """

    def launches_of(self, call: Callable[[], object]) -> int | None:
        """Return how many kernels a call that has run before launches; None where they cannot be counted."""

    def free_bytes(self) -> int:
        """Memory that an allocation can still have."""

    def share(self, nbytes: int) -> SharedBuffer:
        """Allocate memory of its own that another process can open."""

    def open_shared(self, handle: bytes, nbytes: int) -> SharedBuffer:
        """Map memory that another process shares; raises what the driver says."""

    def shared_memory(self, kind: str) -> SharedMemory:
        """Memory of one kind that processes share; raises Skip where it is not to be had.

        Of the host's memory `memfd` and `file`, of a GPU's `raw`, `block`, `pool` and `virtual` (backends/_memory.py).
        """

    def shared_event(self, handle: bytes = b"") -> SharedEvent:
        """A new event that another process can open, or the one that another process exported; raises Skip."""

    def release(self) -> None:
        """Return cached memory between cases."""


class Backend(Protocol):
    """A family of devices. `devices` runs in a child process; `open` in a worker."""

    @property
    def listed(self) -> bool:
        """False for a device that is for tests alone."""

    def devices(self) -> Sequence[Device]:
        """Every device of this backend; raises errors.Missing where it is not usable, and how to get it."""

    def versions(self) -> Mapping[str, str]:
        """The driver, runtime and libraries this backend works with."""

    def open(self, device: Device) -> OpenDevice:
        """Open one device in this process."""


@runtime_checkable
class OpensUntimed(Protocol):
    """A backend whose devices compile kernels of their own for timing, and that can open one without them."""

    def open_untimed(self, device: Device) -> OpenDevice:
        """Open one device in this process without what `time` and `flush` need."""
