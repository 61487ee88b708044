"""Read counters and settings from files of the Linux driver amdgpu, without a library (kernel, "amdgpu driver").

`root` is put before /sys, so that a copy of another machine's files reads as that machine did. A file that is
missing, cannot be read or has other content reads as None.

Parse the table gpu_metrics of the driver amdgpu, which the GPU's firmware fills (Linux kernel, kgd_pp_interface.h).

Accelerators use format 1; its content revision says where each field is. A field that a firmware does not fill has all
bits set and reads as None.

Define AMD's counters, and recognise the numbers that stand for a missing value."""

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubench.api import collector as gb

from ._amd_events import BITS, HBM_THERMAL, PACKAGE_POWER, PROCHOT, SOCKET_THERMAL, VR_THERMAL

# One step of energy_accumulator, 2⁻¹⁶ J
ENERGY_STEP_J = 2.0**-16
_HEADER = struct.Struct("<HBB")
_MEGA = 1e6
# The reasons whose residencies gpu_metrics has from revision 6 on, in its order
RESIDENCIES = (PROCHOT, PACKAGE_POWER, SOCKET_THERMAL, VR_THERMAL, HBM_THERMAL)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The places of the fields of a content revision, in bytes from the beginning; 0 stands for a missing field.

    `size` is the size of the table in bytes, and `energy` the place of the energy."""

    size: int
    energy: int
    clocks: tuple[int, int]  # the index of the first clock, and their number
    throttle: int = 0
    residencies: int = 0
    dram: int = 0


# On the MI200 (revision 3) average_umc_activity is how busy the memory's clock domain is (AverageUclkActivity), from
# revision 4 on the used share of the bandwidth (DramBandwidthUtilization): aldebaran_ppt.c, smu_v13_0_6_ppt.c.
# Revisions 4 and 5 have a throttle status that smu_v13_0_6_ppt.c always leaves 0.
_LAYOUTS: Mapping[int, _Layout] = {
    1: _Layout(96, 24, (54, 1)),
    2: _Layout(104, 24, (54, 1)),
    3: _Layout(120, 24, (54, 1), throttle=112),
    4: _Layout(288, 24, (240, 8), dram=14),
    5: _Layout(360, 88, (312, 8), dram=14),
    6: _Layout(1664, 16, (264, 8), residencies=36, dram=14),
    7: _Layout(2208, 24, (296, 8), residencies=44, dram=14),
    8: _Layout(3360, 24, (296, 8), residencies=44, dram=14),
}


@dataclass(frozen=True, slots=True)
class GpuMetrics:
    """The values of one table; a field that the revision or the firmware does not have is None.

    `energy_steps` count ENERGY_STEP_J, `reasons` is the mask of throttle reasons (_amd_events), and `residencies` are
    the cycles of the firmware during which each of RESIDENCIES held."""

    energy_steps: int | None
    clock_hz: float | None
    reasons: int | None
    residencies: tuple[int, ...] | None
    dram_percent: int | None


def parsed(table: bytes) -> GpuMetrics | None:
    """Return the values of the table gpu_metrics, given as its bytes.

    The result is None if the table is truncated or of an unknown revision."""
    if len(table) < _HEADER.size:
        return None
    size, form, content = _HEADER.unpack_from(table)
    layout = _LAYOUTS.get(content) if form == 1 else None
    if layout is None or size != len(table) or size < layout.size:
        return None
    first, count = layout.clocks
    clocks = [mhz for place in range(count) if (mhz := _unpack_field("<H", table, first + 2 * place)) is not None]
    counted = [_unpack_field("<I", table, layout.residencies + 4 * place) for place in range(len(RESIDENCIES))]
    has_residencies = layout.residencies and any(cycles is not None for cycles in counted)
    return GpuMetrics(
        energy_steps=_unpack_field("<Q", table, layout.energy),
        clock_hz=sum(clocks) / len(clocks) * _MEGA if clocks else None,
        reasons=_unpack_field("<Q", table, layout.throttle) if layout.throttle else None,
        residencies=tuple(cycles or 0 for cycles in counted) if has_residencies else None,
        dram_percent=_unpack_field("<H", table, layout.dram) if layout.dram else None,
    )


def _unpack_field(form: str, table: bytes, place: int) -> int | None:
    """Return the number at the byte `place` of the table, in the form of `struct`; None if all its bits are set."""
    raw = table[place : place + struct.calcsize(form)]
    return None if raw == b"\xff" * len(raw) else int(struct.unpack(form, raw)[0])


class ThrottleReasons:
    """The throttle reasons of one GPU between two tables.

    An MI200 has a mask of the reasons that hold now."""

    def __init__(self) -> None:
        self._last: tuple[int, ...] | None = None

    def since(self, metrics: GpuMetrics) -> int | None:
        """Return the mask of the reasons that held since the last call; None if this firmware does not report them.

        `metrics` are the values of the newest table."""
        if metrics.residencies is None:
            return metrics.reasons
        last, self._last = self._last or metrics.residencies, metrics.residencies
        rises = zip(RESIDENCIES, last, metrics.residencies, strict=True)
        return sum(bit for bit, before, now in rises if now != before)


_FAST_S = 0.1
_SLOW_S = 0.5
_ALL_ONES = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
# A larger number is a scaled sentinel (0xffffffff µW are 4295 W), not a reading.
_MOST = {"W": 4000.0, "°C": 150.0, "Hz": 1e10, "%": 100.0}


def _smi(amd: str, rocm: str) -> str:
    """Return the command that shows a counter; `amd` and `rocm` are the options of amd-smi and of rocm-smi."""
    return f"amd-smi metric {amd} (or rocm-smi {rocm})"


COUNTERS = (
    gb.Counter("amd.power", "W", "gauge", _FAST_S, _smi("-p", "--showpower"), gb.Measure.BOARD_POWER),
    gb.Counter("amd.clock.gfx", "Hz", "gauge", _FAST_S, _smi("-c", "--showclocks"), gb.Measure.CORE_CLOCK),
    gb.Counter("amd.clock.memory", "Hz", "gauge", _FAST_S, _smi("-c", "--showclocks"), gb.Measure.MEMORY_CLOCK),
    gb.Counter("amd.temperature.hotspot", "°C", "gauge", _FAST_S, _smi("-t", "--showtemp"), gb.Measure.TEMPERATURE),
    gb.Counter(
        "amd.temperature.memory", "°C", "gauge", _FAST_S, _smi("-t", "--showtemp"), gb.Measure.MEMORY_TEMPERATURE
    ),
    gb.Counter("amd.utilization.gfx", "%", "window", _FAST_S, _smi("-u", "--showuse"), gb.Measure.BUSY),
    gb.Counter("amd.utilization.memory", "%", "window", _FAST_S, _smi("-u", "--showmemuse")),
    gb.Counter("amd.dram", "%", "window", _FAST_S, _smi("-u", "--showmemuse"), gb.Measure.DRAM_SHARE),
    gb.Counter("amd.memory.used", "B", "gauge", _FAST_S, _smi("-m", "--showmeminfo vram"), gb.Measure.MEMORY_USED),
    gb.Counter("amd.energy", "J", "cumulative", _SLOW_S, _smi("-E", "--showenergycounter"), gb.Measure.ENERGY),
    gb.Counter("amd.pcie.replays", "replays", "cumulative", _SLOW_S, _smi("-P", "--showreplaycount")),
    gb.Counter(
        "amd.throttle",
        "bit mask",
        "event",
        _FAST_S,
        _smi("-v", "--showmetrics (indep_throttle_status)"),
        gb.Measure.THROTTLE_REASONS,
        BITS,
    ),
)
UNITS = {counter.name: counter.unit for counter in COUNTERS}


def valid(name: str, value: object, scale: float = 1.0) -> float | None:
    """Return the value of the counter `name` in its unit, `value` times `scale`; None for a missing value.

    A value is missing if it is text (`N/A`), a negative number (AMD's libraries return -1 for an error), a word of
    16, 32 or 64 ones, more than a GPU can reach, or 0 bytes of used memory, AMD's library's answer without the file."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if value < 0 or value in _ALL_ONES:
        return None
    scaled = value * scale
    if scaled > _MOST.get(UNITS[name], math.inf) or (name == "amd.memory.used" and not scaled):
        return None
    return float(scaled)


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
