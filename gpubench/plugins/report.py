"""Define the interface of a report: an output format, which is a pure function of a run."""

from dataclasses import dataclass
from typing import Protocol

from gpubench.model import Run


class Report(Protocol):
    """An output format: a pure function of a run, which returns bytes if the format is not text.

    A format may have more documents: `enclose(run, enclosure)` contains the results themselves, `trends(trends)` is the
    page of a history, `compare(comparison)` of several runs, `index(site)` and `catalogue(page)` of a site with the
    style sheet `style()`, and `fleet(judgement)` of a fleet."""

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
