"""Follow the components of a fleet over several days, by the changes of the history and the suspects of each day."""

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpubench import stats
from gpubench.analysis.digest import CaseKey, Component, NodeDigest
from gpubench.analysis.trend import Line, RunSource, Trend, TrendPoint
from gpubench.judging.fleet import FleetJudgement, Place, SuspectState
from gpubench.judging.fleet_rule import judge_fleet
from gpubench.judging.outliers import LEAST_EFFECT
from gpubench.tools.fleet.judging import read

_MOVED = LEAST_EFFECT / 2  # figures that vary less than this between the days are not searched for changes


@dataclass(frozen=True, slots=True)
class WatchedFleet:
    """One measurement of a fleet: its name for people, its time (s since 1970), its digests and its judgement."""

    name: str
    at: float
    digests: tuple[NodeDigest, ...]
    judgement: FleetJudgement


_Day = tuple[WatchedFleet, Place, Component]


@dataclass(frozen=True, slots=True)
class ComponentHistory:
    """A component over several fleets: its latest place and its UUIDs.

    `states` has its state in each fleet that measured it, in order of time, None where it was no suspect. `trends` are
    its cases' trends with a change for the worse, the largest change first."""

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
        return self.states.count("transient")

    @property
    def is_slow_again(self) -> bool:
        """Whether it is slow in the newest fleet, and was in an earlier one."""
        return self.suspected > 1 and self.states[-1] in ("suspect", "confirmed")

    @property
    def worst(self) -> float:
        """The largest change for the worse, as a fraction; 0 without one."""
        return _worse(self.trends[0]) if self.trends else 0.0

    @property
    def document(self) -> dict[str, Any]:
        """The history as an object for JSON; `measured`, `slow` and `recovered` count fleets."""
        return {
            "node": self.place.node,
            "devices": list(self.place.devices),
            "uuids": list(self.uuids),
            "measured": len(self.states),
            "slow": self.suspected,
            "recovered": self.transient,
            "states": [state or "ok" for state in self.states],
            "changes": [
                {"case": trend.line.case, "fraction": trend.newest_event.effect, "words": newest_event_text(trend)}
                for trend in self.trends
                if trend.newest_event
            ],
        }


def read_all(folders: Sequence[Path]) -> list[WatchedFleet]:
    """Return the fleet in each folder with its judgement, in order of time; fleets without a date come first."""
    fleets = []
    for index, folder in enumerate(folders):
        current = read(folder)
        judgement = judge_fleet(current.fleet, current.digests, current.again)
        at = 0.0 if current.fleet.started else float(index)
        with contextlib.suppress(ValueError):  # the text is no date
            moment = datetime.fromisoformat(current.fleet.started)
            at = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        fleets.append(WatchedFleet(folder.name, at, current.digests, judgement))
    return sorted(fleets, key=lambda fleet: fleet.at)


def watch(fleets: Sequence[WatchedFleet]) -> list[ComponentHistory]:
    """Return the components that were suspects in any of the fleets or became slower, the most often suspected first.

    `fleets` are in order of time. Components with the same UUIDs, or else the same place, are the same."""
    days_of: dict[tuple[str, ...], list[_Day]] = {}
    for fleet in fleets:
        for digest in fleet.digests:
            for component in digest.components:
                place = Place(digest.node, component.devices)
                identity = component.uuids if all(component.uuids) else (place.text,)
                days_of.setdefault(identity, []).append((fleet, place, component))
    states = {
        (id(fleet), suspect.place.node, device): suspect.state
        for fleet in fleets
        for suspect in fleet.judgement.suspects
        for device in suspect.place.devices
    }
    histories = []
    for days in days_of.values():
        _, place, component = days[-1]
        of_days = tuple(states.get((id(fleet), where.node, where.devices[0])) for fleet, where, _ in days)
        trends = [trend for key in component.rates if (trend := _trend(key, days)) and _worse(trend)]
        if any(of_days) or trends:
            ordered = tuple(sorted(trends, key=_worse, reverse=True))
            histories.append(ComponentHistory(place, component.uuids, of_days, ordered))
    return sorted(histories, key=lambda history: (-history.suspected, -history.worst, history.place.text))


def _trend(key: CaseKey, days: Sequence[_Day]) -> Trend | None:
    """Return the trend of a case over the days with the newest fingerprint; None if it hardly varies."""
    _, place, component = days[-1]
    newest = component.fingerprint
    measured = [(day, part.rates[key]) for day in days if key in (part := day[2]).rates and part.fingerprint == newest]
    values = [rate.value for _, rate in measured]
    if len(values) < 2 or max(values) - min(values) < _MOVED * statistics.median(values):
        return None
    points = []
    for (fleet, where, _), rate in measured:
        margin = 2 * rate.error * rate.value
        interval = stats.Interval(rate.value - margin, rate.value, rate.value + margin)
        source = RunSource(fleet.name, fleet.name, fleet.at, where.node)
        points.append(TrendPoint(source, 0, interval, 0.0, rate.processes))
    line = Line(key.case, key.version, key.tier, key.series, key.unit, key.better, (place.text,), newest)
    return Trend.of(line, points)


def _worse(trend: Trend) -> float:
    """Return how much worse the figure became at its newest change, as a fraction; 0 if it did not."""
    event = trend.newest_event
    return abs(event.effect) if event is not None and event.is_worse else 0.0


def newest_event_text(trend: Trend) -> str:
    """Return the newest change of a trend, which must have one: `bandwidth/read: 3.1 % less (worse) since monday`."""
    event = trend.newest_event
    assert event is not None  # only trends with a change are kept
    return f"{trend.line.case}: {event.effect_text} since {trend.moments[event.start].source.path}"
