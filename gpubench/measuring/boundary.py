"""Check what collectors hand over: an invalid value costs this value, and an invalid collector costs the collector.

Anybody may write a collector, and vendor libraries answer with NaN, sentinels and surprises. Every value that passes
this module has the type that the run file asks for, so that no reading can end a run."""

import math
import numbers
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gpubench.base.clean import clean
from gpubench.base.errors import Unavailable
from gpubench.model import Counter, CounterKind, EventBit, EventClass, Measure, limits
from gpubench.plugins.collector import Condition

PERIOD_S = (0.001, 3600.0)  # the shortest and the longest period that a counter may ask for
MOST_COUNTERS = 1000  # the most counters of one collector
_MOST_LETTERS = 500  # the most characters of a text from a collector; longer texts are cut
_MOST_TEXTS = 100  # the most messages that a collector reports at a time, and the most pairs that describe a device
_MOST_MASK = 2**63  # readings are 64 bits wide
_TRAFFIC = (("B/s", "window"), ("B/s", "gauge"), ("B", "cumulative"))
_PIPES = (Measure.TENSOR_ACTIVITY, Measure.FP64_ACTIVITY, Measure.FP32_ACTIVITY, Measure.FP16_ACTIVITY)
_LINKS = (Measure.PCIE_SENT, Measure.PCIE_RECEIVED, Measure.NVLINK_SENT, Measure.NVLINK_RECEIVED)
_MEMORY = (Measure.MEMORY_USED, Measure.MEMORY_AVAILABLE, Measure.PROGRAM_MEMORY)


def _gauges(unit: str, *measures: Measure) -> dict[Measure, tuple[tuple[str, str], ...]]:
    return dict.fromkeys(measures, ((unit, "gauge"), (unit, "window")))


# The units and kinds of each measure's counters: code that looks a counter up by its measure relies on them.
_FORMS: dict[Measure, tuple[tuple[str, str], ...]] = {
    **_gauges("Hz", Measure.CORE_CLOCK, Measure.MEMORY_CLOCK),
    **_gauges("W", Measure.BOARD_POWER),
    **_gauges("°C", Measure.TEMPERATURE, Measure.MEMORY_TEMPERATURE),
    **_gauges("B", *_MEMORY),
    **_gauges("%", Measure.BUSY, Measure.SM_ACTIVITY, Measure.DRAM_SHARE, *_PIPES),
    **dict.fromkeys((Measure.DRAM_READ, Measure.DRAM_WRITTEN, *_LINKS), _TRAFFIC),
    Measure.ENERGY: (("J", "cumulative"),),
    Measure.THROTTLE_REASONS: (("bit mask", "event"),),
    **dict.fromkeys((Measure.CPU_TIME, Measure.PROGRAM_CPU_TIME), (("core·s", "cumulative"),)),
    Measure.LOAD: (("processes", "gauge"),),
}
_KINDS: tuple[CounterKind, ...] = ("gauge", "cumulative", "window", "event")


def text(value: object) -> str:
    """Return the value as one printable line of at most 500 characters, with its type unless it is a text."""
    whole = value if isinstance(value, str) else f"{type(value).__name__} {value!r}"
    line = clean(whole[: 4 * _MOST_LETTERS])
    return line if len(line) <= _MOST_LETTERS else f"{line[: _MOST_LETTERS - 1]}…"


def number(value: object) -> float:
    """Return a reading as a finite float.

    Raises ValueError that says what the reading is instead: no real number, NaN, infinite, or larger than 1e100."""
    if isinstance(value, numbers.Real):
        try:
            converted = float(value)
        except OverflowError as error:
            raise ValueError("larger than a float64") from error
        if abs(converted) <= limits.MOST:
            return converted
        problem = f"larger than {limits.MOST:g}" if math.isfinite(converted) else "not a finite number"
        raise ValueError(f"{problem} ({converted})")
    raise ValueError(f"not a number but {type(value).__name__} {text(value)[:80]!r}")


def bits(value: object) -> float:
    """Return a reading of an event counter as a float: a whole number from 0 to 2⁶³ − 1, whose bits are events.

    Raises ValueError if it is no such number."""
    mask = number(value)
    if not mask.is_integer() or not 0 <= mask < _MOST_MASK:
        raise ValueError(f"not a bit mask ({mask:g})")
    return mask


def row(
    reading: object, names: Sequence[str], events: Collection[str] = ()
) -> tuple[tuple[float | None, ...], dict[str, str]]:
    """Return the values of the counters `names` in this order, and the reasons for refused values by counter.

    A value is None if it is missing or refused. `reading` is what a collector's `read` returned."""
    if not isinstance(reading, Mapping):
        raise Unavailable(f"a reading must be a mapping from names to numbers, not {text(reading)[:80]}", "")
    values: list[float | None] = []
    refused: dict[str, str] = {}
    for name in names:
        value = reading.get(name)
        try:
            values.append(None if value is None else (bits if name in events else number)(value))
        except ValueError as error:
            values.append(None)
            refused[name] = str(error)
    return tuple(values), refused


def texts(messages: object) -> list[str]:
    """Return the first 100 messages of a source, each as one line of at most 500 characters."""
    if isinstance(messages, str) or not isinstance(messages, Iterable):
        raise Unavailable(f"messages must be a sequence of texts, not {text(messages)[:80]}", "")
    lines: list[str] = []
    for message in messages:
        if len(lines) == _MOST_TEXTS:
            return [*lines, "further messages are omitted"]
        lines.append(text(message))
    return lines


def pairs(described: object) -> dict[str, str]:
    """Return the first 100 pairs of a mapping, keys and values as texts of one line."""
    if not isinstance(described, Mapping):
        raise Unavailable(f"settings must be a mapping from names to texts, not {text(described)[:80]}", "")
    listed = list(described.items())[:_MOST_TEXTS]
    return {text(name): text(str(value) if isinstance(value, numbers.Real) else value) for name, value in listed}


def counters(declared: object) -> tuple[Counter, ...]:
    """Return the counters that a collector declares, in its order.

    Raises Unavailable if `declared` is not iterable, has more than 1000 counters or one name twice, or if a counter
    is malformed; the message names the first such counter and its field."""
    if not isinstance(declared, Iterable):
        raise Unavailable(f"`counters` must be a sequence of Counter, not {text(declared)[:80]}", "")
    accepted: list[Counter] = []
    for counter in declared:
        if len(accepted) == MOST_COUNTERS:
            raise Unavailable(f"the collector declares more than {MOST_COUNTERS} counters", "")
        accepted.append(_check_counter(counter))
    names = [counter.name for counter in accepted]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise Unavailable(f"the collector declares the counter {text(twice)} twice", "")
    return tuple(accepted)


def _check_counter(declared: object) -> Counter:
    if not isinstance(declared, Counter):
        raise Unavailable(f"`counters` holds {text(declared)[:80]}, not a Counter", "")
    fields: dict[str, Any] = {name: getattr(declared, name) for name in ("name", "unit", "source")}
    wrong = [name for name, value in fields.items() if not isinstance(value, str) or text(value) != value]
    if wrong or not declared.name:
        field = wrong[0] if wrong else "name"
        raise Unavailable(f"the {field} of a counter is {text(fields[field])[:80]!r}, not one short line of text", "")
    if declared.kind not in _KINDS:
        raise Unavailable(f"{declared.name}: kind is {text(declared.kind)[:80]}, not one of {', '.join(_KINDS)}", "")
    least, most = PERIOD_S
    period = declared.period_s
    if isinstance(period, bool) or not isinstance(period, int | float) or not least <= period <= most:
        raise Unavailable(
            f"{declared.name}: period_s is {text(period)[:80]}, not a time from {least} to {most:g} s", ""
        )
    return _check_measure(declared)


def _check_measure(declared: Counter) -> Counter:
    """Return the counter if its unit and kind fit the quantity that it measures and its bits are well-formed."""
    if not isinstance(declared.measures, Measure):
        raise Unavailable(f"{declared.name}: measures is {text(declared.measures)[:80]}, not a Measure", "")
    forms = _FORMS.get(declared.measures)
    if forms and (declared.unit, declared.kind) not in forms:
        allowed = " or ".join(f"{unit} as {kind}" for unit, kind in forms)
        problem = f"{declared.name}: {declared.measures} is in {allowed}, not in {declared.unit} as {declared.kind}"
        raise Unavailable(problem, "")
    event_bits = declared.bits
    if not isinstance(event_bits, tuple) or not all(map(_is_bit, event_bits)):
        raise Unavailable(
            f"{declared.name}: bits must be EventBits, each with a mask of one bit, a name and an EventClass", ""
        )
    if len({bit.mask for bit in event_bits}) < len(event_bits):
        raise Unavailable(f"{declared.name}: two of its bits have the same mask", "")
    return declared


def _is_bit(bit: object) -> bool:
    if not isinstance(bit, EventBit) or not isinstance(bit.kind, EventClass):
        return False
    named = isinstance(bit.name, str) and bool(bit.name) and text(bit.name) == bit.name
    return named and type(bit.mask) is int and bit.mask.bit_count() == 1 and 0 < bit.mask < _MOST_MASK


def condition(reported: object) -> Condition:
    """Return the condition that a watch reports. Raises TypeError, which fails the case, if it is malformed."""
    if not isinstance(reported, Condition):
        raise TypeError(f"a watch must return a Condition, not {text(reported)[:80]}")
    for field, values in (("discard", reported.discard), ("labels", reported.labels)):
        if not isinstance(values, tuple) or any(not isinstance(entry, str) or text(entry) != entry for entry in values):
            raise TypeError(f"Condition.{field} must be a tuple of short texts, not {text(values)[:80]}")
    clock_hz = reported.clock_hz
    if clock_hz is not None and not (isinstance(clock_hz, float) and 0 <= clock_hz <= limits.MOST):
        raise TypeError(f"Condition.clock_hz must be a finite float in hertz or None, not {text(clock_hz)[:80]}")
    return reported
