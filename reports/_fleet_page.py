"""Collect the values that the template of a fleet's page shows, and the functions that write them as text."""

import math
from collections.abc import Iterator, Sequence

from gpubench.api import report as gb

from ._fleet_map import FleetMap, fleet_map, overview, readings_text, tables
from ._markdown import clipped
from ._web import packed

_MOST_SUSPECTS, _MOST_FINDINGS, _MOST_CASES, _MOST_LINES = 300, 1000, 2000, 200
_FEW_SUSPECTS = 5  # with no more suspects, their cases are open from the start
_NONE = "–"
_BASES = {"others": "the others", "baseline": "the baseline", "floor": "the floor"}
_REST = "`gpubench fleet judge … -o fleet.json` lists all"


def fleet_page(judgement: gb.FleetJudgement) -> dict[str, object]:
    """Return the values of the page, with at most 300 suspects and 200 missing nodes; the others are counted.

    The texts of the judgement must be free of control characters: the template only escapes them."""
    text = gb.fleet_text
    tile_map = fleet_map(judgement, _anchors(judgement.suspects))
    missing = [node for node in judgement.fleet.nodes if node.status != "answered"]
    suspects = list(_suspects(judgement))
    return {
        "title": text.devices_text(judgement),
        "judgement": judgement,
        "text": text,
        "bases": _BASES,
        "clipped": clipped,
        "quantity": lambda value, unit: gb.units.quantity(value, unit) if math.isfinite(value) else _NONE,
        "percent": lambda fraction: gb.units.percent(fraction) if math.isfinite(fraction) else _NONE,
        "style": _style(judgement),
        "reasons": list(_reasons(judgement)),
        "map": tile_map,
        "tables": tables(tile_map),
        "legend": tile_map.layers[tile_map.shown].legend if tile_map.layers else (),
        "small": [
            (index, layer.name, layer.range_text, overview(tile_map, layer))
            for index, layer in enumerate(tile_map.layers)
            if not all(map(math.isnan, layer.values))
        ],
        "data": packed({"devices": tile_map.columns, "layers": [layer.data for layer in tile_map.layers]}),
        "suspects": suspects,
        "are_open": len(suspects) <= _FEW_SUSPECTS,
        "more_suspects": len(judgement.suspects) - len(suspects),
        "missing": missing[:_MOST_LINES],
        "more_missing": max(len(missing) - _MOST_LINES, 0),
        "failures": judgement.failures[:_MOST_LINES],
        "notes": list(_notes(judgement, tile_map)),
    }


def _style(judgement: gb.FleetJudgement) -> str:
    if judgement.sick or judgement.of("confirmed") or any(failure.status == "failed" for failure in judgement.failures):
        return "bad"
    return "warning" if judgement.of("suspect") or not judgement.is_judged else "good"


def _reasons(judgement: gb.FleetJudgement) -> Iterator[str]:
    answered = len(judgement.fleet.nodes) - len(judgement.missing_nodes)
    yield f"{answered} of {len(judgement.fleet.nodes)} nodes answered."
    if judgement.is_judged:
        yield f"Components were compared with {gb.fleet_text.compared_with(judgement)}."
    if detectable := gb.fleet_text.detectable_text(judgement):
        yield f"The smallest detectable slowdown: {detectable}."
    for standing in judgement.sick[:_MOST_LINES]:
        yield f"Sick: {standing.place.text}: {clipped('; '.join(standing.sick))}"
    for line in map(clipped, gb.fleet_text.population_sentences(judgement)[:_MOST_LINES]):
        yield f"{line[:1].upper()}{line[1:]}."


def _anchors(suspects: Sequence[gb.Suspect]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the anchor and the state of the suspect to which the tile of a node's device links; links come last."""
    anchors: dict[tuple[str, str], tuple[str, str]] = {}
    numbered = list(enumerate(suspects[:_MOST_SUSPECTS], 1))
    for number, suspect in sorted(numbered, key=lambda pair: pair[1].unit == "link"):
        for device in suspect.place.devices:
            anchors.setdefault((suspect.place.node, device), (f"suspect-{number}", suspect.state))
    return anchors


def _suspects(judgement: gb.FleetJudgement) -> Iterator[dict[str, object]]:
    """Yield the first 300 suspects with their listed findings and cases; `more` counts what is left out."""
    standings = {standing.place: standing for standing in judgement.standings}
    findings_left, cases_left = _MOST_FINDINGS, _MOST_CASES
    for suspect in judgement.suspects[:_MOST_SUSPECTS]:
        findings, cases = suspect.findings[: max(findings_left, 1)], suspect.cases[: max(cases_left, 0)]
        findings_left, cases_left = findings_left - len(findings), cases_left - len(cases)
        parts = [standings[place] for place in suspect.parts if place in standings]
        yield {
            "suspect": suspect,
            "uuids": ", ".join(filter(None, suspect.uuids)),
            "readings": [f"{standing.place.text}: {readings_text(standing)}" for standing in parts],
            "findings": findings,
            "cases": cases,
            "more": len(suspect.findings) - len(findings) + len(suspect.cases) - len(cases),
        }


def _notes(judgement: gb.FleetJudgement, tile_map: FleetMap) -> Iterator[str]:
    yield from map(clipped, judgement.notes[:_MOST_LINES])
    if (more := len(judgement.notes) - _MOST_LINES) > 0:
        yield f"{more} more notes are left out: {_REST}"
    if (more := len(judgement.failures) - _MOST_LINES) > 0:
        yield f"{more} more components with failed cases are left out: {_REST}"
    if tile_map.left_out:
        yield f"{tile_map.left_out} nodes that answered and have no finding are left out of the map: {_REST}"
