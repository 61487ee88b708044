"""Read the processor time and memory of a program and its children from /proc."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from gpubench.model import Counter, Measure, Samples

PERIOD_S = 0.25
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SOURCE = "program"
CPU = Counter(
    "program.cpu.busy",
    "core·s",
    "cumulative",
    PERIOD_S,
    "ps -o cputimes of the program and its children",
    Measure.PROGRAM_CPU_TIME,
)
MEMORY = Counter(
    "program.memory", "B", "gauge", PERIOD_S, "ps -o rss of the program and its children", Measure.PROGRAM_MEMORY
)
COUNTERS = (CPU, MEMORY)


class ProcessTree:
    """Reads a process and its descendants; a child whose parent has ended is no longer found.

    `zero` is the start of the run in s of CLOCK_MONOTONIC, from which the times of the samples count."""

    def __init__(self, pid: int, zero: float) -> None:
        self._pid = pid
        self._zero = zero
        self._rows: list[tuple[float, float, float]] = []
        self._highest_cpu_s = 0.0

    def read(self) -> None:
        """Take a sample now. The recorded processor time never falls, even if a child ends that nobody waited for."""
        usages = [usage for pid in _process_and_descendants(self._pid) if (usage := _process_usage(pid))]
        if usages:
            self._highest_cpu_s = max(self._highest_cpu_s, sum(seconds for seconds, _ in usages))
            self._rows.append(
                (time.monotonic() - self._zero, self._highest_cpu_s, float(sum(size for _, size in usages)))
            )

    def take(self) -> list[Samples]:
        """Return the samples since the last call, as one chunk for the host; an empty list if there is none."""
        if not self._rows:
            return []
        at, seconds, sizes = zip(*self._rows, strict=True)
        self._rows = []
        return [Samples(_SOURCE, "host", at, ((CPU.name, seconds), (MEMORY.name, sizes)))]


def _process_and_descendants(pid: int) -> Iterator[int]:
    """Yield the ids of a process and, if the kernel lists children (CONFIG_PROC_CHILDREN), of its descendants."""
    yield pid
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _process_and_descendants(int(child))
    except OSError:  # the process has ended, or the kernel has no such list
        return


def _process_usage(pid: int) -> tuple[float, int] | None:
    """Return the CPU seconds of a process with the children it waited for, and its resident bytes."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return sum(map(int, fields[11:15])) * _TICK_S, int(fields[21]) * _PAGE_BYTES
