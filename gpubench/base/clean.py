"""The one place where text from a run is made safe to show: no control characters, one line each."""

from __future__ import annotations

import re
import unicodedata
from typing import TypeVar

from gpubench.base.walk import with_texts

Value = TypeVar("Value")
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


def tidy(value: Value) -> Value:
    """Return the same value, a run for one, with every text in it cleaned: what every report starts from."""
    return with_texts(value, clean)
