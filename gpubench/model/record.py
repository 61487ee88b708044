"""Convert one record of a run file to and from its line: JSON that is checked strictly against the model.

A line is accepted only if it has exactly the fields of the model within its limits (`gpubench.model.limits`); `schema`
publishes the model for other programs."""

import collections
import dataclasses
import functools
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from gpubench.base.walk import with_texts
from gpubench.model import SCHEMA, Case, Manifest, Remark, Result, Samples, Series, Strict, limits
from gpubench.model.disk import Packed
from gpubench.model.schema import identified

SAMPLES_LIMIT_BYTES = 2**20  # longer samples are split: a killed run loses at most one such chunk
_NUMBER_BYTES = 25  # the length of the longest float64 in JSON, with its comma


@dataclass(frozen=True, slots=True)
class End(Strict):
    """The last record of a complete file: the number of records before it, and the SHA-256 of their lines."""

    records: limits.Count
    sha256: limits.Name


Record = Manifest | Result | Samples | Remark | End

_CLASSES: dict[str, type[Record]] = {
    "manifest": Manifest,
    "result": Result,
    "samples": Samples,
    "remark": Remark,
    "end": End,
}
KINDS = {record_class: kind for kind, record_class in _CLASSES.items()}
_ADAPTERS: dict[str, TypeAdapter[Record]] = {kind: TypeAdapter(of) for kind, of in _CLASSES.items()}
_OPENINGS = {kind: f'{{"kind":"{kind}",'.encode() for kind in _CLASSES}
_KIND_OF = {opening.rstrip(b","): kind for kind, opening in _OPENINGS.items() if kind != "manifest"}
_OPENING_BYTES = max(map(len, _OPENINGS.values()))
_LONG_NUMBER = re.compile(r"\d{12,}")
_KEY = re.compile(rb'"(\w+)"\s*:')
_OF_NUMBERS = b"0123456789.-"
_MOST_SHAPES, _MOST_SHAPE_BYTES = 2048, 4096  # shapes are lines without their numbers: 8 MiB at most
# How often a line may have a character, and what it stands for. Characters are counted before anything is parsed.
_COUNTED = (
    (b'"', 2 * limits.RECORD_TEXTS, "texts"),
    (b",", limits.RECORD_VALUES, "values"),
    (b"{", limits.RECORD_NESTED, "objects"),
    (b"[", limits.RECORD_NESTED, "lists"),
)
FIRST_YEAR, LAST_YEAR = 1970, 9998  # the years of a start that Python can represent in every time zone


class Malformed(ValueError):  # noqa: N818 - the line is malformed
    """An error in a line of a run file; its text says where and why, and the reader adds the file and the line."""


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of one record: a union of its kinds, distinguished by the field `kind`."""
    _, document = TypeAdapter.json_schemas([(kind, "validation", adapter) for kind, adapter in _ADAPTERS.items()])
    definitions = document["$defs"]
    for kind, record_class in _CLASSES.items():
        record = definitions[record_class.__name__]
        record["properties"] = {"kind": {"const": kind, "type": "string"}, **record["properties"]}
        record["required"] = ["kind", *record["required"]]
    references = {kind: f"#/$defs/{record_class.__name__}" for kind, record_class in _CLASSES.items()}
    record_kinds = {
        "title": f"A record of a {SCHEMA} file",
        "oneOf": [{"$ref": reference} for reference in references.values()],
        "discriminator": {"propertyName": "kind", "mapping": references},
        "$defs": definitions,
    }
    return identified(SCHEMA, record_kinds)


def encode(record: Record, errors: str = "replace") -> bytes:
    """Return the line of a record: compact JSON in UTF-8, with a newline at the end.

    With `strict`, UnicodeEncodeError is raised."""
    try:
        document = to_json(record, inf_nan_mode="constants", fallback=list)  # a list of packed numbers
    except PydanticSerializationError:  # a text is not UTF-8
        valid = with_texts(record, lambda text: text.encode(errors=errors).decode())
        document = to_json(valid, inf_nan_mode="constants", fallback=list)
    return b"".join((_OPENINGS[KINDS[type(record)]], memoryview(document)[1:], b"\n"))


def split_samples(samples: Samples) -> Iterator[tuple[Samples, bytes]]:
    """Yield consecutive parts of the samples with their lines, none longer than SAMPLES_LIMIT_BYTES.

    A part with a single moment is not split further and may be longer."""
    count = len(samples.at)
    fitting_rows = SAMPLES_LIMIT_BYTES // (_NUMBER_BYTES * (len(samples.columns) + 1))
    if count > 4 * fitting_rows > 0:  # estimate first: making one line of a whole day takes long
        for start in range(0, count, fitting_rows):
            yield from split_samples(_rows_of(samples, slice(start, start + fitting_rows)))
        return
    line = encode(samples)
    if len(line) <= SAMPLES_LIMIT_BYTES or count < 2:
        yield samples, line
        return
    for part in (slice(count // 2), slice(count // 2, count)):
        yield from split_samples(_rows_of(samples, part))


def _rows_of(samples: Samples, part: slice) -> Samples:
    columns, at = tuple((name, values[part]) for name, values in samples.columns), samples.at[part]
    return dataclasses.replace(samples, at=at, columns=columns, busy_s=samples.busy_s * len(at) / len(samples.at))


def is_surely_valid(record: Record, line: bytes) -> bool:
    """Return whether the line that `encode` made of a record is certainly valid, so that it need not be read back.

    That is so for packed samples whose numbers are all within limits; False means that it is unknown."""
    if not isinstance(record, Samples) or b"Infinity" in line:
        return False
    columns = [values for _, values in record.columns]
    packed = all(isinstance(series, Packed) for series in (record.at, *columns))
    fits = packed and all(len(series) == len(record.at) and _is_within(series, limits.MOST) for series in columns)
    return fits and _is_within(record.at, limits.MOST_SECONDS) and not np.isnan(record.at).any()


def _is_within(numbers: Sequence[float | None], most: float) -> bool:
    """Return whether no number has an absolute value above `most`; missing numbers are ignored."""
    return not (np.abs(np.asarray(numbers)) > most).any()


def decode(line: bytes) -> Record:
    """Return the record in a line, samples in packed form.

    Raises Malformed with the place and the problem if the line is not valid."""
    if len(line) > limits.RECORD_BYTES:
        raise Malformed(f"the record is longer than {limits.RECORD_BYTES >> 20} MiB")
    _check_counts(line)
    record = _decode_as_written(line) or _decode_any(line)
    _check_rules(record)
    return _with_packed_numbers(record) if isinstance(record, Samples) else record


def _check_counts(line: bytes) -> None:
    """Raise Malformed if the line has too many texts, values, objects or lists."""
    if len(line) > limits.RECORD_NESTED:  # a shorter line cannot have that many
        for character, most, name in _COUNTED:
            if line.count(character) > most:
                raise Malformed(f"the record holds more than {most} {name}")


def _with_packed_numbers(samples: Samples) -> Samples:
    columns = tuple((name, Packed[float | None](values)) for name, values in samples.columns)
    return dataclasses.replace(samples, at=Packed[float](samples.at), columns=columns)


def samples_key(samples: Samples) -> tuple[object, ...]:
    """Return the key that samples of one series share: their collector, their device and their counters."""
    return samples.collector, samples.device, tuple(name for name, _ in samples.columns)


def append_samples(chunk: Samples, by_key: dict[tuple[object, ...], Samples]) -> None:
    """Append a chunk to the samples in `by_key` with the same key (`samples_key`), or add it under that key.

    The first chunk of a key grows in place; both chunks must be packed (`Packed`)."""
    key = samples_key(chunk)
    first = by_key.setdefault(key, chunk)
    if first is not chunk:
        busy_s, late_s = first.busy_s + chunk.busy_s, max(first.late_s, chunk.late_s)
        by_key[key] = dataclasses.replace(first, busy_s=busy_s, late_s=late_s)
        columns = ((before, after) for (_, before), (_, after) in zip(first.columns, chunk.columns, strict=True))
        for before, after in ((first.at, chunk.at), *columns):
            cast(Packed[Any], before).extend(cast(Packed[Any], after))


def _decode_as_written(line: bytes) -> Record | None:
    """Return the record in a line with the keys that gpubench writes, in their order; None for any other line."""
    kind = _KIND_OF.get(line[:_OPENING_BYTES].partition(b",")[0])
    if kind is None or b"\\" in line:
        return None
    shape = line.translate(None, _OF_NUMBERS)
    are_in_order = _is_in_written_order if len(shape) <= _MOST_SHAPE_BYTES else _is_in_written_order.__wrapped__
    if not are_in_order(kind, shape):
        return None
    try:
        return _ADAPTERS[kind].validate_json(b"".join((b"{", memoryview(line)[len(_OPENINGS[kind]) :])))
    except ValidationError:  # `_decode_any` makes the message
        return None


@functools.lru_cache(maxsize=_MOST_SHAPES)
def _is_in_written_order(kind: str, shape: bytes) -> bool:
    keys = _KEY.findall(shape)
    return keys in _written_orders(kind, keys.count(b"quantity"))


@functools.cache
def _written_orders(kind: str, series: int) -> tuple[list[bytes], ...]:
    case = Case("", "")
    samples: dict[str, Record] = {
        "result": Result(case, (), "ok", series=(Series("", "", ()),) * series),
        "samples": Samples("", "", (), ()),
        "remark": Remark(0.0, "lost", "", "", ""),
        "end": End(0, ""),
    }
    today = _KEY.findall(encode(samples[kind]).translate(None, _OF_NUMBERS))
    return today, *([key for key in today if key not in later] for later in ((b"checks",), (b"checks", b"clock_hz")))


def _decode_any(line: bytes) -> Record:
    """Return the record in a line, whatever the order of its keys. Raises Malformed if it is not valid."""
    document = _parse(line)
    kind = document.pop("kind", None)
    if not isinstance(kind, str) or kind not in _ADAPTERS:
        raise Malformed(f"unknown kind of record {kind!r}")
    if kind == "manifest":
        _check_schema(document.get("schema"))
    opening = _OPENINGS[kind]
    body = b"{" + line[len(opening) :] if line.startswith(opening) else json.dumps(document).encode()
    try:
        return _ADAPTERS[kind].validate_json(body)
    except ValidationError as error:
        raise Malformed(_first_problem(error)) from error


def _parse(line: bytes) -> dict[str, Any]:
    """Return the JSON object in a line as a dictionary."""
    try:
        document = json.loads(line.decode(), object_pairs_hook=_checked_object)
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error.msg} at column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise Malformed("not UTF-8 text") from error
    except RecursionError as error:
        raise Malformed("nested too deeply") from error
    except Malformed:
        raise
    except ValueError as error:  # Python limits the number of digits of an integer
        raise Malformed("a number has too many digits") from error
    if not isinstance(document, dict):
        raise Malformed("not a JSON object")
    return document


def _checked_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > limits.FIELDS:
        raise Malformed(f"an object has more than {limits.FIELDS} keys")
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice, _ = collections.Counter(name for name, _ in pairs).most_common(1)[0]
        raise Malformed(f"the key {twice!r} occurs twice in one object")
    return fields


def _check_schema(declared: object) -> None:
    """Raise Malformed unless `declared` is the name of the schema that this gpubench reads (SCHEMA)."""
    if declared == SCHEMA:
        return
    family, _, version = str(declared).partition("/")
    if family == SCHEMA.partition("/")[0] and version.isdecimal() and version != "0":
        raise Malformed(f"schema {declared}: a newer gpubench is needed (this one reads {SCHEMA})")
    raise Malformed(f"unknown schema {declared!r}")


def _first_problem(error: ValidationError) -> str:
    """Return the first problem of a validation as a text with its place, such as `series.0.rank: …`."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    problem = _LONG_NUMBER.sub(lambda number: f"{float(number[0]):g}", first["msg"])
    return f"{where}: {problem}" if where else problem


def _check_rules(record: Record) -> None:
    """Raise Malformed if the record breaks a rule that the types of its fields cannot express."""
    if isinstance(record, Samples):
        for name, column in record.columns:
            if len(column) != len(record.at):
                raise Malformed(f"column {name!r} has {len(column)} values at {len(record.at)} times")
    elif isinstance(record, Result):
        _check_result(record)
    elif isinstance(record, Manifest):
        _check_started(record.started)


def _check_result(result: Result) -> None:
    """Raise Malformed if a window ends before it begins, an ok result has no device, or a series breaks a rule."""
    begin, end = result.window
    if end < begin:
        raise Malformed(f"window: it ends at {end:g} s, before it begins at {begin:g} s")
    if result.status == "ok" and not result.devices:
        raise Malformed("devices: a result that is ok names the devices that were measured")
    for series in result.series:
        _check_series(series)


def _check_series(series: Series) -> None:
    """Raise Malformed if a series has moments and values of different number, or values or work out of range."""
    if series.at and len(series.at) != len(series.values):
        raise Malformed(f"series {series.label!r} has {len(series.values)} values at {len(series.at)} times")
    if series.quantity == "value":
        least = min(map(abs, filter(None, series.values)), default=limits.LEAST)
        if least < limits.LEAST:
            raise Malformed(f"series {series.label!r}: {least:g} is smaller than {limits.LEAST:g}, and not 0")
        return
    for seconds in (min(series.values, default=1.0), max(series.values, default=1.0)):
        if not limits.LEAST_SECONDS <= seconds <= limits.MOST_SECONDS:
            bounds = f"from {limits.LEAST_SECONDS:g} to {limits.MOST_SECONDS:g} s"
            raise Malformed(f"series {series.label!r}: a timed call takes {bounds}, not {seconds:g} s")
    counted = "items" if series.quantity == "item" else series.quantity
    if getattr(series.work, counted) < limits.LEAST_WORK:
        raise Malformed(f"series {series.label!r} is judged by {series.quantity!r}, and its work.{counted} is 0")


def _check_started(started: str) -> None:
    """Raise Malformed unless the start is an ISO 8601 time of the years 1970 to 9998, or empty as from another tool."""
    try:
        year = datetime.fromisoformat(started).year if started else FIRST_YEAR
    except ValueError as error:
        raise Malformed(f"started: {started!r} is not a time (ISO 8601)") from error
    if not FIRST_YEAR <= year <= LAST_YEAR:
        raise Malformed(f"started: the year {year} is not from {FIRST_YEAR} to {LAST_YEAR}")


def check_events(samples: Samples, events: Collection[str]) -> None:
    """Raise Malformed if a column of an event counter has a value that is no mask of 63 bits.

    `events` has the names of the event counters."""
    for name, column in samples.columns if events else ():
        if name in events:
            values = np.asarray(column)
            wrong = values[(values < 0) | (values >= limits.MOST_BITS) | (values % 1 > 0)]
            if len(wrong):
                raise Malformed(f"column {name!r}: {wrong[0]:g} is not a mask of bits")
