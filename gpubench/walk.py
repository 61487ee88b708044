"""A value with every text in it changed: what makes texts safe to show, and safe to share, walks a run alike."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Hashable
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast

Value = TypeVar("Value")
Change = Callable[[str], str]


def with_texts(value: Value, change: Change) -> Value:
    """The same value with `change` applied to every string in it: of tuples, and of the fields of dataclasses.

    What holds no text that changes is the same object. Each text is changed once, however often it occurs.
    """
    return _walked(value, cache(change))  # type: ignore[no-any-return]


def _walked(value: Any, change: Change) -> Any:
    if isinstance(value, str):
        return value if isinstance(value, Enum) else change(value)
    if isinstance(value, tuple):
        return _tuple(value, change)
    names = _names(cast(Hashable, type(value)))
    return _fields(value, names, change) if names else value


def _tuple(value: tuple[Any, ...], change: Change) -> tuple[Any, ...]:
    if not value or value[0] is None or isinstance(value[0], float | int):  # a column of samples: long, and no text
        return value
    changed = tuple([_walked(item, change) for item in value])
    return changed if any(new is not old for new, old in zip(changed, value, strict=True)) else value


def _fields(value: Any, names: tuple[str, ...], change: Change) -> Any:
    changed = {}
    for name in names:
        old = getattr(value, name)
        new = _walked(old, change)
        if new is not old:
            changed[name] = new
    return dataclasses.replace(value, **changed) if changed else value


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass that can hold a text; none of what is no dataclass."""
    if not dataclasses.is_dataclass(kind):
        return ()
    names = tuple(field.name for field in dataclasses.fields(kind))
    try:
        hints = typing.get_type_hints(kind)
    except NameError:  # a name that is only there for the type checker
        return names
    return tuple(name for name in names if _can_hold_text(hints[name]))


@cache
def _can_hold_text(hint: Any) -> bool:
    """Whether a value of this type can hold a text; what is not known can."""
    if hint in (int, float, bool, type(None), Ellipsis) or (isinstance(hint, type) and issubclass(hint, Enum)):
        return False
    if typing.get_origin(hint) in (tuple, typing.Union, types.UnionType):
        return any(map(_can_hold_text, typing.get_args(hint)))
    if dataclasses.is_dataclass(hint):
        return bool(_names(cast(Hashable, hint)))
    return True
