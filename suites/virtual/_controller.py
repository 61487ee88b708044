"""Suspend processes from a controller process, which initialises the driver once for every suspension.

A program that is started for each step would pay for the initialisation each time. The driver's calls are behind one
object, so that tests can try the protocol, its time limits and its failures on processes without a GPU."""

import ctypes
import importlib
import time
from collections.abc import Sequence
from typing import Any, Protocol

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

_PAIRS = "CUcheckpointGpuPair"  # a class of cuda-bindings 13
_FIRST_DRIVER = 12080  # cuDriverGetVersion of the first driver with these calls, 570
_FIRST_MIGRATION = 13000  # cuDriverGetVersion of driver 580
_UUID_BYTES = 16
_STARTING_S = 30.0
_STATE_S = 10.0
STEPS = ("lock", "checkpoint", "restore", "unlock")

UuidPairs = Sequence[tuple[bytes, bytes]]


class Checkpoints(Protocol):
    """The steps that suspend and resume a process, in their order; each raises DriverCallError if refused."""

    def lock(self, pid: int, limit_ms: int) -> None:
        """Block further driver calls of the process; if that takes longer than the limit, leave it running."""

    def checkpoint(self, pid: int) -> None:
        """Move the memory of a locked process from the device to the host, and release the device."""

    def restore(self, pid: int, pairs: UuidPairs) -> None:
        """Restore a process; `pairs` maps every GPU's old UUID to a new one, or is empty to keep the same GPUs."""

    def unlock(self, pid: int) -> None:
        """Let the process continue."""

    def state(self, pid: int) -> str:
        """Return `RUNNING`, `LOCKED`, `CHECKPOINTED` or `FAILED`."""

    def uuids(self) -> list[bytes]:
        """Return the UUID of every GPU that the driver sees, 16 bytes each."""


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
        self._checkpoints: Checkpoints = getattr(importlib.import_module(module), name)()
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
    """The parent's handle of the controller process; every step has a time limit.

    `started_s` is the time in seconds from its start until it can suspend."""

    def __init__(self, bench: gb.Bench, calls: str = f"{__name__}:{DriverCheckpoints.__name__}") -> None:
        begin = time.perf_counter()
        self._helper = bench.helper(CheckpointSteps, "the controller", environment={"CUDA_VISIBLE_DEVICES": None})
        self.end = self._helper.end
        self.opened_s = float(self._helper.ask(_STARTING_S, "open", calls))
        self.started_s = time.perf_counter() - begin

    @property
    def pid(self) -> int:
        return self._helper.pid

    def lock(self, pid: int, limit_s: float) -> float:
        """Block the driver calls of the process `pid`, and return the seconds.

        After `limit_s` seconds the driver gives up, leaves the process running, and DriverCallError is raised."""
        return float(self._helper.ask(limit_s + _STATE_S, "timed", "lock", pid, round(limit_s * 1000)))

    def checkpoint(self, pid: int, limit_s: float) -> float:
        """Move the device memory of the locked process `pid` to the host, and return the seconds.

        Raises HelperEndedError after `limit_s` seconds, and DriverCallError if the driver refuses."""
        return float(self._helper.ask(limit_s, "timed", "checkpoint", pid))

    def restore(self, pid: int, limit_s: float, pairs: UuidPairs = ()) -> float:
        """Restore the suspended process `pid`, and return the seconds.

        `pairs` are (old UUID, new UUID) of every GPU, 16 bytes each; empty keeps the same GPUs."""
        return float(self._helper.ask(limit_s, "timed", "restore", pid, tuple(pairs)))

    def unlock(self, pid: int, limit_s: float) -> float:
        """Let the restored process `pid` continue, and return the seconds.

        Raises HelperEndedError after `limit_s` seconds."""
        return float(self._helper.ask(limit_s, "timed", "unlock", pid))

    def state(self, pid: int) -> str:
        """Return the state of the process `pid` in the driver: `RUNNING`, `LOCKED`, `CHECKPOINTED` or `FAILED`."""
        return str(self._helper.ask(_STATE_S, "asked", "state", pid))

    def uuids(self) -> list[bytes]:
        """Return the UUID of every GPU that the driver sees, 16 bytes each."""
        return list(self._helper.ask(_STATE_S, "asked", "uuids"))
