"""AMD's counters through the library that comes with ROCm, pyrsmi or the driver's files; GPUs are found by PCI address.

None of this has run on an AMD GPU: docs/amd.md says what was simulated.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpubench.api.collector import Counter, CounterSource, Device, DeviceProcess, HealthSource, Missing, ProcessSource

from ._amd_child import LibraryChild
from ._amd_health import AmdHealth
from ._amd_sysfs import Sysfs
from ._amd_values import COUNTERS

_LIBRARIES = ("amdsmi", "pyrsmi")


class AmdSource:
    """An open library in a process of its own, and the driver's files for the counters that it does not have.

    If a library ends during a run, or does not answer any more, the next one takes over, and the run file says so;
    after the last one the files remain. One thread at a time asks the library.
    """

    def __init__(self, files: Sysfs, libraries: Sequence[str] = _LIBRARIES) -> None:
        self._files = files
        self._untried = list(libraries)
        self._library: LibraryChild | None = None
        self._lock = threading.Lock()
        self._messages: list[str] = []
        self._next()

    @property
    def version(self) -> str:
        """The library's version, or `sysfs` for the driver's files."""
        return self._library.version if self._library else "sysfs"

    def _next(self) -> None:
        """Open the next library that is installed."""
        self._library = None
        while self._untried and self._library is None:
            try:
                self._library = LibraryChild(self._untried.pop(0))
            except Missing:
                continue

    def read(self, device: Device, names: Sequence[str]) -> Mapping[str, float | None]:
        pci = device.pci.lower()
        values = dict(self._by_library(pci, names))
        missing = [name for name in names if values.get(name) is None]
        return {**values, **self._files.read(pci, missing)}

    def _by_library(self, pci: str, names: Sequence[str]) -> Mapping[str, float | None]:
        with self._lock:
            while self._library is not None:
                try:
                    return self._library.read(pci, names)
                except Missing as error:
                    self._next()
                    self._messages.append(f"{error.what}; continuing with {self.version}")
        return {}

    def lacking(self, device: Device) -> Mapping[str, str]:
        """Return the counters that neither the library nor the files have for this device, with the reason."""
        values = self.read(device, [counter.name for counter in COUNTERS])
        library = self._library
        why = (
            f"neither {library.version} nor the driver's files report it"
            if library
            else "the driver's files do not report it"
        )
        return {name: why for name, value in values.items() if value is None}

    def told(self, device: Device) -> Sequence[str]:
        """Return the libraries that ended since the last call."""
        del device
        with self._lock:
            messages, self._messages = self._messages, []
        return messages

    def close(self) -> None:
        if self._library is not None:
            self._library.close()


class AmdProcesses:
    """The processes on AMD GPUs, by the library that comes with ROCm in a process of its own."""

    def __init__(self) -> None:
        self._library = LibraryChild("amdsmi")

    def read(self, device: Device) -> Sequence[DeviceProcess]:
        return [DeviceProcess(pid, size) for pid, size in self._library.processes(device.pci.lower())]

    def close(self) -> None:
        self._library.close()


class Amd:
    """The collector of AMD GPUs; `root` is put before /sys, to read another machine's files."""

    counters: Sequence[Counter] = COUNTERS

    def __init__(self, root: Path = Path("/"), libraries: Sequence[str] = _LIBRARIES) -> None:
        self._files = Sysfs(root)
        self._libraries = libraries

    def accepts(self, device: Device) -> bool:
        """Return whether the architecture is one that HIP reports."""
        return device.arch.startswith("gfx")

    def versions(self) -> Mapping[str, str]:
        source = AmdSource(self._files, self._libraries)
        source.close()
        return {"amdgpu.driver": self._files.driver() or "the kernel's own", "amd.counters": source.version}

    def describe(self, device: Device) -> Mapping[str, str]:
        self._require(device)
        return self._files.settings(device.pci)

    def _require(self, device: Device) -> None:
        if not self._files.folder(device.pci).is_dir():
            raise Missing(
                f"the driver has no files for {device.id} ({device.pci})", "in a container, mount the host's /sys"
            )

    def open(self, devices: Sequence[Device]) -> CounterSource:
        for device in devices:
            self._require(device)
        return AmdSource(self._files, self._libraries)

    def health(self, devices: Sequence[Device]) -> HealthSource:
        del devices
        return AmdHealth(self._files)

    def processes(self, devices: Sequence[Device]) -> ProcessSource:
        del devices
        return AmdProcesses()


collector = Amd()
