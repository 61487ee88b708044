"""Define the interface of a backend and of an open device as structural protocols, from which nothing is inherited."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from gpubench.model.facts import Architecture, Device

Mode = Literal["hot", "each", "cold", "graph"]


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties and capabilities of an open device. Suites use traits, never the name of a backend.

    `kernels` is the language that `OpenDevice.kernel` takes (`cuda`, `hip`), `numba` for compiled host loops, and empty
    without kernels. `modes` are the timing modes that `time` accepts. `features` are capabilities that only some
    devices have: `Architecture.features`, and of the driver, if CuPy supports it, `early_launch` (a kernel may
    start before the previous launch has ended, sm_90 with cuda-bindings), `register` (host memory), `event_handles` (to
    other processes), `pool` (of memory)."""

    vendor: str
    arch: str
    kernels: Literal["cuda", "hip", "numba", ""]
    modes: tuple[Mode, ...]
    clock: str  # the source of the times of `time`: "cuda events", "perf_counter", …
    warp: int = 1
    is_gpu: bool = False
    max_shared_bytes: int = 0
    features: frozenset[str] = frozenset()
    is_dry_run: bool = False  # a stand-in for a GPU, whose figures are never stored

    @property
    def architecture(self) -> Architecture:
        """`arch` as a value with an order."""
        return Architecture.parse(self.arch)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call, by the device's clock and by the host's.

    `device` has one value per call for the modes `each` and `cold`, and for other modes one value, the mean. `host` is
    the mean time in which the host queued a call."""

    device: tuple[float, ...]
    host: float


@dataclass(frozen=True, slots=True)
class KernelResources:
    """The resources of a compiled kernel, and the number of its blocks that a compute unit can hold at once.

    `registers` and `local_bytes` (spilled registers and arrays) are per thread; `shared_bytes` is per block, without
    its dynamic part."""

    registers: int
    shared_bytes: int
    local_bytes: int
    resident_blocks: int


class Kernel(Protocol):
    """A compiled device kernel; `args` are arrays and scalars of exact width (NumPy scalars)."""

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_bytes: int = 0
    ) -> None: ...

    def early(self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_bytes: int = 0) -> None:
        """Launch the kernel so that it may start before the previous launch has ended.

        The kernel waits for that launch by itself. `args` are arrays and NumPy scalars. On a device without
        `early_launch` it is launched like any other kernel."""

    def keep_cache(self, threads: int) -> None:
        """Let blocks of `threads` threads have a large first-level cache right after blocks with much shared memory.

        Both are parts of one memory, which a compute unit divides anew only for a kernel that asks for it. It does
        nothing where the division is fixed."""

    def allow_large_clusters(self) -> None:
        """Let later launches have clusters of more than 8 blocks. Raises Skip where they cannot."""

    def symbol(self, name: str, nbytes: int) -> Any:
        """Return a `__constant__` or `__device__` array of the kernel's source by its name: uint8, shape (nbytes,)."""

    def resources(self, threads: int, shared_bytes: int = 0) -> KernelResources | None:
        """Return the resources that a launch of the kernel uses, or None if they are unknown.

        `threads` is the number of threads per block, and `shared_bytes` the dynamic shared memory per block."""


@dataclass(frozen=True, slots=True)
class Handle:
    """The handle by which another process opens shared memory: bytes, and file descriptors for a local socket."""

    data: bytes = b""
    descriptors: tuple[int, ...] = ()

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class SharedBuffer(Protocol):
    """Device memory that another process can open by its `handle`; `array` is uint8, shape (bytes,)."""

    @property
    def array(self) -> Any: ...
    @property
    def handle(self) -> bytes: ...
    def close(self) -> None: ...


class SharedMemory(Protocol):
    """One kind of memory that processes can share, with its steps as methods; all raise the driver's errors."""

    def allocate(self, nbytes: int) -> SharedBuffer:
        """Return new memory of this process, `nbytes` bytes; its `handle` is empty until it is exported."""

    def export(self, buffer: SharedBuffer) -> Handle:
        """Return the handle by which another process opens the buffer; the caller closes the handle."""

    def open(self, handle: Handle, nbytes: int) -> SharedBuffer:
        """Return the memory of `nbytes` bytes that another process exported as `handle`, mapped into this process."""


class SharedEvent(Protocol):
    """An event that another process can wait for; it cannot tell whether it was recorded again.

    `record` and `wait` (for the last record) are queued on the device's stream; `synchronize` waits on the host."""

    def export(self) -> bytes:
        """Return the handle by which another process opens the event."""

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
        """The address of the timed stream, on which libraries that do not know CuPy's stream must launch."""

    def enter(self) -> None:
        """Make this the current device of the process, after all work that the process queued before.

        A newly opened device already is the current one."""

    def leave(self) -> None:
        """Make the device current that was so before `enter`."""

    def ranged(self, name: str) -> AbstractContextManager[object]:
        """Return a range with this name for a profiler that is attached (NVTX, rocTX); it does nothing without one."""

    def elsewhere(self) -> float:
        """Wait for all work of the device, and return the seconds for which work outside the timed stream ran longer.

        Without such work this is about 0."""

    def now(self) -> float:
        """Return the seconds of the clock for budgets and warm-up; a simulated device may have its own."""

    def time(
        self,
        call: Callable[[], object],
        calls: int,
        mode: Mode = "hot",
        gated: bool = True,
        lead: Callable[[], object] | None = None,
    ) -> Timing:
        """Time `calls` calls of `call` and return their times in seconds.

        `hot` times them back to back, `each` also gives a time for every call, `cold` flushes the cache before each
        call, and `graph` replays a graph of the calls. `gated` excludes launch gaps (docs/method.md); set it to False
        for calls that wait for the device. `lead`, if given, is called once before the time starts, to queue work.
        Raises GateTimedOut if the gate opened by itself, and Untrustworthy if the device's clock contradicts the
        host's."""

    def synchronize(self) -> None:
        """Wait for the device. Raises the errors that the device reports."""

    def rest(self, seconds: float) -> None:
        """Leave the device idle for this many seconds after it has finished."""

    def flush(self) -> None:
        """Evict the last-level cache."""

    def kernel(self, source: str, name: str, defines: Mapping[str, str | int]) -> Kernel:
        """Return the kernel `name`, compiled from the text `source` at run time and cached on disk.

        `defines` are macros with their values."""

    def to_host(self, array: Any) -> Any:
        """Return a NumPy copy of a device array."""

    def pinned(self, nbytes: int) -> Any:
        """Return page-locked host memory as a NumPy uint8 array of shape (nbytes,)."""

    def copy(self, target: Any, source: Any) -> None:
        """Queue a copy between contiguous arrays of equal size, each on the host or the device."""

    def register(self, array: Any) -> Callable[[], None]:
        """Page-lock the memory of a NumPy array for copies and kernels, and return a function that unlocks it.

        Raises Skip if the device does not support that."""

    def together(self, *calls: Callable[[], object], peer: Device | None = None) -> None:
        """Queue `calls` so that they start together: the first on the timed stream, each other on a separate stream.

        The other streams belong to the device `peer` if it is given. Work that is queued afterwards waits for all
        calls. Raises Skip if the device cannot do that."""

    def peer_memory(self, peer: Device, nbytes: int) -> Any:
        """Return memory of the device `peer` that this device's kernels and copies can access: uint8, shape (nbytes,).

        The array is one of `xp`. Raises Skip if the two devices cannot access each other."""

    def launches_of(self, call: Callable[[], object]) -> int | None:
        """Return the number of kernels that one call of `call` launches; None if they cannot be counted.

        The call must have run once before."""

    def free_bytes(self) -> int:
        """Return the bytes of memory that can still be allocated."""

    def share(self, nbytes: int) -> SharedBuffer:
        """Return new memory of `nbytes` bytes that another process can open. Raises Skip if that is impossible."""

    def open_shared(self, handle: bytes, nbytes: int) -> SharedBuffer:
        """Return the memory of `nbytes` bytes that another process shares as `handle`, mapped into this process.

        Raises the driver's errors, or Skip if that is impossible."""

    def shared_memory(self, kind: str) -> SharedMemory:
        """Return one kind of memory that processes can share. Raises Skip if it is unavailable.

        Kinds of host memory are `memfd` and `file`; kinds of GPU memory are `raw`, `block`, `pool` and `virtual`
        (backends/_memory.py)."""

    def shared_event(self, handle: bytes = b"") -> SharedEvent:
        """Return a new event that another process can open, or the event that `handle`, if not empty, names.

        Raises Skip if that is impossible."""

    def release(self) -> None:
        """Release cached memory between cases."""


class Backend(Protocol):
    """A family of devices. `devices` is called in a child process, and `open` in a worker."""

    @property
    def listed(self) -> bool:
        """Whether users see its devices; False for a device that exists only for tests."""

    def devices(self) -> Sequence[Device]:
        """Return every device of this backend.

        Raises errors.Unavailable, which says how to get what is missing, if the backend cannot be used."""

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the driver, runtime and libraries that this backend uses."""

    def open(self, device: Device) -> OpenDevice:
        """Open one device in this process."""


@runtime_checkable
class OpensUntimed(Protocol):
    """A backend whose devices compile their own kernels for timing, and that can open a device without them."""

    def open_untimed(self, device: Device) -> OpenDevice:
        """Open one device in this process without the parts that `time` and `flush` need."""
