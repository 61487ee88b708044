"""What the shipped recordings say of a model of GPU: how far the medians of fresh processes lie apart.

`reproducibility.toml` is written by `tests/reproducibility_table.py` from the recordings in `tests/recordings`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class RecordedDeviation:
    """The standard deviation of the medians of fresh processes of one case on one model of GPU, % of their mean.

    Of several recordings it is pooled: each lies about a mean of its own. `processes` counts those of all recordings.
    """

    model: str
    case: str
    percent: float
    processes: int
    recordings: tuple[str, ...]
    date: str

    @property
    def text(self) -> str:
        """Where it is from: `NVIDIA H200, 2026-11-20, recordings headline/1, headline/2`."""
        return f"{self.model}, {self.date}, recordings {', '.join(self.recordings)}"


def recorded_deviation(model: str, case_id: str) -> RecordedDeviation | None:
    """Return what is recorded of a case on a model of GPU, both by their exact names; None where nothing is."""
    return recorded_deviations().get((model, case_id))


@cache
def recorded_deviations() -> dict[tuple[str, str], RecordedDeviation]:
    """Return the table that is shipped, by model and case id."""
    text = (files("gpubench.knowledge") / "reproducibility.toml").read_text(encoding="utf-8")
    rows = (
        RecordedDeviation(
            row["model"], row["case"], row["percent"], row["processes"], tuple(row["recordings"]), row["date"]
        )
        for row in tomllib.loads(text)["reproducibility"]
    )
    return {(row.model, row.case): row for row in rows}
