"""NUMA nodes: their numbers, the node of a GPU, memory that is bound to a node, and proof of its placement."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api.suite import Skip, expect

_PCI = Path("/sys/bus/pci/devices")
_MAPS = Path("/proc/self/numa_maps")
_PAGE_BYTES = mmap.PAGESIZE
_BIND, _STRICT_AND_MOVE = 2, 1 | 2  # MPOL_BIND; MPOL_MF_STRICT | MPOL_MF_MOVE (linux/mempolicy.h)
_MOST_NODES = 1024  # bits of a node mask, as in the kernel's largest configuration
_MASK_BITS = 64
_SYSCALLS = {  # mbind and move_pages (asm/unistd_64.h, asm-generic/unistd.h)
    "x86_64": (237, 279),
    "aarch64": (235, 239),
}
_REFUSALS = (errno.EPERM, errno.ENOSYS)
_REMEDY = "in a container: docker run --cap-add SYS_NICE"


def node_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a list as the kernel writes it, `0-1,4`; raises ValueError for other texts."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def node_of(pci: str, root: Path = _PCI) -> int | None:
    """Return the NUMA node that a PCI device is attached to; None where the firmware does not say."""
    try:
        node = int((root / pci.lower() / "numa_node").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def bridges_above(pci: str, root: Path = _PCI) -> tuple[str, ...]:
    """Return the PCI addresses of the bridges above a device, from the root port down; empty if unknown."""
    path = root / pci.lower()
    if not path.exists():
        return ()
    return tuple(part for part in path.resolve().parts[:-1] if part.count(":") == 2 and "." in part)


def shared_upstream(names: Sequence[str], pcis: Sequence[str], root: Path = _PCI) -> str:
    """Return a note that says which of the named devices share a port or a switch on the way to the processor."""
    sharing: dict[str, list[str]] = {}
    for name, pci in zip(names, pcis, strict=True):
        bridges = bridges_above(pci, root)
        if not bridges:
            return "unknown: /sys does not show the bridges above the devices"
        sharing.setdefault(bridges[0], []).append(name)
    shared = [f"{' and '.join(group)} share {bridge}" for bridge, group in sharing.items() if len(group) > 1]
    return "; ".join(shared) or "each device has a root port of its own"


class NodeMemory:
    """Host memory of `nbytes` whose pages are bound to the NUMA node `node`, as bytes in `array`.

    `nodes` are all nodes with memory. Raises Skip where the machine does not have the node, or where the kernel refuses
    to bind memory. On a machine with one node nothing is bound, because memory has no other place.
    """

    def __init__(self, nbytes: int, node: int, nodes: Sequence[int]) -> None:
        if node not in nodes:
            has = ", ".join(map(str, nodes)) or "unknown"
            raise Skip(f"the machine has no NUMA node {node} with memory (nodes with memory: {has})")
        self.node = node
        whole = -(-nbytes // _PAGE_BYTES) * _PAGE_BYTES
        self._map = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.pages: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.array = self.pages[:nbytes]
        if len(nodes) > 1:
            bind(self.pages.ctypes.data, whole, node)
        self.pages.fill(0)

    def expect_placed(self) -> Mapping[str, str]:
        """Return the placement as a note; raises WrongAnswer unless every page is on the node."""
        pages = placement(self.pages.ctypes.data, self.pages.size)
        expect(
            set(pages) == {self.node},
            f"pages by NUMA node: {_describe_placement(pages)}; all should be on node {self.node}",
        )
        return {"pages by NUMA node": _describe_placement(pages)}


def _describe_placement(pages: Mapping[int, int]) -> str:
    """Return pages by NUMA node as text; a negative node is an error number, whose text is shown."""
    places = {node: f"node {node}" if node >= 0 else f"none ({os.strerror(-node)})" for node in pages}
    return ", ".join(f"{places[node]}: {count}" for node, count in sorted(pages.items()))


def bind(address: int, nbytes: int, node: int) -> None:
    """Bind the pages of a range to a node, also existing ones; raises Skip if the kernel or the machine refuses."""
    mask = (ctypes.c_ulong * (_MOST_NODES // _MASK_BITS))()
    mask[node // _MASK_BITS] = 1 << node % _MASK_BITS
    number = _system_call_numbers()[0]
    status = _call_system(number, address, nbytes, _BIND, ctypes.addressof(mask), _MOST_NODES, _STRICT_AND_MOVE)
    if status:
        raise Skip(f"the kernel refuses to bind memory to NUMA node {node} ({os.strerror(status)}); {_REMEDY}")


def placement(address: int, nbytes: int) -> Mapping[int, int]:
    """Return how many pages of a range are on each node; a negative number is an error of the kernel, not a node.

    If the kernel refuses to answer (move_pages), the nodes are read from its table of the process's memory. Raises
    OSError if the query fails for another reason, and Skip on unsupported machines.
    """
    pages = np.arange(address, address + nbytes, _PAGE_BYTES, dtype=np.uint64)
    nodes = np.zeros(pages.size, np.int32)
    status = _call_system(_system_call_numbers()[1], 0, pages.size, pages.ctypes.data, 0, nodes.ctypes.data, 0)
    if status in _REFUSALS:
        return mapped_nodes(_MAPS.read_text(encoding="ascii", errors="replace"), address)
    if status:
        raise OSError(status, os.strerror(status))
    return dict(Counter(nodes.tolist()))


def mapped_nodes(text: str, address: int) -> Mapping[int, int]:
    """Return the pages by node of the mapping that holds an address, from the text of /proc/self/numa_maps."""
    starts = {int(line.split(maxsplit=1)[0], 16): line for line in text.splitlines() if line.strip()}
    start = max((start for start in starts if start <= address), default=None)
    fields = starts[start].split() if start is not None else []
    pairs = (field[1:].split("=") for field in fields if field.startswith("N") and "=" in field)
    return {int(node): int(count) for node, count in pairs}


def _system_call_numbers() -> tuple[int, int]:
    """Return the numbers of the system calls mbind and move_pages; raises Skip on other machines."""
    machine = platform.machine()
    if machine not in _SYSCALLS:
        raise Skip(f"binding memory to NUMA nodes is supported on {' and '.join(_SYSCALLS)}, not on {machine}")
    return _SYSCALLS[machine]


def _call_system(number: int, *args: int) -> int:
    """Make a system call with integers and addresses; return 0, or the number of its error."""
    call: Any = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    failed = call(ctypes.c_long(number), *map(ctypes.c_long, args)) < 0
    return ctypes.get_errno() if failed else 0
