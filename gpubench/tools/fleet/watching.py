"""Read several measurements of a fleet and judge them in order of time."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpubench.judging.fleet_rule import judge_fleet
from gpubench.judging.fleet_watch import ComponentHistory, WatchedFleet, newest_event_text
from gpubench.tools.fleet.digests import read


def read_all(folders: Sequence[Path]) -> list[WatchedFleet]:
    """Return the fleet in each folder with its judgement, in order of time; fleets without a date come first.

    Raises FileError if a folder holds no fleet."""
    fleets = []
    for index, folder in enumerate(folders):
        current = read(folder)
        judgement = judge_fleet(current.fleet, current.digests, current.again)
        at = _seconds_since_1970(current.fleet.started) if current.fleet.started else float(index)
        fleets.append(WatchedFleet(folder.name, at, current.digests, judgement))
    return sorted(fleets, key=lambda fleet: fleet.at)


def document(history: ComponentHistory) -> dict[str, Any]:
    """Return a component's history as an object for JSON: place, UUIDs, counts of states, states, and changes.

    A change is the newest one of a case: the case's id, the relative change, and a text."""
    return {
        "node": history.place.node,
        "devices": list(history.place.devices),
        "uuids": list(history.uuids),
        "measured": len(history.states),
        "slow": history.suspected,
        "recovered": history.transient,
        "states": [state or "ok" for state in history.states],
        "changes": [
            {"case": trend.line.case, "fraction": trend.newest_event.effect, "words": newest_event_text(trend)}
            for trend in history.trends
            if trend.newest_event
        ],
    }


def _seconds_since_1970(started: str) -> float:
    """Return a date in ISO 8601 in s since 1970, in UTC unless it has a time zone; 0 if the text is no date."""
    try:
        moment = datetime.fromisoformat(started)
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
