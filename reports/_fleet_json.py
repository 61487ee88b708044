"""Turn the judgement of a fleet into a JSON document, schema `gpubench.fleet-judgement/1`, as in docs/fleet.md."""

import dataclasses
from typing import Any

from gpubench.api import report as gb

FLEET_SCHEMA = "gpubench.fleet-judgement/1"
# The names of fields in the document, if they differ: fractions and seconds are named by their unit.
_NAMES = {
    "slowdown": "slowdown_fraction",
    "detectable": "smallest_detectable_fraction",
    "again": "slowdown_again_fraction",
    "share": "share_of_median_fraction",
    "shares": "share_of_median_fraction",
    "spread": "spread_fraction",
    "gap": "gap_fraction",
    "seconds": "elapsed_s",
    "basis": "compared_with",
    "faster": "faster_components",
}
_NAMES_OF_TYPE = {gb.FleetGroup: {"text": "fingerprint"}, gb.FailedCases: {"count": "cases", "case": "first_case"}}


def fleet_document(judgement: gb.FleetJudgement) -> dict[str, Any]:
    """Return the whole judgement as plain values, ready for `json.dumps`; a number that is not finite is None."""
    fleet = judgement.fleet
    return {
        "schema": FLEET_SCHEMA,
        "gpubench": fleet.gpubench,
        "answer": gb.fleet_text.fleet_answer(judgement),
        "next": gb.fleet_text.next_steps_text(judgement),
        "compared_with": list(judgement.bases),
        "launcher": fleet.launcher,
        "started": fleet.started,
        "elapsed_s": gb.frame.finite(fleet.seconds),
        "nodes_at_once": fleet.at_once,
        "notes": list(judgement.notes),
        "nodes": _plain(fleet.nodes),
        "again": _plain(fleet.again),
        "failures": _plain(judgement.failures),
        "suspects": [_suspect(suspect) for suspect in judgement.suspects],
        "groups": _plain(judgement.groups),
        "components": [{**_plain(part), _NAMES["shares"]: _plain(dict(part.shares))} for part in judgement.standings],
    }


def _suspect(suspect: gb.Suspect) -> dict[str, Any]:
    derived = {"state": suspect.state, "slowdown_fraction": suspect.slowdown, "causes": suspect.causes}
    return {**_plain(suspect), **_plain(derived)}


def _plain(value: Any) -> Any:
    """Return a value of JSON; a dataclass becomes an object, and its place becomes the keys `node` and `devices`."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return gb.frame.finite(value) if isinstance(value, float) else value
    record: dict[str, Any] = {}
    names = {**_NAMES, **_NAMES_OF_TYPE.get(type(value), {})}
    for field in dataclasses.fields(value):
        item = _plain(getattr(value, field.name))
        record |= item if field.name == "place" else {names.get(field.name, field.name): item}
    return record
