"""Suspend and resume a program step by step, and compare the device's memory and processes before and after."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import psutil

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from ._controller import STEPS, Controller, UuidPairs
from ._held import HeldChild, HeldState, limit_s

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
    """Write to `nbytes` of new host memory, give it back, and return the seconds.

    A virtual machine gets its memory from its host when it first writes there, which takes seconds per GiB."""
    begin = time.perf_counter()
    np.empty(max(nbytes, _PAGE_BYTES), np.uint8)[::_PAGE_BYTES] = 1
    return time.perf_counter() - begin


class Suspension:
    """Suspends and resumes one child; `seconds` maps each step of STEPS to its latest time.

    A step may take `step_limit_s` seconds."""

    def __init__(self, controller: Controller, child: gb.Helper, step_limit_s: float) -> None:
        self._controller, self._child, self._limit_s = controller, child, step_limit_s
        self.seconds = dict.fromkeys(STEPS, 0.0)

    def suspend(self) -> None:
        """Lock and checkpoint the child, which is killed if that fails.

        Raises DriverCallError if the driver refuses, HelperEndedError if a step takes too long, and WrongAnswer if
        the child is then not suspended."""
        with self._ending():
            self.seconds["lock"] = self._controller.lock(self._child.pid, self._limit_s)
            self.seconds["checkpoint"] = self._controller.checkpoint(self._child.pid, self._limit_s)
            state = self._controller.state(self._child.pid)
            gb.expect(state == "CHECKPOINTED", f"after its checkpoint the process is {state}")

    def resume(self, pairs: UuidPairs = ()) -> None:
        """Restore and unlock the child, which is killed if that fails.

        `pairs` are (old UUID, new UUID) of every GPU, 16 bytes each; empty keeps the same GPUs."""
        with self._ending():
            self.seconds["restore"] = self._controller.restore(self._child.pid, self._limit_s, pairs)
            self.seconds["unlock"] = self._controller.unlock(self._child.pid, self._limit_s)

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


@dataclass(frozen=True, slots=True)
class UseNow:
    """The free bytes of a device, and the number of processes on it.

    `processes` is None if the driver does not list the child."""

    free_bytes: int
    processes: int | None


class DeviceUse:
    """The free memory and the processes of a device, before a child starts and while it is suspended.

    Create it before the child starts."""

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

    def now(self) -> UseNow:
        """Return the free memory of the device, and the number of processes on it if the driver lists the child."""
        processes = lib.processes_on(self._bench.target.device) if self._is_listed else None
        return UseNow(self._bench.device.free_bytes(), processes)

    def by_gpu(self) -> dict[bytes, int]:
        """Return how many processes the driver lists on each GPU, by the GPU's UUID (16 bytes).

        All processes count, not only the child. A GPU whose processes cannot be listed has no key."""
        if not self._is_listed:
            return {}
        own_device = self._bench.target.device
        counts = {
            gpu.uuid: lib.processes_on(gpu)
            for gpu in self._bench.target.facts.devices
            if gpu.backend == own_device.backend
        }
        return {uuid_bytes(uuid): count for uuid, count in counts.items() if count is not None}

    def expect_gone(self, held_bytes: int, before: UseNow) -> None:
        """Raise WrongAnswer unless the suspended child's memory is free, and the driver lists one process less.

        The free memory is then overwritten, so that a restored word cannot be an old one that was never moved."""
        now = self.now()
        self.freed_bytes = now.free_bytes - before.free_bytes
        gb.expect(
            self.freed_bytes >= _FREED_SHARE * held_bytes,
            f"the suspended process held {held_bytes} bytes, of which {self.freed_bytes} are free",
        )
        if now.processes is not None and before.processes is not None:
            gb.expect(
                now.processes == before.processes - 1,
                f"{now.processes} processes are on the device after one of {before.processes} was suspended",
            )
        memory = self._bench.xp.cuda.Memory(min(held_bytes, now.free_bytes // 2))
        self._bench.xp.cuda.runtime.memset(memory.ptr, _POISON, memory.size)
        self._bench.xp.cuda.runtime.deviceSynchronize()

    def expect_clean(self) -> None:
        """Wait until the device has as much free memory as before the child started, but for 64 MiB.

        Raises WrongAnswer if it does not within 10 s."""
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
    """A child that holds `nbytes` of memory of one kind in `count` regions, and the controller that suspends it.

    `kind` is an element of KINDS; `touched_s` is the seconds of touching host memory before."""

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
        """Suspend and resume the child while its kernels run, and check its memory.

        Raises DriverCallError or HelperEndedError if a step fails, and WrongAnswer if the device's memory was not
        freed or the child's is wrong."""
        before = self.use.now()
        self.child.helper.ask(limit_s(0), "run", _LAUNCHES)
        self.suspension.suspend()
        self.use.expect_gone(self.child.nbytes, before)
        self.suspension.resume()
        self.expect_intact(_LAUNCHES)

    def bare_downtime_s(self, nbytes: int) -> float:
        """Return the seconds to suspend and resume the child when it holds only `nbytes`.

        Then it holds its former size again. Raises DriverCallError, HelperEndedError or WrongAnswer if that fails."""
        whole = self.child.nbytes
        self._hold(nbytes)
        self.cycle()
        self._hold(whole)
        return self.suspension.downtime_s

    def _hold(self, nbytes: int) -> None:
        self.child.hold(nbytes)
        self._counted = 0

    def move(self, pairs: UuidPairs) -> bytes:
        """Suspend the child while its kernels run, restore it on other GPUs, and return the UUID of its new GPU.

        A UUID has 16 bytes. `pairs` are (old UUID, new UUID) of every GPU."""
        self.child.helper.ask(limit_s(0), "run", _LAUNCHES)
        self.suspension.suspend()
        self.suspension.resume(pairs)
        return self.expect_intact(_LAUNCHES)

    def expect_intact(self, launches: int) -> bytes:
        """Compare every word of the child and the number of its kernels, and return the UUID of its GPU (16 bytes).

        `launches` kernels were launched since the last call. Raises WrongAnswer if something differs."""
        self._counted += launches
        state = self.child.look()
        expect_whole(state, self._counted)
        return state.uuid

    def close(self) -> None:
        """End both processes."""
        self.child.helper.end()
        self.controller.end()
