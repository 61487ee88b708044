"""Keep the newest values of a machine's counters, and format them for a terminal, a log and Prometheus."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from gpubench.analysis.counters import CounterTable
from gpubench.analysis.window import Window
from gpubench.base import units
from gpubench.model import Counter, Device, Measure, Samples

# unit → suffix of the metric's name, and the factor to the unit of that suffix (prometheus.io, Metric naming)
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


class Latest:
    """Keeps the newest sample of each counter, and the newest two of a cumulative counter, for each device."""

    def __init__(self, counters: Sequence[Counter]) -> None:
        self.counters = {counter.name: counter for counter in counters}
        self._last: dict[tuple[str, str], tuple[tuple[float, float], ...]] = {}

    def add(self, chunks: Iterable[Samples]) -> None:
        """Add samples in order of time; samples of other counters than the given ones are ignored.

        A missing value removes the counter's value, because an old one would mislead."""
        for samples in chunks:
            for name, values in samples.columns:
                if name not in self.counters or not len(values):
                    continue
                keep = 2 if self.counters[name].kind == "cumulative" else 1
                earlier = self._last.get((samples.device, name), ())
                samples_read = [(at, value) for at, value in zip(samples.at, values, strict=True) if value is not None]
                self._last[samples.device, name] = (*earlier, *samples_read)[-keep:] if values[-1] is not None else ()

    def window(self, device: str) -> Window:
        """Return the newest samples of a device as a window, from which averages and rates can be taken."""
        samples = [
            Samples(
                "", device, tuple(at for at, _ in samples_read), ((name, tuple(value for _, value in samples_read)),)
            )
            for (of, name), samples_read in list(self._last.items())
            if of == device and samples_read
        ]
        return Window(CounterTable(tuple(self.counters.values()), samples), device, [(-math.inf, math.inf)])

    def all(self) -> list[tuple[str, Counter, float]]:
        """Return device id, counter and value of every counter that has a value, in the order of the counters."""
        order = {name: index for index, name in enumerate(self.counters)}
        newest = [
            (device, name, samples_read[-1][1])
            for (device, name), samples_read in list(self._last.items())
            if samples_read
        ]
        newest.sort(key=lambda entry: (order[entry[1]], entry[0]))
        return [(device, self.counters[name], value) for device, name, value in newest]


# heading of the column, measure, unit
_CELLS = (
    ("busy", Measure.BUSY, "%"),
    ("power", Measure.BOARD_POWER, "W"),
    ("memory", Measure.MEMORY_USED, "B"),
    ("SM", Measure.SM_ACTIVITY, "%"),
    ("tensor", Measure.TENSOR_ACTIVITY, "%"),
    ("DRAM", Measure.DRAM_SHARE, "%"),
    ("clock", Measure.CORE_CLOCK, "Hz"),
    ("temp", Measure.TEMPERATURE, "°C"),
)
COLUMNS = ("device", *(head for head, _, _ in _CELLS), "throttle reasons")
HOST_COLUMNS = ("host", "cores", "memory free", "load")


def device_cells(latest: Latest, device: str) -> tuple[str, ...]:
    """Return the cells of COLUMNS for a GPU, given by its id; a missing value is an empty cell."""
    window = latest.window(device)
    cells = (_cell(window, measure, unit) for _, measure, unit in _CELLS)
    return (device, *cells, ", ".join(reason.name for reason in window.throttling()))


def host_cells(latest: Latest) -> tuple[str, ...]:
    """Return the cells of HOST_COLUMNS; a missing value is an empty cell."""
    window = latest.window("host")
    cores, load = window.rate(Measure.CPU_TIME), window.mean(Measure.LOAD)
    free = _cell(window, Measure.MEMORY_AVAILABLE, "B")
    return ("host", f"{cores.value:.1f}" if cores else "", free, f"{load.value:.1f}" if load else "")


def _cell(window: Window, measure: Measure, unit: str) -> str:
    """Return the present value of a measure as text with its unit; empty if the value is missing."""
    value = window.mean(measure)
    if value is None:
        return ""
    if unit in ("%", "°C"):
        return f"{value.value:.0f} {unit}"
    return units.round_size(value.value) if unit == "B" else units.quantity(value.value, unit)


def lines(latest: Latest, devices: Sequence[str]) -> list[str]:
    """Return a line of text for each device id, the host last: for a log."""
    gpu_lines = [_log_line(COLUMNS, device_cells(latest, device)) for device in devices if device != "host"]
    return [*gpu_lines, *([_log_line(HOST_COLUMNS, host_cells(latest))] if "host" in devices else [])]


def _log_line(heads: Sequence[str], cells: Sequence[str]) -> str:
    """Return a line for a log: the first cell, then each other cell that is not empty, after its heading."""
    named_values = (
        f"{head} {cell}" for head, cell in itertools.islice(zip(heads, cells, strict=True), 1, None) if cell
    )
    return f"{cells[0]} {', '.join(named_values) or 'no values'}"


def prometheus(latest: Latest, devices: Mapping[str, Device]) -> str:
    """Return the counters in the text format of Prometheus 0.0.4: a metric for each counter, a sample for each device.

    `devices` has the devices by id; it gives the model for a label."""
    lines: list[str] = []
    for name, entries in itertools.groupby(latest.all(), key=lambda entry: entry[1].name):
        rows = list(entries)
        lines += _metric(name, rows[0][1], [(devices.get(device), device, value) for device, _, value in rows])
    return "".join(f"{entry}\n" for entry in lines)


def _metric(name: str, counter: Counter, rows: Sequence[tuple[Device | None, str, float]]) -> list[str]:
    """Return the lines of one metric: its help, its type, and a sample for each row (device, device id, value)."""
    suffix, scale = _SUFFIXES.get(counter.unit, ("", 1.0))
    rises = counter.kind == "cumulative"
    parts = ["gpubench", re.sub(r"[^a-zA-Z0-9]+", "_", name), suffix, "total" if rises else ""]
    metric = "_".join(part for part in parts if part)
    source = counter.source.replace("\\", "\\\\").replace("\n", " ")
    head = [f"# HELP {metric} {name}: {source}", f"# TYPE {metric} {'counter' if rises else 'gauge'}"]
    if counter.kind != "event":
        return [*head, *(f"{metric}{{{_labels(model, device)}}} {value * scale!r}" for model, device, value in rows)]
    return head + [
        f'{metric}{{{_labels(model, device)},event="{_escaped_value(event)}"}} 1'
        for model, device, value in rows
        for event in (bit.name for bit in counter.events(int(value)))
    ]


def _labels(model: Device | None, device: str) -> str:
    """Return the labels of a sample: the device's id, and its model if the device is known."""
    model_label = f',model="{_escaped_value(model.name)}"' if model else ""
    return f'device="{_escaped_value(device)}"{model_label}'


def _escaped_value(text: str) -> str:
    """Return the value of a label, escaped as Prometheus' text format requires."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
