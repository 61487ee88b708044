"""Measure GPUs through CuPy: one class for CUDA and ROCm, with different traits."""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from time import perf_counter, sleep  # kept from import on: a case may replace them
from typing import Any, ClassVar

import numpy as np

from gpubench.base import installation
from gpubench.base.errors import Skip, Unavailable
from gpubench.devices.native.driver import Driver, early_launch
from gpubench.model import Device, Facts
from gpubench.plugins.backend import (
    Handle,
    Kernel,
    KernelResources,
    Mode,
    SharedBuffer,
    SharedEvent,
    SharedMemory,
    Timing,
)

from . import _gpu_facts, _paper, _rocm, _streams
from ._host_memory import HOST_KINDS, host_memory
from ._memory import RawMemory, SharedRegion, shared_memory


def launches_of(cupy: Any, stream: Any, call: Callable[[], object]) -> int | None:
    """Return the number of kernels that one call queues on `stream`, the current one; copies do not count."""
    try:
        driver = Driver()
    except Skip:
        return None
    stream.begin_capture()
    try:
        call()
        graph = stream.end_capture()
    except RuntimeError:  # from CUDA or CuPy: the call cannot be captured, and the capture is invalid
        with contextlib.suppress(RuntimeError):  # it reports again that the capture is invalid
            cupy.cuda.runtime.streamEndCapture(stream.ptr)
        return None
    bindings = driver.bindings
    handle = bindings.CUgraph(graph.graph)
    _, count = driver("cuGraphGetNodes", handle, 0)
    nodes, _ = driver("cuGraphGetNodes", handle, count) if count else ((), 0)
    kernel = bindings.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
    return sum(bool(driver("cuGraphNodeGetType", node) == kernel) for node in nodes)


class CupyKernel:
    """A compiled kernel, which requests more than the default of dynamic shared memory when a launch needs it."""

    def __init__(self, cupy: Any, module: Any, name: str, has_early: bool = False) -> None:
        self._cupy, self._has_early = cupy, has_early
        self._module = module
        self._function = module.get_function(name)
        runtime = cupy.cuda.runtime
        self._most = (
            _rocm.max_shared_bytes(runtime.getDeviceProperties(runtime.getDevice()))
            if runtime.is_hip
            else int(self._function.max_dynamic_shared_size_bytes)
        )

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_bytes: int = 0
    ) -> None:
        self._allow(shared_bytes)
        self._function(grid, block, tuple(args), shared_mem=shared_bytes)

    def early(self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_bytes: int = 0) -> None:
        if not self._has_early:
            self(grid, block, args, shared_bytes)
            return
        self._allow(shared_bytes)
        stream = int(self._cupy.cuda.get_current_stream().ptr)
        early_launch()(int(self._function.kernel.ptr), grid, block, args, stream, shared_bytes)

    def _allow(self, shared_bytes: int) -> None:
        """Request `shared_bytes` bytes of dynamic shared memory per block for this and later launches."""
        if shared_bytes > self._most:
            if self._cupy.cuda.runtime.is_hip:
                raise Skip(f"CuPy on ROCm limits a block to {self._most} bytes of shared memory")
            self._function.max_dynamic_shared_size_bytes = self._most = shared_bytes

    def resources(self, threads: int, shared_bytes: int = 0) -> KernelResources | None:
        if self._cupy.cuda.runtime.is_hip:  # these calls were never tried on ROCm
            return None
        function, driver = self._function, self._cupy.cuda.driver
        self._allow(shared_bytes)
        blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(function.kernel.ptr, threads, shared_bytes)
        return KernelResources(
            int(function.num_regs), int(function.shared_size_bytes), int(function.local_size_bytes), int(blocks)
        )

    def keep_cache(self, threads: int) -> None:
        used, runtime = self.resources(threads), self._cupy.cuda.runtime
        if used is not None:
            most = runtime.getDeviceProperties(runtime.getDevice())["sharedMemPerMultiprocessor"]
            needed = used.resident_blocks * (used.shared_bytes + _RESERVED_BYTES)
            self._function.preferred_shared_memory_carveout = min(100, -(-100 * needed // most))

    def allow_large_clusters(self) -> None:
        driver = Driver()
        allowed = driver.bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        driver("cuFuncSetAttribute", driver.bindings.CUfunction(int(self._function.kernel.ptr)), allowed, 1)

    def symbol(self, name: str, nbytes: int) -> Any:
        return self._cupy.ndarray((nbytes,), self._cupy.uint8, self._module.get_global(name))


_RESERVED_BYTES = 1024  # of shared memory that the driver keeps in each block (CUDA C++ Programming Guide)
_THREADS = 256
_BLOCKS_PER_UNIT = 16  # blocks per SM or CU
_VECTOR_BYTES = 16


class CacheFlush:
    """An array larger than the last-level cache, which is written and then read, which leaves clean lines."""

    def __init__(self, cupy: Any, nbytes: int, units: int, has_priorities: bool) -> None:
        self._runtime = cupy.cuda.runtime
        self._array = cupy.zeros(nbytes // _VECTOR_BYTES * _VECTOR_BYTES, cupy.uint8)
        self._never = cupy.zeros(1, cupy.uint32)
        source = (resources.files("gpubench.devices.backends") / "flush.cu").read_text(encoding="utf-8")
        module = cupy.RawModule(code=source)
        self._read_all = module.get_function("read_all")
        self._has_priorities = has_priorities
        if self._has_priorities:
            self._claim_all, self._release_all = module.get_function("claim_all"), module.get_function("release_all")
        self._grid = (max(1, units) * _BLOCKS_PER_UNIT,)

    def queue(self, stream: int) -> None:
        """Queue one flush of the cache on the stream with the address `stream`, which must be the current one."""
        count = np.uint64(self._array.nbytes // _VECTOR_BYTES)
        if self._has_priorities:
            self._claim_all(self._grid, (_THREADS,), (self._array, count, self._never))
            self._release_all(self._grid, (_THREADS,), (self._array, count))
        self._runtime.memsetAsync(self._array.data.ptr, 1, self._array.nbytes, stream)
        self._read_all(self._grid, (_THREADS,), (self._array, count, self._never))


_INSTALL = installation.for_gpu()
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
    """One GPU, opened in this process on a new stream, which becomes the current one."""

    # Pairs of devices (from, to) with peer access: all open devices of this process share them.
    _accessible: ClassVar[set[tuple[int, int]]] = set()

    def __init__(self, device: Device, is_timed: bool = True) -> None:
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
        self._side_streams = _streams.SideStreams(cupy, self._stream)
        self.traits = _gpu_facts.traits_of(self._runtime, device)
        self._target_options = _gpu_facts.target_options(cupy, device)
        if is_timed:
            self._prepare_timing(cupy)
        self.synchronize()

    def _prepare_timing(self, cupy: Any) -> None:
        device = self.device
        flushed_bytes = max(2 * device.cache_bytes, _LEAST_FLUSH)
        has_priorities = "async_copy" in self.traits.features  # both since sm_80
        self._cache_flush = CacheFlush(cupy, flushed_bytes, device.units, has_priorities)
        self.flush()
        clock_hz = float(dict(device.details).get("clock.sm_hz", 2e9))
        self._clock = _streams.EventClock(cupy, self._stream, _streams.KernelGate(cupy, clock_hz), self.flush)

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
        start = perf_counter()
        self._runtime.deviceSynchronize()
        return perf_counter() - start

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
        self._stream.use()  # a suite's call of CuPy may have made another stream current, whose launches are not timed
        if mode == "graph":
            return self._clock.graph(call, calls, lead)
        timers = {"hot": self._clock.hot, "each": self._clock.each, "cold": self._clock.cold}
        return timers[mode](call, calls, gated, lead)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def rest(self, seconds: float) -> None:
        self.synchronize()
        sleep(seconds)

    def flush(self) -> None:
        self._cache_flush.queue(self._stream.ptr)

    def kernel(self, source: str, name: str, defines: Mapping[str, str | int]) -> Kernel:
        options = (*self._target_options, *(f"-D{key}={value}" for key, value in defines.items()))
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
        return _streams.IpcEvent(self.xp, self._stream, handle)

    def release(self) -> None:
        self._clock.forget()
        self.xp.get_default_memory_pool().free_all_blocks()
        self.xp.get_default_pinned_memory_pool().free_all_blocks()


class CupyBackend:
    """The backend of CuPy: `cuda:N` or `rocm:N`, depending on the installed build of CuPy."""

    listed = True

    def devices(self) -> Sequence[Device]:
        cupy = _import_cupy()
        runtime = cupy.cuda.runtime
        try:
            count = runtime.getDeviceCount()
        except runtime.CUDARuntimeError as error:
            raise Unavailable(
                f"CuPy {cupy.__version__} finds no GPU ({error})", "check the driver (nvidia-smi, rocm-smi)"
            ) from error
        return tuple(_gpu_facts.device_facts(runtime, index, count) for index in range(count))

    def on_paper(self, card: str) -> Facts:
        """Return the inventory of a machine with cards of this model, from descriptions; no GPU is needed."""
        return _paper.facts_of(card)

    def versions(self) -> Mapping[str, str]:
        cupy = _import_cupy()
        runtime = cupy.cuda.runtime
        return {
            "cupy": cupy.__version__,
            **_gpu_facts.driver_versions(runtime),
            **installation.versions("nvmath-python"),  # without it, products go through cuBLAS itself
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
        pci = _gpu_facts.pci_address(runtime, index)
        if device.uuid and _gpu_facts.uuid_of(runtime.getDeviceProperties(index), pci) == device.uuid:
            return index
        if not device.uuid and pci == device.pci:
            return index
    raise Unavailable(
        f"{device.id} ({device.uuid or device.pci}) is not visible to this process",
        f"check {'HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES' if runtime.is_hip else 'CUDA_VISIBLE_DEVICES'}",
    )


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


backend = CupyBackend()
