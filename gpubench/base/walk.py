"""A value with every text in it changed: what makes texts safe to show, and safe to share, walks a run alike."""

from __future__ import annotations

import dataclasses
import operator
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
    return _Walk(cache(change)).changed(value)  # type: ignore[no-any-return]


class _Walk:
    """One way through a value. `same` are the texts of dataclasses that hold nothing else and did not change."""

    def __init__(self, change: Change) -> None:
        self.change = change
        self.same: set[tuple[str, ...]] = set()

    def changed(self, value: Any) -> Any:
        if isinstance(value, str):
            if isinstance(value, Enum):
                return value
            changed = self.change(value)
            return value if changed == value else changed  # equal texts may be several objects: keep one's own
        if isinstance(value, tuple):
            return self._tuple(value)
        names, texts = _plan(cast(Hashable, type(value)))
        if texts is None:
            return self._fields(value, names) if names else value
        found = texts(value)
        if found in self.same:
            return value
        new = self._fields(value, names)
        if new is value:
            self.same.add(found)
        return new

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not value or value[0] is None or isinstance(value[0], float | int):  # a column of samples: no text
            return value
        changed = tuple([self.changed(item) for item in value])
        return changed if any(map(operator.is_not, changed, value)) else value

    def _fields(self, value: Any, names: tuple[str, ...]) -> Any:
        changed = {}
        for name in names:
            old = getattr(value, name)
            new = self.changed(old)
            if new is not old:
                changed[name] = new
        return dataclasses.replace(value, **changed) if changed else value


@cache
def _plan(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[str, ...]] | None]:
    """The fields of a dataclass that can hold a text, and where all of these are texts, what gives them at once."""
    names, hints = _names(kind), _hints(kind)
    if len(names) < 2 or not all(_is_text(hints.get(name)) for name in names):
        return names, None
    return names, operator.attrgetter(*names)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields; none where one is only there for the type checker."""
    try:
        return typing.get_type_hints(kind)
    except NameError:
        return {}


def _is_text(hint: Any) -> bool:
    """Whether values of this type are texts: `str`, or one of some literal texts."""
    return hint is str or typing.get_origin(hint) is typing.Literal


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass that can hold a text; none of what is no dataclass."""
    if not dataclasses.is_dataclass(kind):
        return ()
    hints = _hints(cast(Hashable, kind))
    return tuple(field.name for field in dataclasses.fields(kind) if _can_hold_text(hints.get(field.name)))


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
