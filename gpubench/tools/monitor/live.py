"""Keep the newest values of a machine's counters, and format them for a terminal, a log and Prometheus."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from gpubench.analysis.counters import CounterReading, CounterTable, Window
from gpubench.base import units
from gpubench.model import Counter, Device, Measure, Samples

_UNITS = ("W", "J", "B", "B/s", "Hz", "°C", "%", "s", "core·s")
_NAMES = ("watts", "joules", "bytes", "bytes_per_second", "hertz", "celsius", "ratio", "seconds", "core_seconds")
_SUFFIXES = dict(zip(_UNITS, _NAMES, strict=True))  # of the names of metrics (prometheus.io, Metric naming)
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": " "})  # in the value of a label
_CELLS = {  # heading → measure and unit
    "busy": (Measure.BUSY, "%"),
    "power": (Measure.BOARD_POWER, "W"),
    "memory": (Measure.MEMORY_USED, "B"),
    "SM": (Measure.SM_ACTIVITY, "%"),
    "tensor": (Measure.TENSOR_ACTIVITY, "%"),
    "DRAM": (Measure.DRAM_SHARE, "%"),
    "clock": (Measure.CORE_CLOCK, "Hz"),
    "temp": (Measure.TEMPERATURE, "°C"),
}


class Latest:
    """Keeps the newest sample of each counter, and the newest two of a cumulative counter, for each device."""

    def __init__(self, counters: Iterable[Counter], devices: Iterable[Device] = ()) -> None:
        self.devices = {device.id: device for device in devices}
        self.counters = {counter.name: counter for counter in counters}
        self.samples: dict[tuple[str, str], list[tuple[float, float]]] = {}  # (time, value) by device and counter

    def add(self, chunks: Iterable[Samples]) -> None:
        """Add samples in order of time; a missing value removes the earlier one, which would mislead."""
        for samples in chunks:
            for name, values in samples.columns:
                if name in self.counters and len(values):
                    earlier = self.samples.get((samples.device, name), [])
                    present = [(at, value) for at, value in zip(samples.at, values, strict=True) if value is not None]
                    keep = 2 if self.counters[name].kind == "cumulative" else 1
                    self.samples[samples.device, name] = [*earlier, *present][-keep:] if values[-1] is not None else []

    def window(self, device: str) -> Window:
        """Return the newest samples of a device as a window, from which averages and rates can be taken."""
        samples = [
            Samples("", device, tuple(at for at, _ in pairs), ((name, tuple(value for _, value in pairs)),))
            for (of, name), pairs in self.samples.items()
            if of == device and pairs
        ]
        return Window(CounterTable(tuple(self.counters.values()), samples), device, [(-math.inf, math.inf)])


_STUCK_S = 30.0  # a collective waits for a slow peer, or for a checkpoint, for seconds
# A kernel that only polls keeps the device busy and draws little; real work moves data.
_STUCK_BUSY, _STUCK_POWER, _STUCK_DRAM = 99.0, 0.3, 1.0


class StuckWatch:
    """Finds GPUs that look hung: busy without a pause, near idle power, and without memory traffic, for 30 s."""

    def __init__(self, latest: Latest) -> None:
        self._latest = latest
        self._since: dict[str, float] = {}

    def look(self, now: float) -> list[str]:
        """Return a line for each device that has looked hung for 30 s; `now` is in seconds of any clock."""
        lines = []
        for device in self._latest.devices.values():
            values = self._values(device)
            if not values:
                self._since.pop(device.id, None)
            elif now - self._since.setdefault(device.id, now) >= _STUCK_S:
                lines.append(f"{device.id} looks hung for {now - self._since[device.id]:.0f} s: {values}")
        return lines

    def _values(self, device: Device) -> str:
        """Return the values by which a device looks hung as text; empty if it does not, or if a value is missing."""
        window = self._latest.window(device.id)
        busy, power, dram = (window.mean(of) for of in (Measure.BUSY, Measure.BOARD_POWER, Measure.DRAM_SHARE))
        limit = float(dict(device.details).get("power.limit_w", 0))
        if busy is None or power is None or busy.value < _STUCK_BUSY or power.value > _STUCK_POWER * limit:
            return ""
        if dram is not None and dram.value > _STUCK_DRAM:
            return ""
        traffic = "unknown" if dram is None else f"{dram.value:.1f} %"
        return f"busy {busy.value:.0f} %, {power.value:.0f} W of {limit:.0f} W, memory traffic {traffic}"


def row(latest: Latest, device: str) -> dict[str, str]:
    """Return the id of a device and its values as texts by heading; a missing value is an empty text."""
    window = latest.window(device)
    if device == "host":
        cores, load = window.rate(Measure.CPU_TIME), window.mean(Measure.LOAD)
        free = _text(window.mean(Measure.MEMORY_AVAILABLE), "B")
        return {"host": device, "cores": _text(cores), "memory free": free, "load": _text(load)}
    texts = {heading: _text(window.mean(measure), unit) for heading, (measure, unit) in _CELLS.items()}
    return {"device": device, **texts, "throttle reasons": ", ".join(reason.name for reason in window.throttling())}


def _text(reading: CounterReading | None, unit: str = "") -> str:
    if reading is None:
        return ""
    if unit == "B":
        return units.round_size(reading.value)
    if unit in ("W", "Hz"):
        return units.quantity(reading.value, unit)
    return f"{reading.value:.0f} {unit}" if unit else f"{reading.value:.1f}"


def lines(latest: Latest) -> Iterator[str]:
    """Yield a line of text for each device, the host last: for a log."""
    for device in sorted(latest.devices, key=lambda name: name == "host"):
        _, *cells = row(latest, device).items()
        yield f"{device} {', '.join(f'{heading} {text}' for heading, text in cells if text) or 'no values'}"


def prometheus(latest: Latest, openmetrics: bool = False) -> str:
    """Return the counters in the text format of Prometheus 0.0.4, or of OpenMetrics 1.0, with a metric per counter."""
    newest = sorted((name, device, pairs[-1][1]) for (device, name), pairs in latest.samples.copy().items() if pairs)
    metrics = (
        _metric(
            counter, {dev: value for name, dev, value in newest if name == counter.name}, latest.devices, openmetrics
        )
        for counter in latest.counters.values()
    )
    return "".join(f"{line}\n" for metric in metrics for line in metric) + "# EOF\n" * openmetrics


def metric_name(counter: Counter) -> str:
    """Return the name of a counter's metric for Prometheus: `gpubench_nvml_energy_joules_total`."""
    suffix = _SUFFIXES.get(counter.unit, "")
    total = "total" if counter.kind == "cumulative" else ""
    parts = ("gpubench", re.sub(r"[^a-zA-Z0-9]+", "_", counter.name), suffix, total)
    return "_".join(filter(None, parts))


def _metric(
    counter: Counter, values: Mapping[str, float], devices: Mapping[str, Device], openmetrics: bool
) -> Iterator[str]:
    """Yield the lines of one metric: its help, its type, and samples of the value of each device."""
    metric = metric_name(counter)
    rises = counter.kind == "cumulative"
    family = metric.removesuffix("_total") if openmetrics else metric
    source = counter.source.replace("\\", "\\\\").replace("\n", " ")
    source = source.replace('"', '\\"') if openmetrics else source
    if values:
        yield f"# HELP {family} {counter.name}: {source}"
        yield f"# TYPE {family} {'counter' if rises else 'gauge'}"
    for device, value in values.items():
        labels = f'device="{device.translate(_ESCAPES)}"'
        if device in devices:
            labels += f',model="{devices[device].name.translate(_ESCAPES)}"'
        if counter.kind != "event":
            yield f"{metric}{{{labels}}} {value * (0.01 if counter.unit == '%' else 1.0)!r}"
        else:
            for bit in counter.events(int(value)):
                yield f'{metric}{{{labels},event="{bit.name.translate(_ESCAPES)}"}} 1'
