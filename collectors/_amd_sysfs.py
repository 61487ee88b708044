"""Read counters and settings from files of the Linux driver amdgpu, without a library (kernel, "amdgpu driver").

`root` is put before /sys, so that a copy of another machine's files reads as that machine did. A file that is
missing, cannot be read or has other content reads as None."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ._amd_metrics import ENERGY_STEP_J, GpuMetrics, ThrottleReasons, parsed
from ._amd_values import valid

VENDOR = "0x1002"  # the PCI vendor number of AMD
GENERATIONS = {"2.5": "1", "5.0": "2", "8.0": "3", "16.0": "4", "32.0": "5", "64.0": "6"}  # GT/s → PCIe generation


def text(path: Path) -> str:
    """Return the text of a file without white space at its ends; an empty text if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _read_number(path: Path) -> int | None:
    """Return the integer in a file, decimal or with the prefix 0x; None if there is no such integer."""
    try:
        return int(text(path), 0)
    except ValueError:
        return None


class Sysfs:
    """The files of AMD's GPUs below a root."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Read the files below `root`, which is put before /sys."""
        self.root = root

    def folder(self, pci: str) -> Path:
        """Return the folder of the driver's files of the GPU at the PCI address `pci`, which may not exist.

        The address of a partition differs from its card's only in the function number; its files are in the card's
        folder."""
        devices = self.root / "sys/bus/pci/devices"
        own = devices / pci.lower()
        return own if own.is_dir() else devices / f"{pci.lower().rpartition('.')[0]}.0"

    def metrics(self, pci: str) -> GpuMetrics | None:
        """Return the values of the firmware's table for the GPU at the PCI address `pci` now.

        The result is None if the table cannot be read or is of an unknown revision."""
        try:
            return parsed((self.folder(pci) / "gpu_metrics").read_bytes())
        except OSError:
            return None

    def gpus(self) -> list[str]:
        """Return the PCI addresses of the GPUs that the driver amdgpu runs."""
        cards = sorted((self.root / "sys/bus/pci/devices").glob("*/gpu_busy_percent"))
        return [path.parent.name for path in cards if text(path.parent / "vendor") == VENDOR]

    def driver(self) -> str:
        """Return the version of the driver amdgpu, or an empty text if the driver is the kernel's own."""
        return text(self.root / "sys/module/amdgpu/version")

    def read(self, pci: str, names: Sequence[str], throttle: ThrottleReasons) -> Mapping[str, float | None]:
        """Return the counters `names` of the GPU at the PCI address `pci` now, by name; None for a missing value.

        Each value is in its counter's unit."""
        folder = self.folder(pci)
        metrics = self.metrics(pci) if not _METRICS_COUNTERS.isdisjoint(names) else None
        return {
            name: _metrics_value(name, metrics, throttle) if name in _METRICS_COUNTERS else _READERS[name](folder, name)
            for name in names
        }

    def partition(self, pci: str) -> str:
        """Return how the card is split into devices, such as `CPX`; an empty text if it is one device."""
        mode = text(self.folder(pci) / "current_compute_partition")
        return "" if mode == "SPX" else mode

    def settings(self, pci: str) -> Mapping[str, str]:
        """Return the settings of the GPU at the PCI address `pci` that a gate compares, by name (`power.limit_w`).

        A setting that cannot be read is left out."""
        folder = self.folder(pci)
        cap = _read_number(_hwmon(folder) / "power1_cap")
        speed = re.match(r"[\d.]+", text(folder / "max_link_speed"))
        mask = re.search(r"0x[0-9a-fA-F]+", text(folder / "ras/features"))
        settings = {
            "power.limit_w": str(cap / 1e6) if cap else "",
            "ecc": ("on" if int(mask[0], 16) & 1 else "off") if mask else "",  # bit 0 stands for the memory (UMC)
            "partition.compute": text(folder / "current_compute_partition"),
            "partition.memory": text(folder / "current_memory_partition"),
            "performance_level": text(folder / "power_dpm_force_performance_level"),
            "pcie.generation": GENERATIONS.get(speed[0], "") if speed else "",
            "pcie.width": text(folder / "max_link_width"),
        }
        return {name: value for name, value in settings.items() if value}


def _hwmon(folder: Path) -> Path:
    return next(iter(sorted(folder.glob("hwmon/hwmon*"))), folder / "hwmon/none")


def _file_reader(path: str, scale: float = 1.0) -> Callable[[Path, str], float | None]:
    """Return a function that reads the number in the file `path` of the GPU's folder, times `scale`."""
    return lambda folder, name: valid(name, _read_number(folder / path), scale)


def _monitor_reader(scale: float, *files: str) -> Callable[[Path, str], float | None]:
    """Return a function that reads the first of `files` that has a valid number, times `scale`; None if none has."""

    def read(folder: Path, name: str) -> float | None:
        values = (valid(name, _read_number(_hwmon(folder) / file), scale) for file in files)
        return next((value for value in values if value is not None), None)

    return read


def _temperature_reader(label: str, scale: float) -> Callable[[Path, str], float | None]:
    """Return a function that reads the temperature sensor with the label `label`, times `scale`; None without one."""

    def read(folder: Path, name: str) -> float | None:
        for path in sorted(_hwmon(folder).glob("temp*_label")):
            if text(path) == label:
                return valid(name, _read_number(path.with_name(path.name.replace("_label", "_input"))), scale)
        return None

    return read


def _metrics_value(name: str, metrics: GpuMetrics | None, throttle: ThrottleReasons) -> float | None:
    """Return the counter `name`, which only the table gpu_metrics has, in its unit."""
    if metrics is None:
        return None
    if name == "amd.energy":
        return valid(name, metrics.energy_steps, ENERGY_STEP_J)
    return valid(name, metrics.dram_percent if name == "amd.dram" else throttle.since(metrics))


_READERS: Mapping[str, Callable[[Path, str], float | None]] = {
    "amd.power": _monitor_reader(1e-6, "power1_average", "power1_input"),
    "amd.clock.gfx": _monitor_reader(1.0, "freq1_input"),
    "amd.clock.memory": _monitor_reader(1.0, "freq2_input"),
    "amd.temperature.hotspot": _temperature_reader("junction", 1e-3),
    "amd.temperature.memory": _temperature_reader("mem", 1e-3),
    "amd.utilization.gfx": _file_reader("gpu_busy_percent"),
    "amd.utilization.memory": _file_reader("mem_busy_percent"),
    "amd.memory.used": _file_reader("mem_info_vram_used"),
    "amd.pcie.replays": _file_reader("pcie_replay_count"),
}
_METRICS_COUNTERS = frozenset({"amd.energy", "amd.dram", "amd.throttle"})
