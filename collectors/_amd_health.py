"""Read the health of an AMD GPU from the files of the driver amdgpu (Linux kernel, "AMDGPU RAS Support").

The file xgmi_error is not read: reading it resets it. No AMD GPU has shown these readings yet: docs/amd.md says what
was simulated.

List the processes on an AMD GPU by the files of the driver amdkfd (Linux kernel, kfd_process.c, kfd_topology.c)."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpubench.api import collector as gb

from ._amd_sysfs import GENERATIONS, Sysfs, text

_PLACE = 0xFFF8  # the bits of bus and device in a location; on a partitioned card the others name the partition


class KfdProcesses:
    """The processes that compute on one card, including all partitions of a partitioned card.

    Each process that has opened ROCm has a file per GPU with its bytes of memory there, and a folder per queue."""

    def __init__(self, root: Path, pci: str) -> None:
        """Find the driver's ids of the GPU at that PCI address, below `root`."""
        self._folder = root / "sys/class/kfd/kfd/proc"
        self.gpu_ids = _gpu_ids(root / "sys/class/kfd/kfd/topology/nodes", pci)

    def read(self) -> list[tuple[int, float]] | None:
        """Return the id of each process that uses the GPU and its bytes of memory there, in no particular order.

        The result is None if the driver does not list processes."""
        if not self.gpu_ids:
            return None
        try:
            folders = [path for path in self._folder.iterdir() if path.name.isdigit()]
        except OSError:
            return None
        used = ((path, sum(_read_count(path / f"vram_{gpu}") for gpu in self.gpu_ids)) for path in folders)
        return [(int(path.name), float(size)) for path, size in used if size or self._has_queue(path)]

    def pids(self) -> tuple[int, ...] | None:
        """Return the ids of the processes; None if the driver does not list processes."""
        processes = self.read()
        return None if processes is None else tuple(pid for pid, _ in processes)

    def _has_queue(self, process: Path) -> bool:
        with contextlib.suppress(OSError):  # the process has ended
            return any(_read_count(path) in self.gpu_ids for path in process.glob("queues/*/gpuid"))
        return False


def _gpu_ids(nodes: Path, pci: str) -> frozenset[int]:
    """Return the driver's ids of the GPU at the PCI address `pci`."""
    return frozenset(gpu for node in nodes.glob("*") if (gpu := _read_count(node / "gpu_id")) and _is_gpu_at(node, pci))


def _is_gpu_at(node: Path, pci: str) -> bool:
    """Return whether a node of the topology, given by its folder, is the GPU at `pci` or a partition of that GPU."""
    domain, bus, rest = pci.split(":")
    location = int(bus, 16) << 8 | int(rest.split(".")[0], 16) << 3
    values = dict(_properties(text(node / "properties")))
    return values.get("domain") == int(domain, 16) and values.get("location_id", -1) & _PLACE == location


def _properties(properties: str) -> Iterator[tuple[str, int]]:
    for line in properties.splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            yield name, int(value)


def _read_count(path: Path) -> int:
    """Return the number in a file; 0 if there is none."""
    content = text(path)
    return int(content) if content.isdigit() else 0


_BUSY_PERCENT = 20
_MOST_NUMBERS = 8  # the most process ids that a text names
_UNCORRECTED = re.compile(r"^ue:\s*(\d+)", re.MULTILINE)
_PAGE = re.compile(r"^0x[0-9a-fA-F]+\s*:\s*0x[0-9a-fA-F]+\s*:\s*([RPF])\s*$", re.MULTILINE)  # retired, pending, failed


class AmdHealth:
    """Reads the health of AMD GPUs from the driver's files; a file that is missing gives a reading without a value."""

    def __init__(self, files: Sysfs) -> None:
        """Prepare to read the driver's files of a machine."""
        self._files = files

    def read(self, device: gb.Device) -> Sequence[gb.HealthReading]:
        """Return the health readings of the device; a reading whose file is missing has no value.

        Raises Unavailable if the driver has no files for the device."""
        folder = self._files.folder(device.pci)
        if not folder.is_dir():
            raise gb.Unavailable(f"the driver has no files for {device.id} ({device.pci})", "read the kernel log")
        card = device.pci.lower()
        processes = KfdProcesses(self._files.root, card)
        return [
            *_errors(folder, card),
            *_pages(folder, card),
            _processes(processes, card),
            *_busy(folder),
            *_pcie(folder, card),
        ]

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _errors(folder: Path, card: str) -> Iterator[gb.HealthReading]:
    counts = {
        path.name.removesuffix("_err_count"): int(match[1])
        for path in sorted(folder.glob("ras/*_err_count"))
        if (match := _UNCORRECTED.search(text(path)))
    }
    blocks = ", ".join(block for block, count in counts.items() if count)
    command = f"sudo amd-smi reset --gpureset --gpu {card}"
    if counts:
        yield gb.HealthReading(gb.HealthSign.ECC_UNCORRECTED, sum(counts.values()), blocks and f"in {blocks}", command)
    else:
        yield gb.HealthReading(gb.HealthSign.ECC_UNCORRECTED, None, "the driver has no files for errors", command)


def _pages(folder: Path, card: str) -> Iterator[gb.HealthReading]:
    path = folder / "ras/gpu_vram_bad_pages"
    if path.exists():
        states = _PAGE.findall(text(path))
        yield gb.HealthReading(
            gb.HealthSign.PAGES_RETIRED, states.count("R"), command=f"amd-smi bad-pages --retired --gpu {card}"
        )
        waiting = states.count("P") + states.count("F")
        yield gb.HealthReading(
            gb.HealthSign.PAGES_PENDING, waiting, command=f"sudo amd-smi reset --gpureset --gpu {card}"
        )


def _processes(processes: KfdProcesses, card: str) -> gb.HealthReading:
    command = f"amd-smi process --gpu {card}"
    pids = processes.pids()
    if pids is None:
        return gb.HealthReading(gb.HealthSign.PROCESSES, None, "the driver does not list processes", command)
    numbers = ", ".join(str(pid) for pid in pids[-_MOST_NUMBERS:])
    return gb.HealthReading(gb.HealthSign.PROCESSES, len(pids), numbers and f"process numbers {numbers}", command)


def _busy(folder: Path) -> Iterator[gb.HealthReading]:
    """Yield one reading: 1.0 if the GPU is at least 20 % busy, else 0.0; None if the driver does not say."""
    percent = _read_number(folder / "gpu_busy_percent")
    yield gb.HealthReading(gb.HealthSign.BUSY, None if percent is None else float(percent >= _BUSY_PERCENT))


def _pcie(folder: Path, card: str) -> Iterator[gb.HealthReading]:
    """Yield the present and the widest PCIe link, its replays, and the present and the highest generation (1 to 6)."""
    command = f"amd-smi metric --pcie --gpu {card}"
    files = {
        gb.HealthSign.PCIE_WIDTH: "current_link_width",
        gb.HealthSign.PCIE_WIDTH_MOST: "max_link_width",
        gb.HealthSign.PCIE_REPLAYS: "pcie_replay_count",
    }
    for sign, name in files.items():
        yield gb.HealthReading(sign, _read_number(folder / name), command=command)
    speeds = {gb.HealthSign.PCIE_GENERATION: "current_link_speed", gb.HealthSign.PCIE_GENERATION_MOST: "max_link_speed"}
    for sign, name in speeds.items():
        speed = text(folder / name).split()
        step = GENERATIONS.get(speed[0]) if speed else None
        yield gb.HealthReading(sign, None if step is None else float(step), command=command)


def _read_number(path: Path) -> float | None:
    """Return the number in a file; None if the file is missing or has other content."""
    try:
        return float(text(path))
    except ValueError:
        return None
