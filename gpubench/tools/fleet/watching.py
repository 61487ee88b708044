"""Several measurements of a fleet, read and judged in order of time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpubench.judging.fleet_rule import judge_fleet
from gpubench.judging.fleet_watch import ComponentHistory, WatchedFleet, event_words
from gpubench.tools.fleet.digests import read


def read_all(folders: Sequence[Path]) -> list[WatchedFleet]:
    """Return the fleets of these folders in order of time; those without a date stand as they are given, first.

    Raises FileError where a folder is no fleet.
    """
    fleets = []
    for place, folder in enumerate(folders):
        found = read(folder)
        judged = judge_fleet(found.fleet, found.digests, found.again)
        at = _seconds(found.fleet.started) if found.fleet.started else float(place)
        fleets.append(WatchedFleet(folder.name, at, found.digests, judged))
    return sorted(fleets, key=lambda fleet: fleet.at)


def document(history: ComponentHistory) -> dict[str, Any]:
    """Return a component's history as it stands in JSON."""
    return {
        "node": history.place.node,
        "devices": list(history.place.devices),
        "uuids": list(history.uuids),
        "measured": len(history.states),
        "slow": history.suspected,
        "recovered": history.transient,
        "states": [state or "ok" for state in history.states],
        "changes": [
            {"case": trend.line.case, "fraction": trend.newest_event.effect, "words": event_words(trend)}
            for trend in history.trends
            if trend.newest_event
        ],
    }


def _seconds(started: str) -> float:
    """Return a date as seconds since 1970; one without a zone is UTC, and what is no date counts as none."""
    try:
        found = datetime.fromisoformat(started)
    except ValueError:
        return 0.0
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
