"""AMD's counters: the library that comes with ROCm, then pyrsmi, then the driver's files, joined by PCI address.

None of this was run on an AMD GPU: docs/amd.md says what was simulated.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpubench.api.collector import Counter, CounterSource, Device, Missing

from ._amd_child import LibraryChild
from ._amd_sysfs import Sysfs
from ._amd_values import COUNTERS

_LIBRARIES = ("amdsmi", "pyrsmi")


class AmdSource:
    """An open library in a process of its own and the files beside it, which give what the library does not.

    A library that ends in mid-run, or no longer answers, is followed by the next, and the run file says so; with none
    left the files remain. One reader at a time asks it.
    """

    def __init__(self, files: Sysfs, libraries: Sequence[str] = _LIBRARIES) -> None:
        self._files = files
        self._left = list(libraries)
        self._library: LibraryChild | None = None
        self._lock = threading.Lock()
        self._untold: list[str] = []
        self._next()

    @property
    def version(self) -> str:
        """What is read through."""
        return self._library.version if self._library else "sysfs"

    def _next(self) -> None:
        """Open the next library that is here."""
        self._library = None
        while self._left and self._library is None:
            try:
                self._library = LibraryChild(self._left.pop(0))
            except Missing:
                continue

    def read(self, device: Device, names: Sequence[str]) -> Mapping[str, float | None]:
        pci = device.pci.lower()
        found = dict(self._by_library(pci, names))
        lacking = [name for name in names if found.get(name) is None]
        return {**found, **self._files.read(pci, lacking)}

    def _by_library(self, pci: str, names: Sequence[str]) -> Mapping[str, float | None]:
        with self._lock:
            while self._library is not None:
                try:
                    return self._library.read(pci, names)
                except Missing as error:
                    self._next()
                    self._untold.append(f"{error.what}; {self.version} goes on")
        return {}

    def lacking(self, device: Device) -> Mapping[str, str]:
        """What neither the library nor the files tell of this device."""
        found = self.read(device, [counter.name for counter in COUNTERS])
        library = self._library
        why = f"neither {library.version} nor the driver's files tell it" if library else "the driver's files lack it"
        return {name: why for name, value in found.items() if value is None}

    def told(self, device: Device) -> Sequence[str]:
        """The libraries that ended since this was last asked."""
        del device
        with self._lock:
            found, self._untold = self._untold, []
        return found

    def close(self) -> None:
        if self._library is not None:
            self._library.close()


class Amd:
    """The collector of AMD GPUs; `root` stands before /sys, where another machine's files are read."""

    counters: Sequence[Counter] = COUNTERS

    def __init__(self, root: Path = Path("/"), libraries: Sequence[str] = _LIBRARIES) -> None:
        self._files = Sysfs(root)
        self._libraries = libraries

    def accepts(self, device: Device) -> bool:
        """AMD GPUs: the architecture that HIP reports."""
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
                f"the driver has no files of {device.id} ({device.pci})", "in a container, mount the host's /sys"
            )

    def open(self, devices: Sequence[Device]) -> CounterSource:
        for device in devices:
            self._require(device)
        return AmdSource(self._files, self._libraries)


collector = Amd()
