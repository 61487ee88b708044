"""Write a run as one self-contained web page: no network, light and dark, readable without script and in print."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpubench.api import report as gb

from ._fleet_page import fleet_page
from ._page import page
from ._sides import side_by_side
from ._site import site_page
from ._trend import trend_page
from ._web import web_page


@dataclass(frozen=True, slots=True)
class HtmlReport:
    """Writes pages.

    The security policy of a page allows its own style sheet and scripts, by their hashes, and nothing else."""

    summary: str = "one self-contained web page with charts, tables and counters over time"

    def render(self, run: gb.Run) -> str:
        """Return the page of a run."""
        return _render_page(page(run))

    def enclose(self, run: gb.Run, enclosure: gb.Enclosure) -> str:
        """Return the page of a run that carries its results for download."""
        return _render_page(page(run, enclosure))

    def trends(self, trends: Sequence[gb.Trend]) -> str:
        """Return the page of trends: each series over its runs, with its changes."""
        return web_page("trend.html", "html.css", "trend.css", page=trend_page(trends))

    def compare(self, comparison: gb.Comparison) -> str:
        """Return the page that shows several runs side by side."""
        return web_page("sides.html", "html.css", "sides.css", scripts=("page.js",), page=side_by_side(comparison))

    def index(self, site: gb.Site) -> str:
        """Return the page that lists the runs of a site."""
        return web_page("site.html", "html.css", "site.css", page=site_page(site))

    def fleet(self, judgement: gb.FleetJudgement) -> str:
        """Return the page of a fleet's judgement."""
        return web_page("fleet.html", "html.css", "fleet.css", scripts=("fleet.js",), page=fleet_page(judgement))


def _render_page(content: dict[str, Any]) -> str:
    """Return the page of a run as HTML, with only the scripts that it needs."""
    zoom = ("uplot.LICENSE", "uplot.js") if content["zoom"] else ()
    sheets = ("html.css", "uplot.css") if content["zoom"] else ("html.css",)
    scripts = (*zoom, "page.js", *(["zoom.js"] if content["zoom"] else []))
    return web_page("html.html", *sheets, scripts=scripts, page=content)


report = HtmlReport()
