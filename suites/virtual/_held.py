"""Run the program that is suspended: it holds seeded memory of one kind, and its kernels count while it runs."""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from .._between import fill_pattern, wrong_words
from .._graphs import replayed
from ._loads import steps_of
from ._space import PAGE_BYTES, GpuSpace, MappedRange, array_at

KINDS = ("malloc", "pool", "vmm", "graph", "managed", "ipc")
_TICK_S = 0.5e-3  # device time of one counting kernel
_MANAGED_GLOBAL = 1  # cudaMemAttachGlobal
# prctl(2): under Yama only a parent may trace a process, but the controller is a sibling.
_PR_SET_PTRACER, _ANY_TRACER = 0x59616D61, ctypes.c_ulong(-1)
# Time limit to start an interpreter, its libraries, a context, and kernels that may have to be compiled.
_STARTING_S = 60.0
_STEP_S = 15.0
_SLOWEST_B_PER_S = 1e8


def ticking(bench: gb.Bench, counter: Any) -> Callable[[], None]:
    """Return a call that queues a kernel of about half a millisecond, which adds one to `counter`."""
    kernel, steps = bench.kernel("sharing.cu", "tick"), np.uint32(steps_of(bench, _TICK_S))
    return lambda: kernel((1,), (1,), (counter, steps))


@dataclass(frozen=True, slots=True)
class HoldOrder:
    """The memory that a child must hold on `target`: `count` regions of one of KINDS, `nbytes` in all."""

    case: gb.Case
    target: gb.Target
    package: str
    seed: int
    kind: str
    nbytes: int
    count: int


@dataclass(frozen=True, slots=True)
class HeldState:
    """A child's report: words that differ from their pattern, kernels counted, and its GPU's UUID (16 bytes)."""

    wrong_words: int
    counted: int
    uuid: bytes


class HeldMemory:
    """`count` regions of one of KINDS on the current device, `nbytes` in all; region i is filled by `seed` + i."""

    def __init__(self, bench: gb.Bench, kind: str, nbytes: int, count: int, seed: int) -> None:
        self._bench, self._seed = bench, seed
        bench.words(0, 0)  # loads the kernels now, because later there may be no free memory
        region_bytes = max(nbytes // count // PAGE_BYTES * PAGE_BYTES, PAGE_BYTES)
        make = {"pool": self._from_pool, "vmm": self._mapped, "managed": self._managed}.get(kind, self._allocated)
        self.arrays = [make(region_bytes) for _ in range(count)]
        for index, array in enumerate(self.arrays):
            fill_pattern(self._bench, array, seed + index)
        bench.device.synchronize()

    @property
    def nbytes(self) -> int:
        """The bytes of all regions."""
        return sum(int(array.nbytes) for array in self.arrays)

    def wrong_words(self) -> int:
        """Return how many 64-bit words of all regions differ from their patterns."""
        return sum(wrong_words(self._bench, array, self._seed + index) for index, array in enumerate(self.arrays))

    def handle(self) -> bytes:
        """Return the IPC handle by which another process opens the first region."""
        return bytes(self._bench.xp.cuda.runtime.ipcGetMemHandle(self.arrays[0].data.ptr))

    def _allocated(self, nbytes: int) -> Any:
        memory = self._bench.xp.cuda.Memory(nbytes)  # plain cudaMalloc, outside CuPy's pools
        return self._bench.xp.ndarray((nbytes,), np.uint8, self._bench.xp.cuda.MemoryPointer(memory, 0))

    def _from_pool(self, nbytes: int) -> Any:
        address = self._bench.xp.cuda.runtime.mallocAsync(nbytes, self._bench.device.stream)
        return array_at(self._bench, address, nbytes)

    def _managed(self, nbytes: int) -> Any:
        return array_at(self._bench, self._bench.xp.cuda.runtime.mallocManaged(nbytes, _MANAGED_GLOBAL), nbytes)

    def _mapped(self, nbytes: int) -> Any:
        return array_at(self._bench, MappedRange.filled(GpuSpace(self._bench), nbytes, nbytes).address, nbytes)


class HeldProgram:
    """The functions that the child serves: `hold` first, then counting kernels, and questions about both."""

    def __init__(self) -> None:
        self._launch: Callable[[], object] = lambda: None
        self._opened: gb.Bench | None = None

    def hold(self, order: HoldOrder) -> tuple[int, bytes]:
        """Open the device, and hold the memory of `order` in place of any held before; the counter starts from 0."""
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY_TRACER, 0, 0, 0)
        if self._opened is None:
            self._opened = gb.Bench.untimed(order.case, order.target, order.package, order.seed)
        self._bench = bench = self._opened
        self._memory = HeldMemory(bench, order.kind, order.nbytes, order.count, order.seed)
        self._driver = lib.Driver()
        self._counter = bench.xp.zeros(2, bench.xp.uint64)
        launch = ticking(bench, self._counter)
        launch()  # compiled and loaded before the process is suspended
        self._launch = replayed(bench, launch) if order.kind == "graph" else launch
        bench.device.synchronize()
        self._counter.fill(0)
        bench.device.synchronize()
        return self._memory.nbytes, self._memory.handle() if order.kind == "ipc" else b""

    def run(self, launches: int) -> None:
        """Queue `launches` kernels that each add one to the counter, without waiting for them."""
        for _ in range(launches):
            self._launch()

    def work(self, launches: int) -> float:
        """Run `launches` kernels that each add one to the counter, wait after each, and return the seconds."""
        begin = time.monotonic()
        for _ in range(launches):
            self._launch()
            self._bench.device.synchronize()
        return time.monotonic() - begin

    def open(self, handle: bytes, nbytes: int) -> None:
        """Map `nbytes` of another process's memory, shared by the IPC handle `handle`, and keep it mapped."""
        self._mapped = self._bench.device.open_shared(handle, nbytes)

    def look(self) -> HeldState:
        """Wait for the device, compare every word held, and return the wrong words, the counter and the GPU's UUID."""
        self._bench.device.synchronize()
        context_device = self._driver("cuCtxGetDevice")
        uuid = bytes(self._driver("cuDeviceGetUuid", context_device).bytes)
        counted = int(self._bench.device.to_host(self._counter)[0])
        return HeldState(self._memory.wrong_words(), counted, uuid)


class HeldChild:
    """A child that holds `count` regions of memory of one kind, once `wait` has returned; `helper` runs it.

    `nbytes` are resident, and `handle` is the IPC handle of the first region if the kind is `ipc`."""

    def __init__(self, bench: gb.Bench, kind: str, nbytes: int, count: int = 1) -> None:
        name, environment = "the program that holds memory", {"CUDA_VISIBLE_DEVICES": None}
        self.helper = bench.helper(HeldProgram, name, environment=environment)
        self.nbytes, self.handle = nbytes, b""
        self._order = HoldOrder(bench.case, bench.target, bench.package, bench.seed, kind, nbytes, count)
        self.helper.tell("hold", self._order)

    def hold(self, nbytes: int) -> None:
        """Let the child hold `nbytes` of the same kind in place of the former memory, and wait."""
        self.nbytes = nbytes
        self.helper.tell("hold", replace(self._order, nbytes=nbytes))
        self.wait()

    def wait(self) -> None:
        """Wait until the child holds its memory; then `nbytes` and `handle` are what the child reported."""
        self.nbytes, self.handle = self.helper.answer(_STARTING_S + limit_s(self.nbytes))

    def look(self) -> HeldState:
        """Return the child's report; raises HelperEndedError if it has ended or does not answer in time."""
        state: HeldState = self.helper.ask(limit_s(self.nbytes), "look")
        return state


def limit_s(nbytes: int) -> float:
    """Return the time limit in seconds of a step on `nbytes`: any working link moves 100 MB/s."""
    return _STEP_S + nbytes / _SLOWEST_B_PER_S
