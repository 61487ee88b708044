"""Render self-contained pages: a template, its style sheets and its scripts, under a policy that forbids all else.

Write tables in Markdown, and keep documents within the limit of a comment on GitHub."""

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

_FOLDER = Path(__file__).parent


def web_page(template: str, *sheets: str, scripts: Iterable[str] = (), linked: str = "", **values: object) -> str:
    """Return the page of the template `template`, a file of this folder, as HTML.

    The security policy of the page allows this style and script by their hashes, or the style sheet `linked` of the
    same site."""
    style, script = read_files(sheets), read_files(scripts)
    return (
        _templates()
        .get_template(template)
        .render(
            style=Markup(style),
            linked=linked,
            digest=_digest(style),
            script=Markup(script),
            script_digest=_digest(script) if script else "",
            **values,
        )
    )


def fragment(template: str, macro: str, value: object) -> str:
    """Return a part of a page as HTML: the output of the macro `macro` in a template for one value."""
    return str(getattr(_module(template), macro)(value))


def written(parts: Iterable[str]) -> Markup:
    """Return the joined parts as markup that is not escaped again; their texts must be escaped already."""
    return Markup("".join(parts))


def packed(value: object) -> str:
    """Return a value that JSON can express as gzipped JSON in base64, for the script of a page.

    Raises ValueError for a number that is not finite."""
    data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(data, mtime=0)).decode()


def breakable(case_id: str) -> Markup:
    """Return the id of a case as markup that a narrow column breaks only between its axes."""
    return escape(case_id).replace(",", Markup(",<wbr>")).replace("[", Markup("<wbr>["))


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    return environment


@cache
def _module(template: str) -> object:
    return _templates().get_template(template).module


def read_files(names: Iterable[str]) -> str:
    """Return the joined content of the files `names` of this folder; a licence becomes a comment of a script."""
    return "".join(f"/*!\n{content}\n*/\n" if name.endswith(".LICENSE") else content for name, content in _texts(names))


def _texts(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        yield name, (_FOLDER / name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    """Return the SHA-256 of a text in base64, as a security policy expects it."""
    return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


MOST_BYTES = 65_536  # GitHub refuses a longer comment: "maximum is 65536 characters"
_CLIPPED = 400  # characters of a reason: a traceback is in the page


def clipped(text: str) -> str:
    """Return the text, or its first 400 characters and an ellipsis if it is longer."""
    return text if len(text) <= _CLIPPED else f"{text[:_CLIPPED]}…"


def cut(text: str) -> str:
    """Return the document, or its whole lines within 65 536 bytes if it is longer."""
    data = text.encode()
    return text if len(data) <= MOST_BYTES else data[: data.rfind(b"\n", 0, MOST_BYTES) + 1].decode()


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table without newlines: two for its heads, then one per row.

    The cells must be escaped already."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
