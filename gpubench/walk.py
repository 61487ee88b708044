"""A value with every text in it changed: what makes texts safe to show, and safe to share, walks a run alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast

Value = TypeVar("Value")


def with_texts(value: Value, change: Callable[[str], str]) -> Value:
    """The same value with `change` applied to every string in it: of tuples, and of the fields of dataclasses.

    What holds no text that changes is the same object. Each text is changed once, however often it occurs.
    """
    return _walked(value, cache(change))  # type: ignore[no-any-return]


def _walked(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return value if isinstance(value, Enum) else change(value)
    if isinstance(value, tuple):
        return _tuple(value, change)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value, change)
    return value


def _tuple(value: tuple[Any, ...], change: Callable[[str], str]) -> tuple[Any, ...]:
    if not value or value[0] is None or isinstance(value[0], float | int):  # a column of samples: long, and no text
        return value
    changed = tuple(_walked(item, change) for item in value)
    return changed if any(new is not old for new, old in zip(changed, value, strict=True)) else value


def _fields(value: Any, change: Callable[[str], str]) -> Any:
    found = {name: getattr(value, name) for name in _names(cast(Hashable, type(value)))}
    changed = {name: new for name, old in found.items() if (new := _walked(old, change)) is not old}
    return dataclasses.replace(value, **changed) if changed else value


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass."""
    return tuple(field.name for field in dataclasses.fields(kind))
