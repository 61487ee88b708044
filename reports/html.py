"""A run as one self-contained web page: no script, no network, light and dark, made to be printed too."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from gpubench.api import Report, Run

from ._clean import tidy
from ._page import page

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class HtmlReport:
    """Writes a page whose security policy allows its own style sheet and nothing else."""

    summary: str = "one self-contained web page with charts, tables and counters over time"

    def render(self, run: Run) -> str:
        """The page; every text of the run is escaped by the template engine."""
        templates = Environment(
            loader=FileSystemLoader(_FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        templates.filters["breakable"] = breakable
        style = (_FOLDER / "html.css").read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        return templates.get_template("html.html").render(page=page(tidy(run)), style=Markup(style), digest=digest)


def breakable(words: str) -> Markup:
    """A case's id that a narrow column breaks between its axes, not within a word."""
    return escape(words).replace(",", Markup(",<wbr>")).replace("[", Markup("<wbr>["))


report: Report = HtmlReport()
