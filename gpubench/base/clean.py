"""The one place where text from outside is made safe to show: no control characters, one line each, not too long.

What is shown starts no command of a CI system either: the standard streams take no line without `without_commands`.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TypeVar

from gpubench.base.walk import with_texts

Value = TypeVar("Value")
MESSAGE_LETTERS = 500  # of the longest message; a line of a log and a cell of a table take no more
# ECMA-48: a control sequence (CSI … final), a string (OSC, DCS, SOS, PM, APC … terminator), any other escape.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|$)|\x1b[ -/]*[0-~]", re.DOTALL
)
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})  # control, format (bidi), surrogate, private, unassigned
_BREAKS = frozenset("\t\n\v\f\r\x85\u2028\u2029")
# Letters and marks that no font draws (Unicode, Default_Ignorable_Code_Point), outside the categories above. The runner
# of GitHub compares texts without them, so that one of them inside a command would not keep it from being one.
_IGNORABLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]+")

# Text that a CI system obeys where it stands in the output of a step. `::name::` at the start of a line, behind blanks
# too, is a workflow command of GitHub; `##[name]` anywhere in a line is its older form (actions/runner,
# src/Runner.Common/ActionCommand.cs). `##vso[…]` and `##teamcity[…]` anywhere are those of Azure and TeamCity.
# A section of GitLab begins with an escape sequence, which `clean` removes.
_COMMANDS = re.compile(r"(?:^|(?<=\r))[^\S\r\n]*(?=::)|#(?=#\w*\[)", re.MULTILINE)


def clean(text: str) -> str:
    """Return the text on one line, with no escape sequence, control, bidi, invisible or surrogate character."""
    if text.isprintable() and (text.isascii() or not _IGNORABLE.search(text)):
        return text
    return "".join(map(_visible, _IGNORABLE.sub("", _ESCAPES.sub("", text))))


def _visible(character: str) -> str:
    if character in _BREAKS:
        return " "
    return "" if unicodedata.category(character) in _UNSEEN else character


def without_commands(text: str, is_json: bool = False) -> str:
    r"""Return the lines with no command of a CI system in them: a backslash stands inside its mark, `\::` or `#\#[`.

    In a JSON document the mark is written in another way, `\u0023#[`, and what a program reads stays the same.
    """
    if "::" not in text and "##" not in text:
        return text
    return _COMMANDS.sub(r"\\u0023" if is_json else r"\g<0>\\", text)


def one_line(text: str) -> str:
    """Return the text as a message: clean, and where it is longer than MESSAGE_LETTERS with … for its middle.

    The beginning says what happened, the end what to do. What is left out stands in the file that the message names.
    """
    if len(text) > 8 * MESSAGE_LETTERS:  # before it is cleaned, which takes time for each letter
        text = f"{text[: 4 * MESSAGE_LETTERS]}…{text[-4 * MESSAGE_LETTERS :]}"
    line = clean(text)
    if len(line) <= MESSAGE_LETTERS:
        return line
    tail = MESSAGE_LETTERS // 2
    return f"{line[: MESSAGE_LETTERS - tail - 1]}…{line[-tail:]}"


def tidy(value: Value) -> Value:
    """Return the same value, a run for one, with every text in it cleaned: what every report starts from."""
    return with_texts(value, clean)
