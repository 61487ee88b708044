"""Load reports by name, and remove control characters from everything that they render."""

from typing import Any

from gpubench import plugins
from gpubench.base.clean import tidy


class CleanReport:
    """A report as its plugin defines it (`gpubench.plugins.report`) whose methods get only cleaned texts."""

    def __init__(self, report: Any) -> None:
        self._report = report

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._report, name)
        return (lambda *values: attribute(*map(tidy, values))) if callable(attribute) else attribute


def report(name: str) -> CleanReport:
    """Return the report with this name; raises UsageError with a suggestion if there is no such report."""
    return CleanReport(plugins.load("reports", name))
