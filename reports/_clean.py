"""The one place where text from a run is made safe to show: no control characters, one line each."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from typing import Any, TypeVar

from gpubench.api import Run

_Value = TypeVar("_Value")

# ECMA-48: a control sequence (CSI … final), a string (OSC, DCS, SOS, PM, APC … terminator), any other escape.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|$)|\x1b[ -/]*[0-~]", re.DOTALL
)
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})  # control, format (bidi), surrogate, private, unassigned
_BREAKS = frozenset("\t\n\v\f\r\x85\u2028\u2029")


def clean(text: str) -> str:
    """The text on one line, with no escape sequence, control, bidi or surrogate character."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, _ESCAPES.sub("", text)))


def _visible(character: str) -> str:
    if character in _BREAKS:
        return " "
    return "" if unicodedata.category(character) in _UNSEEN else character


def tidy(run: Run) -> Run:
    """The same run with every string in it cleaned: what every report starts from."""
    return _tidy(run)


def _tidy(value: _Value) -> _Value:
    found: Any = value
    if isinstance(value, str):
        found = clean(value)
    elif isinstance(value, tuple) and value and not _is_numbers(value):
        found = tuple(map(_tidy, value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        found = dataclasses.replace(value, **{name: _tidy(getattr(value, name)) for name in names})
    return found  # type: ignore[no-any-return]


def _is_numbers(value: tuple[Any, ...]) -> bool:
    """Whether this is a column of samples: long, and with no text in it, so not worth a walk."""
    return value[0] is None or isinstance(value[0], float | int)
