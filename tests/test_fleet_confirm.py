"""The selection of nodes for the second measurement of `fleet run --confirm`."""

import random

from _fleets import fleet

from gpubench.judging.fleet_rule import judge_fleet
from gpubench.tools.fleet.judging import plan_second_measurement


def second_measurement(slow):
    return plan_second_measurement(judge_fleet(*fleet(16, 2, slow=slow)), random.Random(3))


def test_a_healthy_fleet_is_not_measured_again():
    assert second_measurement({}).roles == {}


def test_suspects_are_measured_again_beside_the_same_number_of_healthy_nodes():
    measured = second_measurement({("gpu03", "cuda:0"): {"memory": 0.05}, ("gpu11", "cuda:1"): {"memory": 0.08}})
    roles = list(measured.roles.values())
    assert [node for node, role in measured.roles.items() if role == "suspect"] == ["gpu11", "gpu03"]
    assert roles.count("control") == 2
    assert measured.cases == ("bandwidth/triad[size=1GiB,dtype=float32]",)
