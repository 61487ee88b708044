"""The whole procedure of a gate: repeated measurements, when they end, and how often they are right (simulated)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from _sides import evidence, noisy
from _simulated import World, judged
from gate_simulation import DESIGNS, WORLDS, peers, simulate

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
    [(World(noise=0.03), "files", 60), (World(noise=0.03), "stored", 40), (World(noise=0.01, mode=0.03), "ab", 20)],
)
def test_of_a_hundred_suites_of_identical_code_at_most_one_is_alarmed(world, design, suites):
    assert simulate(world, suites, design, seed=2).alarmed <= 1


@pytest.mark.parametrize("design", ["files", "ab"])
def test_ten_processes_suffice_where_one_side_is_three_times_as_noisy(design):
    world = World(noise=0.03, times=(1.0, 3.0), baseline=10, candidate=10)
    assert simulate(world, 25, design, seed=3).alarmed <= 1


@pytest.mark.parametrize(("slower", "least"), [(0.05, 0.98), (0.03, 0.75)])
def test_a_slow_down_is_found_where_both_sides_can_be_measured_again(slower, least):
    assert simulate(World(slower=slower), suites=20, seed=2).found >= least


def test_a_slow_down_of_three_per_cent_is_found_against_a_stored_baseline_of_twenty_and_seldom_of_five():
    """docs/gate.md explains it: repeated measurements of the candidate cannot remove the baseline's uncertainty."""
    twenty, five = (simulate(World(slower=0.03, baseline=count), 10, "stored", seed=3) for count in (20, 5))
    assert twenty.found >= 0.6
    assert five.found < 0.5


def test_the_rules_of_other_tools_raise_false_alarms_on_the_same_suites():
    alarmed = {name: share for name, share, _ in peers(World(noise=0.03), suites=10)}
    assert alarmed["Mann-Whitney"] > 0.5
    assert alarmed["bootstrap"] > 0.5
    assert alarmed["nvbench"] > 0.5


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [world for world in WORLDS.values() if not world.memory])
@pytest.mark.parametrize("design", DESIGNS)
def test_of_the_suites_in_the_table_of_the_docs_at_most_one_in_a_hundred_is_alarmed(world, design):
    for count in (5, 10) if world.times == (1.0, 1.0) else (10,):
        assert simulate(replace(world, baseline=count, candidate=count), 400, design).alarms <= 0.01
