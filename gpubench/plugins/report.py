"""The shape of a report: an output format, a pure function of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpubench.analysis.site import Site
from gpubench.analysis.trend import Trend
from gpubench.judging.comparison import Comparison
from gpubench.judging.fleet import FleetJudgement
from gpubench.model import Run


class Report(Protocol):
    """An output format: a pure function of a run; bytes where the format is no text."""

    @property
    def summary(self) -> str:
        """One sentence for `report --formats`."""

    def render(self, run: Run) -> str | bytes: ...


@dataclass(frozen=True, slots=True)
class Enclosure:
    """What a report carries of the run file that it was made of."""

    sha256: str  # of that file, in hexadecimal
    content: bytes = b""  # a gzipped run file of what may be shared; empty where it would be too large
    left_out: str = ""  # in a sentence, what it has not
    index: str = ""  # the relative address of the page that lists all runs of a site


class EnclosingReport(Report, Protocol):
    """An output format that carries the results themselves, to be taken out again."""

    def enclose(self, run: Run, enclosure: Enclosure) -> str | bytes:
        """The whole document: a pure function of both."""


class ColumnsReport(Report, Protocol):
    """An output format that also has a form for several runs as columns, without a verdict."""

    def columns(self, runs: Sequence[Run]) -> str:
        """The whole document: a pure function of the runs, in their order."""


class TrendReport(Report, Protocol):
    """An output format that also has a page for what a history holds."""

    def trends(self, trends: Sequence[Trend]) -> str:
        """The trends with their changes, in the order given: a pure function of them."""


class ComparisonReport(Report, Protocol):
    """An output format that also has a form for runs side by side."""

    def compare(self, comparison: Comparison) -> str:
        """The whole document: a pure function of the comparison."""


class SiteReport(Report, Protocol):
    """An output format that also has a page that lists the runs of a site."""

    def index(self, site: Site) -> str:
        """The whole index, whose links lead to the other pages of the site: a pure function of it."""


class FleetReport(Report, Protocol):
    """An output format that also has a form for the judgement of a fleet."""

    def fleet(self, judgement: FleetJudgement) -> str:
        """The whole document: a pure function of the judgement."""
