"""Write numbers for people: GB = 1e9 B, GiB = 2^30 B; sizes are in KiB/MiB/GiB, rates in GB/s."""

import math
from collections.abc import Callable
from datetime import UTC, datetime

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_SCALED = frozenset({"s", "B/s", "FLOP/s", "FLOP/J", "OP/s", "OP/J", "Hz", "W", "J", "op/s"})


def size(number: float) -> str:
    """Return a number of bytes in the largest binary unit that keeps it exact: 1GiB, 96KiB, 1000B."""
    whole = int(number)
    index = 0
    while whole and whole % 1024 == 0 and index < len(_BINARY) - 1:
        whole //= 1024
        index += 1
    return f"{whole}{_BINARY[index]}"


def round_size(number: float) -> str:
    """Return a number of bytes in the largest binary unit that fits, with four significant digits: 139.8 GiB."""
    value, index = float(number), 0
    while abs(value) >= 1024 and index < len(_BINARY) - 1:
        value /= 1024
        index += 1
    return f"{significant(value)} {_BINARY[index]}"


def brief_size(number: float) -> str:
    """Return a size with at most four digits and no trailing zeros: 256 KiB, 61.28 MiB."""
    value, _, unit = round_size(number).partition(" ")
    return f"{value.rstrip('0').rstrip('.') if '.' in value else value} {unit}"


def axis_label(axis: str) -> str:
    """Return the name of an axis in a case id: `size_bytes` becomes `size`."""
    return axis.removesuffix("_bytes")


def axis_text(axis: str, value: str | int | float) -> str:
    """Return the text of an axis's value in a case id: a whole number of an axis `…_bytes` as a size (64MiB).

    Any other value is written as Python does."""
    if axis.endswith("_bytes") and isinstance(value, int):
        return size(value)
    return str(value)


def axis_value_text(axis: str, value: str | int | float) -> str:
    """Return a parameter as a label: a text alone, a number with the name of its axis (`size=1GiB`)."""
    text = axis_text(axis, value)
    return text if isinstance(value, str) else f"{axis_label(axis)}={text}"


def significant(value: float, digits: int = 4) -> str:
    """Return `value` with `digits` significant digits, without an exponent from 1e-4 to below 1e7.

    Infinity and NaN are `n/a`."""
    if not math.isfinite(value):
        return "n/a"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(_rounded(value, digits))))  # rounding first gives 9.9996 the exponent of 10.00
    if -4 <= exponent < 7:
        return f"{value:.{max(digits - 1 - exponent, 0)}f}"
    return f"{value:.{digits - 1}e}"


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")


def scale(value: float, unit: str) -> tuple[float, str]:
    """Return the factor and the prefixed unit in which `value`, given in `unit`, reads best: 4.2e12 B/s → (1e9, GB/s).

    Divide the value by the factor to show it. Rates of bytes stay in GB/s from 0.1 to 10,000 GB/s, because the field
    compares them so. A counted thing keeps its name: 1.2e8 message/s → (1e6, M message/s). A unit that takes no prefix
    is returned unchanged with factor 1."""
    if unit.endswith("/s") and unit not in _SCALED and 1e6 <= abs(value) < math.inf:  # message/s, token/s
        return (1e6, f"M {unit}") if abs(value) < 1e9 else (1e9, f"G {unit}")
    if unit not in _SCALED or value == 0 or not math.isfinite(value):
        return 1.0, unit
    if unit == "B/s" and 1e8 <= abs(value) < 1e13:
        return 1e9, "GB/s"
    for factor, prefix in _SI:
        if abs(value) >= factor:
            return factor, prefix + unit
    return 1e-9, "n" + unit


def quantity(value: float, unit: str, digits: int = 4) -> str:
    """Return `value`, given in `unit`, with a prefixed unit and `digits` significant digits: 4213 GB/s, 341.2 ns.

    A number of bytes (`B`) has a binary unit and four significant digits: 139.8 GiB."""
    if unit == "B":
        return round_size(value)
    factor, text = scale(_rounded(value, digits), unit)
    return f"{significant(value / factor, digits)} {text}".rstrip()


def interval(low: float, high: float, unit: str, centre: float, digits: int = 4) -> str:
    """Return the bounds `low` and `high`, in `unit`, as text in the prefixed unit of `centre`: 4198 – 4221 GB/s."""
    factor, text = scale(centre, unit)
    return f"{significant(low / factor, digits)} – {significant(high / factor, digits)} {text}".rstrip()


def count(number: int, noun: str = "case") -> str:
    """Return a number with its noun: `1 case`, `2 cases`, `2 passes`."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def percent(fraction: float, digits: int = 1) -> str:
    """Return a fraction as a percentage: 0.873 → 87.3 %."""
    return f"{fraction * 100:.{digits}f} %"


def duration(seconds: float) -> str:
    """Return a duration for people: 850 ms, 12.4 s, 3 min 20 s, 2 h 05 min.

    It has three significant digits below one minute, whole seconds below one hour, and whole minutes above."""
    if seconds < 60:
        return quantity(seconds, "s", 3)
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def unix_seconds(date: str) -> float:
    """Return an ISO 8601 date and time in seconds since 1970; without a time zone it is in UTC, as gpubench writes it.

    Raises ValueError for a text that is no date."""
    moment = datetime.fromisoformat(date)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def utc(at: float, form: str = "%Y-%m-%d %H:%M UTC") -> str:
    """Return seconds since 1970 as a date in UTC, such as `2026-11-20 17:43 UTC`; `form` is a format of `strftime`."""
    return f"{datetime.fromtimestamp(at, UTC):{form}}"


def fact(name: str, text: str) -> tuple[str, str]:
    """Return the name and the text of a fact for people; the unit at the end of the name moves to the number.

    ("clock.sm_hz", "1980000000") becomes ("clock.sm", "1980 MHz"). The units are `_hz`, `_w`, `_bytes` and `_bits`; a
    fact whose name begins with `cache.` is a size in bytes. Any other fact stays unchanged, as does a text that is not
    a finite number."""
    try:
        value = float(text)
    except ValueError:
        return name, text
    if not math.isfinite(value):
        return name, text
    if name.startswith("cache."):
        return name, brief_size(value)
    for suffix, written in _FACT_UNITS:
        if name.endswith(suffix):
            return name.removesuffix(suffix), written(value)
    return name, text


_FACT_UNITS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("_hz", lambda value: f"{value / 1e6:.6g} MHz"),
    ("_w", lambda value: f"{value:.4g} W"),
    ("_bytes", brief_size),
    ("_bits", lambda value: f"{value:.6g} bit"),
)
