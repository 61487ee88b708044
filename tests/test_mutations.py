"""Faults that are planted in calls are found: `bash ci/study.sh mutations` prints the table of all of them."""

import pytest
from _mutants import CLOCKWORK_FAULTS, HOST_MUTATIONS
from mutations import SURVIVES, clockwork_outcome, host_outcome

# It is found only in the runs in which the random place of a check meets it.
BY_CHANCE = {"nothing for sixty calls in mid-run"}


def test_twenty_faults_and_forty_three_mutations_are_planted():
    assert (len(CLOCKWORK_FAULTS), len(HOST_MUTATIONS)) == (20, 43)


@pytest.mark.parametrize("fault", sorted(set(CLOCKWORK_FAULTS) - BY_CHANCE))
def test_a_fault_of_a_call_of_arithmetic_time_is_found_wherever_it_is_checked(fault):
    assert SURVIVES not in {clockwork_outcome(fault, seed) for seed in range(4)}


@pytest.mark.parametrize("fault", sorted(BY_CHANCE))
def test_a_fault_in_a_few_calls_is_found_if_the_random_place_of_a_check_meets_it(fault):
    outcomes = [clockwork_outcome(fault, seed) for seed in range(12)]
    assert 2 <= sum(outcome != SURVIVES for outcome in outcomes) < 12


QUICKLY_FOUND = ("an earlier answer", "one wrong element of C on repeats", "passes are left out")


@pytest.mark.parametrize(
    "mutation",
    [mutation for mutation in HOST_MUTATIONS if mutation.name in QUICKLY_FOUND],
    ids=lambda mutation: f"{mutation.case}: {mutation.name}",
)
def test_a_call_that_returns_an_earlier_answer_or_leaves_out_work_is_found(mutation):
    assert host_outcome(mutation) != SURVIVES
