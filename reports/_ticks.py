"""Compute axes: the place of a value between two ends, the ticks, and their labels."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpubench.api import report as gb

_MOST_IN_ONE_UNIT = 1e4  # the highest tick of a logarithmic axis whose ticks share one unit
_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from `low` to `high` in SI units, drawn from `start` to `end` in drawing units.

    A tick is its value in SI units and its label."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[tuple[float, str], ...]
    unit: str  # written once beside the axis; empty where every tick has its own

    def place(self, value: float) -> float:
        """Return where a value in SI units is drawn; a value beyond `low` or `high` is drawn at that end."""
        inside = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(inside / self.low) / math.log(self.high / self.low)
        else:
            share = (inside - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def axis(
    values: Sequence[float],
    unit: str,
    start: float,
    end: float,
    *,
    log: bool = False,
    zero: bool = True,
    room: float = 1.0,
    count: int = 5,
) -> Axis:
    """Return an axis that holds `values`, in the SI unit `unit`, with round ticks; sizes (unit `B`) have binary ticks.

    `start` and `end` are the ends of the axis in drawing units, and `count` is about the number of ticks."""
    positive = [value for value in values if value > 0]
    if log and positive:
        low, high = _widen(min(positive), max(positive), log=True)
        low, high = low / room, high * room
        ticks, text = _log_ticks(low, high, unit, count)
        return Axis(low, high, start, end, True, ticks, text)
    low, high = _widen(min(values, default=0.0), max(values, default=1.0), log=False)
    low = min(low, 0.0) if zero else low
    return _linear_axis(low, high, unit, start, end, count)


def at_values(plain: Axis, values: Iterable[float]) -> Axis:
    """Return the axis with a tick at each of `values`, or `plain` unchanged if their labels would overlap."""
    places = sorted(set(values))
    apart = min((plain.place(b) - plain.place(a) for a, b in itertools.pairwise(places)), default=0.0)
    labels = [f"{place:.6g}" for place in places]
    if not labels or (len(places) > 1 and apart < 7.0 * max(map(len, labels)) + 8):
        return plain
    return dataclasses.replace(plain, ticks=tuple(zip(places, labels, strict=True)))


def _widen(low: float, high: float, *, log: bool) -> tuple[float, float]:
    """Return both ends of an axis, moved apart if they are equal; `log` keeps positive ends positive."""
    if high > low:
        return low, high
    if log:
        return low / 1.5, high * 1.5
    if not low:
        return 0.0, 1.0
    reach = abs(low) * 0.05
    return low - reach, high + reach


def _linear_axis(low: float, high: float, unit: str, start: float, end: float, count: int) -> Axis:
    """Return a linear axis that contains `low` and `high`, with about `count` ticks at round values."""
    step = _step((high - low) / count, binary=unit == "B")
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    places = [index * step for index in range(first, last + 1)]
    if unit == "B":
        return Axis(places[0], places[-1], start, end, False, _binary_ticks(places), "")
    factor, text = gb.units.scale(max(abs(low), abs(high)), unit)  # the last tick may be larger than all values
    ticks = tuple((place, f"{place / factor:.6g}") for place in places)
    return Axis(places[0], places[-1], start, end, False, ticks, text)


def _binary_ticks(places: Sequence[float]) -> tuple[tuple[float, str], ...]:
    """Return ticks at sizes in bytes, labelled in the binary unit of the largest: `124GiB`, `124.5GiB`."""
    _, _, unit = gb.units.round_size(max(map(abs, places))).partition(" ")
    factor = next(1024.0**power for power in range(9) if gb.units.round_size(1024.0**power).endswith(f" {unit}"))
    return tuple((place, f"{place / factor:.6g}{unit}" if place else "0") for place in places)


def _step(least: float, *, binary: bool) -> float:
    """Return the smallest round number that is not below `least`."""
    if binary:
        return float(2 ** math.ceil(math.log2(least)))
    power = 10.0 ** math.floor(math.log10(least))
    return next(nice * power for nice in _NICE if nice * power >= least * (1 - 1e-9))


def _log_ticks(low: float, high: float, unit: str, count: int) -> tuple[tuple[tuple[float, str], ...], str]:
    """Return the ticks of a logarithmic axis, each a value and a label, and the unit of the axis."""
    if unit == "B":
        first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
        stride = max(math.ceil((last - first + 1) / count), 1)
        places = [2.0**power for power in range(max(first, 0), last + 1, stride)] or [low, high]
        return tuple((place, gb.units.size(place)) for place in places), ""
    places = _log_places(low, high, count)
    factor, text = gb.units.scale(places[-1] if places[0] <= 0 else places[0], unit)
    if places[-1] / factor < _MOST_IN_ONE_UNIT:
        return tuple((place, f"{place / factor:.6g}") for place in places), text
    return tuple((place, _value_with_unit(place, unit)) for place in places), ""


def _log_places(low: float, high: float, count: int) -> list[float]:
    """Return the values of the ticks between `low` and `high`: powers of ten, and if they are few more digits."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for digits in ((1,), (1, 2, 5), tuple(range(1, 10))):
        places = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
        inside = [place for place in places if low * 0.999 <= place <= high * 1.001]
        if len(inside) >= 3:
            break
    stride = math.ceil(len(inside) / count) if len(inside) > count + 3 else 1
    return inside[::stride] or [low, high]


def _value_with_unit(value: float, unit: str) -> str:
    """Return a value as text with its own prefix and unit: `1.5 TB/s`."""
    factor, text = gb.units.scale(value, unit)
    return f"{value / factor:.6g} {text}".rstrip()
