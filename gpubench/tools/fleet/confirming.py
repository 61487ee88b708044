"""Choose the second measurement of a fleet: the suspects' nodes, and an equal number of healthy nodes as controls."""

import random
from collections.abc import Iterator
from typing import NamedTuple

from gpubench.judging.fleet import FleetJudgement
from gpubench.tools.fleet.session import Role

_MOST_CASES = 40  # cases of a second measurement, the slowest findings, so that it takes about a minute


class SecondMeasurementPlan(NamedTuple):
    """The role of each node to measure again, by name, and the ids of the cases; empty if there is no suspect."""

    roles: dict[str, Role]
    cases: tuple[str, ...]


def plan_second_measurement(judgement: FleetJudgement, draw: random.Random) -> SecondMeasurementPlan:
    """Return the nodes and cases to measure again: every suspect's node, as many healthy controls, the slowest cases.

    At most 40 cases are chosen."""
    suspects = dict.fromkeys(suspect.place.node for suspect in judgement.suspects)
    answered = [node.name for node in judgement.fleet.nodes if node.status == "answered"]
    healthy = [name for name in answered if name not in suspects]
    controls = draw.sample(healthy, min(len(suspects), len(healthy)))
    roles: dict[str, Role] = {**dict.fromkeys(suspects, "suspect"), **dict.fromkeys(controls, "control")}
    return SecondMeasurementPlan(roles, tuple(dict.fromkeys(_slowest_cases(judgement)))[:_MOST_CASES])


def _slowest_cases(judgement: FleetJudgement) -> Iterator[str]:
    """Yield the ids of the cases in which suspects are slow, the largest slowdown first."""
    findings = [finding for suspect in judgement.suspects for finding in suspect.findings]
    for finding in sorted(findings, key=lambda finding: -finding.slowdown):
        if finding.case:
            yield finding.case
        else:
            yield from (
                case.case for group in judgement.groups for case in group.cases if case.family == finding.family
            )
