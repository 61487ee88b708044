"""Parse the texts of other tools: finite numbers, lines without colours, and JSON objects."""

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, TypeVar

from gpubench.api.importer import BadOutput, Device, Series

GIGA, MILLI, MICRO, NANO = 9, -3, -6, -9
UNSTATED = Device("unknown", "imported", "device not stated", "")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FILLED = re.compile(r"\S.*")
_VISIBLE = re.compile(r"\S")
_MOST_CHARACTERS = 4096  # longer lines of a table are cut; the widest known, of nvbandwidth with 8 devices, has 120
_MOST_VALUES = 2**20  # the most objects, lists and values of a JSON document; one state of nvbench has about 100
_T = TypeVar("_T")


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of each line that is not blank, without colour codes and outer blanks.

    A line of more than 4096 characters is cut there, because matching a pattern may take a time quadratic in its
    length."""
    number, counted = 1, 0
    for filled_line in _FILLED.finditer(text):
        number += text.count("\n", counted, filled_line.start())
        counted = filled_line.start()
        yield number, _COLOURS.sub("", text[counted : min(filled_line.end(), counted + _MOST_CHARACTERS)]).strip()


def number(text: str, where: str) -> float:
    """Parse `text` as a finite number.

    Raises BadOutput, which names the place `where` in the output, if the text is no number, infinite or NaN."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadOutput(f"{where}: {text[:40]!r} is not a number")
    return value


def to_si(value: float, power: int) -> float:
    """Return `value` · 10^`power`, such as GB in B, with exactly the decimal digits that were printed."""
    return float(Decimal(repr(value)).scaleb(power))


def size_bytes(value: float, factor: int) -> int:
    """Return the size of `value` units of `factor` bytes, rounded to whole bytes.

    Raises BadOutput if the size is negative or not below 2⁶³."""
    if not 0 <= value * factor < 2**63:
        raise BadOutput(f"a size of {value:g} times {factor} bytes is not possible")
    return round(value * factor)


def whole_number(text: str, where: str) -> int:
    """Parse `text` as a whole number.

    Raises BadOutput, which names the place `where` in the output, if the text is no whole number or has more than 18
    digits."""
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise BadOutput(f"{where}: {text[:40]!r} is not a whole number")
    return int(text)


def rate_series(name: str, *values: float) -> Series:
    """Return a series of rates in B/s, of which more is better."""
    return Series(name, "B/s", values, better="more")


def time_series(name: str, *values: float) -> Series:
    """Return a series of times in seconds, of which less is better."""
    return Series(name, "s", values)


def make_device(device_id: str, name: str = "", **facts: Any) -> Device:
    """Return a device `device_id` of the backend `imported`; an empty `name` becomes that of UNSTATED.

    `facts` are further fields of `Device` that the tool stated, such as `memory_bytes` or `arch`."""
    return Device(device_id, "imported", name or UNSTATED.name, facts.pop("arch", ""), **facts)


def json_object(text: str) -> dict[str, Any]:
    """Parse the JSON object in a text; lines before its opening and after its closing brace are ignored.

    Both braces begin a line, unless the whole text is JSON."""
    _check_size(text)
    first, last = f"\n{text}".find("\n{"), f"\n{text}".rfind("\n}")
    try:
        parsed = json.loads(text[first : last + 1] if 0 <= first < last else text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise BadOutput(f"line {error.lineno}: not JSON ({error.msg})") from error
    except (RecursionError, ValueError) as error:
        raise BadOutput(f"not JSON ({type(error).__name__})") from error
    if not isinstance(parsed, dict):
        raise BadOutput("not a JSON object")
    return parsed


def json_objects(text: str) -> list[dict[str, Any]]:
    """Parse the JSON objects in a text, one after another or in a list; there is at least one.

    Lines before the first object are ignored. `Infinity` is accepted, because SGLang writes an unlimited rate so."""
    _check_size(text)
    begin = re.search(r"^[ \t]*[\[{]", text, re.MULTILINE)
    decoder, position, parsed = (
        json.JSONDecoder(parse_constant=_parse_infinity),
        begin.start() if begin else len(text),
        [],
    )
    while match := _VISIBLE.search(text, position):
        try:
            value, position = decoder.raw_decode(text, match.start())
        except json.JSONDecodeError as error:
            raise BadOutput(f"line {error.lineno}: not JSON ({error.msg})") from error
        except (RecursionError, ValueError) as error:
            raise BadOutput(f"not JSON ({type(error).__name__})") from error
        parsed += value if isinstance(value, list) else [value]
    if not parsed or not all(isinstance(item, dict) for item in parsed):
        raise BadOutput("not JSON objects")
    return parsed


def _check_size(text: str) -> None:
    """Raise BadOutput if a text has more than 2²⁰ objects, lists and values, so that parsing takes a short time."""
    if sum(map(text.count, "{[,")) > _MOST_VALUES:
        raise BadOutput(f"more than {_MOST_VALUES} values: split the output into parts")


def _parse_infinity(text: str) -> float:
    """Return infinity for the constant `Infinity`. Raises BadOutput for any other constant."""
    return math.inf if text == "Infinity" else _refuse_constant(text)


def _refuse_constant(text: str) -> float:
    """Raise BadOutput for a constant that is not a number, such as `NaN`."""
    raise BadOutput(f"{text} is not a number")


def measured_number(value: object, key: str) -> float:
    """Return the number under `key` of the JSON object `value`, which is 0 or from 1e-12 to below 1e15.

    Raises BadOutput if `value` is no object, or if the key is missing or has any other value."""
    number = value.get(key) if isinstance(value, dict) else None
    if isinstance(number, bool) or not isinstance(number, int | float) or not (number == 0 or 1e-12 <= number < 1e15):
        raise BadOutput(f"{key!r} is missing, or is not a measured number")
    return float(number)


def json_value(value: object, key: str, kind: type[_T]) -> _T:
    """Return the value under `key` of the JSON object `value`, which has the type `kind`.

    Raises BadOutput if `value` is no object, or if the key is missing or has a value of another type."""
    member = value.get(key) if isinstance(value, dict) else None
    if not isinstance(member, kind) or (isinstance(member, bool) and kind is not bool):
        raise BadOutput(f"{key!r} is missing, or has another form than in the known versions")
    return member
