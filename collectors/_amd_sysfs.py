"""What the Linux driver amdgpu tells in files, with no library (kernel documentation, "amdgpu driver", "sysfs").

`root` stands before /sys: a copy of another machine's files reads as that machine did. A file that is not there, cannot
be read or says something else reads as None.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ._amd_values import known

VENDOR = "0x1002"  # the PCI vendor number of AMD
# One step of gpu_metrics' energy_accumulator, 2⁻¹⁶ J (kernel documentation of gpu_metrics, "energy_accumulator")
_ENERGY_STEP_J = 2.0**-16
# Of a gpu_metrics of format 1 and that content (kgd_pp_interface.h, struct gpu_metrics_v1_x): where a field lies, how
# it is packed, and the size of the whole.
_ENERGY = {0: 24, 1: 24, 2: 24, 3: 24, 4: 24, 5: 88}
_THROTTLE = {3: 112}
_HEADER = struct.Struct("<HBB")
_WORD = struct.Struct("<Q")
_GENERATIONS = {"2.5": "1", "5.0": "2", "8.0": "3", "16.0": "4", "32.0": "5", "64.0": "6"}  # GT/s of PCI Express


def text(path: Path) -> str:
    """What stands in a file, or nothing."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    words = text(path)
    try:
        return int(words, 0)
    except ValueError:
        return None


class Sysfs:
    """The files of AMD's GPUs below a root."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def folder(self, pci: str) -> Path:
        """Where the files of that GPU lie."""
        return self._root / "sys/bus/pci/devices" / pci.lower()

    def gpus(self) -> list[str]:
        """PCI addresses of the GPUs that the driver amdgpu runs."""
        cards = sorted((self._root / "sys/bus/pci/devices").glob("*/gpu_busy_percent"))
        return [path.parent.name for path in cards if text(path.parent / "vendor") == VENDOR]

    def driver(self) -> str:
        """The version of the driver amdgpu, where it is not the kernel's own."""
        return text(self._root / "sys/module/amdgpu/version")

    def read(self, pci: str, names: Sequence[str]) -> Mapping[str, float | None]:
        """These counters now."""
        folder = self.folder(pci)
        return {name: _READERS[name](folder, name) for name in names}

    def settings(self, pci: str) -> Mapping[str, str]:
        """What a gate compares; what cannot be read is left out."""
        folder, found = self.folder(pci), {}
        cap = _number(_hwmon(folder) / "power1_cap")
        speed = re.match(r"[\d.]+", text(folder / "max_link_speed"))
        mask = re.search(r"0x[0-9a-fA-F]+", text(folder / "ras/features"))
        found["power.limit_w"] = str(cap / 1e6) if cap else ""
        found["ecc"] = ("on" if int(mask[0], 16) & 1 else "off") if mask else ""  # bit 0 is the memory's (UMC)
        found["partition.compute"] = text(folder / "current_compute_partition")
        found["partition.memory"] = text(folder / "current_memory_partition")
        found["performance_level"] = text(folder / "power_dpm_force_performance_level")
        found["pcie.generation"] = _GENERATIONS.get(speed[0], "") if speed else ""
        found["pcie.width"] = text(folder / "max_link_width")
        return {name: value for name, value in found.items() if value}


def _hwmon(folder: Path) -> Path:
    """The monitor of that GPU: its number changes when the driver is loaded again, so it is looked up each time."""
    return next(iter(sorted(folder.glob("hwmon/hwmon*"))), folder / "hwmon/none")


def _file(path: str, scale: float = 1.0) -> Callable[[Path, str], float | None]:
    return lambda folder, name: known(name, _number(folder / path), scale)


def _monitor(scale: float, *files: str) -> Callable[[Path, str], float | None]:
    """The first of these files of the monitor that has a number."""

    def read(folder: Path, name: str) -> float | None:
        values = (known(name, _number(_hwmon(folder) / file), scale) for file in files)
        return next((value for value in values if value is not None), None)

    return read


def _labelled(label: str, scale: float) -> Callable[[Path, str], float | None]:
    """The temperature whose label that is: which number a sensor has differs between models."""

    def read(folder: Path, name: str) -> float | None:
        for path in sorted(_hwmon(folder).glob("temp*_label")):
            if text(path) == label:
                return known(name, _number(path.with_name(path.name.replace("_label", "_input"))), scale)
        return None

    return read


def _metric(places: Mapping[int, int], scale: float = 1.0) -> Callable[[Path, str], float | None]:
    """A 64-bit word of gpu_metrics, None in a revision that is not known."""

    def read(folder: Path, name: str) -> float | None:
        try:
            table = (folder / "gpu_metrics").read_bytes()
        except OSError:
            return None
        if len(table) < _HEADER.size:
            return None
        size, form, content = _HEADER.unpack_from(table)
        place = places.get(content) if form == 1 else None
        if place is None or size != len(table) or size < place + _WORD.size:
            return None
        return known(name, _WORD.unpack_from(table, place)[0], scale)

    return read


_READERS: Mapping[str, Callable[[Path, str], float | None]] = {
    "amd.power": _monitor(1e-6, "power1_average", "power1_input"),
    "amd.clock.gfx": _monitor(1.0, "freq1_input"),
    "amd.clock.memory": _monitor(1.0, "freq2_input"),
    "amd.temperature.hotspot": _labelled("junction", 1e-3),
    "amd.temperature.memory": _labelled("mem", 1e-3),
    "amd.utilization.gfx": _file("gpu_busy_percent"),
    "amd.utilization.memory": _file("mem_busy_percent"),
    "amd.memory.used": _file("mem_info_vram_used"),
    "amd.energy": _metric(_ENERGY, _ENERGY_STEP_J),
    "amd.pcie.replays": _file("pcie_replay_count"),
    "amd.throttle": _metric(_THROTTLE),
}
