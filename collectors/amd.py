"""Collect AMD's counters through the library that comes with ROCm, pyrsmi or the driver's files, by PCI address.

None of this has run on an AMD GPU: docs/amd.md says what was simulated."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpubench.api import collector as gb

from ._amd_child import LibraryChild
from ._amd_health import AmdHealth
from ._amd_metrics import ThrottleReasons
from ._amd_processes import KfdProcesses
from ._amd_sysfs import Sysfs
from ._amd_values import COUNTERS
from ._amd_watch import AmdWatch

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
