"""Collect the host's counters through psutil; they are sampled during every case, including cases on a GPU."""

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from gpubench.api import collector as gb

from ._strangers import refusals

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
    times = psutil.cpu_times()
    return CpuTimes(sum(times), getattr(times, "steal", None))


def _count_foreign_threads() -> int | None:
    """Return the number of threads of other processes that are runnable now; None if /proc cannot be read."""
    try:
        runnable = runnable_in(Path("/proc/loadavg").read_text())
        own = sum(_state(task) == "R" for task in Path("/proc/self/task").iterdir())
        return max(runnable - own, 0)
    except OSError:
        return None


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
        if now >= self._load_due:
            self._load_due = now + _LOAD_S
            others = _count_foreign_threads()
            self._loads += [] if others is None else [others]
        return sum(self._loads) / len(self._loads) if len(self._loads) >= _LOAD_READINGS else None


_PERIOD_S = 0.1
_SLOW_S = 0.5  # a machine with many processors has a file for the clock of each one
_BUSY_SHOWN, _STEAL_SHOWN = (f"head -1 /proc/stat ({fields})" for fields in ("all but idle and iowait", "field steal"))
_AVAILABLE_SHOWN = "grep MemAvailable /proc/meminfo"
_ENERGY_SHOWN = "cat /sys/class/powercap/intel-rapl:*/energy_uj"
_ZONES = Path("/sys/class/powercap")
_UNSUPPORTED = (OSError, NotImplementedError, AttributeError, psutil.Error)  # raised for unavailable counters


def _busy() -> float:
    times = psutil.cpu_times()
    idle = (getattr(times, name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice"))
    return sum(times) - sum(idle)


_BUSY = gb.Counter("host.cpu.busy", "core·s", "cumulative", _PERIOD_S, _BUSY_SHOWN, gb.Measure.CPU_TIME)
_STEAL = gb.Counter("host.cpu.steal", "core·s", "cumulative", _PERIOD_S, _STEAL_SHOWN)
_CLOCK = gb.Counter("host.cpu.clock", "Hz", "gauge", _SLOW_S, "grep MHz /proc/cpuinfo (mean)")
_AVAILABLE = gb.Counter("host.memory.available", "B", "gauge", _PERIOD_S, _AVAILABLE_SHOWN, gb.Measure.MEMORY_AVAILABLE)
_LOAD = gb.Counter("host.load", "processes", "gauge", 1.0, "cut -d' ' -f1 /proc/loadavg", gb.Measure.LOAD)
_ENERGY = gb.Counter("host.energy", "J", "cumulative", _PERIOD_S, _ENERGY_SHOWN, gb.Measure.ENERGY)


class Rapl:
    """The energy of all processor packages (RAPL, through Linux's powercap), continued when their counters wrap."""

    def __init__(self, zones: Path = _ZONES) -> None:
        """Find the processor packages below `zones`."""
        packages = sorted(zones.glob("intel-rapl:[0-9]*"))  # AMD processors use this name too
        self._packages = [zone for zone in packages if zone.name.count(":") == 1]  # a package includes its zones
        self._last: dict[Path, float] = {}
        self._joules = 0.0

    def read(self) -> float:
        """Return the joules of all packages since the first reading.

        Raises OSError if the machine has no such counter, or if this user may not read it."""
        if not self._packages:
            raise OSError(f"no energy counter in {_ZONES}")
        for zone in self._packages:
            now = float((zone / "energy_uj").read_text())
            before = self._last.setdefault(zone, now)
            if now < before:
                before -= float((zone / "max_energy_range_uj").read_text())
            self._joules += (now - before) * 1e-6
            self._last[zone] = now
        return self._joules


class Source:
    """Counters through psutil and, for energy, /sys; a counter that is unsupported or fails is None."""

    def __init__(self) -> None:
        """Prepare a reader for each counter; a reader raises one of _UNSUPPORTED on a machine without the counter."""
        self._readers: dict[str, Callable[[], float]] = {
            _BUSY.name: _busy,
            _STEAL.name: lambda: psutil.cpu_times().steal,
            _CLOCK.name: lambda: psutil.cpu_freq().current * 1e6,
            _AVAILABLE.name: lambda: float(psutil.virtual_memory().available),
            _LOAD.name: lambda: psutil.getloadavg()[0],
            _ENERGY.name: Rapl().read,
        }

    def read(self, device: gb.Device, names: Sequence[str]) -> Mapping[str, float | None]:
        """Return these counters, each in its unit; None for one that this machine does not support."""
        del device
        return {name: self._value(name) for name in names}

    def _value(self, name: str) -> float | None:
        """Return the counter `name` in its unit; None if this machine does not support it."""
        try:
            return self._readers[name]()
        except _UNSUPPORTED:
            return None

    def unsupported(self, device: gb.Device) -> Mapping[str, str]:
        """Return the counters that this machine does not have, with the reason."""
        del device
        return refusals(self._readers, _UNSUPPORTED)

    def close(self) -> None:
        pass


class Host:
    """The collector of the host processor."""

    counters = (_BUSY, _STEAL, _CLOCK, _AVAILABLE, _LOAD, _ENERGY)

    def accepts(self, device: gb.Device) -> bool:
        """Return whether the device is the host, which is sampled beside every other device."""
        return device.backend == "host"

    def open(self, devices: Sequence[gb.Device]) -> gb.CounterSource:
        del devices
        return Source()

    def watch(self, device: gb.Device) -> gb.Watch:
        """Return the watch of the host during a case."""
        del device
        return HostWatch()


collector = Host()
