"""List the processes on an AMD GPU by the files of the driver amdkfd (Linux kernel, kfd_process.c, kfd_topology.c)."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ._amd_sysfs import text

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
        used = ((path, sum(_read_number(path / f"vram_{gpu}") for gpu in self.gpu_ids)) for path in folders)
        return [(int(path.name), float(size)) for path, size in used if size or self._has_queue(path)]

    def pids(self) -> tuple[int, ...] | None:
        """Return the ids of the processes; None if the driver does not list processes."""
        processes = self.read()
        return None if processes is None else tuple(pid for pid, _ in processes)

    def _has_queue(self, process: Path) -> bool:
        with contextlib.suppress(OSError):  # the process has ended
            return any(_read_number(path) in self.gpu_ids for path in process.glob("queues/*/gpuid"))
        return False


def _gpu_ids(nodes: Path, pci: str) -> frozenset[int]:
    """Return the driver's ids of the GPU at the PCI address `pci`."""
    return frozenset(
        gpu for node in nodes.glob("*") if (gpu := _read_number(node / "gpu_id")) and _is_gpu_at(node, pci)
    )


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


def _read_number(path: Path) -> int:
    """Return the number in a file; 0 if there is none."""
    content = text(path)
    return int(content) if content.isdigit() else 0
