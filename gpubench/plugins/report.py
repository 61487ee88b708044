"""Define the interface of a report: an output format, which is a pure function of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpubench.analysis.site import CataloguePage, Site
from gpubench.analysis.trend import Trend
from gpubench.judging.comparison import Comparison
from gpubench.judging.fleet import FleetJudgement
from gpubench.model import Run


class Report(Protocol):
    """An output format: a pure function of a run, which returns bytes if the format is not text."""

    @property
    def summary(self) -> str:
        """One sentence for `report --formats`."""

    def render(self, run: Run) -> str | bytes: ...


@dataclass(frozen=True, slots=True)
class Enclosure:
    """The parts of the source run file that a report carries."""

    sha256: str  # the hash of the source file, in hexadecimal
    content: bytes = b""  # a gzipped run file with the parts that may be shared; empty if it would be too large
    left_out: str = ""  # a sentence that names the parts that were left out
    index: str = ""  # the relative address of the page that lists all runs of a site


class EnclosingReport(Report, Protocol):
    """An output format that contains the results themselves, so that they can be extracted again."""

    def enclose(self, run: Run, enclosure: Enclosure) -> str | bytes:
        """Return the whole document: a pure function of both arguments."""


class TrendReport(Report, Protocol):
    """An output format that also has a page for the trends of a history."""

    def trends(self, trends: Sequence[Trend]) -> str:
        """Return the whole document of the trends with their changes, in the given order: a pure function of them."""


class ComparisonReport(Report, Protocol):
    """An output format that also has a form for several runs side by side, with verdicts if they are judged."""

    def compare(self, comparison: Comparison) -> str:
        """Return the whole document: a pure function of the comparison."""


class SiteReport(Report, Protocol):
    """An output format that also has a page that lists the runs of a site."""

    def index(self, site: Site) -> str:
        """Return the whole index page, whose links lead to the other pages of the site: a pure function of `site`."""

    def catalogue(self, page: CataloguePage) -> str:
        """Return the whole page of a card or of a case, whose runs are one folder up: a pure function of `page`."""

    def style(self) -> str:
        """Return the style sheet `site.css` beside the index, to which these pages link."""


class FleetReport(Report, Protocol):
    """An output format that also has a form for the judgement of a fleet."""

    def fleet(self, judgement: FleetJudgement) -> str:
        """Return the whole document: a pure function of the judgement."""
