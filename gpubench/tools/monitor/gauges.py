"""Return the present state of a device as gauges, and keep the values of the last minute for display."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpubench.analysis.window import Window
from gpubench.base import units
from gpubench.model import Device, Measure
from gpubench.tools.monitor.live import Latest

HISTORY_S = 60.0
_HOT_C = 100.0  # the end of the bar of temperatures; processors slow down a little below
_SHARES = (("SM", Measure.SM_ACTIVITY), ("tensor", Measure.TENSOR_ACTIVITY), ("DRAM", Measure.DRAM_SHARE))


@dataclass(frozen=True, slots=True)
class Gauge:
    """One value of a device for display, in the unit of its counter; `text` is the value with a unit.

    `fraction` is the value over its limit, which may exceed 1; None if no limit is known."""

    label: str
    text: str
    value: float
    fraction: float | None


def gauges(latest: Latest, device: Device) -> tuple[Gauge, ...]:
    """Return the gauges of a device in the order of display; gauges without a present value are left out."""
    window = latest.window(device.id)
    return tuple(_host_gauges(window, device) if device.backend == "host" else _gpu_gauges(window, device))


def shares_text(latest: Latest, device: Device) -> str:
    """Return text such as `SM 81 %, tensor 29 %, DRAM 36 %`; empty if the device has no such counters."""
    window = latest.window(device.id)
    shares = [(name, share.value) for name, measure in _SHARES if (share := window.share(measure))]
    return ", ".join(f"{name} {units.percent(share, 0)}" for name, share in shares)


def throttle_text(latest: Latest, device: Device) -> str:
    """Return the throttle reasons of a device that are present, separated by commas; empty without one."""
    return ", ".join(reason.name for reason in latest.window(device.id).throttling())


def _gpu_gauges(window: Window, device: Device) -> Iterator[Gauge]:
    """Yield the gauges of a GPU that have a present value: busy time, memory, power, temperature, clock."""
    details = dict(device.details)
    if busy := window.mean(Measure.BUSY):
        yield Gauge("busy", f"{busy.value:.0f} %", busy.value, busy.value / 100)
    if used := window.mean(Measure.MEMORY_USED):
        yield _memory_gauge(used.value, device.memory_bytes)
    if power := window.mean(Measure.BOARD_POWER):
        yield _gauge_with_limit("power", power.value, _number_or_none(details.get("power.limit_w", "")), "W")
    if temperature := window.mean(Measure.TEMPERATURE):
        yield Gauge("temp", f"{temperature.value:.0f} °C", temperature.value, temperature.value / _HOT_C)
    if clock := window.mean(Measure.CORE_CLOCK):
        most_hz = _number_or_none(details.get("clock.sm_most_hz", "")) or _number_or_none(
            details.get("clock.sm_hz", "")
        )
        yield _gauge_with_limit("clock", clock.value, most_hz, "Hz")


def _host_gauges(window: Window, device: Device) -> Iterator[Gauge]:
    """Yield the gauges of the host that have a present value: busy cores, memory, load."""
    if cores := window.rate(Measure.CPU_TIME):
        yield _count_gauge("cores", cores.value, device.units)
    if available := window.mean(Measure.MEMORY_AVAILABLE):
        yield _memory_gauge(max(device.memory_bytes - available.value, 0.0), device.memory_bytes)
    if load := window.mean(Measure.LOAD):
        yield _count_gauge("load", load.value, device.units)


def _memory_gauge(used_bytes: float, whole_bytes: float) -> Gauge:
    """Return the gauge of used memory, such as `81.2 / 140 GiB`; `whole_bytes` is 0 if the size is unknown."""
    if not whole_bytes:
        return Gauge("memory", units.round_size(used_bytes), used_bytes, None)
    whole, _, unit = units.round_size(whole_bytes).partition(" ")
    in_unit = used_bytes / whole_bytes * float(whole)
    text = f"{units.significant(in_unit, 3)} / {units.significant(float(whole), 3)} {unit}"
    return Gauge("memory", text, used_bytes, used_bytes / whole_bytes)


def _gauge_with_limit(label: str, value: float, limit: float | None, unit: str) -> Gauge:
    """Return the gauge of a value, with its limit in the same `unit`; `limit` is None if no limit is known."""
    whole = f" / {units.quantity(limit, unit, 3)}" if limit else ""
    return Gauge(
        label, _with_common_unit(units.quantity(value, unit, 3), whole), value, value / limit if limit else None
    )


def _count_gauge(label: str, value: float, whole: int) -> Gauge:
    """Return the gauge of a number of cores; `whole` is 0 if the number of all cores is unknown."""
    return Gauge(label, f"{value:.1f}" + (f" / {whole}" if whole else ""), value, value / whole if whole else None)


def _with_common_unit(value: str, whole: str) -> str:
    """Return `651 / 700 W` for `651 W` and ` / 700 W`: a common unit is written once."""
    number, _, unit = value.partition(" ")
    return number + whole if whole.endswith(f" {unit}") else value + whole


def _number_or_none(text: str) -> float | None:
    try:
        return float(text) or None
    except ValueError:
        return None


class Recent:
    """The gauges of the last minute, as fractions of their limits, by device and label."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], deque[tuple[float, float]]] = {}
        self._highest: dict[tuple[str, str], float] = {}

    def add(self, at: float, device: str, current: Sequence[Gauge]) -> None:
        """Add the gauges of a device at a moment (monotonic s), and drop values older than a minute.

        The value of a gauge without a limit is divided by its highest value so far."""
        for gauge in current:
            key = (device, gauge.label)
            values = self._values.setdefault(key, deque())
            self._highest[key] = max(self._highest.get(key, 0.0), gauge.value)
            fraction = gauge.fraction if gauge.fraction is not None else gauge.value / (self._highest[key] or 1.0)
            values.append((at, fraction))
            while values[0][0] < at - HISTORY_S:
                values.popleft()

    def fractions(self, now: float, device: str, label: str, columns: int) -> list[float | None]:
        """Return the mean fraction of a gauge in each of `columns` equal parts of the last minute, oldest part first.

        `device` and `label` name the gauge, and `now` is the present in monotonic s."""
        parts: list[list[float]] = [[] for _ in range(columns)]
        for at, fraction in self._values.get((device, label), ()):
            index = int((at - now + HISTORY_S) / HISTORY_S * columns)
            if at <= now and index >= 0:
                parts[min(index, columns - 1)].append(fraction)
        means: list[float | None] = []
        for part in parts:
            means.append(sum(part) / len(part) if part else means[-1] if means else None)
        return means
