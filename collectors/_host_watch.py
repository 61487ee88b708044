"""What the kernel says of the host between two samples: whether the last one was disturbed, and by what."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from gpubench.api.collector import Condition

TICK_S = 1 / os.sysconf("SC_CLK_TCK")  # the grain of /proc/stat: 10 ms
_LOAD_S = 0.05  # reading the state of every thread of ours takes a while where there are many
_LOAD_READINGS = 3  # one alone is chance; the quick tier's shortest case has three
_STOLEN = 0.01  # of the CPU time that has passed


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds of all CPUs since boot: in all, and those a hypervisor gave to others (None: not told)."""

    total_s: float
    steal_s: float | None


def is_stolen(before: CpuTimes, after: CpuTimes) -> bool:
    """Whether steal rose by a tick or more, and by 1 % or more of the CPU time that passed."""
    if before.steal_s is None or after.steal_s is None:
        return False
    rise = after.steal_s - before.steal_s
    return rise > TICK_S / 2 and rise >= _STOLEN * (after.total_s - before.total_s)


def condition_of(stolen: bool, migrated: bool, others: float | None, cpus: int) -> Condition:
    """The verdict on a sample; `others` are the runnable threads that are not ours, None where not known.

    migrated: the thread came from another NUMA node.
    loaded: in the mean others want a quarter of the CPUs or more. One foreign thread on two CPUs is enough to
    make a product that spins on all of them forty times slower (seen), so the mark is set low.
    """
    loaded = others is not None and others >= cpus / 4
    labels = (("migrated",) if migrated else ()) + (("loaded",) if loaded else ())
    return Condition(("steal",) if stolen else (), labels)


def runnable_in(loadavg: str) -> int:
    """Threads that run or could, of the whole machine: the fourth field of /proc/loadavg, `3/89`."""
    return int(loadavg.split()[3].partition("/")[0])


def state_in(stat: str) -> str:
    """The letter after the name in /proc/[pid]/stat, R where runnable; the name may hold spaces and brackets."""
    return stat.rpartition(")")[2].split()[0]


def _cpu_times() -> CpuTimes:
    times = psutil.cpu_times()
    return CpuTimes(sum(times), getattr(times, "steal", None))


def _others() -> int | None:
    """Runnable threads of the machine that are not this process's, now; None where /proc has no answer."""
    try:
        runnable = runnable_in(Path("/proc/loadavg").read_text())
        return max(runnable - _ours(), 0)
    except OSError:
        return None


def _ours() -> int:
    """Runnable threads of this process: a BLAS keeps its own spinning for a while."""
    states = (_state(task) for task in Path("/proc/self/task").iterdir())
    return sum(state == "R" for state in states)


def _state(task: Path) -> str:
    try:
        return state_in((task / "stat").read_text())
    except OSError:  # the thread has ended
        return ""


def node_reader() -> Callable[[], int]:
    """The C library's getcpu (glibc 2.29, under 1 µs): the NUMA node of the calling thread; 0 without it."""
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
    """The host between samples: the thread's NUMA node at every look, steal once a tick, load every 50 ms.

    A move to another CPU of the node is nothing: up to half of the samples of a case had one where a team
    of threads works, and 68 such samples on two CPUs took 2 % less time in the median than the others, 18
    on sixteen CPUs 1 % less. A discard would make cases invalid and no number better. Another node leaves
    the thread's memory behind: a label.

    Samples with steal took 16 % longer. Any that /proc/stat can show of one sample lasts a tick, so that
    reading once a tick misses none. Load is the mean since the case's start.
    """

    def __init__(self) -> None:
        self._node = node_reader()
        self._cpus = os.cpu_count() or 1
        self.begin()

    def begin(self) -> None:
        """Where the thread runs and what was stolen by now; the load is counted afresh."""
        now = time.monotonic()
        self._times, self._times_due = _cpu_times(), now + TICK_S
        self._loads: list[int] = []
        self._load_due = now
        self._load(now)
        self._at = self._node()

    def look(self) -> Condition:
        now = time.monotonic()
        before, self._at = self._at, self._node()
        return condition_of(self._is_stolen(now), self._at != before, self._load(now), self._cpus)

    def _is_stolen(self, now: float) -> bool:
        if now < self._times_due:
            return False
        before, self._times, self._times_due = self._times, _cpu_times(), now + TICK_S
        return is_stolen(before, self._times)

    def _load(self, now: float) -> float | None:
        """Runnable threads of others, in the mean since the case's start; None while it is too early to say."""
        if now >= self._load_due:
            self._load_due = now + _LOAD_S
            others = _others()
            self._loads += [] if others is None else [others]
        return sum(self._loads) / len(self._loads) if len(self._loads) >= _LOAD_READINGS else None
