"""Text that shows as itself in Markdown, as GitHub and GitLab take it: no markup, no link, no reference, no mention.

GitHub and GitLab look for references in the text that Markdown has become, so that a backslash or an entity keeps none
of them from coming alive. Inside code they look for nothing. A word that could be more than a word is therefore shown
as code; all other words stay as they are.
"""

from __future__ import annotations

import re

# What makes a word more than a word. The characters are Markdown's own, or begin a reference of GitHub or GitLab
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
_SPLITTING = {"`": "&#96;", "|": "&#124;"}  # what ends a code span, and a cell even in one


def escape(text: str) -> str:
    """Return clean text that shows as itself, in a cell of a table and at the start of a line too."""
    words = text.split()
    shown = [code(word) if _LIVE.search(word) else word for word in words]
    if words and _LINE_START.fullmatch(words[0]):
        shown[0] = code(words[0])
    return " ".join(shown)


def code(text: str) -> str:
    """Return clean text as code; a backtick and a bar stand between two pieces of code, as entities."""
    pieces = re.split(r"([`|])", text)
    return "".join(_SPLITTING.get(piece) or (f"`{piece}`" if piece else "") for piece in pieces)
