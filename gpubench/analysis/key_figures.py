"""Find the values of a run's key figures: of every run, of suites by other authors, and of the section of a suite."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gpubench.analysis.figure import Figure, Spread
from gpubench.analysis.quantities import judged_values, series_labelled
from gpubench.analysis.summary import Summary
from gpubench.base import units
from gpubench.knowledge.floors import Floor, built_in_floor
from gpubench.knowledge.key_figures import BUILT_IN_SUITES, GROUPS, OF_GPU, OF_HOST, OF_SUITES
from gpubench.model import KeyFigure


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key figure with its value in this run.

    `title` is the name for people, and `case_id` the case that supplied the value. `series` is the label of its series,
    empty for the headline. `floor` is the value expected of this model of GPU, None if it is unknown, or if it was
    measured on the day of the run, which may be one of its sources. `samples` has the samples
    of all ok replicates, in the unit of the figure."""

    title: str
    case_id: str
    series: str
    devices: tuple[str, ...]
    figure: Figure
    floor: Floor | None = None
    samples: tuple[float, ...] = ()

    @property
    def group(self) -> str:
        """`memory`, `compute`, `links` or `models`; for a suite by another author its name."""
        suite, _, case = self.case_id.partition("/")
        return GROUPS.get(f"{suite}/{case.partition('[')[0]}") or GROUPS.get(suite, suite)

    @property
    def of_spec(self) -> float | None:
        """The share of the data sheet's peak, as a fraction; None if no data sheet states one."""
        share = self.figure.share_of("spec")
        return share.fraction if share else None

    @property
    def of_expected(self) -> float | None:
        """The figure over the expected value; None if that is unknown."""
        if self.floor is None or self.floor.unit != self.figure.unit:
            return None
        return self.figure.interval.centre / self.floor.expected

    @property
    def is_below_expectation(self) -> bool:
        """Whether the figure misses the expected value by more than the tolerance between boards of one model."""
        reached = self.of_expected
        if self.floor is None or not reached:
            return False
        return (reached if self.floor.better == "more" else 1 / reached) < 1 - self.floor.tolerance_percent / 100


def key_values(summary: Summary) -> list[KeyValue]:
    """Return the key figures for which a run has values: first for GPUs, then for the host, then declared ones.

    A key figure has one entry for each device with a value. Only suites of other authors declare some."""
    declared = [
        (suite.name, wanted)
        for suite in summary.run.manifest.suites
        if suite.name not in BUILT_IN_SUITES
        for wanted in suite.key_figures
    ]
    return [
        value
        for figures, of_host in ((OF_GPU, (False,)), (OF_HOST, (True,)), (declared, (False, True)))
        for suite, wanted in figures
        for value in _values(summary, suite, wanted, of_host)
    ]


def leading_values(summary: Summary, suite: str) -> list[KeyValue]:
    """Return the figures that lead the section of a suite; each title has the axes that the figure leaves open."""
    return [
        replace(value, title=", ".join((value.title, *_open_axes(spread, wanted))))
        for name, wanted in OF_SUITES
        if name == suite
        for value in _values(summary, suite, wanted)
        for spread in summary.spreads_by_name.get((suite, wanted.case), ())
        if (spread.case.id, spread.devices) == (value.case_id, value.devices)
    ]


def _open_axes(spread: Spread, wanted: KeyFigure) -> list[str]:
    texts = [axis for axis, value in wanted.params if isinstance(value, str)]
    return [units.axis_value_text(axis, value) for axis, value in spread.case.params if axis not in texts]


def _values(
    summary: Summary, suite: str, wanted: KeyFigure, of_host: tuple[bool, ...] = (False, True)
) -> Iterator[KeyValue]:
    """Yield the value of a key figure for each first device of a case: the host, if `of_host` has True, or others."""
    nearest: dict[str, tuple[float, Spread]] = {}  # first device → distance and case
    for spread in summary.spreads_by_name.get((suite, wanted.case), ()):
        if spread.figure is None or (summary.device(spread.devices[0]).backend == "host") not in of_host:
            continue
        distance = _distance(dict(spread.case.params), wanted)
        device = next(iter(spread.devices), "")
        if distance is not None and distance <= nearest.get(device, (math.inf, spread))[0]:
            nearest[device] = (distance, spread)
    for _, spread in nearest.values():
        if figure := _figure(summary, spread, wanted.series):
            floor = None if wanted.series else _floor(summary, spread)  # floors exist for headlines only
            samples = tuple(_samples(spread, wanted.series))
            yield KeyValue(wanted.title, spread.case.id, wanted.series, spread.devices, figure, floor, samples)


def _samples(spread: Spread, label: str) -> Iterator[float]:
    for row in spread.rows:
        series = series_labelled(row.result, label)
        if row.result.status == "ok" and series is not None:
            yield from judged_values(series).tolist()


def _distance(params: Mapping[str, str | float], wanted: KeyFigure) -> float | None:
    """Return the distance of a case's parameters (by axis) from the `wanted` ones, summed over the axes in octaves."""
    octaves = 0.0
    for axis, value in wanted.params:
        actual = params.get(axis)
        if isinstance(value, str) or isinstance(actual, str) or actual is None:
            if actual != value:
                return None
        else:
            octaves += abs(math.log2((abs(actual) + 1) / (abs(value) + 1)))
    return octaves


def _figure(summary: Summary, spread: Spread, label: str) -> Figure | None:
    """Return the figure of the series with that label over the ok replicates; None if none has such a series."""
    if not label:
        return spread.figure
    results = [row.result for row in spread.rows if row.result.status == "ok"]
    labelled = [(result, series_labelled(result, label)) for result in results]
    figures = [summary.figure(result, series) for result, series in labelled if series is not None]
    return Figure.over_replicates(figures) if figures else None


def _floor(summary: Summary, spread: Spread) -> Floor | None:
    floor = built_in_floor(summary.device(spread.devices[0]).name, spread.case.id)
    is_of_another_day = floor is not None and (
        not floor.date or not summary.run.manifest.started.startswith(floor.date)
    )
    return floor if is_of_another_day else None
