"""Look up the time of an empty kernel on each device: measured by the run itself, else recorded with gpubench."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from gpubench import stats
from gpubench.analysis.quantities import judged_median
from gpubench.knowledge.launches import EMPTY_KERNEL, EMPTY_KERNEL_CASE, Launch, launch_of
from gpubench.model import Run, SeriesMode


@dataclass(frozen=True, slots=True)
class EmptyKernels:
    """The medians of the run's own empty kernels in seconds, by device id and way of launching, over all replicates."""

    medians: dict[tuple[str, Launch], float]

    @classmethod
    def of_run(cls, run: Run) -> EmptyKernels:
        """Return the times that the case `latency/launch` measured in this run, by device id and way of launching.

        Without an ok result there are none. Replicates are joined by the median of their medians."""
        medians: dict[tuple[str, Launch], list[float]] = defaultdict(list)
        for result in run.results:
            if result.case.id == EMPTY_KERNEL_CASE and result.status == "ok":
                for series in result.series:
                    launch = launch_of(series.mode) if series.role == "primary" else None
                    if launch:
                        medians[result.devices[0], launch].append(judged_median(series))
        return cls({place: stats.median(values) for place, values in medians.items()})

    def seconds(self, device_id: str, mode: SeriesMode) -> float:
        """Return the seconds of an empty kernel on the device `device_id`, timed in the mode of a series.

        It is the median of this run, else that recorded on an H200."""
        launch = launch_of(mode)
        return self.medians.get((device_id, launch), EMPTY_KERNEL[launch].value) if launch else 0.0
