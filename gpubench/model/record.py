"""One record of a run file, to and from its line: JSON, checked strictly against the model.

Nothing is read that is not exactly the model; `schema` says what that is to other programs.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from gpubench.model import SCHEMA, STRICT, Case, Manifest, Remark, Result, Samples, Series
from gpubench.model.packed import Packed

SAMPLES_LIMIT_BYTES = 2**20  # longer samples are split: a killed run loses at most one such chunk
_NUMBER_BYTES = 25  # of the longest float64 in JSON, with its comma
RECORD_LIMIT_BYTES = 16 * 2**20  # a longer line is not read: nothing that gpubench measures needs it


@dataclass(frozen=True, slots=True)
class End:
    """The last record of a complete file: how many records precede it, and the SHA-256 of their lines."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    records: int
    sha256: str


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
_KEY = re.compile(rb'"(\w+)"\s*:')


class Malformed(ValueError):  # noqa: N818 - the line is malformed
    """What is wrong with one line, in words; the reader adds the file and the line."""


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one record: a union of its kinds, told apart by `kind`."""
    _, document = TypeAdapter.json_schemas([(kind, "validation", adapter) for kind, adapter in _ADAPTERS.items()])
    definitions = document["$defs"]
    for kind, record_class in _CLASSES.items():
        record = definitions[record_class.__name__]
        record["properties"] = {"kind": {"const": kind, "type": "string"}, **record["properties"]}
        record["required"] = ["kind", *record["required"]]
    references = {kind: f"#/$defs/{record_class.__name__}" for kind, record_class in _CLASSES.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A record of a {SCHEMA} file",
        "oneOf": [{"$ref": reference} for reference in references.values()],
        "discriminator": {"propertyName": "kind", "mapping": references},
        "$defs": definitions,
    }


def encode(record: Record, errors: str = "replace") -> bytes:
    """The record's line. Half a surrogate pair, left of a file name that is no UTF-8, becomes `?`."""
    document = {"kind": KINDS[type(record)], **_fields(record)}
    if isinstance(record, Samples):  # in a fifth of the time: a day has millions of numbers
        return to_json(document, inf_nan_mode="constants", fallback=_fields) + b"\n"
    text = json.dumps(document, default=_fields, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors=errors) + b"\n"


def _fields(value: Any) -> Any:
    if isinstance(value, Packed):
        return list(value)
    return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}


def chunks(samples: Samples) -> Iterator[tuple[Samples, bytes]]:
    """The samples with their line, split in time until no line is longer than SAMPLES_LIMIT_BYTES."""
    count = len(samples.at)
    surely = SAMPLES_LIMIT_BYTES // (_NUMBER_BYTES * (len(samples.columns) + 1))
    if count > 4 * surely > 0:  # a day is never one line, not even to see how long it would be
        for start in range(0, count, surely):
            yield from chunks(_part(samples, slice(start, start + surely)))
        return
    line = encode(samples)
    if len(line) <= SAMPLES_LIMIT_BYTES or count < 2:
        yield samples, line
        return
    for part in (slice(count // 2), slice(count // 2, count)):
        yield from chunks(_part(samples, part))


def _part(samples: Samples, part: slice) -> Samples:
    columns, at = tuple((name, values[part]) for name, values in samples.columns), samples.at[part]
    return dataclasses.replace(samples, at=at, columns=columns, busy_s=samples.busy_s * len(at) / len(samples.at))


def is_surely_valid(record: Record, line: bytes) -> bool:
    """Whether its line needs no reading to know that it can be read: of samples that are packed, all finite."""
    if not isinstance(record, Samples) or b"Infinity" in line:
        return False
    columns = [values for _, values in record.columns]
    packed = all(isinstance(each, Packed) for each in (record.at, *columns))
    return packed and all(len(each) == len(record.at) for each in columns) and not np.isnan(record.at).any()


def decode(line: bytes) -> Record:
    """The record in a line; raises Malformed, which says where and how it is not one."""
    if len(line) > RECORD_LIMIT_BYTES:
        raise Malformed(f"the record is longer than {RECORD_LIMIT_BYTES >> 20} MiB")
    record = _plain(line) or _strict(line)
    _check_lengths(record)
    return _packed(record) if isinstance(record, Samples) else record


def _packed(samples: Samples) -> Samples:
    """The samples in eight bytes a number, as all that is read is held."""
    columns = tuple((name, Packed[float | None](values)) for name, values in samples.columns)
    return dataclasses.replace(samples, at=Packed[float](samples.at), columns=columns)


def join(chunk: Samples, into: dict[tuple[object, ...], Samples]) -> None:
    """Put a chunk that was read behind those with the same counters of its device: in a run they are one."""
    key = (chunk.collector, chunk.device, tuple(name for name, _ in chunk.columns))
    first = into.setdefault(key, chunk)
    if first is not chunk:
        busy_s, late_s = first.busy_s + chunk.busy_s, max(first.late_s, chunk.late_s)
        into[key] = dataclasses.replace(first, busy_s=busy_s, late_s=late_s)
        columns = ((before, after) for (_, before), (_, after) in zip(first.columns, chunk.columns, strict=True))
        for before, after in ((first.at, chunk.at), *columns):
            cast(Packed[Any], before).extended(cast(Packed[Any], after))


def _plain(line: bytes) -> Record | None:
    """The record in a line as gpubench writes it, in a third of the time of `_strict`; None where that has to look.

    With no backslash in the line a quoted word before a colon is a key, so that keys in the order in which
    gpubench writes them, each once, are seen without parsing; what they hold is validated as strictly as ever.
    """
    kind = _KIND_OF.get(line[:_OPENING_BYTES].partition(b",")[0])
    if kind is None or b"\\" in line:
        return None
    keys = _KEY.findall(line)
    if keys not in _orders(kind, keys.count(b"quantity")):
        return None
    try:
        return _ADAPTERS[kind].validate_json(b"{" + line[len(_OPENINGS[kind]) :])
    except ValidationError:  # `_strict` finds the words
        return None


@functools.cache
def _orders(kind: str, series: int) -> tuple[list[bytes], list[bytes]]:
    """Return the keys of a line in the order written, for a result with this number of series: today's, and older.

    Lines that were written before there was a `clock_hz` have all the other keys.
    """
    case = Case("", "")
    samples: dict[str, Record] = {
        "result": Result(case, (), "ok", series=(Series("", "", ()),) * series),
        "samples": Samples("", "", (), ()),
        "remark": Remark(0.0, "lost", "", "", ""),
        "end": End(0, ""),
    }
    today = _KEY.findall(encode(samples[kind]))
    return today, [key for key in today if key != b"clock_hz"]


def _strict(line: bytes) -> Record:
    document = _parse(line)
    kind = document.pop("kind", None)
    if not isinstance(kind, str) or kind not in _ADAPTERS:
        raise Malformed(f"there is no kind of record {kind!r}")
    if kind == "manifest":
        _check_schema(document.get("schema"))
    opening = _OPENINGS[kind]
    body = b"{" + line[len(opening) :] if line.startswith(opening) else json.dumps(document).encode()
    try:
        return _ADAPTERS[kind].validate_json(body)
    except ValidationError as error:
        raise Malformed(_first_problem(error)) from error


def _parse(line: bytes) -> dict[str, Any]:
    """The line as JSON, refusing what pydantic lets pass: a key that stands twice in an object."""
    try:
        document = json.loads(line.decode(), object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error.msg} at column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise Malformed("not UTF-8 text") from error
    except RecursionError as error:
        raise Malformed("nested too deeply") from error
    except Malformed:
        raise
    except ValueError as error:  # Python's own limit on the digits of an integer
        raise Malformed("a number has too many digits") from error
    if not isinstance(document, dict):
        raise Malformed("not a JSON object")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = collections.Counter(name for name, _ in pairs).most_common(1)[0]
        raise Malformed(f"the key {twice!r} stands twice in one object")
    return found


def _check_schema(found: object) -> None:
    if found == SCHEMA:
        return
    family, _, version = str(found).partition("/")
    if family == SCHEMA.partition("/")[0] and version.isdecimal() and version != "0":
        raise Malformed(f"schema {found}: a newer gpubench is needed (this one reads {SCHEMA})")
    raise Malformed(f"there is no schema {found!r}")


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def _check_lengths(record: Record) -> None:
    if isinstance(record, Samples):
        for name, column in record.columns:
            if len(column) != len(record.at):
                raise Malformed(f"column {name!r} has {len(column)} values at {len(record.at)} times")
    elif isinstance(record, Result):
        for series in record.series:
            if series.at and len(series.at) != len(series.values):
                raise Malformed(f"series {series.label!r} has {len(series.values)} values at {len(series.at)} times")
