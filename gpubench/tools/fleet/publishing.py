"""Write a fleet's judgement in the format that the suffix of a file selects."""

from pathlib import Path

from gpubench import plugins
from gpubench.base.clean import tidy
from gpubench.base.errors import UsageError
from gpubench.judging.fleet import FleetJudgement
from gpubench.tools import rendering

_JUNIT = ".xml"
_REPORTS = {".html": "html", ".md": "md", ".json": "json"}


def rendered(path: Path, judgement: FleetJudgement) -> str:
    """Return the judgement in the format that the suffix of `path` selects: .html, .md, .json, or .xml for JUnit.

    Raises UsageError for another suffix. Nothing is written."""
    suffix = path.suffix.lower()
    if suffix == _JUNIT:
        text: str = plugins.load("publications", "junit").fleet(tidy(judgement))
        return text
    if suffix not in _REPORTS:
        endings = ", ".join((*_REPORTS, _JUNIT))
        raise UsageError(f"{path}: the ending of the file chooses the form of a report: {endings}")
    return rendering.report(_REPORTS[suffix]).fleet(judgement)


def document(judgement: FleetJudgement) -> str:
    """Return the judgement as a JSON document, for programs."""
    return rendering.report("json").fleet(judgement)
