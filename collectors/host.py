"""Collect the host's counters through psutil; they are sampled during every case, including cases on a GPU."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from gpubench.api import collector as gb

from ._host_watch import HostWatch
from ._refusals import refusals

_PERIOD_S = 0.1
_SLOW_S = 0.5  # a machine with many processors has a file for the clock of each one
_BUSY_SHOWN, _STEAL_SHOWN = (f"head -1 /proc/stat ({fields})" for fields in ("all but idle and iowait", "field steal"))
_AVAILABLE_SHOWN = "grep MemAvailable /proc/meminfo"
_ENERGY_SHOWN = "cat /sys/class/powercap/intel-rapl:*/energy_uj"
_ZONES = Path("/sys/class/powercap")
_UNSUPPORTED = (OSError, NotImplementedError, AttributeError, psutil.Error)  # raised for unavailable counters


def _busy() -> float:
    """Return the CPU time of all CPUs since boot in seconds, without idle and iowait."""
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
