"""Turn the judgement of a fleet into a JSON document, schema `gpubench.fleet-judgement/1`, as in docs/fleet.md."""

import dataclasses
from typing import Any

from gpubench.api import report as gb

FLEET_SCHEMA = "gpubench.fleet-judgement/1"


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
        "nodes": [_timed(dataclasses.asdict(node)) for node in fleet.nodes],
        "again": [_timed(dataclasses.asdict(node)) for node in fleet.again],
        "failures": [_failure(failure) for failure in judgement.failures],
        "suspects": [_suspect(suspect) for suspect in judgement.suspects],
        "groups": [_group(group) for group in judgement.groups],
        "components": [_component(standing) for standing in judgement.standings],
    }


def _timed(record: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a node's record with the key `seconds` renamed to `elapsed_s`, as in the other documents."""
    return {"elapsed_s" if name == "seconds" else name: value for name, value in record.items()}


def _failure(failure: gb.FailedCases) -> dict[str, Any]:
    """Return the record of the cases that have no valid result on one component but have one on others."""
    return {
        "node": failure.place.node,
        "devices": list(failure.place.devices),
        "status": failure.status,
        "cases": failure.count,
        "first_case": failure.case,
        "reason": failure.reason,
    }


def _suspect(suspect: gb.Suspect) -> dict[str, Any]:
    """Return the record of a suspect, with the cases in which it is slow (`findings`) and all its cases (`cases`)."""
    return {
        "unit": suspect.unit,
        "node": suspect.place.node,
        "devices": list(suspect.place.devices),
        "uuids": list(suspect.uuids),
        "state": suspect.state,
        "slowdown_fraction": gb.frame.finite(suspect.slowdown),
        "causes": [dataclasses.asdict(cause) for cause in suspect.causes],
        "findings": [_finding(finding) for finding in suspect.findings],
        "cases": [_case(case) for case in suspect.cases],
    }


def _case(case: gb.SuspectCase) -> dict[str, Any]:
    """Return the record of a suspect's case, with the median of comparable components; both values are in SI units."""
    return {
        "node": case.place.node,
        "devices": list(case.place.devices),
        "case": case.case,
        "family": case.family,
        "unit": case.unit,
        "value": gb.frame.finite(case.value),
        "median": gb.frame.finite(case.median),
        "share_of_median_fraction": gb.frame.finite(case.share),
    }


def _finding(finding: gb.FleetFinding) -> dict[str, Any]:
    """Return the record of a case, or a family of cases, in which a component is slow."""
    return {
        "node": finding.place.node,
        "devices": list(finding.place.devices),
        "kind": finding.kind,
        "family": finding.family,
        "case": finding.case,
        "compared_with": finding.basis,
        "state": finding.state,
        "slowdown_fraction": gb.frame.finite(finding.slowdown),
        "smallest_detectable_fraction": gb.frame.finite(finding.detectable),
        "slowdown_again_fraction": gb.frame.finite(finding.again),
        "unit": finding.unit,
        "better": finding.better,
        "value": gb.frame.finite(finding.value),
        "expected": gb.frame.finite(finding.expected),
        "causes": [dataclasses.asdict(cause) for cause in finding.causes],
    }


def _group(group: gb.FleetGroup) -> dict[str, Any]:
    """Return the record of a group of comparable components, with the median and the spread of each of its cases."""
    cases = [
        {
            "case": case.case,
            "family": case.family,
            "unit": case.unit,
            "components": case.components,
            "median": gb.frame.finite(case.median),
            "spread_fraction": gb.frame.finite(case.spread),
            "smallest_detectable_fraction": gb.frame.finite(case.detectable),
        }
        for case in group.cases
    ]
    return {
        "kind": group.kind,
        "fingerprint": group.text,
        "components": group.components,
        "populations": [_two_populations(two) for two in group.populations],
        "cases": cases,
    }


def _two_populations(two: gb.TwoPopulations) -> dict[str, Any]:
    """Return the record of two populations within a group, one of which is slower."""
    return {
        "cases": list(two.cases),
        "slower": [{"node": place.node, "devices": list(place.devices)} for place in two.slower],
        "faster_components": two.faster,
        "gap_fraction": gb.frame.finite(two.gap),
        "differences": list(two.differences),
    }


def _component(standing: gb.Standing) -> dict[str, Any]:
    """Return the record of a component, with its mean readings while the cases ran; an unknown reading is None."""
    return {
        "node": standing.place.node,
        "devices": list(standing.place.devices),
        "kind": standing.kind,
        "group": standing.group,
        "state": standing.state,
        "share_of_median_fraction": {family: gb.frame.finite(share) for family, share in standing.shares},
        "temperature_c": gb.frame.finite(standing.temperature_c),
        "power_w": gb.frame.finite(standing.power_w),
        "clock_hz": gb.frame.finite(standing.clock_hz),
        "sick": list(standing.sick),
        "warnings": list(standing.warnings),
    }
