"""Copy a value with all its texts changed; cleaning a run and sharing it both use this."""

from __future__ import annotations

import dataclasses
import operator
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar, cast

Value = TypeVar("Value")
Change = Callable[[str], str]


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
    changer = _TextChanger(cache(change), cache(change_word) if change_word else None)
    changer.rules = {field: cache(rule) for field, rule in rules.items()}
    return changer.changed(value)  # type: ignore[no-any-return]


class _Shape(NamedTuple):
    """The facts that a type gives about a value: whether it is a marked or literal text, and the shapes of its items.

    `items` of a tuple has one shape that holds for all items, one shape for each item, or none if they are unknown."""

    is_word: bool = False
    is_literal: bool = False
    items: tuple[_Shape, ...] = ()
    is_flat: bool = False


_ANY = _Shape()
_NUMBERS = (int, float, bool, type(None))


class _TextChanger:
    """Changes the texts in one value.

    `unchanged` holds the texts of dataclasses that hold nothing but texts and did not change, so that equal ones are
    skipped; `unchanged_tuples` holds flat tuples, each with the `id` of its shape."""

    def __init__(self, change: Change, change_word: Change | None) -> None:
        self.change = change
        self.change_word = change_word
        self.rules: dict[str, Callable[[Any], Any]] = {}
        self.unchanged: set[tuple[Any, ...]] = set()
        self.unchanged_tuples: set[tuple[int, tuple[Any, ...]]] = set()

    def changed(self, value: Any, shape: _Shape = _ANY) -> Any:
        """Return `value` with the texts in it changed, or the same object if none changed."""
        if isinstance(value, str):
            return value if isinstance(value, Enum) else self._change_text(value, shape)
        if isinstance(value, tuple):
            return self._change_flat(value, shape) if shape.is_flat else self._change_tuple(value, shape.items)
        fields, texts = _text_fields(cast(Hashable, type(value)))
        if texts is None:
            return self._change_fields(value, fields) if fields else value
        key = (type(value), *texts(value))
        if key in self.unchanged:
            return value
        new = self._change_fields(value, fields)
        if new is value:
            self.unchanged.add(key)
        return new

    def _change_text(self, value: str, shape: _Shape) -> str:
        """Return `value` changed by the function for its type, or the same object if the text stays equal."""
        if self.change_word and shape.is_literal:
            return value
        changed = self.change_word(value) if self.change_word and shape.is_word else self.change(value)
        return (
            value if changed == value else changed
        )  # keep the original object, because equal texts may be several objects

    def _change_flat(self, value: tuple[Any, ...], shape: _Shape) -> tuple[Any, ...]:
        """Return a flat tuple with the texts in it changed, or the same object if none changed; `shape` is its own."""
        key = (id(shape), value)  # shapes live as long as the process
        if key in self.unchanged_tuples:
            return value
        changed = self._change_tuple(value, shape.items)
        if changed is value:
            self.unchanged_tuples.add(key)
        return changed

    def _change_tuple(self, value: tuple[Any, ...], shapes: tuple[_Shape, ...]) -> tuple[Any, ...]:
        if not value or value[0] is None or isinstance(value[0], float | int):  # a column of samples has no text
            return value
        if len(shapes) == len(value):
            changed = tuple(map(self.changed, value, shapes))
        else:
            shape = shapes[0] if len(shapes) == 1 else _ANY
            changed = tuple([self.changed(item, shape) for item in value])
        return changed if any(map(operator.is_not, changed, value)) else value

    def _change_fields(self, value: Any, fields: tuple[tuple[str, str, _Shape], ...]) -> Any:
        """Return the dataclass `value` with its texts changed, or the same object if none changed."""
        changed = {}
        for name, place, shape in fields:
            old, rule = getattr(value, name), self.rules.get(place)
            new = rule(old) if rule else self.changed(old, shape)
            if new is not old and (not rule or new != old):
                changed[name] = new
        return dataclasses.replace(value, **changed) if changed else value


@cache
def _text_fields(kind: Any) -> tuple[tuple[tuple[str, str, _Shape], ...], Callable[[Any], tuple[str, ...]] | None]:
    """Return the name, place and shape of each field of `kind` that can hold a text, and a getter of their values."""
    names, hints = _text_field_names(kind), _field_types(kind)
    fields = tuple((name, f"{kind.__name__}.{name}", _shape(hints.get(name))) for name in names)
    if len(names) < 2 or not all(_is_text(hints.get(name)) for name in names):
        return fields, None
    return fields, operator.attrgetter(*names)


def _shape(hint: Any) -> _Shape:
    """Return the shape of the type annotation `hint`."""
    # The shape says whether the value is a text marked by WORD, whether its type is a Literal, and the shapes of the
    # items of a tuple. `hint` is None for an unknown type, which is neither and has no items.
    bare = _without_annotations(hint)
    items: tuple[Any, ...] = ()
    if typing.get_origin(bare) is tuple:
        items = typing.get_args(bare)
        items = items[:1] if items[1:] == (Ellipsis,) else items
    is_word = typing.get_origin(hint) is Annotated and WORD in hint.__metadata__
    shapes = tuple(map(_shape, items))
    is_flat = bool(items) and all(
        shape.is_flat or _may_be_text(item) for shape, item in zip(shapes, items, strict=True)
    )
    return _Shape(is_word, typing.get_origin(bare) is typing.Literal, shapes, is_flat)


def _may_be_text(hint: Any) -> bool:
    """Return whether values of the type `hint` are texts, or numbers or None in their place."""
    choices = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return any(map(_is_text, choices)) and all(
        _is_text(one) or _without_annotations(one) in _NUMBERS for one in choices
    )


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


@cache
def _text_field_names(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass that can hold a text; empty for any other type."""
    if not dataclasses.is_dataclass(kind):
        return ()
    hints = _field_types(cast(Hashable, kind))
    return tuple(field.name for field in dataclasses.fields(kind) if _can_hold_text(hints.get(field.name)))


def _can_hold_text(hint: Any) -> bool:
    """Return whether a value of the type `hint` can hold a text, itself or in its parts."""
    hint = _without_annotations(hint)
    if hint in (*_NUMBERS, Ellipsis) or (isinstance(hint, type) and issubclass(hint, Enum)):
        return False
    if typing.get_origin(hint) in (tuple, typing.Union, types.UnionType):
        return any(map(_can_hold_text, typing.get_args(hint)))
    if dataclasses.is_dataclass(hint):
        return bool(_text_field_names(cast(Hashable, hint)))
    return True
