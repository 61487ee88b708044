"""Encode values as plain records: the one rule by which dataclasses become JSON, CSV and Markdown."""

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, cast

from gpubench.stats import Interval

_INTERVAL = "low median=centre high"


def record(value: Any, names: Mapping[str, str] | None = None) -> Any:
    """Return a value as JSON can express it: a dataclass as a dict of its fields, a tuple as a list.

    A class whose record differs from its fields says so in a text `RECORD`: its members in order, each the name of an
    attribute, `name=attribute` where the record has another name, or `*attribute` for the members of that attribute's
    record. An attribute may be a path (`line.label`). An interval becomes `low`, `median` and `high`; a number that is
    not finite becomes None. `names` gives other names to members, by the name of the field."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, tuple | list):
        return [record(item, names) for item in value]
    if isinstance(value, Mapping):
        return {str(name): record(item, names) for name, item in value.items()}
    if not is_dataclass(value):
        return value
    members: dict[str, Any] = {}
    for name, attribute, is_spread in _members(cast(Hashable, type(value))):
        item = record(attribute(value), names)
        members |= item if is_spread else {(names or {}).get(name, name): item}
    return members


@cache
def _members(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    return tuple(_parsed(_INTERVAL if kind is Interval else getattr(kind, "RECORD", None), kind))


def _parsed(text: str | None, kind: Any) -> Iterator[tuple[str, Any, bool]]:
    for member in [field.name for field in fields(kind)] if text is None else text.split():
        name, _, attribute = member.lstrip("*").partition("=")
        yield name, attrgetter(attribute or name), member.startswith("*")
