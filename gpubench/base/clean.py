"""Make text from outside safe to show: no control characters, a single line, a limited length.

Shown text also cannot start a command of a CI system: the standard streams pass every line through `without_commands`.

Write text so that it appears unchanged in Markdown on GitHub and GitLab: no markup, link, reference or mention.

GitHub and GitLab search the rendered text for references, so that a backslash or an entity does not disable them. They
do not search code. Therefore a word that could be more than a plain word is shown as code; all other words stay
unchanged."""

import functools
import re
import unicodedata
from typing import TypeVar

from gpubench.base.walk import with_texts

Value = TypeVar("Value")
MESSAGE_LETTERS = 500  # the longest message, which fits a line of a log and a cell of a table
# ECMA-48: a control sequence (CSI … final), a string (OSC, DCS, SOS, PM, APC … terminator), any other escape.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|$)|\x1b[ -/]*[0-~]", re.DOTALL
)
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})  # control, format (bidi), surrogate, private, unassigned
_BREAKS = frozenset("\t\n\v\f\r\x85\u2028\u2029")
# Letters and marks that no font draws (Unicode, Default_Ignorable_Code_Point), outside the categories above. GitHub's
# runner ignores them when it compares texts, so a command that contains one of them is still a command.
_IGNORABLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]+")

# Text in the output of a step that a CI system executes. `::name::` at the start of a line, also after blanks, is a
# workflow command of GitHub; `##[name]` anywhere in a line is its older form (actions/runner,
# src/Runner.Common/ActionCommand.cs). `##vso[…]` and `##teamcity[…]` anywhere are commands of Azure and TeamCity.
# A section of GitLab begins with an escape sequence, which `clean` removes.
_COMMANDS = re.compile(r"(?:^|(?<=\r))[^\S\r\n]*(?=::)|#(?=#\w*\[)", re.MULTILINE)


def clean(text: str) -> str:
    """Return `text` on one line, without escape sequences or control, bidi, invisible and surrogate characters.

    Each line break and each tab becomes a blank."""
    if text.isprintable() and (text.isascii() or not _IGNORABLE.search(text)):
        return text
    return "".join(map(_visible, _IGNORABLE.sub("", _ESCAPES.sub("", text))))


def _visible(character: str) -> str:
    if character in _BREAKS:
        return " "
    return "" if unicodedata.category(character) in _UNSEEN else character


def without_commands(text: str, is_json: bool = False) -> str:
    r"""Return `text` with every mark disabled by which a CI system would execute a line of it as a command.

    A backslash is put into the mark: `\::` at the start of a line, `#\#[` anywhere. In a JSON document the first # is
    escaped instead, as `\u0023#[`, so that a program reads the same text."""
    if "::" not in text and "##" not in text:
        return text
    return _COMMANDS.sub(r"\\u0023" if is_json else r"\g<0>\\", text)


def one_line(text: str) -> str:
    """Return `text` as a clean single line of at most MESSAGE_LETTERS (500) characters.

    A longer text has … in place of its middle. The beginning says what happened, and the end what to do. The file that
    the message names has the whole text."""
    if len(text) > 8 * MESSAGE_LETTERS:  # shorten it before cleaning, which takes time for each letter
        text = f"{text[: 4 * MESSAGE_LETTERS]}…{text[-4 * MESSAGE_LETTERS :]}"
    line = clean(text)
    if len(line) <= MESSAGE_LETTERS:
        return line
    tail = MESSAGE_LETTERS // 2
    return f"{line[: MESSAGE_LETTERS - tail - 1]}…{line[-tail:]}"


def tidy(value: Value) -> Value:
    """Return the same value, for example a run, with all its texts cleaned; every report starts from this."""
    return with_texts(value, clean)


# Characters that make a word more than plain text. They belong to Markdown, or begin a reference of GitHub or GitLab
# (docs.gitlab.com, "GitLab-specific references"): `@name`, `#1`, `!1`, `$1`, `&1`, `^alert`, `*iteration`, `~label`.
_LIVE = re.compile(
    r"[`*_~^$#@!&<>\[\]{}|\\]"
    r"|://|www\."  # links without markup
    r"|:(?!\d{1,2}\b)[\w+-]"  # emoji, none of which is a number of two digits; we may write the second colon
    r"|%[\w\"]"  # milestones of GitLab
    r"|^/"  # quick actions of GitLab, at the start of a line
    r"|\b[0-9a-f]{7,}\b"  # commits
    r"|\b[a-z]+-\d|\bGHSA-",  # GH-1, CVE-2026-1, issues of other trackers, security advisories
    re.IGNORECASE,
)
_LINE_START = re.compile(r"[-+=:]+|\d+[.)]")  # a list, a rule, an underlined heading, the second line of a table
_SPLITTING = {"`": "&#96;", "|": "&#124;"}  # a backtick ends a code span, and a bar ends a cell even inside one


@functools.lru_cache(maxsize=256)  # most cells of a table occur again
def escape(text: str) -> str:
    """Return `text`, which is already clean, as Markdown that shows the same text.

    This also holds in a cell of a table and at the start of a line. Words are joined by single blanks, and each word
    that Markdown could interpret becomes code."""
    plain_words = text.split()
    escaped_words = [_escaped(word) if _LIVE.search(word) else word for word in plain_words]
    if plain_words and _LINE_START.fullmatch(plain_words[0]):
        escaped_words[0] = code(plain_words[0])
    return " ".join(escaped_words)


def _escaped(word: str) -> str:
    bare = word.rstrip(",;.:")  # the punctuation of the sentence stays outside the code
    return code(bare) + word[len(bare) :]


def code(text: str) -> str:
    """Return `text`, which is already clean, as Markdown code.

    Each backtick and bar becomes an entity outside the code, between two pieces of code."""
    pieces = re.split(r"([`|])", text)
    return "".join(_SPLITTING.get(piece) or (f"`{piece}`" if piece else "") for piece in pieces)
