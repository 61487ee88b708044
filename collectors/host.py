"""The host's counters through psutil: beside every case, also of a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpubench.api import Counter, CounterSource, Device, Missing, Watch

_PERIOD_S = 0.1
_COUNTERS = (
    Counter("host.cpu.busy", "s", "cumulative", _PERIOD_S, "head -1 /proc/stat (all but idle and iowait)"),
    Counter("host.cpu.steal", "s", "cumulative", _PERIOD_S, "head -1 /proc/stat (field steal)"),
    Counter("host.cpu.clock", "Hz", "gauge", _PERIOD_S, "grep MHz /proc/cpuinfo (mean)"),
    Counter("host.memory.available", "B", "gauge", _PERIOD_S, "grep MemAvailable /proc/meminfo"),
    Counter("host.load", "processes", "gauge", 1.0, "cut -d' ' -f1 /proc/loadavg"),
)


class HostSource:
    """Open access to /proc by psutil."""

    def __init__(self) -> None:
        import psutil

        self._psutil: Any = psutil

    def read(self, device: Device, names: Sequence[str]) -> Mapping[str, float | None]:
        del device
        times = self._psutil.cpu_times()
        frequency = self._psutil.cpu_freq()
        values: dict[str, float | None] = {
            "host.cpu.busy": sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0),
            "host.cpu.steal": getattr(times, "steal", None),
            "host.cpu.clock": frequency.current * 1e6 if frequency else None,
            "host.memory.available": float(self._psutil.virtual_memory().available),
            "host.load": self._psutil.getloadavg()[0],
        }
        return {name: values[name] for name in names}

    def close(self) -> None:
        pass


class Host:
    """The collector of the host processor."""

    counters = _COUNTERS

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
        raise Missing("the host is not watched yet", "")


collector = Host()
