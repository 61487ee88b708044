"""The host's counters through psutil: beside every case, also of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import psutil

from gpubench.api import Counter, CounterSource, Device, Watch

from ._host_watch import HostWatch

_PERIOD_S = 0.1


def _busy() -> float:
    """Seconds of all CPUs but idle and iowait; `user` and `nice` already hold the guests' time."""
    times = psutil.cpu_times()
    idle = (getattr(times, name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice"))
    return sum(times) - sum(idle)


# counter → how to read it, in SI units; a reader raises what psutil raises where there is no such thing
_READERS: tuple[tuple[Counter, Callable[[], float]], ...] = (
    (
        Counter("host.cpu.busy", "core·s", "cumulative", _PERIOD_S, "head -1 /proc/stat (all but idle and iowait)"),
        _busy,
    ),
    (
        Counter("host.cpu.steal", "core·s", "cumulative", _PERIOD_S, "head -1 /proc/stat (field steal)"),
        lambda: psutil.cpu_times().steal,
    ),
    (
        Counter("host.cpu.clock", "Hz", "gauge", _PERIOD_S, "grep MHz /proc/cpuinfo (mean)"),
        lambda: psutil.cpu_freq().current * 1e6,
    ),
    (
        Counter("host.memory.available", "B", "gauge", _PERIOD_S, "grep MemAvailable /proc/meminfo"),
        lambda: float(psutil.virtual_memory().available),
    ),
    (
        Counter("host.load", "processes", "gauge", 1.0, "cut -d' ' -f1 /proc/loadavg"),
        lambda: psutil.getloadavg()[0],
    ),
)
_READ = {counter.name: reader for counter, reader in _READERS}


class HostSource:
    """Open access to /proc by psutil; a counter that the machine lacks, or that fails, reads as None."""

    def read(self, device: Device, names: Sequence[str]) -> Mapping[str, float | None]:
        del device
        return {name: self._value(name) for name in names}

    def _value(self, name: str) -> float | None:
        try:
            return _READ[name]()
        except (OSError, NotImplementedError, AttributeError, psutil.Error):  # psutil's ways to have none
            return None

    def close(self) -> None:
        pass


class Host:
    """The collector of the host processor."""

    counters = tuple(counter for counter, _ in _READERS)

    def accepts(self, device: Device) -> bool:
        """The host alone: it is sampled beside whatever else is measured."""
        return device.backend == "host"

    def versions(self) -> Mapping[str, str]:
        return {}

    def describe(self, device: Device) -> Mapping[str, str]:
        del device
        return {}

    def open(self, devices: Sequence[Device]) -> CounterSource:
        del devices
        return HostSource()

    def watch(self, device: Device) -> Watch:
        del device
        return HostWatch()


collector = Host()
