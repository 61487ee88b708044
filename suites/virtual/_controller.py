"""The process that suspends others: it has initialised the driver once, and keeps it for every suspension.

A program that is started for each step pays for the initialisation each time. The driver's calls are behind one object,
so that the protocol, its time limits and its failures can be tried on processes without a GPU.
"""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Sequence
from typing import Any, Protocol

from gpubench.api.libraries import Driver
from gpubench.api.suite import Skip

from ._children import BoundedChild, serve

_PAIRS = "CUcheckpointGpuPair"  # of cuda-bindings 13
_FIRST_DRIVER = 12080  # cuDriverGetVersion of the first driver with these calls, 570
_FIRST_MIGRATION = 13000  # 580
_UUID_BYTES = 16
_STARTING_S = 30.0
_STATE_S = 10.0
STEPS = ("lock", "checkpoint", "restore", "unlock")

UuidPairs = Sequence[tuple[bytes, bytes]]


class Checkpoints(Protocol):
    """What suspends a process: the steps in their order, each raising DriverCallError with the driver's error."""

    def lock(self, pid: int, limit_ms: int) -> None:
        """Block further calls of the process; it is left running where that takes longer than the limit."""

    def checkpoint(self, pid: int) -> None:
        """Move the memory of a locked process from the device to the host, and let go of the device."""

    def restore(self, pid: int, pairs: UuidPairs) -> None:
        """Bring a process back; `pairs` of UUIDs, old and new, name every GPU, or there are none."""

    def unlock(self, pid: int) -> None:
        """Let the process go on."""

    def state(self, pid: int) -> str:
        """Return `RUNNING`, `LOCKED`, `CHECKPOINTED` or `FAILED`."""

    def uuids(self) -> list[bytes]:
        """Return the UUID of every GPU that the driver sees, 16 bytes each."""


class DriverCheckpoints:
    """cuCheckpointProcess… of NVIDIA's driver, by cuda-bindings; raises Skip where one of the two is too old."""

    def __init__(self) -> None:
        self._driver = Driver()
        self._driver("cuInit", 0)
        self._version = int(self._driver("cuDriverGetVersion"))
        if self._version < _FIRST_DRIVER:
            raise Skip(f"needs a driver for CUDA 12.8 (570) or newer; this driver is for CUDA {_dotted(self._version)}")

    def lock(self, pid: int, limit_ms: int) -> None:
        args = self._driver.bindings.CUcheckpointLockArgs()
        args.timeoutMs = limit_ms
        self._driver("cuCheckpointProcessLock", pid, args)

    def checkpoint(self, pid: int) -> None:
        self._driver("cuCheckpointProcessCheckpoint", pid, None)

    def restore(self, pid: int, pairs: UuidPairs) -> None:
        self._driver("cuCheckpointProcessRestore", pid, self._restore_args(pairs) if pairs else None)

    def unlock(self, pid: int) -> None:
        self._driver("cuCheckpointProcessUnlock", pid, None)

    def state(self, pid: int) -> str:
        return str(self._driver("cuCheckpointProcessGetState", pid).name).removeprefix("CU_PROCESS_STATE_")

    def uuids(self) -> list[bytes]:
        devices = [self._driver("cuDeviceGet", ordinal) for ordinal in range(int(self._driver("cuDeviceGetCount")))]
        return [bytes(self._driver("cuDeviceGetUuid", device).bytes) for device in devices]

    def _restore_args(self, pairs: UuidPairs) -> Any:
        bindings = self._driver.bindings
        if not hasattr(bindings, _PAIRS) or self._version < _FIRST_MIGRATION:
            raise Skip(
                f"migration needs cuda-bindings 13 and driver 580; this driver is for CUDA {_dotted(self._version)}"
            )
        made = []
        for old, new in pairs:
            pair = bindings.CUcheckpointGpuPair()
            pair.oldUuid, pair.newUuid = self._uuid(old), self._uuid(new)
            made.append(pair)
        args = bindings.CUcheckpointRestoreArgs()
        args.gpuPairs, args.gpuPairsCount = made, len(made)
        return args

    def _uuid(self, content: bytes) -> Any:
        uuid = self._driver.bindings.CUuuid()
        ctypes.memmove(uuid.getPtr(), content, _UUID_BYTES)  # the binding's own attribute cannot be written
        return uuid


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


class _Steps:
    """The verbs of the controller's process."""

    def __init__(self) -> None:
        self._checkpoints: Checkpoints | None = None

    def open(self, calls: str) -> float:
        """Make the object that `module:name` makes, and return the seconds that took."""
        module, _, name = calls.partition(":")
        begin = time.perf_counter()
        self._checkpoints = getattr(importlib.import_module(module), name)()
        return time.perf_counter() - begin

    def timed(self, step: str, *args: object) -> float:
        """Take one step, and return its seconds."""
        begin = time.perf_counter()
        getattr(self._checkpoints, step)(*args)
        return time.perf_counter() - begin

    def asked(self, question: str, *args: object) -> object:
        """Return the answer to a question: `state` or `uuids`."""
        return getattr(self._checkpoints, question)(*args)


def main() -> None:
    """Serve steps until the parent closes its end."""
    steps = _Steps()
    serve({"open": steps.open, "timed": steps.timed, "asked": steps.asked})


class Controller:
    """The controller's process as its parent sees it; every step has a time limit.

    `started_s` is the time from its start until it can suspend, of which `opened_s` is that of importing the bindings
    and initialising the driver. `calls` is what it drives, `module:name`.
    """

    def __init__(self, calls: str = f"{__name__}:{DriverCheckpoints.__name__}") -> None:
        begin = time.perf_counter()
        program = f"from {__name__} import main; main()"
        self._child = BoundedChild("the controller", program, without=("CUDA_VISIBLE_DEVICES",))
        try:
            self.opened_s = float(self._child.ask(_STARTING_S, "open", calls))
        except BaseException:
            self.end()
            raise
        self.started_s = time.perf_counter() - begin

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._child.pid

    def lock(self, pid: int, limit_s: float) -> float:
        """Lock a process and return the seconds; the driver's own limit comes first."""
        return float(self._child.ask(limit_s + _STATE_S, "timed", "lock", pid, round(limit_s * 1000)))

    def checkpoint(self, pid: int, limit_s: float) -> float:
        """Checkpoint a locked process and return the seconds."""
        return float(self._child.ask(limit_s, "timed", "checkpoint", pid))

    def restore(self, pid: int, limit_s: float, pairs: UuidPairs = ()) -> float:
        """Restore a process, by pairs of UUIDs on other GPUs, and return the seconds."""
        return float(self._child.ask(limit_s, "timed", "restore", pid, tuple(pairs)))

    def unlock(self, pid: int, limit_s: float) -> float:
        """Unlock a process and return the seconds."""
        return float(self._child.ask(limit_s, "timed", "unlock", pid))

    def state(self, pid: int) -> str:
        """Return in which state the driver says that a process is."""
        return str(self._child.ask(_STATE_S, "asked", "state", pid))

    def uuids(self) -> list[bytes]:
        """Return the UUID of every GPU that the driver sees."""
        return list(self._child.ask(_STATE_S, "asked", "uuids"))

    def end(self) -> None:
        """End the process."""
        self._child.end()
