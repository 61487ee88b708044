"""Write text so that it appears unchanged in Markdown on GitHub and GitLab: no markup, link, reference or mention.

GitHub and GitLab search the rendered text for references, so that a backslash or an entity does not disable them. They
do not search code. Therefore a word that could be more than a plain word is shown as code; all other words stay
unchanged."""

import re

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


def escape(text: str) -> str:
    """Return `text`, which is already clean, as Markdown that shows the same text.

    This also holds in a cell of a table and at the start of a line. Words are joined by single blanks, and each word
    that Markdown could interpret becomes code."""
    plain_words = text.split()
    escaped_words = [code(word) if _LIVE.search(word) else word for word in plain_words]
    if plain_words and _LINE_START.fullmatch(plain_words[0]):
        escaped_words[0] = code(plain_words[0])
    return " ".join(escaped_words)


def code(text: str) -> str:
    """Return `text`, which is already clean, as Markdown code.

    Each backtick and bar becomes an entity outside the code, between two pieces of code."""
    pieces = re.split(r"([`|])", text)
    return "".join(_SPLITTING.get(piece) or (f"`{piece}`" if piece else "") for piece in pieces)
