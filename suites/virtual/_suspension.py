"""Suspend and resume a program step by step, and compare the device's memory and processes before and after."""

import contextlib
import ctypes
import importlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import psutil

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from ._held import HeldChild, HeldState, limit_s

_PAIRS = "CUcheckpointGpuPair"  # a class of cuda-bindings 13
_FIRST_DRIVER = 12080  # cuDriverGetVersion of the first driver with these calls, 570
_FIRST_MIGRATION = 13000  # cuDriverGetVersion of driver 580
_UUID_BYTES = 16
_STARTING_S = 30.0
_STATE_S = 10.0
STEPS = ("lock", "checkpoint", "restore", "unlock")

UuidPairs = Sequence[tuple[bytes, bytes]]


class DriverCheckpoints:
    """cuCheckpointProcess… of NVIDIA's driver, through cuda-bindings; raises Skip if either of them is too old."""

    def __init__(self) -> None:
        self._driver = lib.Driver()
        self._driver("cuInit", 0)
        self._version = int(self._driver("cuDriverGetVersion"))
        if self._version < _FIRST_DRIVER:
            raise gb.Skip(
                f"needs a driver for CUDA 12.8 (570) or newer; this driver is for CUDA {_dotted(self._version)}"
            )

    def lock(self, pid: int, limit_ms: int) -> None:
        """Block further driver calls of the process; if that takes longer than the limit, leave it running."""
        args = self._driver.bindings.CUcheckpointLockArgs()
        args.timeoutMs = limit_ms
        self._driver("cuCheckpointProcessLock", pid, args)

    def checkpoint(self, pid: int) -> None:
        """Move the memory of a locked process from the device to the host, and release the device."""
        self._driver("cuCheckpointProcessCheckpoint", pid, None)

    def restore(self, pid: int, pairs: UuidPairs) -> None:
        """Restore a process; `pairs` maps every GPU's old UUID to a new one, or is empty to keep the same GPUs."""
        self._driver("cuCheckpointProcessRestore", pid, self._restore_args(pairs) if pairs else None)

    def unlock(self, pid: int) -> None:
        """Let the process continue."""
        self._driver("cuCheckpointProcessUnlock", pid, None)

    def state(self, pid: int) -> str:
        """Return `RUNNING`, `LOCKED`, `CHECKPOINTED` or `FAILED`."""
        return str(self._driver("cuCheckpointProcessGetState", pid).name).removeprefix("CU_PROCESS_STATE_")

    def uuids(self) -> list[bytes]:
        """Return the UUID of every GPU that the driver sees, 16 bytes each."""
        devices = [self._driver("cuDeviceGet", ordinal) for ordinal in range(int(self._driver("cuDeviceGetCount")))]
        return [bytes(self._driver("cuDeviceGetUuid", device).bytes) for device in devices]

    def _restore_args(self, pairs: UuidPairs) -> Any:
        """Return cuda-bindings' CUcheckpointRestoreArgs for a restore on other GPUs."""
        bindings = self._driver.bindings
        if not hasattr(bindings, _PAIRS) or self._version < _FIRST_MIGRATION:
            raise gb.Skip(
                f"migration needs cuda-bindings 13 and driver 580; this driver is for CUDA {_dotted(self._version)}"
            )
        gpu_pairs = []
        for old, new in pairs:
            pair = bindings.CUcheckpointGpuPair()
            pair.oldUuid, pair.newUuid = self._uuid(old), self._uuid(new)
            gpu_pairs.append(pair)
        args = bindings.CUcheckpointRestoreArgs()
        args.gpuPairs, args.gpuPairsCount = gpu_pairs, len(gpu_pairs)
        return args

    def _uuid(self, content: bytes) -> Any:
        uuid = self._driver.bindings.CUuuid()
        ctypes.memmove(uuid.getPtr(), content, _UUID_BYTES)  # the attribute of the binding cannot be assigned
        return uuid


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


class CheckpointSteps:
    """The methods that the controller process serves to its parent."""

    def open(self, calls: str) -> float:
        """Create the Checkpoints object of the class `module:name` in `calls`; return the seconds that this took."""
        module, _, name = calls.partition(":")
        begin = time.perf_counter()
        self._checkpoints: DriverCheckpoints = getattr(importlib.import_module(module), name)()
        return time.perf_counter() - begin

    def timed(self, step: str, *args: object) -> float:
        """Call the method `step` (an element of STEPS) of the Checkpoints object with `args`; return its seconds."""
        begin = time.perf_counter()
        getattr(self._checkpoints, step)(*args)
        return time.perf_counter() - begin

    def asked(self, question: str, *args: object) -> object:
        """Return the result of the method `question` (`state` or `uuids`) of the Checkpoints object for `args`."""
        return getattr(self._checkpoints, question)(*args)


class Controller:
    """The parent's handle of the controller process; `started_s` is the time until it can suspend, in seconds."""

    def __init__(self, bench: gb.Bench, calls: str = f"{__name__}:{DriverCheckpoints.__name__}") -> None:
        begin = time.perf_counter()
        self._helper = bench.helper(CheckpointSteps, "the controller", environment={"CUDA_VISIBLE_DEVICES": None})
        self.end = self._helper.end
        self.opened_s = float(self._helper.ask(_STARTING_S, "open", calls))
        self.started_s = time.perf_counter() - begin

    @property
    def pid(self) -> int:
        return self._helper.pid

    def step(self, name: str, limit_s: float, pid: int, *args: object) -> float:
        """Take a step of STEPS with the process `pid`, and return its seconds; raises the driver's error, or its Skip.

        The controller ends with HelperEndedError after `limit_s` seconds."""
        return float(self._helper.ask(limit_s, "timed", name, pid, *args))

    def state(self, pid: int) -> str:
        """Return the state of the process `pid` in the driver: `RUNNING`, `LOCKED`, `CHECKPOINTED` or `FAILED`."""
        return str(self._helper.ask(_STATE_S, "asked", "state", pid))

    def uuids(self) -> list[bytes]:
        """Return the UUID of every GPU that the driver sees, 16 bytes each."""
        return list(self._helper.ask(_STATE_S, "asked", "uuids"))


_SPARE_BYTES = 2**30  # host memory that stays free besides the memory of a suspension
_PAGE_BYTES = 4096
# Share of the held bytes that must be freed: the driver rounds, and other programs may allocate meanwhile.
_FREED_SHARE = 0.95
_POISON = 0xA5
_LAUNCHES = 8  # counting kernels that still run when the process is locked: 4 ms
_CLEAN_S = 10.0
_CLEAN_BYTES = 2**26  # bytes by which free memory may differ after a process has ended
_LOOK_S = 0.05


def need_host_memory(nbytes: int) -> None:
    """Raise Skip unless the host has 2 × `nbytes` + 1 GiB free; the driver keeps and copies the memory there."""
    needed, free = 2 * nbytes + _SPARE_BYTES, int(psutil.virtual_memory().available)
    if free < needed:
        raise gb.Skip(
            f"needs {needed} bytes of free host memory for {gb.units.size(nbytes)} on the device; {free} are free"
        )


def touch_host_memory(nbytes: int) -> float:
    """Write to `nbytes` of new host memory, give it back, and return the seconds."""
    # a virtual machine gets its memory from its host when it first writes there, which takes seconds per GiB
    begin = time.perf_counter()
    np.empty(max(nbytes, _PAGE_BYTES), np.uint8)[::_PAGE_BYTES] = 1
    return time.perf_counter() - begin


class Suspension:
    """Suspends and resumes one child in steps of up to `step_limit_s`; `seconds` has the latest time of each step."""

    def __init__(self, controller: Controller, child: gb.Helper, step_limit_s: float) -> None:
        self._controller, self._child, self._limit_s = controller, child, step_limit_s
        self.seconds = dict.fromkeys(STEPS, 0.0)

    def _take(self, step: str, *args: object, grace_s: float = 0.0) -> None:
        self.seconds[step] = self._controller.step(step, self._limit_s + grace_s, self._child.pid, *args)

    def suspend(self) -> None:
        """Lock and checkpoint the child, which is killed if that fails or if it is then not suspended."""
        with self._ending():
            self._take("lock", round(self._limit_s * 1000), grace_s=_STATE_S)  # the driver gives up by itself
            self._take("checkpoint")
            state = self._controller.state(self._child.pid)
            gb.expect(state == "CHECKPOINTED", f"after its checkpoint the process is {state}")

    def resume(self, pairs: UuidPairs = ()) -> None:
        """Restore and unlock the child, which is killed if that fails; `pairs` are as in `restore`."""
        with self._ending():
            self._take("restore", tuple(pairs))
            self._take("unlock")

    @property
    def downtime_s(self) -> float:
        """The sum of the four steps: how long the child cannot work, if it is resumed at once."""
        return sum(self.seconds.values())

    def observed(self) -> dict[str, gb.Observed]:
        """Return the seconds of each step."""
        return {step: gb.Observed(seconds, "s") for step, seconds in self.seconds.items()}

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Kill the child if the enclosed step raises an exception, because the child's state is then unknown."""
        with contextlib.ExitStack() as on_error:
            on_error.callback(self._child.end)
            yield
            on_error.pop_all()


def expect_whole(state: HeldState, counted: int) -> None:
    """Raise WrongAnswer unless a resumed program has all its words and has counted `counted` kernels."""
    gb.expect(not state.wrong_words, f"{state.wrong_words} words differ after the process was resumed")
    gb.expect(state.counted == counted, f"{state.counted} kernels have run, {counted} were launched")


class DeviceUse:
    """The free memory and the processes of a device, before a child starts and while it is suspended."""

    def __init__(self, bench: gb.Bench) -> None:
        self._bench = bench
        self._free_bytes, self._processes = bench.device.free_bytes(), lib.processes_on(bench.target.device)
        self._is_listed = False
        self.freed_bytes = 0

    def look_for_child(self) -> None:
        """Find out whether the driver lists the child, which has started: it then lists more processes than before."""
        now = lib.processes_on(self._bench.target.device)
        self._is_listed = now is not None and self._processes is not None and now > self._processes

    @property
    def note(self) -> str:
        """A note that says whether processes were counted."""
        return "counted by NVML" if self._is_listed else "not listed by NVML here: only the memory is compared"

    def now(self) -> tuple[int, int | None]:
        """Return the free bytes of the device, and the number of its processes, None if the child is not listed."""
        processes = lib.processes_on(self._bench.target.device) if self._is_listed else None
        return self._bench.device.free_bytes(), processes

    def by_gpu(self) -> dict[bytes, int]:
        """Return how many processes the driver lists on each GPU, by the GPU's UUID (16 bytes)."""
        if not self._is_listed:
            return {}
        own_device = self._bench.target.device
        counts = {
            gpu.uuid: lib.processes_on(gpu)
            for gpu in self._bench.target.facts.devices
            if gpu.backend == own_device.backend
        }
        return {uuid_bytes(uuid): count for uuid, count in counts.items() if count is not None}

    def expect_gone(self, held_bytes: int, before: tuple[int, int | None]) -> None:
        """Raise WrongAnswer unless the suspended child's memory is free, and the driver lists one process less.

        The free memory is then overwritten, so that a restored word cannot be an old one that was never moved."""
        (free_before, processes_before), (free_now, processes) = before, self.now()
        self.freed_bytes = free_now - free_before
        gb.expect(
            self.freed_bytes >= _FREED_SHARE * held_bytes,
            f"the suspended process held {held_bytes} bytes, of which {self.freed_bytes} are free",
        )
        if processes is not None and processes_before is not None:
            gb.expect(
                processes == processes_before - 1,
                f"{processes} processes are on the device after one of {processes_before} was suspended",
            )
        memory = self._bench.xp.cuda.Memory(min(held_bytes, free_now // 2))
        self._bench.xp.cuda.runtime.memset(memory.ptr, _POISON, memory.size)
        self._bench.xp.cuda.runtime.deviceSynchronize()

    def expect_clean(self) -> None:
        """Wait until the device has its former free memory but for 64 MiB; raises WrongAnswer after 10 s."""
        deadline = time.monotonic() + _CLEAN_S
        missing = self._free_bytes - self._bench.device.free_bytes()
        while missing > _CLEAN_BYTES and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            missing = self._free_bytes - self._bench.device.free_bytes()
        gb.expect(missing <= _CLEAN_BYTES, f"{missing} bytes of the device are still taken after the process has ended")


def uuid_bytes(uuid: str) -> bytes:
    """Return the 16 bytes of a GPU's UUID, which NVML writes as `GPU-8c1b…`."""
    return bytes.fromhex(uuid.removeprefix("GPU-").replace("-", ""))


class SuspendedProgram:
    """A child that holds `nbytes` of one of KINDS in `count` regions, and the controller that suspends it."""

    def __init__(self, bench: gb.Bench, kind: str, nbytes: int, count: int = 1) -> None:
        if bench.traits.vendor != "nvidia":
            raise gb.Skip(
                "cuCheckpointProcess is a call of NVIDIA's driver; on AMD GPUs, CRIU suspends whole processes"
            )
        bench.need(2 * nbytes)  # the check overwrites the freed memory
        need_host_memory(nbytes)
        self._bench = bench
        self.touched_s = touch_host_memory(nbytes)
        self.use = DeviceUse(bench)
        self.child = HeldChild(bench, kind, nbytes, count)
        self.controller = Controller(bench)  # starts while the child starts
        self.child.wait()
        self.use.look_for_child()
        self.suspension = Suspension(self.controller, self.child.helper, limit_s(nbytes))
        self._counted = 0

    def cycle(self) -> None:
        """Suspend and resume the child while its kernels run, and check its memory."""
        before = self.use.now()
        self.child.helper.ask(limit_s(0), "run", _LAUNCHES)
        self.suspension.suspend()
        self.use.expect_gone(self.child.nbytes, before)
        self.suspension.resume()
        self.expect_intact(_LAUNCHES)

    def bare_downtime_s(self, nbytes: int) -> float:
        """Return the downtime of the child when it holds only `nbytes`; then it holds its former size again."""
        whole = self.child.nbytes
        for held in (nbytes, whole):
            self.child.hold(held)
            self._counted = 0
            if held == nbytes:
                self.cycle()
        return self.suspension.downtime_s

    def move(self, pairs: UuidPairs) -> bytes:
        """Suspend the child while its kernels run, restore it on other GPUs, and return the UUID of its new GPU."""
        self.child.helper.ask(limit_s(0), "run", _LAUNCHES)
        self.suspension.suspend()
        self.suspension.resume(pairs)
        return self.expect_intact(_LAUNCHES)

    def expect_intact(self, launches: int) -> bytes:
        """Compare the child's words and its kernels, `launches` more than at the last call; return its GPU's UUID."""
        self._counted += launches
        state = self.child.look()
        expect_whole(state, self._counted)
        return state.uuid

    def close(self) -> None:
        """End both processes."""
        self.child.helper.end()
        self.controller.end()
