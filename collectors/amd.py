"""Collect AMD's counters through the library that comes with ROCm, pyrsmi or the driver's files, by PCI address.

None of this has run on an AMD GPU: docs/amd.md says what was simulated."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpubench.api import collector as gb

from ._amd_events import mask_of
from ._amd_health import AmdHealth, KfdProcesses
from ._amd_sysfs import COUNTERS, Sysfs, ThrottleReasons
from ._strangers import ForeignProcesses

_POWER = mask_of(gb.EventClass.POWER_CAP)
_THERMAL = mask_of(gb.EventClass.THERMAL)
_FORCED = mask_of(gb.EventClass.HARDWARE_SLOWDOWN)
_MOST = 0.02  # the most time spent on reading the firmware's table, as a share; the cost of a reading is not yet known


def condition_of(reasons: int | None, foreign: int | None, baseline: int | None) -> gb.Condition:
    """Return the verdict on a sample from plain numbers; None is an unknown number.

    `reasons` is the mask of throttle reasons; if it is unknown, the sample is labelled `unwatched`."""
    bits = reasons or 0
    discard = (*(("thermal",) if bits & _THERMAL else ()), *(("hw-slowdown",) if bits & _FORCED else ()))
    if foreign is not None and baseline is not None and foreign > baseline:
        discard += ("foreign-process",)
    labels = (*(("power-capped",) if bits & _POWER else ()), *(("unwatched",) if reasons is None else ()))
    return gb.Condition(discard, labels)


class AmdWatch:
    """An AMD GPU between samples: the throttle reasons and the clock from the firmware's table, and the processes.

    The table is read so often that reading takes at most 2 % of the time; its values hold until it is read again."""

    def __init__(self, files: Sysfs, processes: KfdProcesses, device: gb.Device) -> None:
        """Prepare the watch of one GPU; `processes` lists the processes on it."""
        self._files = files
        self._device = device
        self._others = ForeignProcesses(processes.pids)
        self._throttle = ThrottleReasons()
        self._reasons: int | None = None
        self._clock_hz: float | None = None
        self._due = 0.0

    def begin(self) -> None:
        """Count the processes of others on the GPU as the baseline, and begin to collect its throttle reasons.

        Raises DeviceError if the driver's files of the GPU are gone."""
        self._others.begin()
        self._read()

    def look(self) -> gb.Condition:
        """Return the condition of the last sample: slowdowns, the power cap, foreign processes, and the clock.

        The throttle reasons cover the time since the firmware's table was last read."""
        if time.monotonic() >= self._due:
            self._read()
        self._others.look()
        condition = condition_of(self._reasons, self._others.count, self._others.baseline)
        return gb.Condition(condition.discard, condition.labels + self._others.labels, self._clock_hz)

    def _read(self) -> None:
        start = time.monotonic()
        metrics = self._files.metrics(self._device.pci)
        end = time.monotonic()
        self._due = end + (end - start) / _MOST
        if metrics is None and not self._files.folder(self._device.pci).is_dir():
            raise gb.DeviceError(f"{self._device.id} is gone from the PCI bus; look at dmesg, then restart the machine")
        self._reasons = self._throttle.since(metrics) if metrics else None
        self._clock_hz = metrics.clock_hz if metrics else None


_MODULE = f"{__package__}._amd_libraries"
_START_S = 10.0
_ANSWER_S = 2.0
_TAIL_BYTES = 8192  # bytes kept of the child's standard error, whose last line is shown


class LibraryChild:
    """A process in which one of AMD's libraries reads counters; `version` is the library's name and version."""

    def __init__(self, library: str, module: str = _MODULE) -> None:
        """Start the process, in which `module` loads `library`, a name in `_amd_libraries.LIBRARIES`."""
        self.library = library
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - held until `close`
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", module, library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
        )
        self._pending = b""
        self._last_line = ""
        self.version = str(self._answer(_START_S))

    def read(self, pci: str, names: Sequence[str]) -> Mapping[str, float | None]:
        """Return the values of the counters `names` of the GPU at the PCI address `pci`, by name.

        A missing value is None. Each value is in its counter's unit."""
        values: Mapping[str, float | None] = self._ask([pci, list(names)])
        return values

    def processes(self, pci: str) -> Sequence[tuple[int, float | None]]:
        """Return the id of each process on the GPU at the PCI address `pci`, with its bytes of memory, None if unknown.

        Raises Unavailable if the child process has ended or does not answer."""
        processes: Sequence[tuple[int, float | None]] = self._ask([pci, None])
        return processes

    def _ask(self, question: object) -> Any:
        """Send `question`, a value that JSON can hold, to the process, and return its answer."""
        pipe = self._child.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(question).encode() + b"\n")
            pipe.flush()
        except OSError as error:
            raise self._end_with_error() from error
        return self._answer(_ANSWER_S)

    def _answer(self, patience_s: float) -> Any:
        pipe = self._child.stdout
        assert pipe is not None
        while b"\n" not in self._pending:
            ready, _, _ = select.select([pipe], [], [], patience_s)
            chunk = os.read(pipe.fileno(), 65536) if ready else b""
            if not chunk:
                raise self._end_with_error("" if ready else f"no answer within {patience_s:g} s")
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)

    def _end_with_error(self, reason: str = "") -> gb.Unavailable:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(0.0 if reason else 1.0)
        status = self._child.poll()
        self.close()
        if not reason:
            killed = status is not None and status < 0
            reason = f"killed by {signal.Signals(-status).name}" if killed and status else f"exit status {status}"
        details = f"{reason}: {self._last_line}" if self._last_line else reason
        return gb.Unavailable(f"{self.library} ended ({details})", f"see `python -m {_MODULE} {self.library}`")

    def close(self) -> None:
        """End the process and close its pipes; a second call does nothing."""
        if not self._stderr.closed:
            self._stderr.seek(max(0, os.fstat(self._stderr.fileno()).st_size - _TAIL_BYTES))
            lines = self._stderr.read().decode(errors="replace").strip().splitlines()
            self._last_line = lines[-1].strip() if lines else ""
            self._stderr.close()
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may keep the process forever
                self._child.wait(1.0)
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


_LIBRARIES = ("amdsmi", "pyrsmi")
# On a card that is split into several devices these counters include the work of all of them.
_OF_CARD = (
    "amd.power",
    "amd.energy",
    "amd.utilization.gfx",
    "amd.utilization.memory",
    "amd.dram",
    "amd.memory.used",
)


class Source:
    """An open library in a separate process, and the driver's files for the counters that the library does not have.

    One thread at a time asks the library."""

    def __init__(self, files: Sysfs, libraries: Sequence[str] = _LIBRARIES) -> None:
        """Start the first of `libraries` that answers; `files` are read for the counters that it does not have."""
        self._files = files
        self._untried = list(libraries)
        self._library: LibraryChild | None = None
        self._lock = threading.Lock()
        self._throttle: dict[str, ThrottleReasons] = {}  # by device id: parts of a split card may share an address
        self._messages: list[str] = []
        self.unused: list[str] = []  # the libraries that do not answer, each with the reason
        self._start_next_library()

    @property
    def version(self) -> str:
        """Return the library's version, or `the driver's files`."""
        return self._library.version if self._library else "the driver's files"

    def _start_next_library(self) -> None:
        """Start the next library that answers; `_library` is None if there is no further one."""
        self._library = None
        while self._untried and self._library is None:
            try:
                self._library = LibraryChild(self._untried.pop(0))
            except gb.Unavailable as error:
                self.unused.append(error.problem)

    def read(self, device: gb.Device, names: Sequence[str]) -> Mapping[str, float | None]:
        """Return the value of each counter in `names` by its name, in the unit that COUNTERS gives for it.

        Values that the library does not have come from the driver's files. None stands for a value that neither has."""
        pci = device.pci.lower()
        values = dict(self._read_library(pci, names))
        missing = [name for name in names if values.get(name) is None]
        throttle = self._throttle.setdefault(device.id, ThrottleReasons())
        return {**values, **self._files.read(pci, missing, throttle)}

    def _read_library(self, pci: str, names: Sequence[str]) -> Mapping[str, float | None]:
        """Return the values of the counters `names` from the library."""
        with self._lock:
            while self._library is not None:
                try:
                    return self._library.read(pci, names)
                except gb.Unavailable as error:
                    self._start_next_library()
                    self._messages.append(f"{error.problem}; continuing with {self.version}")
        return {}

    def unsupported(self, device: gb.Device) -> Mapping[str, str]:
        """Return the counters that neither the library nor the files have for this device, each name with the reason.

        On a card that is split into several devices, counters of the whole card are unsupported too."""
        values: dict[str, float | None] = dict(self.read(device, [counter.name for counter in COUNTERS]))
        mode = self._files.partition(device.pci)
        shared = dict.fromkeys(_OF_CARD, f"it is of the whole card, which is split into several devices ({mode})")
        library = self._library
        reason = (
            f"neither {library.version} nor the driver's files report it"
            if library
            else "the driver's files do not report it"
        )
        missing = {name: reason for name, value in values.items() if value is None}
        return {**missing, **shared} if mode else missing

    def messages(self, device: gb.Device) -> Sequence[str]:
        """Return a sentence about each library that ended since the last call, on any device."""
        del device
        with self._lock:
            messages, self._messages = self._messages, []
        return messages

    def close(self) -> None:
        if self._library is not None:
            self._library.close()


class AmdProcesses:
    """The processes on AMD GPUs, from the library that comes with ROCm (in its own process) or the driver's files."""

    def __init__(self, root: Path) -> None:
        """Start AMD's library, or read the driver's files below `root` if the library does not start."""
        self._root = root
        try:
            self._library: LibraryChild | None = LibraryChild("amdsmi")
        except gb.Unavailable:
            self._library = None

    def read(self, device: gb.Device) -> Sequence[gb.DeviceProcess]:
        """Return the processes on the device, each with its bytes of memory, None if unknown.

        Raises Unavailable if the library ends or the driver does not list processes."""
        pci = device.pci.lower()
        listed = self._library.processes(pci) if self._library else KfdProcesses(self._root, pci).read()
        if listed is None:
            raise gb.Unavailable("the driver does not list processes", "in a container, mount the host's /sys")
        return [gb.DeviceProcess(pid, size) for pid, size in listed]

    def close(self) -> None:
        if self._library is not None:
            self._library.close()


class Amd:
    """The collector of AMD GPUs; `root` is put before /sys, to read another machine's files.

    `describe`, `open` and `watch` raise Unavailable if the driver has no files for a device."""

    counters: Sequence[gb.Counter] = COUNTERS

    def __init__(self, root: Path = Path("/"), libraries: Sequence[str] = _LIBRARIES) -> None:
        self._files = Sysfs(root)
        self._libraries = libraries

    def accepts(self, device: gb.Device) -> bool:
        """Return whether the architecture is one that HIP reports."""
        return device.architecture.vendor == "amd"

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the driver and of the library by name.

        Libraries that do not answer follow the library's version, with the reasons."""
        source = Source(self._files, self._libraries)
        source.close()
        return {
            "amdgpu.driver": self._files.driver() or "the kernel's own",
            "amd.counters": "; ".join([source.version, *source.unused]),
        }

    def describe(self, device: gb.Device) -> Mapping[str, str]:
        """Return the settings that a gate compares. Raises Unavailable if the driver has no files for the device."""
        self._check_files(device)
        return self._files.settings(device.pci)

    def _check_files(self, device: gb.Device) -> None:
        """Raise Unavailable if the driver has no files for the device."""
        if not self._files.folder(device.pci).is_dir():
            raise gb.Unavailable(
                f"the driver has no files for {device.id} ({device.pci})", "in a container, mount the host's /sys"
            )

    def open(self, devices: Sequence[gb.Device]) -> gb.CounterSource:
        """Return the source of these devices' counters.

        Raises Unavailable if the driver has no files for one of them."""
        for device in devices:
            self._check_files(device)
        return Source(self._files, self._libraries)

    def watch(self, device: gb.Device) -> gb.Watch:
        """Return the watch of one device during a case. Raises Unavailable if the driver has no files for it."""
        self._check_files(device)
        return AmdWatch(self._files, KfdProcesses(self._files.root, device.pci.lower()), device)

    def health(self, devices: Sequence[gb.Device]) -> gb.HealthSource:
        """Return the health of AMD GPUs, from the driver's files."""
        del devices
        return AmdHealth(self._files)

    def processes(self, devices: Sequence[gb.Device]) -> gb.ProcessSource:
        """Return the lister of the processes on AMD GPUs."""
        del devices
        return AmdProcesses(self._files.root)


collector = Amd()
