"""Show a run in a notebook as a table, and return its figures as pandas data frames."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpubench.analysis import frame
from gpubench.model import Run, store

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["NotebookRun", "read_run"]


@dataclass(frozen=True, slots=True)
class NotebookRun:
    """A run that a notebook shows as a table; `run` holds the raw samples."""

    run: Run

    def to_frame(self, samples: bool = False) -> pd.DataFrame:
        """Return a data frame with one row per series (columns: docs/reports.md), or with `samples` one per sample."""
        return frame.to_frame(self.run, samples)

    def _repr_html_(self) -> str:
        return frame.to_html(self.run)


def read_run(path: str | Path) -> NotebookRun:
    """Return the run in a file. Raises FileError if the file cannot be read or is invalid."""
    return NotebookRun(store.read_run(path))
