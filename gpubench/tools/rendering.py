"""Reports by name, each given clean text alone: no author of a report has to think of control characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from gpubench import plugins
from gpubench.analysis.site import Site
from gpubench.analysis.trend import Trend
from gpubench.base.clean import tidy
from gpubench.judging.comparison import Comparison
from gpubench.judging.fleet import FleetJudgement
from gpubench.model import Run
from gpubench.plugins.report import Enclosure

Part = Literal["render", "enclose", "columns", "trends", "compare", "index", "fleet"]


class CleanReport:
    """A report whose methods take any run, comparison or trends, and hand them on with every text cleaned."""

    def __init__(self, report: Any) -> None:
        self._report = report

    @property
    def summary(self) -> str:
        """One sentence for `report --formats`."""
        return str(self._report.summary)

    def offers(self, part: Part) -> bool:
        """Return whether the report has that method; every report has `render`."""
        return hasattr(self._report, part)

    def render(self, run: Run) -> str | bytes:
        """Return the whole document of a run."""
        document: str | bytes = self._report.render(tidy(run))
        return document

    def enclose(self, run: Run, enclosure: Enclosure) -> str | bytes:
        """Return the whole document of a run with its results inside."""
        document: str | bytes = self._report.enclose(tidy(run), tidy(enclosure))
        return document

    def columns(self, runs: Sequence[Run]) -> str:
        """Return the document of several runs as columns."""
        document: str = self._report.columns(tidy(tuple(runs)))
        return document

    def trends(self, trends: Sequence[Trend]) -> str:
        """Return the page of what a history holds."""
        document: str = self._report.trends(tidy(tuple(trends)))
        return document

    def compare(self, comparison: Comparison) -> str:
        """Return the document of runs side by side."""
        document: str = self._report.compare(tidy(comparison))
        return document

    def index(self, site: Site) -> str:
        """Return the page that lists the runs of a site."""
        document: str = self._report.index(tidy(site))
        return document

    def fleet(self, judgement: FleetJudgement) -> str:
        """Return the document of a fleet's judgement."""
        document: str = self._report.fleet(tidy(judgement))
        return document


def report(name: str) -> CleanReport:
    """Return the report of that name; raises UsageError, with a suggestion, where there is none."""
    return CleanReport(plugins.load("reports", name))
