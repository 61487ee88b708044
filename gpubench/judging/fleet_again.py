"""Judge the second measurement of a fleet's suspects, next to healthy controls: it confirms a finding or clears it."""

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpubench import stats
from gpubench.analysis.digest import CaseKey, Component, NodeDigest
from gpubench.judging import outliers
from gpubench.judging.fleet import FleetFinding, Place, SuspectState
from gpubench.judging.outliers import LEAST_EFFECT, LEAST_SPREAD


class SecondMeasurement(NamedTuple):
    """The second measurement of a node; `is_control` marks a healthy node that was measured beside a suspect."""

    digest: NodeDigest
    is_control: bool


def measured_again(
    finding: FleetFinding,
    first: Mapping[Place, Component],
    suspects: Collection[tuple[Place, str]],
    again: Sequence[SecondMeasurement],
) -> FleetFinding:
    """Return the finding as confirmed or transient if its component was measured again, and otherwise unchanged.

    `first` has the first measurement of all comparable components by place."""
    second = _second_measurement(finding.place, again)
    if second is None:
        return finding
    keys = [key for key in second.rates if key.family == finding.family and finding.case in ("", key.case)]
    pairs = [
        _slowdown_and_limit(key, second, _healthy_rates(key, finding, first, suspects), again, len(suspects))
        for key in keys
        if key in first[finding.place].rates
    ]
    if not pairs:
        return finding
    slowdown, limit = (statistics.fmean(column) for column in zip(*pairs, strict=True))
    state: SuspectState = "confirmed" if slowdown > limit else "transient"
    return replace(finding, state=state, again=-math.expm1(-slowdown))


def _second_measurement(place: Place, again: Sequence[SecondMeasurement]) -> Component | None:
    nodes = (repeat.digest for repeat in again if not repeat.is_control and repeat.digest.node == place.node)
    return next((part for node in nodes for part in node.components if part.devices == place.devices), None)


def _healthy_rates(
    key: CaseKey, finding: FleetFinding, first: Mapping[Place, Component], suspects: Collection[tuple[Place, str]]
) -> dict[Place, float]:
    """Return by place the logarithms of the first rates in the case `key` of the components without a finding in it."""
    return {
        place: component.rates[key].log
        for place, component in first.items()
        if key in component.rates and not {(place, finding.case), (place, key.case)} & set(suspects)
    }


def _slowdown_and_limit(
    key: CaseKey, second: Component, others: Mapping[Place, float], again: Sequence[SecondMeasurement], suspects: int
) -> tuple[float, float]:
    """Return the slowdown of a component in its second measurement of a case, and its limit, as natural logarithms."""
    moved = [log - others[place] for place, log in _control_rates(key, again) if place in others]
    values, count = list(others.values()), len(others)
    spread = max(statistics.stdev(values) if count > 1 else 0.0, second.rates[key].error, LEAST_SPREAD)
    freedom = np.array([max(count - 1, 1)], dtype=float)
    quantile = float(stats.student_quantile(freedom, 2 * outliers.ALPHA / max(suspects, 1))[0])
    error = math.sqrt(1 + 1 / max(count, 1) + (1 / len(moved) if moved else 0.0)) * spread
    expected = statistics.fmean(values or [math.inf]) + (statistics.fmean(moved) if moved else 0.0)
    return expected - second.rates[key].log, max(-math.log1p(-LEAST_EFFECT), quantile * error)


def _control_rates(key: CaseKey, again: Sequence[SecondMeasurement]) -> Iterator[tuple[Place, float]]:
    """Yield the place and the logarithm of the rate of each healthy control in the second measurement of a case."""
    for repeat in again:
        if repeat.is_control:
            for component in repeat.digest.components:
                if key in component.rates:
                    yield Place(repeat.digest.node, component.devices), component.rates[key].log
