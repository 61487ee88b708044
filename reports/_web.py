"""Self-contained pages: a template, its style sheets and its scripts, under a policy that forbids everything else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

_FOLDER = Path(__file__).parent


def web_page(template: str, *sheets: str, scripts: Iterable[str] = (), **values: object) -> str:
    """Return the page of a template with its style sheets, its scripts and its values.

    The template engine escapes every text, and the security policy names style and script by their hash.
    """
    style, script = _read_files(sheets), _read_files(scripts)
    return (
        _templates()
        .get_template(template)
        .render(
            style=Markup(style),
            digest=_digest(style),
            script=Markup(script),
            script_digest=_digest(script) if script else "",
            **values,
        )
    )


def fragment(template: str, macro: str, value: object) -> str:
    """Return a part of a page: the output of a template's macro for one value."""
    return str(getattr(_module(template), macro)(value))


def written(parts: Iterable[str]) -> Markup:
    """Return the joined parts as markup; their texts must be escaped already."""
    return Markup("".join(parts))


def packed(value: object) -> str:
    """Return a value as gzipped JSON in base64, which the script of a page unpacks; raises ValueError for NaN."""
    data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(data, mtime=0)).decode()


def breakable(case_id: str) -> Markup:
    """Return the id of a case with breaks between its axes, so that a narrow column breaks no word."""
    return escape(case_id).replace(",", Markup(",<wbr>")).replace("[", Markup("<wbr>["))


@cache
def _templates() -> Environment:
    """Return the template engine: it escapes every text, and an undefined name in a template is an error."""
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
    """Return a template as an object whose attributes are its macros."""
    return _templates().get_template(template).module


def _read_files(names: Iterable[str]) -> str:
    """Return the joined files of this folder; a licence becomes a comment."""
    return "".join(_comment(content) if name.endswith(".LICENSE") else content for name, content in _texts(names))


def _texts(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file."""
    for name in names:
        yield name, (_FOLDER / name).read_text(encoding="utf-8")


def _comment(licence: str) -> str:
    """Return a licence as the comment that stands before its script."""
    return f"/*!\n{licence}\n*/\n"


def _digest(content: str) -> str:
    """Return the SHA-256 of a text in base64, as a security policy names it."""
    return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
