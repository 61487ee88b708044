"""Measure the host link by NUMA node, with page-locked memory bound to a node, and of all GPUs of a host at once."""

import ctypes
import errno
import mmap
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._between import rank_counts, ranks_of
from .._checks import in_turn
from .._stream import need_gpu
from ._link import HostMemory, LinkCopy

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
    """Return the numbers of a list as the kernel writes it, such as `0-1,4`; empty for an empty text.

    Raises ValueError for other texts."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def node_of(pci: str, root: Path = _PCI) -> int | None:
    """Return the NUMA node to which the device of PCI address `pci` is attached; None if the firmware does not say.

    `root` is the folder of /sys with an entry for each PCI device."""
    try:
        node = int((root / pci.lower() / "numa_node").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def bridges_above(pci: str, root: Path = _PCI) -> tuple[str, ...]:
    """Return the PCI addresses of the bridges above the device of PCI address `pci`, from the root port down.

    The result is empty if /sys does not show the device. `root` is the folder with an entry for each PCI device."""
    path = root / pci.lower()
    if not path.exists():
        return ()
    return tuple(part for part in path.resolve().parts[:-1] if part.count(":") == 2 and "." in part)


def shared_upstream(names: Sequence[str], pcis: Sequence[str], root: Path = _PCI) -> str:
    """Return the text of a note on which of the named devices share a root port on the way to the processor.

    `pcis` are the PCI addresses of the devices in the order of `names`; `root` is the folder with an entry for each."""
    sharing: dict[str, list[str]] = {}
    for name, pci in zip(names, pcis, strict=True):
        bridges = bridges_above(pci, root)
        if not bridges:
            return "unknown: /sys does not show the bridges above the devices"
        sharing.setdefault(bridges[0], []).append(name)
    shared = [f"{' and '.join(group)} share {bridge}" for bridge, group in sharing.items() if len(group) > 1]
    return "; ".join(shared) or "each device has a root port of its own"


class NodeMemory:
    """Host memory of `nbytes` whose pages are bound to the NUMA node `node`.

    `array` is the memory (uint8), and `pages` the same memory up to the end of its last page."""

    def __init__(self, nbytes: int, node: int, nodes: Sequence[int]) -> None:
        if node not in nodes:
            has = ", ".join(map(str, nodes)) or "unknown"
            raise gb.Skip(f"the machine has no NUMA node {node} with memory (nodes with memory: {has})")
        self.node = node
        whole = -(-nbytes // _PAGE_BYTES) * _PAGE_BYTES
        self._map = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.pages: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.array = self.pages[:nbytes]
        if len(nodes) > 1:
            bind(self.pages.ctypes.data, whole, node)
        self.pages.fill(0)

    def expect_placed(self) -> Mapping[str, str]:
        """Return the note `pages by NUMA node`; raises WrongAnswer unless every page is on the node."""
        pages = placement(self.pages.ctypes.data, self.pages.size)
        gb.expect(
            set(pages) == {self.node},
            f"pages by NUMA node: {_describe_placement(pages)}; all should be on node {self.node}",
        )
        return {"pages by NUMA node": _describe_placement(pages)}


def _describe_placement(pages: Mapping[int, int]) -> str:
    """Return the number of pages on each node as text; `pages` is what `placement` returns."""
    places = {node: f"node {node}" if node >= 0 else f"none ({os.strerror(-node)})" for node in pages}
    return ", ".join(f"{places[node]}: {count}" for node, count in sorted(pages.items()))


def bind(address: int, nbytes: int, node: int) -> None:
    """Bind the pages of `nbytes` from `address` on to `node`, and move pages that exist already.

    `address` is the start of a page."""
    mask = (ctypes.c_ulong * (_MOST_NODES // _MASK_BITS))()
    mask[node // _MASK_BITS] = 1 << node % _MASK_BITS
    number = _system_call_numbers()[0]
    status = _call_system(number, address, nbytes, _BIND, ctypes.addressof(mask), _MOST_NODES, _STRICT_AND_MOVE)
    if status:
        raise gb.Skip(f"the kernel refuses to bind memory to NUMA node {node} ({os.strerror(status)}); {_REMEDY}")


def placement(address: int, nbytes: int) -> Mapping[int, int]:
    """Return the number of pages on each NUMA node, of the pages of `nbytes` from `address` on.

    A negative node is the number of an error that the kernel returned for pages."""
    pages = np.arange(address, address + nbytes, _PAGE_BYTES, dtype=np.uint64)
    nodes = np.zeros(pages.size, np.int32)
    status = _call_system(_system_call_numbers()[1], 0, pages.size, pages.ctypes.data, 0, nodes.ctypes.data, 0)
    if status in _REFUSALS:
        return mapped_nodes(_MAPS.read_text(encoding="ascii", errors="replace"), address)
    if status:
        raise OSError(status, os.strerror(status))
    return dict(Counter(nodes.tolist()))


def mapped_nodes(text: str, address: int) -> Mapping[int, int]:
    """Return the number of pages on each NUMA node, of the mapping that holds `address`; empty if there is none.

    `text` is the content of /proc/self/numa_maps."""
    starts = {int(line.split(maxsplit=1)[0], 16): line for line in text.splitlines() if line.strip()}
    start = max((start for start in starts if start <= address), default=None)
    fields = starts[start].split() if start is not None else []
    pairs = (field[1:].split("=") for field in fields if field.startswith("N") and "=" in field)
    return {int(node): int(count) for node, count in pairs}


def _system_call_numbers() -> tuple[int, int]:
    """Return the numbers of the system calls mbind and move_pages."""
    machine = platform.machine()
    if machine not in _SYSCALLS:
        raise gb.Skip(f"binding memory to NUMA nodes is supported on {' and '.join(_SYSCALLS)}, not on {machine}")
    return _SYSCALLS[machine]


def _call_system(number: int, *args: int) -> int:
    """Make the system call of this number with integers and addresses; return 0, or errno if it fails."""
    call: Any = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    failed = call(ctypes.c_long(number), *map(ctypes.c_long, args)) < 0
    return ctypes.get_errno() if failed else 0


_SPARE_BYTES = 2**26
_MOST_CALLS = 32  # calls per batch for both directions at once, because each call queues six commands
_H2D, _D2H, _BOTH = "h2d", "d2h", "both"
_LIMITS = {_H2D: "link.h2d", _D2H: "link.d2h"}
_UNNAMED = "0"  # the node of a machine whose inventory names no NUMA nodes
_SIZES = gb.points((2**26,), (2**24,), (2**12, 2**16, 2**20, 2**26, 2**30))
_ALL_BYTES = gb.points((2**28,), (2**24,), (2**20, 2**28))

topic = gb.Topic(
    views=[
        gb.View("matrix", "Host link bandwidth by NUMA node", ("host_link",), "node", "device", by=("direction",)),
        gb.View("curve", "Host link bandwidth of all GPUs", ("host_link_all",), "of", by=("direction",), series="sum"),
    ]
)


def nodes_of(target: gb.Target) -> tuple[int, ...]:
    """Return the numbers of the NUMA nodes with memory that the machine's inventory names.

    If it names no nodes, the result is (0,)."""
    return node_numbers(dict(target.facts.host).get("numa", _UNNAMED))


def _nodes(target: gb.Target) -> Any:
    """Return the axis of NUMA nodes: all with memory; in `smoke` the first."""
    nodes = nodes_of(target)
    return gb.points(nodes, nodes[:1], tuple(dict.fromkeys((*nodes, 1))))


def _device(target: gb.Target) -> tuple[str, ...]:
    return (target.device.id,)


@topic.case(
    device=_device,
    node=_nodes,
    direction=gb.points((_H2D, _D2H), (_H2D,), (_H2D, _D2H, _BOTH)),
    size_bytes=_SIZES,
    when=gb.on_gpu,
)
def host_link(bench: gb.Bench, device: str, node: int, direction: str, size_bytes: int) -> gb.Task:
    """Bandwidth of copies between the GPU and page-locked memory on the NUMA node `node`, one way or both ways at once.

    `direction` is `h2d` (to the GPU), `d2h` or `both`. The rate counts each byte once (payload). Every check asks the
    operating system on which node each page is."""
    del device
    need_gpu(bench)
    both = direction == _BOTH
    bench.need((4 if both else 2) * size_bytes + _SPARE_BYTES)
    ways = (_H2D, _D2H) if both else (direction,)
    memories = [NodeMemory(size_bytes, node, nodes_of(bench.target)) for _ in ways]
    transfers = [
        LinkCopy(bench, _registered(bench, memory), way == _H2D, draw)
        for draw, (way, memory) in enumerate(zip(ways, memories, strict=True))
    ]
    if both:
        call = partial(bench.device.together, *(transfer.call for transfer in transfers))
        work, outputs = gb.Work(payload=2 * size_bytes), [array for transfer in transfers for array in transfer.outputs]
        inputs = in_turn(*(transfer.redraw for transfer in transfers))
        stage = gb.Stage(call, work, "payload", max_calls=_MOST_CALLS, effort=gb.POINT, outputs=outputs, inputs=inputs)
    else:
        stage = transfers[0].stage(transfers[0].call, _LIMITS[direction])
    notes = {**_place_notes(bench), **memories[0].expect_placed()}
    return gb.Task.of(
        stage,
        check=in_turn(*(memory.expect_placed for memory in memories), *(transfer.check for transfer in transfers)),
        close=in_turn(*(transfer.close for transfer in transfers)),
        notes=notes,
    )


@topic.case(
    ranks=ranks_of, devices=ranks_of, of=rank_counts, direction=(_H2D, _D2H), size_bytes=_ALL_BYTES, when=gb.on_gpu
)
def host_link_all(bench: gb.Bench, of: int, direction: str, size_bytes: int) -> gb.Task:
    """Bandwidth of copies of all GPUs at once, each with page-locked memory on the NUMA node nearest to it.

    `direction` is `h2d` (to the GPUs) or `d2h`. The rate is the slowest GPU's, each byte counted once (payload); the
    series `sum` counts the copies of all `of` GPUs. The ranks begin within the time of a message, so copies must take
    much longer than that."""
    need_gpu(bench)
    bench.need(2 * size_bytes + _SPARE_BYTES)
    nodes = nodes_of(bench.target)
    nearest_node = node_of(bench.peers[bench.rank].pci)
    memory = NodeMemory(size_bytes, nearest_node if nearest_node in nodes else nodes[0], nodes)
    transfer = LinkCopy(bench, _registered(bench, memory), direction == _H2D)
    works = {"sum": gb.Work(payload=of * size_bytes)}
    stage = replace(transfer.stage(transfer.call, _LIMITS[direction]), also=works)
    devices = bench.peers[:of]
    shared = shared_upstream([device.id for device in devices], [device.pci for device in devices])
    return gb.Task.of(
        stage,
        check=in_turn(memory.expect_placed, transfer.check),
        close=transfer.close,
        notes={"shared upstream": shared, **memory.expect_placed()},
    )


def _registered(bench: gb.Bench, memory: NodeMemory) -> HostMemory:
    """Return `memory` as page-locked host memory; the caller has placed its pages on their node before."""
    return HostMemory(memory.array, bench.device.register(memory.pages))


def _place_notes(bench: gb.Bench) -> Mapping[str, str]:
    """Return the note `NUMA node of the GPU` with the number of the node, or `not stated by the firmware`."""
    nearest_node = node_of(bench.target.device.pci)
    return {"NUMA node of the GPU": "not stated by the firmware" if nearest_node is None else str(nearest_node)}
