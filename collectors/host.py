"""The host's counters through psutil: beside every case, also of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from gpubench.api.collector import Counter, CounterSource, Device, Measure, Watch

from ._host_watch import HostWatch

_PERIOD_S = 0.1
_SLOW_S = 0.5  # a machine of many processors has a file for the clock of each
_ENERGY = "host.energy"
_STAT, _AVAILABLE = "head -1 /proc/stat", "grep MemAvailable /proc/meminfo"
_ZONES = Path("/sys/class/powercap")


def _busy() -> float:
    """Seconds of all CPUs but idle and iowait; `user` and `nice` already hold the guests' time."""
    times = psutil.cpu_times()
    idle = (getattr(times, name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice"))
    return sum(times) - sum(idle)


# counter → how to read it, in SI units; a reader raises what psutil raises where there is no such thing
_READERS: tuple[tuple[Counter, Callable[[], float]], ...] = (
    (
        Counter(
            "host.cpu.busy",
            "core·s",
            "cumulative",
            _PERIOD_S,
            "head -1 /proc/stat (all but idle and iowait)",
            Measure.CPU_TIME,
        ),
        _busy,
    ),
    (
        Counter("host.cpu.steal", "core·s", "cumulative", _PERIOD_S, f"{_STAT} (field steal)"),
        lambda: psutil.cpu_times().steal,
    ),
    (
        Counter("host.cpu.clock", "Hz", "gauge", _SLOW_S, "grep MHz /proc/cpuinfo (mean)"),
        lambda: psutil.cpu_freq().current * 1e6,
    ),
    (
        Counter(
            "host.memory.available",
            "B",
            "gauge",
            _PERIOD_S,
            "grep MemAvailable /proc/meminfo",
            Measure.MEMORY_AVAILABLE,
        ),
        lambda: float(psutil.virtual_memory().available),
    ),
    (
        Counter("host.load", "processes", "gauge", 1.0, "cut -d' ' -f1 /proc/loadavg", Measure.LOAD),
        lambda: psutil.getloadavg()[0],
    ),
)
_READ = {counter.name: reader for counter, reader in _READERS}
_RAPL = Counter(_ENERGY, "J", "cumulative", _PERIOD_S, "cat /sys/class/powercap/intel-rapl:*/energy_uj", Measure.ENERGY)


_NONE = (OSError, NotImplementedError, AttributeError, psutil.Error)  # psutil's ways to have none


class Rapl:
    """The energy of all processor packages (RAPL, through Linux's powercap), their counters' wraps undone."""

    def __init__(self, zones: Path = _ZONES) -> None:
        self._packages = sorted(zones.glob("intel-rapl:[0-9]*"))  # of AMD's processors too
        self._packages = [zone for zone in self._packages if zone.name.count(":") == 1]  # what is in them is counted
        self._last: dict[Path, float] = {}
        self._joules = 0.0

    def read(self) -> float:
        """Joules since this was opened; OSError where the kernel has none, or lets nobody but root read them."""
        if not self._packages:
            raise OSError(f"no package in {_ZONES}")
        for zone in self._packages:
            now = float((zone / "energy_uj").read_text())
            before = self._last.setdefault(zone, now)
            if now < before:
                before -= float((zone / "max_energy_range_uj").read_text())
            self._joules += (now - before) * 1e-6
            self._last[zone] = now
        return self._joules


class HostSource:
    """Open access to /proc by psutil, to /sys for energy; a counter that the machine lacks, or that fails, is None."""

    def __init__(self) -> None:
        self._read: dict[str, Callable[[], float]] = {**_READ, _ENERGY: Rapl().read}

    def read(self, device: Device, names: Sequence[str]) -> Mapping[str, float | None]:
        del device
        return {name: self._value(name) for name in names}

    def _value(self, name: str) -> float | None:
        try:
            return self._read[name]()
        except _NONE:
            return None

    def lacking(self, device: Device) -> Mapping[str, str]:
        """The counters that this machine does not have, and why."""
        del device
        found = {}
        for name, read in self._read.items():
            try:
                read()
            except _NONE as error:
                found[name] = str(error) or type(error).__name__
        return found

    def close(self) -> None:
        pass


class Host:
    """The collector of the host processor."""

    counters = (*(counter for counter, _ in _READERS), _RAPL)

    def accepts(self, device: Device) -> bool:
        """The host alone: it is sampled beside whatever else is measured."""
        return device.backend == "host"

    def open(self, devices: Sequence[Device]) -> CounterSource:
        del devices
        return HostSource()

    def watch(self, device: Device) -> Watch:
        del device
        return HostWatch()


collector = Host()
