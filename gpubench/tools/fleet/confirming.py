"""Choose the second measurement of a fleet: the suspects' nodes, and an equal number of healthy nodes as controls."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from gpubench.judging.fleet import FleetJudgement
from gpubench.tools.fleet.session import Role

_MOST_CASES = 40  # cases of a second measurement, the slowest findings, so that it takes about a minute


class SecondMeasurementPlan(NamedTuple):
    """The nodes to measure again with their roles, and the ids of the cases; empty if there is no suspect."""

    roles: dict[str, Role]
    cases: tuple[str, ...]


def plan_second_measurement(judgement: FleetJudgement, draw: random.Random) -> SecondMeasurementPlan:
    """Return the slowest cases of the suspects, their nodes, and an equal number of healthy nodes as controls.

    `draw` chooses the healthy nodes at random.
    """
    suspects = dict.fromkeys(suspect.place.node for suspect in judgement.suspects)
    answered = [node.name for node in judgement.fleet.nodes if node.status == "answered"]
    healthy = [name for name in answered if name not in suspects]
    controls = draw.sample(healthy, min(len(suspects), len(healthy)))
    roles: dict[str, Role] = {**dict.fromkeys(suspects, "suspect"), **dict.fromkeys(controls, "control")}
    return SecondMeasurementPlan(roles, tuple(dict.fromkeys(_slowest_cases(judgement)))[:_MOST_CASES])


def _slowest_cases(judgement: FleetJudgement) -> Iterator[str]:
    """Yield the cases of the findings, the slowest first; for a finding of a family, all its cases."""
    findings = [finding for suspect in judgement.suspects for finding in suspect.findings]
    for finding in sorted(findings, key=lambda finding: -finding.slowdown):
        if finding.case:
            yield finding.case
        else:
            yield from (
                case.case for group in judgement.groups for case in group.cases if case.family == finding.family
            )
