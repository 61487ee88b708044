"""Copy a value with all its texts changed; cleaning a run and sharing it both use this."""

from __future__ import annotations

import dataclasses
import operator
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, TypeVar, cast

Value = TypeVar("Value")
Change = Callable[[str], str]
Rule = Callable[[Any], Any]


class WordMark(Enum):
    """Marks the type of a text that code chose, such as the name of a case or a unit: `Annotated[str, WORD]`.

    Such a text is not a sentence, a path, or the name of a person or a machine."""

    WORD = "word"


WORD: Final = WordMark.WORD


def with_texts(
    value: Value,
    change: Change,
    change_word: Change | None = None,
    rules: Mapping[str, Callable[[Any], Any]] = types.MappingProxyType({}),
) -> Value:
    """Return a copy of `value` with `change` applied once to every distinct text; an unchanged part is the same object.

    If `change_word` is given, it is applied instead to texts marked by WORD, and texts of a `Literal` type stay.
    `rules` are applied instead to the whole values of the fields that they name, such as `Device.uuid`."""
    functions = _Functions(cache(change), cache(change_word) if change_word else None)
    functions.rules = {field: cache(rule) for field, rule in rules.items()}
    changed: Value = functions.changed(value)
    functions.by_class.clear()  # their references to each other would keep every text in memory
    return changed


_NUMBERS = (int, float, bool, type(None))


class _Functions:
    """The functions that change the texts in values, one for each type; they return the same object if none changed."""

    def __init__(self, change: Change, change_word: Change | None) -> None:
        self.change = change
        self.change_word = change_word
        self.rules: dict[str, Rule] = {}
        self.by_class: dict[type, Rule] = {}

    def changed(self, value: Any) -> Any:
        """Return a value of unknown type with the texts in it changed."""
        if isinstance(value, str):
            return value if isinstance(value, Enum) else self.change(value)
        if isinstance(value, tuple):
            changed = tuple(map(self.changed, value))
            return value if changed == value else changed
        return self._of(type(value))(value)

    def _of(self, kind: Any) -> Rule:
        if kind not in self.by_class:
            self.by_class[kind] = self._for_class(kind)
        return self.by_class[kind]

    def _for_type(self, hint: Any) -> Rule:
        """Return the function for values with the type annotation `hint`, which is None if it is unknown."""
        bare = _without_annotations(hint)
        origin, parts = typing.get_origin(bare), typing.get_args(bare)
        if bare in _NUMBERS or (isinstance(bare, type) and issubclass(bare, Enum)):
            return _same
        if _is_text(hint):
            is_word = typing.get_origin(hint) is Annotated and WORD in hint.__metadata__
            changed_word = _same if origin is typing.Literal else self.change_word if is_word else None
            return (self.change_word and changed_word) or self.change
        if origin is tuple and parts:
            return self._for_tuple(parts)
        without_text = origin in (typing.Union, types.UnionType) and all(
            self._for_type(part) is _same for part in parts
        )
        return _same if without_text or (dataclasses.is_dataclass(bare) and self._of(bare) is _same) else self.changed

    def _for_tuple(self, items: tuple[Any, ...]) -> Rule:
        """Return the function for tuples with these type annotations of their items."""
        count = 0 if items[1:] == (Ellipsis,) else len(items)
        rules = tuple(map(self._for_type, items[: count or 1]))
        if all(rule is _same for rule in rules):
            return _same

        def change_items(value: Any) -> Any:
            if not isinstance(value, tuple) or len(value) != (count or len(value)):
                return self.changed(value)
            changed = tuple(map(operator.call, rules, value) if count else map(rules[0], value))
            return value if changed == value else changed  # equal texts may be several objects

        return change_items

    def _for_class(self, kind: Any) -> Rule:
        """Return the function for values of a class: a dataclass, or any other class, whose values stay as they are."""
        names = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
        hints = _field_types(cast(Hashable, kind)) if names else {}
        pairs = ((name, self.rules.get(f"{kind.__name__}.{name}") or self._for_type(hints.get(name))) for name in names)
        rules = [(name, rule) for name, rule in pairs if rule is not _same]

        def change_fields(value: Any) -> Any:
            changed = {}
            for name, rule in rules:
                old = getattr(value, name)
                if (new := rule(old)) is not old and new != old:
                    changed[name] = new
            return dataclasses.replace(value, **changed) if changed else value

        if len(rules) < 2 or not all(_is_text(hints.get(name)) for name, _ in rules):
            return change_fields if rules else _same
        texts, unchanged = operator.attrgetter(*(name for name, _ in rules)), set[tuple[str, ...]]()

        def change_texts(value: Any) -> Any:
            key = texts(value)
            if key in unchanged:
                return value
            if (new := change_fields(value)) is value:
                unchanged.add(key)
            return new

        return change_texts


def _same(value: Any) -> Any:
    return value


def _without_annotations(hint: Any) -> Any:
    """Return the type inside an `Annotated` type, or any other type unchanged."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    """Return the type annotation of each field of the dataclass `kind`."""
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except NameError:
        return {}


def _is_text(hint: Any) -> bool:
    """Return whether values of this type are texts: `str`, or one of some literal texts."""
    return _without_annotations(hint) is str or typing.get_origin(hint) is typing.Literal
