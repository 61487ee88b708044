"""Measure GPUs through CuPy: one class for CUDA and ROCm, with different traits."""

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from gpubench import DISTRIBUTION
from gpubench.base.errors import Skip, Unavailable
from gpubench.model import Device
from gpubench.plugins.backend import Handle, Kernel, Mode, SharedBuffer, SharedEvent, SharedMemory, Timing, Traits

from ._events import EventClock, KernelGate
from ._flush import CacheFlush
from ._gpu_facts import binding_versions, device_facts, driver_versions, pci_address, traits_of
from ._host_memory import HOST_KINDS, host_memory
from ._kernel import CupyKernel
from ._launches import launches_of
from ._memory import RawMemory, SharedRegion, shared_memory
from ._streams import SideStreams, ipc_event
from ._uuid import uuid_of

_INSTALL = f"pip install '{DISTRIBUTION}[cuda13]' (driver ≥ 580), '[cuda12]' or '[rocm7]'"
_LIBRARIES = "install the driver and the CUDA or ROCm that this wheel is for; LD_LIBRARY_PATH may name its folder"
_COPY_KINDS = {
    (False, False): 0,
    (True, False): 1,
    (False, True): 2,
    (True, True): 3,
}  # (to, from) device: cudaMemcpyKind
_LEAST_FLUSH = 64 * 2**20
_PORTABLE_AND_MAPPED = 1 | 2  # cudaHostRegisterPortable | cudaHostRegisterMapped


def _import_cupy() -> Any:
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        if error.__cause__:  # CuPy is installed, but a library that it needs does not load
            raise Unavailable(f"CuPy cannot be loaded ({_first_line(error.__cause__)})", _LIBRARIES) from error
        raise Unavailable(f"CuPy is not usable here ({_first_line(error)})", f"for a GPU: {_INSTALL}") from error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip(" =")), type(error).__name__)


class CupyDevice:
    """One GPU, opened in this process on a new stream, which becomes the current one.

    Unless it `is_timed`, it has no kernels that gate batches and flush the cache."""

    # Pairs of devices (from, to) with peer access: all open devices of this process share them.
    _accessible: ClassVar[set[tuple[int, int]]] = set()

    def __init__(self, device: Device, is_timed: bool = True) -> None:
        """Open the device, make it and a new stream current, and prepare timing if `is_timed`."""
        cupy = _import_cupy()
        self.device = device
        self.xp = cupy
        self._runtime = cupy.cuda.runtime
        self._before = cupy.cuda.Device(), cupy.cuda.get_current_stream()
        self._handle = cupy.cuda.Device(_ordinal(cupy, device))
        self._handle.use()
        self._ordinals: dict[str, int] = {}
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._stream.use()
        self._side_streams = SideStreams(cupy, self._stream)
        self.traits = traits_of(self._runtime, device)
        if is_timed:
            self._prepare_timing(cupy)
        self.synchronize()

    def _prepare_timing(self, cupy: Any) -> None:
        """Compile the kernels that flush the cache and gate batches, and create the clock of device events."""
        device = self.device
        self._cache_flush = CacheFlush(cupy, max(2 * device.cache_bytes, _LEAST_FLUSH), device.units)
        self.flush()
        clock_hz = float(dict(device.details).get("clock.sm_hz", 2e9))
        self._clock = EventClock(cupy, self._stream, KernelGate(cupy, clock_hz), self.flush)

    @property
    def stream(self) -> int:
        return int(self._stream.ptr)

    def enter(self) -> None:
        self._before = self.xp.cuda.Device(), self.xp.cuda.get_current_stream()
        self._handle.use()
        self._runtime.deviceSynchronize()
        self._stream.use()

    def leave(self) -> None:
        device, stream = self._before
        device.use()
        stream.use()

    @contextlib.contextmanager
    def ranged(self, name: str) -> Iterator[None]:
        """Mark the work in the context with `name` for an attached profiler (NVTX, rocTX), if CuPy supports it."""
        from cupy.cuda import nvtx  # in a CuPy for ROCm this is rocTX

        if not nvtx.available:  # this CuPy was built without it
            yield
            return
        nvtx.RangePush(name)
        try:
            yield
        finally:
            nvtx.RangePop()

    def elsewhere(self) -> float:
        self.synchronize()
        start = time.perf_counter()
        self._runtime.deviceSynchronize()
        return time.perf_counter() - start

    def now(self) -> float:
        return time.perf_counter()

    def time(
        self,
        call: Callable[[], object],
        calls: int,
        mode: Mode = "hot",
        gated: bool = True,
        lead: Callable[[], object] | None = None,
    ) -> Timing:
        """Time `calls` calls of `call` on the device's stream in the mode `mode`: `hot`, `each`, `cold` or `graph`.

        If `gated`, the stream is held until all calls are queued; a graph is always gated."""
        self._stream.use()  # a suite's call of CuPy may have made another stream current, whose launches are not timed
        if mode == "graph":
            return self._clock.graph(call, calls, lead)
        timers = {"hot": self._clock.hot, "each": self._clock.each, "cold": self._clock.cold}
        return timers[mode](call, calls, gated, lead)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def rest(self, seconds: float) -> None:
        self.synchronize()
        time.sleep(seconds)

    def flush(self) -> None:
        self._cache_flush.queue(self._stream.ptr)

    def kernel(self, source: str, name: str, defines: Mapping[str, str | int]) -> Kernel:
        options = (*_target_options(self.traits), *(f"-D{key}={value}" for key, value in defines.items()))
        module = self.xp.RawModule(code=source, options=options)
        with self._handle:  # in a new thread the first device is current
            return CupyKernel(self.xp, module, name, "early_launch" in self.traits.features)

    def to_host(self, array: Any) -> Any:
        copied = self.xp.asnumpy(array)
        self._stream.use()  # a strided array is copied in a context whose end makes the null stream current
        return copied

    def pinned(self, nbytes: int) -> Any:
        memory = self.xp.cuda.alloc_pinned_memory(nbytes)
        return np.frombuffer(memory, np.uint8, nbytes)

    def copy(self, target: Any, source: Any) -> None:
        to_device, from_device = not isinstance(target, np.ndarray), not isinstance(source, np.ndarray)
        kind = _COPY_KINDS[to_device, from_device]
        stream = self._side_streams.current.ptr
        self._runtime.memcpyAsync(_address(target), _address(source), target.nbytes, kind, stream)

    def register(self, array: Any) -> Callable[[], None]:
        """Register `array`, a NumPy array, as page-locked memory, and return the function that unregisters it.

        Raises Skip on ROCm."""
        if "register" not in self.traits.features:
            raise Skip("CuPy on ROCm does not support registering host memory")
        address = _address(array)
        self._runtime.hostRegister(address, array.nbytes, _PORTABLE_AND_MAPPED)
        return lambda: self._runtime.hostUnregister(address)

    def together(self, *calls: Callable[[], object], peer: Device | None = None) -> None:
        self._side_streams.together(self._handle.id if peer is None else self._enable_access(peer, back=True), calls)

    def peer_memory(self, peer: Device, nbytes: int) -> Any:
        peer_index = self._enable_access(peer)
        with self.xp.cuda.Device(peer_index):
            memory = self.xp.cuda.Memory(nbytes)  # raw: the default pool would keep the peer's memory
        return self.xp.ndarray((nbytes,), self.xp.uint8, self.xp.cuda.MemoryPointer(memory, 0))

    def _enable_access(self, peer: Device, back: bool = False) -> int:
        """Return CUDA's index of `peer` after enabling this device's access to the memory of `peer`."""
        if peer.id not in self._ordinals:
            self._ordinals[peer.id] = _ordinal(self.xp, peer)
        peer_index = self._ordinals[peer.id]
        for here, there in [(self._handle.id, peer_index), *([(peer_index, self._handle.id)] if back else [])]:
            if (here, there) in self._accessible:
                continue
            if not self._runtime.deviceCanAccessPeer(here, there):
                raise Skip(f"{self.device.id} and {peer.id} cannot access each other's memory")
            with self.xp.cuda.Device(here):
                self._runtime.deviceEnablePeerAccess(there)
            self._accessible.add((here, there))
        return peer_index

    def launches_of(self, call: Callable[[], object]) -> int | None:
        self._stream.use()
        return launches_of(self.xp, self._stream, call)

    def free_bytes(self) -> int:
        return int(self._runtime.memGetInfo()[0])

    def share(self, nbytes: int) -> SharedBuffer:
        raw = RawMemory(self.xp)
        buffer = raw.allocate(nbytes)
        return SharedRegion(buffer.array, raw.export(buffer).data, buffer.close)

    def open_shared(self, handle: bytes, nbytes: int) -> SharedBuffer:
        return RawMemory(self.xp).open(Handle(handle), nbytes)

    def shared_memory(self, kind: str) -> SharedMemory:
        return host_memory(kind) if kind in HOST_KINDS else shared_memory(self.xp, kind)

    def shared_event(self, handle: bytes = b"") -> SharedEvent:
        return ipc_event(self.xp, self._stream, handle)

    def release(self) -> None:
        self._clock.forget()
        self.xp.get_default_memory_pool().free_all_blocks()
        self.xp.get_default_pinned_memory_pool().free_all_blocks()


class CupyBackend:
    """The backend of CuPy: `cuda:N` or `rocm:N`, depending on the installed build of CuPy."""

    listed = True

    def devices(self) -> Sequence[Device]:
        """Return every GPU that CuPy finds, in CUDA's order.

        Raises Unavailable if CuPy is not usable or finds no GPU."""
        cupy = _import_cupy()
        runtime = cupy.cuda.runtime
        try:
            count = runtime.getDeviceCount()
        except runtime.CUDARuntimeError as error:
            raise Unavailable(
                f"CuPy {cupy.__version__} finds no GPU ({error})", "check the driver (nvidia-smi, rocm-smi)"
            ) from error
        return tuple(device_facts(runtime, index, count) for index in range(count))

    def versions(self) -> Mapping[str, str]:
        """Return the versions of CuPy, driver and runtime by name, and of nvmath-python if it is installed.

        Raises Unavailable if CuPy is not usable."""
        cupy = _import_cupy()
        runtime = cupy.cuda.runtime
        return {
            "cupy": cupy.__version__,
            **driver_versions(runtime),
            **binding_versions(),
        }

    def open(self, device: Device) -> CupyDevice:
        return CupyDevice(device)

    def open_untimed(self, device: Device) -> CupyDevice:
        return CupyDevice(device, is_timed=False)


def _ordinal(cupy: Any, device: Device) -> int:
    """Return CUDA's index of `device` in this process, found by UUID or PCI address."""
    runtime = cupy.cuda.runtime
    count = runtime.getDeviceCount()
    for index in range(count):
        pci = pci_address(runtime, index)
        if device.uuid and uuid_of(runtime.getDeviceProperties(index), pci) == device.uuid:
            return index
        if not device.uuid and pci == device.pci:
            return index
    raise Unavailable(
        f"{device.id} ({device.uuid or device.pci}) is not visible to this process",
        f"check {'HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES' if runtime.is_hip else 'CUDA_VISIBLE_DEVICES'}",
    )


def _target_options(traits: Traits) -> tuple[str, ...]:
    """Return the compiler's target where CuPy's own target (`sm_90`) has no wgmma and no setmaxnreg."""
    return ("--gpu-architecture=sm_90a",) if traits.arch == "sm_90" else ()


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


backend = CupyBackend()
