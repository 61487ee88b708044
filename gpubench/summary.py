"""What a run says, derived from its raw samples: the one place where rates are computed.

Pure functions of a `Run`; every report, table and comparison reads these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpubench import stats, units
from gpubench.data import peak
from gpubench.model import Better, Device, Result, Run, Series

_UNITS = {"moved": "B/s", "payload": "B/s", "flops": "FLOP/s", "item": "s"}


def judged_values(series: Series) -> npt.NDArray[np.float64]:
    """The samples in the judged quantity: rates for work over time, seconds for items, else raw."""
    values = np.asarray(series.values, dtype=float)
    if series.quantity == "value":
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        if series.quantity == "item":
            return values / np.float64(series.work.items)
        return np.asarray(getattr(series.work, series.quantity) / values, dtype=float)


def judged_unit(series: Series) -> str:
    """The SI unit of `judged_values`."""
    return _UNITS.get(series.quantity, series.unit)


def judged_better(series: Series) -> Better:
    """Whether more or less of the judged quantity is better: more of a rate, else as declared."""
    return "more" if series.quantity in ("moved", "payload", "flops") else series.better


def headline(result: Result) -> Series | None:
    """The series that speaks for a case: the first, of the slowest rank; None where nothing was timed."""
    if not result.series:
        return None
    first = [series for series in result.series if series.name == result.series[0].name]
    return max(first, key=_badness)


def _badness(series: Series) -> float:
    centre = stats.median(judged_values(series).tolist())
    return -centre if judged_better(series) == "more" else centre


@dataclass(frozen=True, slots=True)
class Figure:
    """A series as a figure: its median with 95 % interval in SI units, noise, and share of a peak.

    `share` is a fraction of `limit`; `basis` says what that peak is: `spec` (data sheet) or
    `best` (the best that this device reached in this run). Both empty where there is none.
    """

    name: str
    unit: str
    better: Better
    interval: stats.Interval
    noise: float
    samples: int
    share: float | None = None
    limit: str = ""
    basis: str = ""

    @property
    def text(self) -> str:
        """The median for a person: 4213 GB/s."""
        return units.quantity(self.interval.centre, self.unit)

    @property
    def share_text(self) -> str:
        """`87.7 % of spec dram`, or nothing."""
        return f"{units.percent(self.share)} of {self.basis} {self.limit}" if self.share is not None else ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a summary table: a result and its headline figure (None unless it was timed)."""

    result: Result
    figure: Figure | None

    @property
    def suite(self) -> str:
        """The suite's name."""
        return self.result.case.suite


class Summary:
    """A run with its figures: peaks are looked up once, the best of the run found once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._devices = {device.id: device for device in run.manifest.facts.devices}
        self._best = self._best_by_limit(run.results)

    def _best_by_limit(self, results: Iterable[Result]) -> dict[tuple[str, str], float]:
        best: dict[tuple[str, str], float] = {}
        for result in results:
            for series in result.series if result.status == "ok" else ():
                if series.limit and result.devices:
                    key = (result.devices[0], series.limit)
                    best[key] = max(best.get(key, 0.0), stats.median(judged_values(series).tolist()))
        return best

    def device(self, device_id: str) -> Device | None:
        """The device of that id in this run's facts."""
        return self._devices.get(device_id)

    def figure(self, result: Result, series: Series) -> Figure:
        """The figure of one series of a result."""
        values = judged_values(series).tolist()
        interval = stats.median_interval(values)
        share, basis = self._share(result, series, interval.centre)
        return Figure(
            series.name,
            judged_unit(series),
            judged_better(series),
            interval,
            stats.noise(values),
            len(values),
            share,
            series.limit if share is not None else "",
            basis,
        )

    def _share(self, result: Result, series: Series, centre: float) -> tuple[float | None, str]:
        if not series.limit or not result.devices:
            return None, ""
        device = self.device(result.devices[0])
        spec = peak(device, series.limit) if device else None
        if spec:
            return centre / spec.value, "spec"
        best = self._best.get((result.devices[0], series.limit))
        return (centre / best, "best") if best else (None, "")

    def rows(self) -> list[Row]:
        """One row a result, in the order measured."""
        found = []
        for result in self.run.results:
            series = headline(result)
            found.append(Row(result, self.figure(result, series) if series else None))
        return found

    def counts(self) -> dict[str, int]:
        """How many results have each status: ok, skipped, failed, invalid."""
        found = dict.fromkeys(("ok", "skipped", "failed", "invalid"), 0)
        for result in self.run.results:
            found[result.status] += 1
        return found

    def suites(self) -> list[tuple[str, list[Row]]]:
        """Rows by suite, in the order first measured."""
        grouped: dict[str, list[Row]] = {}
        for row in self.rows():
            grouped.setdefault(row.suite, []).append(row)
        return list(grouped.items())


def exit_status(results: Sequence[Result]) -> int:
    """The exit status of a run: 3 where a case failed, else 0 (skipped and invalid are warned of)."""
    return 3 if any(result.status == "failed" for result in results) else 0
