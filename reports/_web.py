"""A template and its style sheets as one page that allows nothing else: no script, no network."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

_FOLDER = Path(__file__).parent


def web_page(template: str, *sheets: str, page: object) -> str:
    """The page; every text in it is escaped by the template engine, the style is known by its hash."""
    templates = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["breakable"] = breakable
    style = "".join((_FOLDER / sheet).read_text(encoding="utf-8") for sheet in sheets)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return templates.get_template(template).render(page=page, style=Markup(style), digest=digest)


def breakable(words: str) -> Markup:
    """A case's id that a narrow column breaks between its axes, not within a word."""
    return escape(words).replace(",", Markup(",<wbr>")).replace("[", Markup("<wbr>["))
