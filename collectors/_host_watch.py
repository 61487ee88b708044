"""Watch the host between two samples by the kernel's files: whether the last sample was disturbed, and by what."""

import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from gpubench.api import collector as gb

TICK_S = 1 / os.sysconf("SC_CLK_TCK")  # the resolution of /proc/stat: 10 ms
_LOAD_S = 0.05  # reading the state of many threads takes a while
_LOAD_READINGS = 3  # a single reading may be chance; the shortest case of the quick tier has three
_STOLEN = 0.01  # share of the CPU time since the last reading, from which stolen time counts


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds of all CPUs since boot: `total_s`, and `steal_s`, which a hypervisor gave to others (None: unknown)."""

    total_s: float
    steal_s: float | None


def is_stolen(before: CpuTimes, after: CpuTimes) -> bool:
    """Return whether a hypervisor took at least a tick and at least 1 % of the CPU time between two readings.

    The result is False if the kernel does not report stolen time."""
    if before.steal_s is None or after.steal_s is None:
        return False
    rise = after.steal_s - before.steal_s
    return rise > TICK_S / 2 and rise >= _STOLEN * (after.total_s - before.total_s)


def condition_of(stolen: bool, migrated: bool, others: float | None, cpus: int) -> gb.Condition:
    """Return the verdict on a sample: `steal` is to be discarded, `migrated` and `loaded` are labels.

    `stolen` says that a hypervisor took CPU time, and `migrated` that the thread came from another NUMA node."""
    loaded = others is not None and others >= cpus / 4
    labels = (("migrated",) if migrated else ()) + (("loaded",) if loaded else ())
    return gb.Condition(("steal",) if stolen else (), labels)


def runnable_in(loadavg: str) -> int:
    """Return the number of runnable threads of the machine, given the text of /proc/loadavg.

    It is the first number of the fourth field: 3 of `3/89`."""
    return int(loadavg.split()[3].partition("/")[0])


def state_in(stat: str) -> str:
    """Return the letter after the name in /proc/[pid]/stat, R if runnable; the name may contain spaces and brackets."""
    return stat.rpartition(")")[2].split()[0]


def _cpu_times() -> CpuTimes:
    """Return the time of all CPUs now, from /proc/stat."""
    times = psutil.cpu_times()
    return CpuTimes(sum(times), getattr(times, "steal", None))


def _count_foreign_threads() -> int | None:
    """Return the number of threads of other processes that are runnable now; None if /proc cannot be read."""
    try:
        runnable = runnable_in(Path("/proc/loadavg").read_text())
        return max(runnable - _count_own_threads(), 0)
    except OSError:
        return None


def _count_own_threads() -> int:
    """Return the number of threads of this process that are runnable now: a BLAS keeps its threads spinning."""
    states = (_state(task) for task in Path("/proc/self/task").iterdir())
    return sum(state == "R" for state in states)


def _state(task: Path) -> str:
    """Return the state of a thread, given by its folder in /proc, as a letter (R: runnable); empty if it has ended."""
    try:
        return state_in((task / "stat").read_text())
    except OSError:  # the thread has ended
        return ""


def node_reader() -> Callable[[], int]:
    """Return a function that returns the number of the calling thread's NUMA node.

    It uses getcpu of the C library (glibc 2.29, under 1 µs); without getcpu the node is always 0."""
    getcpu = getattr(ctypes.CDLL(None), "getcpu", None)
    if getcpu is None:
        return lambda: 0
    cpu, node = ctypes.c_uint(), ctypes.c_uint()
    where = ctypes.byref(cpu), ctypes.byref(node)

    def read() -> int:
        getcpu(*where)
        return node.value

    return read


class HostWatch:
    """The host between samples: the thread's NUMA node after each sample, steal once a tick, load every 50 ms.

    A move to another CPU of the same node is ignored."""

    def __init__(self) -> None:
        self._node = node_reader()
        self._cpus = os.cpu_count() or 1
        self.begin()

    def begin(self) -> None:
        """Note the thread's NUMA node and the stolen time until now, and start to count the load anew."""
        now = time.monotonic()
        self._times, self._times_due = _cpu_times(), now + TICK_S
        self._loads: list[int] = []
        self._load_due = now
        self._load(now)
        self._at = self._node()

    def look(self) -> gb.Condition:
        """Return the condition of the last sample: `steal` in `discard`, `migrated` and `loaded` in `labels`.

        Each of them stands there only if it applies."""
        now = time.monotonic()
        before, self._at = self._at, self._node()
        return condition_of(self._is_stolen(now), self._at != before, self._load(now), self._cpus)

    def _is_stolen(self, now: float) -> bool:
        """Return whether a hypervisor took CPU time since the last reading; False until the next tick is due."""
        if now < self._times_due:
            return False
        before, self._times, self._times_due = self._times, _cpu_times(), now + TICK_S
        return is_stolen(before, self._times)

    def _load(self, now: float) -> float | None:
        """Return the mean number of runnable threads of others since the start of the case."""
        if now >= self._load_due:
            self._load_due = now + _LOAD_S
            others = _count_foreign_threads()
            self._loads += [] if others is None else [others]
        return sum(self._loads) / len(self._loads) if len(self._loads) >= _LOAD_READINGS else None
