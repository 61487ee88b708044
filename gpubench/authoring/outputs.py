"""Parts of importers: read the lines, numbers and JSON of another tool's output, and collect the results."""

import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar

from gpubench.base.errors import BadOutput
from gpubench.model import Better, Case, Device, Params, Result, Series, Status, SuiteInfo, View
from gpubench.plugins.importer import Imported

UNSTATED = Device("unknown", "imported", "device not stated", "")
UNITS: dict[str, tuple[str, int, Better]] = {  # unit as printed → unit of the series, power of ten, direction
    "s": ("s", 0, "less"),
    "ms": ("s", -3, "less"),
    "us": ("s", -6, "less"),
    "ns": ("s", -9, "less"),
    "cycles": ("cycles", 0, "less"),
    "MB/s": ("B/s", 6, "more"),
    "GB/s": ("B/s", 9, "more"),
    "GFLOPS": ("FLOP/s", 9, "more"),
    "GIOPS": ("op/s", 9, "more"),
    **{unit: (unit, 0, "more") for unit in ("B/s", "FLOP/s", "op/s", "item/s", "sample/s", "request/s", "token/s")},
}
Quantities = Sequence[tuple[str, str, str]]  # column or key of the output, name of the series, unit as printed
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FILLED = re.compile(r"\S.*")
_VISIBLE = re.compile(r"\S")
_MOST_CHARACTERS = 4096  # longer lines are cut: a match may take quadratic time; the widest known line has 120
_MOST_VALUES = 2**20  # the most objects, lists and values of a JSON document; one state of nvbench has about 100
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Reader:
    """An importer that consists of two functions of the text: `accepts` recognises it, and `read` returns its content.

    `summary` is the sentence of `gpubench import --tools`."""

    summary: str
    accepts: Callable[[str], bool]
    read: Callable[[str], Imported]


@dataclass(frozen=True, slots=True)
class StreamReader:
    """Like `Reader`, for an output of any size: `read_chunks` takes it in pieces, the first with at least its head."""

    summary: str
    accepts: Callable[[str], bool]
    read_chunks: Callable[[Iterable[str]], Imported]


def has(*patterns: str) -> Callable[[str], bool]:
    """Return a function that tells whether a text contains every pattern; `^` and `$` match at lines."""
    return lambda text: all(re.search(pattern, text, re.MULTILINE) for pattern in patterns)


def has_line(*patterns: re.Pattern[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a line of a text begins with one of these patterns."""
    return lambda text: any(pattern.match(line) for _, line in _lines(text) for pattern in patterns)


class Row(NamedTuple):
    """A row of results in a text: the name of its case, the pattern of its line, axes, quantities and notes.

    In the pattern, `{name}` is a cell with a number and `{#name}` one with a whole number; the cell `device` is the
    number of the device. An axis is (cell, axis, unit): the unit is a number of bytes, 1 for a count, or a text that
    stays behind the number. A note is (name, text), and the text may have cells in it, such as `{spread} %`."""

    case: str
    pattern: str
    axes: tuple[tuple[str, str, int | str], ...]
    quantities: Quantities
    notes: tuple[tuple[str, str], ...] = ()

    @property
    def regex(self) -> re.Pattern[str]:
        """The pattern as a regular expression with a group for each cell."""
        return _row_regex(self.pattern)

    def cells(self, line: str) -> dict[str, str]:
        """Return the cells of a line by their names; empty if the line is no such row."""
        match = self.regex.match(line)
        return {name: cell for name, cell in match.groupdict().items() if cell is not None} if match else {}


@functools.cache
def _row_regex(pattern: str) -> re.Pattern[str]:
    numbers = {"": r"-?[\d.]+(?:e[+-]?\d+)?", "#": r"\d+"}
    return re.compile(re.sub(r"\{(#?)([a-z]\w*)\}", lambda cell: f"(?P<{cell[2]}>{numbers[cell[1]]})", pattern))


@dataclass(slots=True)
class Output:
    """The content of an output, as far as it has been read.

    `suite` is the name of the tool's suite, and `title` its sentence. `devices` and `versions` are kept by id and by
    name, and `left_out` has the figures without a known unit as its keys."""

    suite: str
    title: str
    devices: dict[str, Device] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, None] = field(default_factory=dict)

    def add(
        self, name: str, params: Params, series: Sequence[Series], ids: Iterable[str] = (UNSTATED.id,), **others: Any
    ) -> None:
        """Add a result of the case `name` on the devices `ids`; `others` are fields of `Result`, such as `notes`.

        Raises BadOutput if there are no series."""
        if not series:
            raise BadOutput(f"{name} has no figures")
        devices = tuple(ids)
        case = Case(self.suite, name, params, devices=max(len(devices), 1))
        self.results.append(Result(case, devices, others.pop("status", "ok"), series=tuple(series), **others))

    def add_unmeasured(
        self, name: str, params: Params, ids: Iterable[str], cause: str, reason: str, status: Status = "failed"
    ) -> None:
        """Add a result without figures: `cause` is a slug for programs, and `reason` a sentence."""
        case = Case(self.suite, name, params)
        self.results.append(Result(case, tuple(ids), status, cause=cause, reason=reason))

    def add_row(self, row: Row, cells: Mapping[str, str]) -> None:
        """Add the result of a row from its cells. Raises BadOutput if a cell is no number."""
        values = {name: number(cell) for name, cell in cells.items()}
        params = tuple((axis, _axis_value(values[name], unit)) for name, axis, unit in row.axes)
        ids = (f"device:{whole_number(cells['device'])}" if "device" in cells else UNSTATED.id,)
        notes = tuple((name, text.format(**cells)) for name, text in row.notes)
        self.add(row.case, params, quantities(values, row.quantities), ids, notes=notes)

    def cases(self, *prefixes: str) -> tuple[str, ...]:
        """Return the names of the cases, each once, which begin with one of `prefixes` if there are any."""
        names = dict.fromkeys(result.case.name for result in self.results)
        return tuple(name for name in names if name.startswith(prefixes or ""))

    def imported(self, *views: View) -> Imported:
        """Return the content; a device of a result that is not in `devices` has only its id.

        Raises BadOutput if there are no results."""
        if not self.results:
            raise BadOutput("there are no results")
        ids = (name for result in self.results for name in result.devices)
        devices = self.devices | {name: make_device(name) for name in ids if name not in self.devices}
        info = SuiteInfo(self.suite, self.title, views)
        versions = tuple(self.versions.items())
        return Imported(info, tuple(devices.values()), tuple(self.results), versions, tuple(self.left_out))


def make_device(device_id: str, name: str = "", **facts: Any) -> Device:
    """Return a device of the backend `imported`; `facts` are further fields of `Device` that the tool stated.

    A device without a name is called *device not stated*."""
    return Device(device_id, "imported", name or UNSTATED.name, facts.pop("arch", ""), **facts)


@contextmanager
def place(name: str) -> Iterator[None]:
    """Name the place in the output at the beginning of each BadOutput that is raised inside."""
    try:
        yield
    except BadOutput as error:
        raise BadOutput(f"{name}: {error}") from error


def read_lines(text: str, take: Callable[[str], object]) -> None:
    """Hand each line that is not blank to `take`, without colour codes and outer blanks.

    A line of more than 4096 characters is cut. A BadOutput of `take` gets the number of the line."""
    for number_of_line, line in _lines(text):
        with place(f"line {number_of_line}"):
            take(line)


def clean(text: str) -> str:
    """Return the lines of a text that are not blank, without colour codes and outer blanks."""
    return "\n".join(line for _, line in _lines(text))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of each line that is not blank."""
    number_of_line, counted = 1, 0
    for filled in _FILLED.finditer(text):
        number_of_line += text.count("\n", counted, filled.start())
        counted = filled.start()
        line = _COLOURS.sub("", text[counted : min(filled.end(), counted + _MOST_CHARACTERS)]).strip()
        if line:  # a line of colours alone is blank
            yield number_of_line, line


def row(head: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    """Return the cells of a row by the columns' names in the head. Raises BadOutput if their numbers differ."""
    if len(cells) != len(head):
        raise BadOutput(f"{len(cells)} columns where the head has {len(head)}")
    return dict(zip(head, cells, strict=True))


def number(text: str) -> float:
    """Parse a text as a number. Raises BadOutput if it is no number, infinite or NaN."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadOutput(f"{text[:40]!r} is not a number")
    return value


def whole_number(text: str) -> int:
    """Parse a text as a whole number. Raises BadOutput if it is none, or has more than 18 digits."""
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise BadOutput(f"{text[:40]!r} is not a whole number")
    return int(text)


def number_or_text(text: str) -> int | float | str:
    """Return the number that the printed value of an axis is, else the text itself."""
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d{1,18}(\.\d+)?([eE][+-]?\d{1,2})?", text) else text


def quantity(name: str, unit: str, *values: str | float) -> Series:
    """Return a series in the SI unit of the printed `unit` (a key of UNITS), which also says whether more is better.

    The values keep exactly their decimal digits. Raises BadOutput if one is not a number."""
    si_unit, power, better = UNITS[unit]
    numbers = (number(str(value)) if isinstance(value, str | bool | list | dict) else value for value in values)
    return Series(name, si_unit, tuple(to_si(value, power) for value in numbers), better=better)


def quantities(cells: Mapping[str, str | float | None], table: Quantities) -> list[Series]:
    """Return a series for each row of the table whose column or key (its first element) has a value in `cells`."""
    return [quantity(name, unit, cell) for key, name, unit in table if (cell := cells.get(key)) is not None]


def to_si(value: float, power: int) -> float:
    """Return `value` · 10^`power`, such as GB in B, with exactly the decimal digits that were printed."""
    return float(Decimal(repr(value)).scaleb(power)) if power else value


def size_bytes(value: float, factor: int) -> int:
    """Return the size of `value` units of `factor` bytes, rounded to whole bytes.

    Raises BadOutput if the size is negative or not below 2⁶³."""
    if not 0 <= value * factor < 2**63:
        raise BadOutput(f"a size of {value:g} times {factor} bytes is not possible")
    return round(value * factor)


def _axis_value(value: float, unit: int | str) -> int | str:
    """Return the value of an axis in bytes, or with the unit behind it, as in `2kB`."""
    return f"{value:g}{unit}" if isinstance(unit, str) else size_bytes(value, unit)


def json_object(text: str) -> dict[str, Any]:
    """Parse the JSON object in a text; lines before its opening and after its closing brace are ignored.

    Both braces begin a line, unless the whole text is JSON. Raises BadOutput if it is damaged, or has a NaN."""
    first, last = f"\n{text}".find("\n{"), f"\n{text}".rfind("\n}")
    body = text[first : last + 1] if 0 <= first < last else text
    parsed = _parse_json(text, lambda: json.loads(body, parse_constant=_refuse_constant))
    if not isinstance(parsed, dict):
        raise BadOutput("not a JSON object")
    return parsed


def json_objects(text: str) -> list[dict[str, Any]]:
    """Parse the JSON objects in a text, one after another or in a list; there is at least one.

    Lines before the first object are ignored. `Infinity` is accepted, because SGLang writes an unlimited rate so."""
    begin = re.search(r"^[ \t]*[\[{]", text, re.MULTILINE)
    parsed: list[Any] = _parse_json(text, lambda: list(_decoded(text, begin.start() if begin else len(text))))
    if not parsed or not all(isinstance(item, dict) for item in parsed):
        raise BadOutput("not JSON objects")
    return parsed


def _decoded(text: str, position: int) -> Iterator[Any]:
    """Yield each value, or each element of a list, that stands in the text from `position` on."""
    decoder = json.JSONDecoder(parse_constant=lambda name: math.inf if name == "Infinity" else _refuse_constant(name))
    while match := _VISIBLE.search(text, position):
        value, position = decoder.raw_decode(text, match.start())
        yield from value if isinstance(value, list) else (value,)


def _parse_json(text: str, parse: Callable[[], Any]) -> Any:
    """Return the value that `parse` makes of a text with at most 2²⁰ objects, lists and values."""
    if sum(map(text.count, "{[,")) > _MOST_VALUES:
        raise BadOutput(f"more than {_MOST_VALUES} values: split the output into parts")
    try:
        return parse()
    except json.JSONDecodeError as error:
        raise BadOutput(f"line {error.lineno}: not JSON ({error.msg})") from error
    except (RecursionError, ValueError) as error:
        raise BadOutput(f"not JSON ({type(error).__name__})") from error


def _refuse_constant(name: str) -> float:
    raise BadOutput(f"{name} is not a number")


def measured_number(value: object, key: str) -> float:
    """Return the number under a key of a JSON object, which is 0 or from 1e-12 to below 1e15.

    Raises BadOutput if `value` is no object, or if the key is missing or has any other value."""
    measured = value.get(key) if isinstance(value, dict) else None
    is_number = isinstance(measured, int | float) and not isinstance(measured, bool)
    if measured is None or not is_number or not (measured == 0 or 1e-12 <= measured < 1e15):
        raise BadOutput(f"{key!r} is missing, or is not a measured number")
    return float(measured)


def json_value(value: object, path: str, kind: type[_T], default: _T | None = None) -> _T:
    """Return the value under a key of a JSON object, or under nested keys as `meta/version`; it has the type `kind`.

    A value that is missing or null becomes `default` if there is one. Raises BadOutput if `value` is no object, the
    key is missing, or its value has another type."""
    member = value
    for key in path.split("/"):
        member = member.get(key) if isinstance(member, dict) else None
    if member is None and default is not None and isinstance(value, dict):
        return default
    if not isinstance(member, kind) or (isinstance(member, bool) and kind is not bool):
        raise BadOutput(f"{path!r} is missing, or has another form than in the known versions")
    return member
