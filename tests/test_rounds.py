"""The whole procedure of a gate: repeated measurements, when they end, and how often they are right (simulated)."""

from __future__ import annotations

import pytest
from _sides import evidence, noisy
from _simulated import World, judged
from gate_simulation import simulate

from gpubench.judging.rounds import Sides, settle
from gpubench.model import Verdict


def settle_one_case(values, again, rounds=3):
    """Settle a case measured as `values`; each further measurement has the median of `again`."""
    asked = []

    def measure(sides, suspects):
        asked.append([finding.case.id for finding in suspects])
        more = evidence(*noisy(again[len(asked) - 1], 0.001)).readings[0]
        return Sides(
            sides.before.with_repeats([evidence(*noisy(1.0, 0.001)).readings[0]]), sides.after.with_repeats([more])
        )

    sides = Sides(evidence(*noisy(1.0, 0.001)), evidence(*values))
    (finding,) = settle(sides, judged, measure, rounds).findings
    return finding.verdict, len(asked)


@pytest.mark.parametrize(
    ("first", "again", "rounds", "expected"),
    [
        (1.1, [1.1], 3, (Verdict.SLOWER, 1)),  # it is measured again before it fails
        (1.1, [1.0, 1.0, 1.0], 3, (Verdict.INCONCLUSIVE, 2)),  # slower once and not again
        (1.02, [1.02] * 3, 3, (Verdict.INCONCLUSIVE, 3)),  # a suspect that remains one
        (1.001, [], 3, (Verdict.SAME, 0)),
        (1.1, [], 0, (Verdict.SLOWER, 0)),  # without rounds the first measurement counts
    ],
)
def test_a_slower_case_is_measured_again_and_fails_only_if_it_stays_slower(first, again, rounds, expected):
    assert settle_one_case(noisy(first, 0.001), again, rounds) == expected


def test_only_cases_that_look_slower_are_measured_again():
    # a third of these are inconclusive after the first measurement
    assert simulate(World(), suites=4, rounds=1, seed=1).asked_again < 0.15


@pytest.mark.parametrize(
    ("world", "design", "suites"),
    [(World(noise=0.03), "files", 20), (World(noise=0.03), "stored", 10), (World(noise=0.01, mode=0.03), "ab", 6)],
)
def test_few_suites_of_identical_code_are_alarmed(world, design, suites):
    """`bash ci/study.sh gate_simulation` judges hundreds, of which at most one in a hundred is alarmed."""
    assert simulate(world, suites, design, seed=2).alarmed <= 1


def test_a_slow_down_of_five_per_cent_is_found_where_both_sides_can_be_measured_again():
    assert simulate(World(slower=0.05), suites=6, seed=2).found >= 0.98
