"""The counters of a machine as they are now: for a terminal, and as Prometheus takes them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpubench.base import units
from gpubench.knowledge.hardware import event_names
from gpubench.model import Counter, Device, Samples

# unit → what it is called at the end of a metric's name, and what one of it is in that (prometheus.io, Metric naming)
_SUFFIXES = {
    "W": ("watts", 1.0),
    "J": ("joules", 1.0),
    "B": ("bytes", 1.0),
    "B/s": ("bytes_per_second", 1.0),
    "Hz": ("hertz", 1.0),
    "°C": ("celsius", 1.0),
    "%": ("ratio", 0.01),
    "s": ("seconds", 1.0),
    "core·s": ("core_seconds", 1.0),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """The last value of a counter, and of a cumulative one its rise a second since the one before."""

    value: float
    rate: float | None


class Latest:
    """Takes samples as they come, and keeps of each counter the last ones."""

    def __init__(self, counters: Sequence[Counter]) -> None:
        self.counters = {counter.name: counter for counter in counters}
        self._last: dict[tuple[str, str], tuple[float, float]] = {}
        self._rates: dict[tuple[str, str], float] = {}

    def add(self, chunks: Iterable[Samples]) -> None:
        """Take chunks; a value that is missing leaves the counter without one."""
        for samples in chunks:
            for name, values in samples.columns:
                key = (samples.device, name)
                if not len(values):
                    continue
                at, value = samples.at[-1], values[-1]
                before = self._last.pop(key, None)
                if value is None:
                    continue
                if before and at > before[0]:
                    self._rates[key] = (value - before[1]) / (at - before[0])
                self._last[key] = (at, value)

    def of(self, device: str, *ends: str) -> Reading | None:
        """The counter of a device whose name ends so; None where there is none, or no value of it."""
        for key, (_, value) in list(self._last.items()):
            if key[0] == device and key[1].endswith(ends):
                return Reading(value, self._rates.get(key))
        return None

    def all(self) -> list[tuple[str, Counter, float]]:
        """Device, counter and value of all that have one, in the order of the counters."""
        order = {name: place for place, name in enumerate(self.counters)}
        known = [(device, name, value) for (device, name), (_, value) in list(self._last.items()) if name in order]
        known.sort(key=lambda found: (order[found[1]], found[0]))
        return [(device, self.counters[name], value) for device, name, value in known]


COLUMNS = ("device", "busy", "power", "memory", "SM", "tensor", "DRAM", "clock", "temp", "held back by")
HOST_COLUMNS = ("host", "cores", "memory free", "load")


def device_cells(latest: Latest, device: str) -> tuple[str, ...]:
    """The cells of COLUMNS for a GPU; empty where nothing is known."""
    events = latest.of(device, "event_reasons")
    held = ", ".join(n for n in event_names("nvml.event_reasons", int(events.value)) if n != "idle") if events else ""
    shares = (_value(latest, device, "%", ends) for ends in (".sm", ".tensor", ".dram"))
    return (
        device,
        _value(latest, device, "%", ".utilization.gpu", ".busy"),
        _value(latest, device, "W", ".power"),
        _value(latest, device, "B", ".memory.used"),
        *shares,
        _value(latest, device, "Hz", ".clock.sm"),
        _value(latest, device, "°C", ".temperature"),
        held,
    )


def host_cells(latest: Latest) -> tuple[str, ...]:
    """The cells of HOST_COLUMNS."""
    busy = latest.of("host", "host.cpu.busy")
    cores = f"{busy.rate:.1f}" if busy and busy.rate is not None else ""
    load = latest.of("host", "host.load")
    free = _value(latest, "host", "B", ".memory.available")
    return ("host", cores, free, f"{load.value:.1f}" if load else "")


def _value(latest: Latest, device: str, unit: str, *ends: str) -> str:
    found = latest.of(device, *ends)
    if found is None:
        return ""
    if unit == "%":
        return f"{found.value:.0f} %"
    if unit == "°C":
        return f"{found.value:.0f} °C"
    return units.round_size(found.value) if unit == "B" else units.quantity(found.value, unit)


def line(latest: Latest, devices: Sequence[str]) -> str:
    """Everything on one line: for a log."""
    rows: list[tuple[tuple[str, ...], tuple[str, ...]]]
    rows = [(COLUMNS, device_cells(latest, device)) for device in devices if device != "host"]
    rows.append((HOST_COLUMNS, host_cells(latest)))
    return "; ".join(_words(heads, cells) for heads, cells in rows)


def _words(heads: Sequence[str], cells: Sequence[str]) -> str:
    told = (f"{head} {cell}" for head, cell in itertools.islice(zip(heads, cells, strict=True), 1, None) if cell)
    return " ".join((cells[0], ", ".join(told)))


def prometheus(latest: Latest, devices: Mapping[str, Device]) -> str:
    """The exposition format of Prometheus (text, version 0.0.4): a metric a counter, a label a device."""
    lines: list[str] = []
    for name, found in itertools.groupby(latest.all(), key=lambda each: each[1].name):
        rows = list(found)
        lines += _metric(name, rows[0][1], [(devices.get(device), device, value) for device, _, value in rows])
    return "".join(f"{each}\n" for each in lines)


def _metric(name: str, counter: Counter, rows: Sequence[tuple[Device | None, str, float]]) -> list[str]:
    suffix, scale = _SUFFIXES.get(counter.unit, ("", 1.0))
    rises = counter.kind == "cumulative"
    words = ["gpubench", re.sub(r"[^a-zA-Z0-9]+", "_", name), suffix, "total" if rises else ""]
    metric = "_".join(word for word in words if word)
    source = counter.source.replace("\\", "\\\\").replace("\n", " ")
    head = [f"# HELP {metric} {name}: {source}", f"# TYPE {metric} {'counter' if rises else 'gauge'}"]
    if counter.kind != "event":
        return [*head, *(f"{metric}{{{_labels(known, device)}}} {value * scale!r}" for known, device, value in rows)]
    return head + [
        f'{metric}{{{_labels(known, device)},event="{_quoted(event)}"}} 1'
        for known, device, value in rows
        for event in event_names(name, int(value))
    ]


def _labels(known: Device | None, device: str) -> str:
    model = f',model="{_quoted(known.name)}"' if known else ""
    return f'device="{_quoted(device)}"{model}'


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
