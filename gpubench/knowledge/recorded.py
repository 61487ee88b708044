"""Look up how much the medians of fresh processes differ on a model of GPU, from shipped recordings.

`tests/studies/reproducibility_table.py` writes `reproducibility.toml` from the recordings in `tests/recordings`."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class RecordedDeviation:
    """The standard deviation of the medians of fresh processes, for one case on one model of GPU, in % of their mean.

    `recordings` are the names of files in `tests/recordings`, and `date` is the date of these recordings."""

    model: str
    case: str
    percent: float
    processes: int
    recordings: tuple[str, ...]
    date: str

    @property
    def text(self) -> str:
        """The source of the figure: `NVIDIA H200, 2026-11-20, recordings headline/1, headline/2`."""
        return f"{self.model}, {self.date}, recordings {', '.join(self.recordings)}"


def recorded_deviation(model: str, case_id: str) -> RecordedDeviation | None:
    """Return the deviation of a case on a model of GPU, both by their exact names; None if there is no recording."""
    return recorded_deviations().get((model, case_id))


@cache
def recorded_deviations() -> dict[tuple[str, str], RecordedDeviation]:
    """Return the deviations of `reproducibility.toml`, which gpubench ships, by model of GPU and case id.

    The file is read once, so do not change the dictionary."""
    text = (files("gpubench.knowledge") / "reproducibility.toml").read_text(encoding="utf-8")
    rows = (
        RecordedDeviation(
            row["model"], row["case"], row["percent"], row["processes"], tuple(row["recordings"]), row["date"]
        )
        for row in tomllib.loads(text)["reproducibility"]
    )
    return {(row.model, row.case): row for row in rows}
