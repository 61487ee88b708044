"""Load reports by name, and remove control characters from everything that they render."""

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

ReportMethod = Literal["render", "enclose", "trends", "compare", "index", "fleet"]


class CleanReport:
    """A report whose methods clean every text of their arguments before they pass them on.

    `report` is the report as its plugin defines it: `gpubench.plugins.report`."""

    def __init__(self, report: Any) -> None:
        self._report = report

    @property
    def summary(self) -> str:
        """Return the sentence about the report that `report --formats` lists."""
        return str(self._report.summary)

    def has_method(self, method: ReportMethod) -> bool:
        """Return whether the report has an optional method, such as `compare`; every report has `render`."""
        return hasattr(self._report, method)

    def render(self, run: Run) -> str | bytes:
        """Return the whole document of a run."""
        document: str | bytes = self._report.render(tidy(run))
        return document

    def enclose(self, run: Run, enclosure: Enclosure) -> str | bytes:
        """Return the document of a run with the run file inside, so that it can be extracted again."""
        document: str | bytes = self._report.enclose(tidy(run), tidy(enclosure))
        return document

    def trends(self, trends: Sequence[Trend]) -> str:
        """Return the page of the trends of a history."""
        document: str = self._report.trends(tidy(tuple(trends)))
        return document

    def compare(self, comparison: Comparison) -> str:
        """Return the document of several runs side by side."""
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
    """Return the report with this name, whose texts are cleaned.

    Raises UsageError with a suggestion if there is no such report."""
    return CleanReport(plugins.load("reports", name))
