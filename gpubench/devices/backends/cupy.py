"""GPUs through CuPy: one class for CUDA and ROCm, with different traits."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

import numpy as np

from gpubench import DISTRIBUTION
from gpubench.base.errors import Skip, Unavailable
from gpubench.devices.native import hipblaslt
from gpubench.model import Device
from gpubench.plugins.backend import Handle, Kernel, Mode, SharedBuffer, SharedEvent, SharedMemory, Timing, Traits

from . import _rocm
from ._early import has_bindings
from ._events import EventClock, Gate
from ._flush import CacheFlush
from ._host_memory import HOST_KINDS, host_memory
from ._kernel import CupyKernel
from ._lanes import Lanes, ipc_event
from ._launches import launches_of
from ._memory import Raw, Region, shared_memory
from ._uuid import uuid_of

_INSTALL = f"pip install '{DISTRIBUTION}[cuda13]' (driver ≥ 580), '[cuda12]' or '[rocm7]'"
_LIBRARIES = "install the driver and the CUDA or ROCm that this wheel is for; LD_LIBRARY_PATH may name its folder"
# cudaDeviceAttr: CUDA Runtime API, "Data types used by CUDA Runtime"; HIP keeps other numbers.
_ATTRIBUTES = {"clock.sm_hz": 13, "clock.memory_hz": 36, "memory.bus_bits": 37, "shared.unit_bytes": 81}
_KILO = 1000
_COPY_KINDS = {
    (False, False): 0,
    (True, False): 1,
    (False, True): 2,
    (True, True): 3,
}  # (to, from) device: cudaMemcpyKind
_LEAST_FLUSH = 64 * 2**20
_PORTABLE_AND_MAPPED = 1 | 2  # cudaHostRegisterPortable | cudaHostRegisterMapped


def _cupy() -> Any:
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        if error.__cause__:  # CuPy is installed, but a library that it needs does not load
            raise Unavailable(f"CuPy cannot be loaded ({_first_line(error.__cause__)})", _LIBRARIES) from error
        raise Unavailable(f"CuPy is not usable here ({_first_line(error)})", f"for a GPU: {_INSTALL}") from error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip(" =")), type(error).__name__)


class CupyDevice:
    """One GPU, opened in this process on a stream of its own, which is the current one.

    Unless it `is_timed`, it has neither the kernel that gates batches nor the one that flushes the cache. Raises
    Missing if CuPy or the device is not available.
    """

    # Pairs of devices (from, to) with peer access: all open devices of this process share them.
    _accessible: ClassVar[set[tuple[int, int]]] = set()

    def __init__(self, device: Device, is_timed: bool = True) -> None:
        cupy = _cupy()
        self.device = device
        self.xp = cupy
        self._runtime = cupy.cuda.runtime
        self._before = cupy.cuda.Device(), cupy.cuda.get_current_stream()
        self._handle = cupy.cuda.Device(_ordinal(cupy, device))
        self._handle.use()
        self._ordinals: dict[str, int] = {}
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._stream.use()
        self._lanes = Lanes(cupy, self._stream)
        self.traits = _traits(self._runtime, device)
        if is_timed:
            self._prepare_timing(cupy)
        self.synchronize()

    def _prepare_timing(self, cupy: Any) -> None:
        device = self.device
        self._cache_flush = CacheFlush(cupy, max(2 * device.cache_bytes, _LEAST_FLUSH), device.units)
        self.flush()
        clock_hz = float(dict(device.details).get("clock.sm_hz", 2e9))
        self._clock = EventClock(cupy, self._stream, Gate(cupy, clock_hz), self.flush)

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
        self._runtime.memcpyAsync(_address(target), _address(source), target.nbytes, kind, self._lanes.current.ptr)

    def register(self, array: Any) -> Callable[[], None]:
        """Register host memory and return the function that unregisters it. Raises Skip on ROCm."""
        if "register" not in self.traits.features:
            raise Skip("CuPy on ROCm does not support registering host memory")
        address = _address(array)
        self._runtime.hostRegister(address, array.nbytes, _PORTABLE_AND_MAPPED)
        return lambda: self._runtime.hostUnregister(address)

    def together(self, *calls: Callable[[], object], peer: Device | None = None) -> None:
        self._lanes.together(self._handle.id if peer is None else self._enable_access(peer, back=True), calls)

    def peer_memory(self, peer: Device, nbytes: int) -> Any:
        peer_index = self._enable_access(peer)
        with self.xp.cuda.Device(peer_index):
            memory = self.xp.cuda.Memory(nbytes)  # raw: the default pool would keep the peer's memory
        return self.xp.ndarray((nbytes,), self.xp.uint8, self.xp.cuda.MemoryPointer(memory, 0))

    def _enable_access(self, peer: Device, back: bool = False) -> int:
        """Return the peer's index after enabling access to its memory, and with `back` the peer's access to ours.

        Raises Skip if the devices cannot access each other's memory.
        """
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
        raw = Raw(self.xp)
        buffer = raw.allocate(nbytes)
        return Region(buffer.array, raw.export(buffer).data, buffer.close)

    def open_shared(self, handle: bytes, nbytes: int) -> SharedBuffer:
        return Raw(self.xp).open(Handle(handle), nbytes)

    def shared_memory(self, kind: str) -> SharedMemory:
        return host_memory(kind) if kind in HOST_KINDS else shared_memory(self.xp, kind)

    def shared_event(self, handle: bytes = b"") -> SharedEvent:
        return ipc_event(self.xp, self._stream, handle)

    def release(self) -> None:
        self._clock.forget()
        self.xp.get_default_memory_pool().free_all_blocks()
        self.xp.get_default_pinned_memory_pool().free_all_blocks()


class Cupy:
    """The backend of CuPy: `cuda:N` or `rocm:N`, depending on the installed build of CuPy."""

    listed = True

    def devices(self) -> Sequence[Device]:
        """Return every GPU that CuPy finds. Raises Missing if CuPy is not usable or finds no GPU."""
        cupy = _cupy()
        runtime = cupy.cuda.runtime
        try:
            count = runtime.getDeviceCount()
        except runtime.CUDARuntimeError as error:
            raise Unavailable(
                f"CuPy {cupy.__version__} finds no GPU ({error})", "check the driver (nvidia-smi, rocm-smi)"
            ) from error
        return tuple(_device(runtime, index, count) for index in range(count))

    def versions(self) -> Mapping[str, str]:
        cupy = _cupy()
        runtime = cupy.cuda.runtime
        return {
            "cupy": cupy.__version__,
            **_driver_versions(runtime),
            **_bindings(),
        }

    def open(self, device: Device) -> CupyDevice:
        return CupyDevice(device)

    def open_untimed(self, device: Device) -> CupyDevice:
        return CupyDevice(device, is_timed=False)


def _bindings() -> dict[str, str]:
    """Return the versions of bindings that affect figures: without nvmath-python, products go through cuBLAS itself."""
    try:
        return {"nvmath-python": version("nvmath-python")}
    except PackageNotFoundError:
        return {}


def _driver_versions(runtime: Any) -> dict[str, str]:
    """Return the versions of the driver and the runtime; HIP has one number for both."""
    if runtime.is_hip:
        return {"hip.runtime": _rocm.version(runtime.runtimeGetVersion())}
    return {
        "cuda.driver": _dotted(runtime.driverGetVersion()),
        "cuda.runtime": _dotted(runtime.runtimeGetVersion()),
    }


def _dotted(number: int) -> str:
    """Return CUDA's integer version as text: 13000 → 13.0."""
    return f"{number // _KILO}.{number % _KILO // 10}"


def _device(runtime: Any, index: int, count: int) -> Device:
    props = runtime.getDeviceProperties(index)
    family = "rocm" if runtime.is_hip else "cuda"
    name = props["name"]
    pci = _pci(runtime, index)
    peers = [peer for peer in range(count) if peer != index and runtime.deviceCanAccessPeer(index, peer)]
    return Device(
        id=f"{family}:{index}",
        backend="cupy",
        name=name.decode() if isinstance(name, bytes) else str(name),
        arch=_arch(runtime, props),
        uuid=uuid_of(props, pci),
        pci=pci,
        memory_bytes=int(props["totalGlobalMem"]),
        cache_bytes=_rocm.last_level_bytes(props) if runtime.is_hip else int(props["l2CacheSize"]),
        units=int(props["multiProcessorCount"]),
        dtypes=_dtypes(runtime, props),
        peers=tuple(f"{family}:{peer}" for peer in peers),
        details=_rocm.details(props) if runtime.is_hip else _details(runtime, index),
    )


def _arch(runtime: Any, props: Mapping[str, Any]) -> str:
    return _rocm.arch(props) if runtime.is_hip else f"sm_{props['major']}{props['minor']}"


def _pci(runtime: Any, index: int) -> str:
    return str(runtime.deviceGetPCIBusId(index)).lower()


def _dtypes(runtime: Any, props: Mapping[str, Any]) -> tuple[str, ...]:
    if runtime.is_hip:
        return _rocm.dtypes(props, hipblaslt.is_on())
    capability = (props["major"], props["minor"])
    ampere, ada = capability >= (8, 0), capability >= (8, 9)
    dtypes = ["float64", "float32", *(["tf32"] if ampere else []), "float16", *(["bfloat16"] if ampere else [])]
    return (*dtypes, *(["float8_e4m3", "float8_e5m2"] if ada else []), *(["int8"] if capability >= (7, 5) else []))


def _details(runtime: Any, index: int) -> tuple[tuple[str, str], ...]:
    numbers = {name: int(runtime.deviceGetAttribute(code, index)) for name, code in _ATTRIBUTES.items()}
    return tuple((name, str(value * (_KILO if name.endswith("_hz") else 1))) for name, value in numbers.items())


def _ordinal(cupy: Any, device: Device) -> int:
    """Return the index of a device in this process, found by UUID or PCI address: masks may reorder devices.

    Raises Missing if the device is not visible.
    """
    runtime = cupy.cuda.runtime
    count = runtime.getDeviceCount()
    for index in range(count):
        pci = _pci(runtime, index)
        if device.uuid and uuid_of(runtime.getDeviceProperties(index), pci) == device.uuid:
            return index
        if not device.uuid and pci == device.pci:
            return index
    raise Unavailable(
        f"{device.id} ({device.uuid or device.pci}) is not visible to this process",
        f"check {'HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES' if runtime.is_hip else 'CUDA_VISIBLE_DEVICES'}",
    )


def _traits(runtime: Any, device: Device) -> Traits:
    props = runtime.getDeviceProperties(runtime.getDevice())
    return Traits(
        vendor="amd" if runtime.is_hip else "nvidia",
        arch=device.arch,
        kernels="hip" if runtime.is_hip else "cuda",
        modes=("hot", "each", "cold", "graph"),
        clock="hip events" if runtime.is_hip else "cuda events",
        warp=int(props["warpSize"]),
        is_gpu=True,
        max_shared_bytes=_rocm.max_shared_bytes(props) if runtime.is_hip else _shared_bytes(props),
        features=_rocm.features(props) if runtime.is_hip else _features(props),
        is_dry_run=runtime.is_hip and _rocm.is_dry_run(props),
    )


def _target_options(traits: Traits) -> tuple[str, ...]:
    """Return the compiler's target where CuPy's own target (`sm_90`) has no wgmma and no setmaxnreg."""
    return ("--gpu-architecture=sm_90a",) if traits.arch == "sm_90" else ()


def _shared_bytes(props: Mapping[str, Any]) -> int:
    return int(props.get("sharedMemPerBlockOptin") or props["sharedMemPerBlock"])


def _features(props: Mapping[str, Any]) -> frozenset[str]:
    """Return the features by compute capability, and those of the driver's bound calls.

    CUDA C++ Programming Guide, "Compute Capabilities".
    """
    first_major = {
        "async_copy": 8,
        "matrix": 8,
        "bulk_copy": 9,
        "clusters": 9,
        **({"early_launch": 9} if has_bindings() else {}),
    }
    bound_calls = {"register", "event_handles", "pool"}
    return frozenset(bound_calls | {name for name, first in first_major.items() if props["major"] >= first})


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


backend = Cupy()
