"""Look up how much the medians of a case deviate between processes: from replicates of a run, or from recordings.

The 95 % interval of one process does not predict the next process: of the recorded ones, 53 % hold another process's
median. The reproducibility of a single process is therefore taken from recordings of its model of GPU, if any."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpubench.base import units
from gpubench.knowledge.recorded import RecordedDeviation, recorded_deviation

LEAST_PROCESSES = 3  # the standard deviation of two medians is accurate to a factor of two at best
_FINE = 0.01  # smaller deviations have one more digit, because most bandwidths agree within 0.1 %


@dataclass(frozen=True, slots=True)
class Reproducibility:
    """The standard deviation of the medians of `processes` processes over their mean, a fraction, with its source.

    `recorded` is None if this run measured it."""

    RECORD: ClassVar[str] = "between=deviation processes source"
    deviation: float
    processes: int
    recorded: RecordedDeviation | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether the value comes from recordings of other runs."""
        return self.recorded is not None

    @property
    def source(self) -> str:
        """Where it was measured: `this run`, or the model, the date and the recordings."""
        return self.recorded.text if self.recorded else "this run"

    @property
    def text(self) -> str:
        """`0.03 %`, or `1.8 % recorded` where another run measured it."""
        return units.percent(self.deviation, 2 if self.deviation < _FINE else 1) + (" recorded" * self.is_recorded)


def relative_deviation(medians: Sequence[float]) -> float:
    """Return the standard deviation (n - 1) of medians over the size of their mean, a fraction.

    It is NaN for fewer than two medians and for a mean of 0."""
    values = np.asarray(medians, dtype=float)
    if len(values) < 2 or not values.mean():
        return math.nan
    return float(values.std(ddof=1) / abs(values.mean()))


def reproducibility(medians: Sequence[float], case_id: str, models: Collection[str]) -> Reproducibility | None:
    """Return the reproducibility of a case, from at least three replicates of this run, else from a shipped recording.

    `medians` are the medians of all ok replicates, and `models` the names of the devices of the case."""
    deviation = relative_deviation(medians)
    if len(medians) >= LEAST_PROCESSES and math.isfinite(deviation):
        return Reproducibility(deviation, len(medians))
    recorded = recorded_deviation(next(iter(models)), case_id) if len(models) == 1 else None
    return Reproducibility(recorded.percent / 100, recorded.processes, recorded) if recorded else None


def recorded_sources_text(deviations: Iterable[Reproducibility | None]) -> str:
    """Return a sentence that says where the `recorded` values of a table come from; empty if none is recorded.

    `deviations` are the values of the table, None for a missing one."""
    recordings: dict[tuple[str, str], set[str]] = {}
    for deviation in deviations:
        if deviation and deviation.recorded:
            recordings.setdefault((deviation.recorded.model, deviation.recorded.date), set()).update(
                deviation.recorded.recordings
            )
    if not recordings:
        return ""
    sources = "; ".join(f"{model}, {date}: {', '.join(sorted(names))}" for (model, date), names in recordings.items())
    return f"recorded: taken from recordings that gpubench ships, not measured by this run ({sources})"
