"""Follow the components of a fleet over several days: how often each was a suspect, and when its figures changed."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gpubench import stats
from gpubench.analysis.digest import CaseKey, CaseRate, Component, NodeDigest
from gpubench.analysis.trend import Drift, Line, RunSource, Trend, TrendPoint
from gpubench.judging.fleet import FleetJudgement, Place, SuspectState
from gpubench.judging.outliers import LEAST_EFFECT

_MOVED = LEAST_EFFECT / 2  # figures that vary less than this between the days are not searched for changes


@dataclass(frozen=True, slots=True)
class WatchedFleet:
    """One measurement of a fleet: its name for people, its time (s since 1970), its digests and its judgement."""

    name: str
    at: float
    digests: tuple[NodeDigest, ...]
    judgement: FleetJudgement


@dataclass(frozen=True, slots=True)
class ComponentHistory:
    """A component over several fleets: its latest place and its UUIDs.

    `states` has its state in each fleet that measured it, in order of time, None where it was no suspect."""

    place: Place
    uuids: tuple[str, ...]
    states: tuple[SuspectState | None, ...]
    trends: tuple[Trend, ...]

    @property
    def suspected(self) -> int:
        """The number of fleets in which it was slow and did not recover."""
        return sum(state in ("suspect", "confirmed") for state in self.states)

    @property
    def transient(self) -> int:
        """The number of fleets in which it was slow once and not when measured again."""
        return sum(state == "transient" for state in self.states)

    @property
    def is_slow_again(self) -> bool:
        """Whether it is slow in the newest fleet, and was in an earlier one."""
        return self.suspected > 1 and self.states[-1] in ("suspect", "confirmed")

    @property
    def worst(self) -> float:
        """The largest change for the worse, as a fraction; 0 without one."""
        return max((_worse(trend) for trend in self.trends), default=0.0)


def watch(fleets: Sequence[WatchedFleet]) -> list[ComponentHistory]:
    """Return the components that were suspects in any fleet or became slower, the most often suspected first.

    `fleets` are in order of time."""
    by_identity: dict[tuple[str, ...], list[tuple[WatchedFleet, Place, Component]]] = {}
    for fleet in fleets:
        for digest in fleet.digests:
            for component in digest.components:
                place = Place(digest.node, component.devices)
                identity = component.uuids if all(component.uuids) else (place.text,)
                by_identity.setdefault(identity, []).append((fleet, place, component))
    states = {id(fleet): _states(fleet.judgement) for fleet in fleets}
    histories = [_history(days, states) for days in by_identity.values()]
    noteworthy = [history for history in histories if history.suspected or history.transient or history.trends]
    return sorted(noteworthy, key=lambda history: (-history.suspected, -history.worst, history.place.text))


def _states(judgement: FleetJudgement) -> dict[tuple[str, str], SuspectState]:
    """Return the state of each suspect by the name of its node and the id of each of its devices."""
    return {
        (suspect.place.node, device): suspect.state
        for suspect in judgement.suspects
        for device in suspect.place.devices
    }


def _history(
    days: Sequence[tuple[WatchedFleet, Place, Component]], states: dict[int, dict[tuple[str, str], SuspectState]]
) -> ComponentHistory:
    _, place, component = days[-1]
    of_days = tuple(
        next((states[id(fleet)].get((where.node, device)) for device in where.devices), None)
        for fleet, where, _ in days
    )
    trends = [trend for key in component.rates if (trend := _trend(key, days)) is not None]
    trends = [trend for trend in trends if _worse(trend) > 0]
    return ComponentHistory(place, component.uuids, of_days, tuple(sorted(trends, key=_worse, reverse=True)))


def _trend(key: CaseKey, days: Sequence[tuple[WatchedFleet, Place, Component]]) -> Trend | None:
    """Return the trend of a case of one component over the fleets that measured it with its newest fingerprint."""
    newest = days[-1][2].fingerprint
    measured = [
        (fleet, place, component.rates[key])
        for fleet, place, component in days
        if key in component.rates and component.fingerprint == newest
    ]
    values = [rate.value for _, _, rate in measured]
    if len(values) < 2 or max(values) - min(values) < _MOVED * statistics.median(values):
        return None
    line = Line(key.case, key.version, key.tier, key.series, key.unit, key.better, days[-1][1].devices, newest)
    return Trend.of(line, [_point(fleet, place, rate) for fleet, place, rate in measured])


def _point(fleet: WatchedFleet, place: Place, rate: CaseRate) -> TrendPoint:
    """Return the figure of a case in one fleet as a point of a trend; its interval is ± 2 standard errors."""
    margin = 2 * rate.error * rate.value
    interval = stats.Interval(rate.value - margin, rate.value, rate.value + margin)
    return TrendPoint(RunSource(fleet.name, fleet.name, fleet.at, place.node), 0, interval, 0.0, rate.processes)


def _worse(trend: Trend) -> float:
    """Return how much worse the figure became at its newest change, as a fraction; 0 if it did not."""
    event = trend.newest_event
    return abs(event.effect) if event is not None and event.is_worse else 0.0


def newest_event_text(trend: Trend) -> str:
    """Return the newest change of a trend as text: `bandwidth/read: 3.1 % less (worse) since fleet-2026-11-20`.

    The trend must have a change."""
    event = trend.newest_event
    assert event is not None  # only trends with a change are kept
    first = event.start if isinstance(event, Drift) else event.index
    return f"{trend.line.case}: {event.effect_text} since {trend.moments[first].source.path}"
