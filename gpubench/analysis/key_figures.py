"""Find the values of a run's key figures, which each suite declares as its most important figures."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpubench.analysis.figure import Figure, Spread
from gpubench.analysis.quantities import series_labelled
from gpubench.analysis.summary import Summary
from gpubench.knowledge.floors import Floor, built_in_floor
from gpubench.model import KeyFigure


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key figure with its value in this run.

    `title` is the name for people, and `case_id` the case that supplied the value. `floor` is the value expected of
    this model of GPU, None if it is unknown."""

    title: str
    suite: str
    case_id: str
    devices: tuple[str, ...]
    figure: Figure
    floor: Floor | None = None

    @property
    def of_spec(self) -> float | None:
        """The share of the data sheet's peak, as a fraction; None if no data sheet states one."""
        share = self.figure.share_of("spec")
        return share.fraction if share else None

    @property
    def of_expected(self) -> float | None:
        """The figure over the expected value, or the inverse if less is better: above 1 is better; None if unknown."""
        if self.floor is None or self.floor.unit != self.figure.unit:
            return None
        ratio = self.figure.interval.centre / self.floor.expected
        if self.floor.better == "more":
            return ratio
        return 1 / ratio if ratio else None

    @property
    def is_below_expectation(self) -> bool:
        """Whether the figure misses the expected value by more than the tolerance between boards of one model."""
        reached = self.of_expected
        return self.floor is not None and reached is not None and reached < 1 - self.floor.tolerance_percent / 100


def key_values(summary: Summary) -> list[KeyValue]:
    """Return the key figures for which a run has values, by suite in the order of the manifest, then as declared.

    A key figure has one entry for each device with a value."""
    return [
        value
        for suite in summary.run.manifest.suites
        for wanted in suite.key_figures
        for value in _values(summary, suite.name, wanted)
    ]


def _values(summary: Summary, suite: str, wanted: KeyFigure) -> Iterator[KeyValue]:
    """Yield the value of the key figure `wanted` of a suite, one for each device that comes first in a case."""
    nearest: dict[str, tuple[float, Spread]] = {}  # first device → distance and case
    for spread in summary.spreads():
        case = spread.case
        if (case.suite, case.name) != (suite, wanted.case) or spread.figure is None:
            continue
        distance = _distance(dict(case.params), wanted)
        device = next(iter(spread.devices), "")
        if distance is not None and distance <= nearest.get(device, (math.inf, spread))[0]:
            nearest[device] = (distance, spread)
    for _, spread in nearest.values():
        if figure := _figure(summary, spread, wanted.series):
            floor = None if wanted.series else _floor(summary, spread)  # floors exist for headlines only
            yield KeyValue(wanted.title, suite, spread.case.id, spread.devices, figure, floor)


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
    """Return the built-in floor of a case on the model of its first device; None if there is none."""
    return built_in_floor(summary.device(spread.devices[0]).name, spread.case.id)
