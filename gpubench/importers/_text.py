"""What every importer needs of a text: numbers that are numbers, lines without colours, JSON that is an object."""

from __future__ import annotations

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
_MOST_LETTERS = 4096  # of a line of a table: the widest that is known, of nvbandwidth with 8 devices, has 120
_MOST_PARTS = 2**20  # objects, lists and values of a JSON document: one state of nvbench has about 100
_T = TypeVar("_T")


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not empty, from 1, without colours and without blanks at their ends.

    A line that is too long for a table is cut, because patterns may take a time that is the square of its length.
    """
    number, counted = 1, 0
    for found in _FILLED.finditer(text):
        number += text.count("\n", counted, found.start())
        counted = found.start()
        yield number, _COLOURS.sub("", text[counted : min(found.end(), counted + _MOST_LETTERS)]).strip()


def number(text: str, where: str) -> float:
    """A finite number; raises BadOutput, which says `where` there is none."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise BadOutput(f"{where}: {text[:40]!r} is no number")
    return found


def si(value: float, power: int) -> float:
    """A number of GB, ms or the like in SI units, with the decimal digits that were printed and no others."""
    return float(Decimal(repr(value)).scaleb(power))


def size(value: float, factor: int) -> int:
    """A number of KiB or the like in bytes; raises BadOutput where no machine has so many."""
    if not 0 <= value * factor < 2**63:
        raise BadOutput(f"a size of {value:g} times {factor} bytes")
    return round(value * factor)


def whole(text: str, where: str) -> int:
    """A whole number below 2⁶³; raises BadOutput."""
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise BadOutput(f"{where}: {text[:40]!r} is no whole number")
    return int(text)


def rate(name: str, *values: float) -> Series:
    """A series of rates in B/s."""
    return Series(name, "B/s", values, better="more")


def seconds(name: str, *values: float) -> Series:
    """A series of times in s."""
    return Series(name, "s", values)


def device(device_id: str, name: str = "", **known: Any) -> Device:
    """A device as far as it is stated."""
    return Device(device_id, "imported", name or UNSTATED.name, known.pop("arch", ""), **known)


def document(text: str) -> dict[str, Any]:
    """The JSON object of a text, warnings before and after it left aside; raises BadOutput."""
    _check_parts(text)
    first, last = f"\n{text}".find("\n{"), f"\n{text}".rfind("\n}")
    try:
        found = json.loads(text[first : last + 1] if 0 <= first < last else text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise BadOutput(f"line {error.lineno}: not JSON ({error.msg})") from error
    except (RecursionError, ValueError) as error:
        raise BadOutput(f"not JSON ({type(error).__name__})") from error
    if not isinstance(found, dict):
        raise BadOutput("not a JSON object")
    return found


def objects(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects of a text, one after another or in a list; raises BadOutput where one is damaged.

    Lines before the first one are left aside. An infinite number is read as one: SGLang writes its rate of requests so.
    """
    _check_parts(text)
    begin = re.search(r"^[ \t]*[\[{]", text, re.MULTILINE)
    decoder, place, found = json.JSONDecoder(parse_constant=_infinite), begin.start() if begin else len(text), []
    while rest := _VISIBLE.search(text, place):
        try:
            value, place = decoder.raw_decode(text, rest.start())
        except json.JSONDecodeError as error:
            raise BadOutput(f"line {error.lineno}: not JSON ({error.msg})") from error
        except (RecursionError, ValueError) as error:
            raise BadOutput(f"not JSON ({type(error).__name__})") from error
        found += value if isinstance(value, list) else [value]
    if not found or not all(isinstance(each, dict) for each in found):
        raise BadOutput("not JSON objects")
    return found


def _check_parts(text: str) -> None:
    if sum(map(text.count, "{[,")) > _MOST_PARTS:
        raise BadOutput(f"more than {_MOST_PARTS} values: cut the output in parts")


def _infinite(text: str) -> float:
    return math.inf if text == "Infinity" else _no_number(text)


def _no_number(text: str) -> float:
    raise BadOutput(f"{text} is no number")


def measured(value: object, key: str) -> float:
    """Return the number under a key of a JSON object: 0, or one from 1e-12 to 1e15; raises BadOutput."""
    found = value.get(key) if isinstance(value, dict) else None
    if isinstance(found, bool) or not isinstance(found, int | float) or not (found == 0 or 1e-12 <= found < 1e15):
        raise BadOutput(f"{key!r} is missing, or no number that was measured")
    return float(found)


def part(value: object, key: str, kind: type[_T]) -> _T:
    """What stands under a key of a JSON object; raises BadOutput where it is missing or of another kind."""
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise BadOutput(f"{key!r} is missing, or not what it was")
    return found
