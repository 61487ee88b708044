"""Faults planted by somebody who did not write the engine are seen: `bash ci/study.sh planted_faults` has them all."""

import pytest
from _planted import TWINS
from planted_faults import PASSED, machine_entries, machine_run, rank_entries, suite_entries

FAULTS = {
    "every second call is idle": "wrong-answer",
    "every tenth call is idle": "wrong-answer",
    "idle from some call on": "wrong-answer",
    "idle when called again at once": "wrong-answer",
    "idle while one word of the output is right": "skipped-work",
    "a random page is missing in each call": "wrong-answer",
    "the answer of every input is kept": "skipped-work",
    "the change of inputs does the work": "dropped-passes",
    "the poisoning does the work": "wrong-answer",
    "output and input are one array": "wrong-answer",
    "the lead does the work": "wrong-answer",
    "a graph leaves out every second call": "wrong-answer",
    "a graph leaves out writes that a later call overwrites": "dropped-calls",
    "all passes become one": "dropped-passes",
    "the device counts half of the seconds": "device-clock",
    "the flush before a cold call is missing": "no-flush",
    "a rotation has one buffer": "one-buffer",
    "a call that times itself reports a constant": "dropped-passes",
    "a call that times itself stops its clock before the work": "dropped-passes",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_seen_by_the_check_that_is_meant_for_it(name):
    assert machine_run(name, "clockwork", 3)[0] == FAULTS[name]


@pytest.mark.parametrize("name", ["healthy", *TWINS])
def test_the_same_task_without_a_fault_passes(name):
    assert [machine_run(name, "clockwork", seed, True)[0] for seed in range(3)] == [PASSED] * 3


PLACES = [*machine_entries(), *suite_entries(), *rank_entries()]


@pytest.mark.slow
@pytest.mark.parametrize("entry", PLACES, ids=lambda entry: f"{entry.name} ({entry.where})")
def test_every_place_of_the_study_passes_without_its_fault(entry):
    assert entry.run(0, True) in (PASSED, "unchecked", "true figure")
