"""Measure latency on the host alone: a word between two cores, and loads from memory in small and in large pages."""

import mmap
import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import on_core
from ._ring import HOST_MOST_BYTES, PAGE_BYTES, host_kernel, host_walk, memory_bytes
from ._round_trips import RoundTrips

_ROUNDS = 2**12  # rounds per sample, about a millisecond
# Reads before a core gives up, after about four seconds: a core that other programs keep busy is late, not wrong.
_SPINS = 2**29
# Question and answer lie on separate cache lines, so far apart that adjacent-line prefetch does not join them.
_WORDS, _APART = 64, 32

topic = gb.Topic(
    views=[
        gb.View("bars", "Core-to-core latency", ("core_to_core",)),
        gb.View("bars", "Memory latency by page size", ("pages",)),
    ],
)


def _others(target: gb.Target) -> Any:
    """Return the axis of partners of the first core by position in the list of cores: next, middle and last core."""
    cores = max(target.device.units, 2)
    return gb.points(quick=sorted({1, cores // 2, cores - 1}), full=tuple(range(1, min(cores, 64))))


@topic.case(when=gb.on_host, other=_others)
def core_to_core(bench: gb.Bench, other: int) -> gb.Task:
    """Seconds in which a word written by the first core reaches the core at position `other`: half of a round trip."""
    del bench
    cores = sorted(os.sched_getaffinity(0))
    if other >= len(cores):
        raise gb.Skip(f"needs {other + 1} cores; this process has {len(cores)}")
    round_trips = RoundTrips(np.zeros(_WORDS, np.uint64), _APART, _ROUNDS, _SPINS)
    answer = host_kernel("answer")
    answer(round_trips.words, 0, _APART, 1, 0, 1)  # no question is asked yet; this call only compiles the kernel

    def answer_all() -> None:
        with on_core(cores[other]):
            answer(round_trips.words, 0, _APART, 1, _ROUNDS, _SPINS)

    def seconds() -> float:
        """Return the seconds of all round trips but the first, while a thread on the other core answers."""
        round_trips.words[:] = 0
        partner = threading.Thread(target=answer_all)
        partner.start()
        with on_core(cores[0]):
            elapsed = round_trips.seconds()
        partner.join()
        return elapsed

    stage = gb.Stage(seconds, gb.Work(items=2 * (_ROUNDS - 1)), "item", clock="self", effort=gb.POINT)
    return gb.Task.of(stage, check=round_trips.check, notes={"cores": f"{cores[0]} and {cores[other]}"})


def _page_sizes(target: gb.Target) -> Any:
    """Return the axis of ring sizes in bytes: `memory_bytes(target)` and in `full` also 16 MiB and 1 GiB."""
    memory = memory_bytes(target)
    return gb.points(smoke=(2**23,), quick=(memory,), full=sorted({2**24, memory, HOST_MOST_BYTES}))


@topic.case(when=gb.on_host, page=("4KiB", "2MiB"), size_bytes=_page_sizes)
def pages(bench: gb.Bench, page: str, size_bytes: int) -> gb.Task:
    """Seconds of a dependent load from memory in pages of size `page` (madvise(2)): the cost of address translation.

    The case is skipped if the kernel gives large pages for less than half of the ring."""
    bench.need(size_bytes)
    area = mmap.mmap(-1, size_bytes + PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE if page == "2MiB" else mmap.MADV_NOHUGEPAGE)
    mapped = np.frombuffer(area, np.uint8)
    walk = host_walk(bench, mapped[-mapped.ctypes.data % PAGE_BYTES :][:size_bytes].view(np.uint64))
    huge_bytes = _huge_bytes(mapped.ctypes.data)
    if page == "2MiB" and huge_bytes < size_bytes // 2:
        raise gb.Skip("the kernel gave no large pages; see /sys/kernel/mm/transparent_hugepage/enabled")
    return walk.task({"pages": f"{huge_bytes} of {size_bytes} B in large pages"})


def _huge_bytes(address: int) -> int:
    """Return the bytes in transparent huge pages of the mapping of this process that holds `address`."""
    smaps = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    for entry in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", smaps, flags=re.MULTILINE)[1:]:
        first, last = (int(bound, 16) for bound in entry.split(None, 1)[0].split("-"))
        if first <= address < last:
            huge = re.search(r"^AnonHugePages:\s*(\d+) kB", entry, re.MULTILINE)
            return int(huge[1]) * 2**10 if huge else 0
    return 0
