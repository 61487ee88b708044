"""On real GPUs (`pytest -m gpu`): suspended and migrated programs, neighbours, time slices, green contexts."""

import fnmatch
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpubench.measuring import inventory
from gpubench.measuring import plan as planning
from gpubench.measuring.runner import Runner
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model import Settings

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def facts():
    return inventory.facts()


class SharingResults:
    """A sink that keeps the results."""

    def __init__(self):
        self.results: list[Any] = []

    def result(self, result):
        self.results.append(result)

    def samples(self, samples):
        pass

    def remark(self, remark):
        pass


def measured(facts, tier, *patterns):
    """Return the results of the cases whose ids match."""
    plan = planning.make(facts, Settings(("virtual",), (facts.devices[0].id,), tier))
    jobs = [job for job in plan.jobs if any(fnmatch.fnmatch(job.case.id, f"virtual/{pattern}") for pattern in patterns)]
    assert jobs, patterns
    shelf = SharingResults()
    with Runner(plan, SamplingProcess((), 0.0), shelf, 60.0) as runner:
        runner.run(jobs, 0.0, lambda event: None)
    return shelf.results


def values(result, label):
    return [value for series in result.series if series.label == label for value in series.values]


def expect_ok(results):
    assert [(result.case.id, result.status, result.reason) for result in results if result.status != "ok"] == []


def held_processes():
    """Return the children of this suite that still run."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"virtual._held" in command or b"virtual._suspension" in command:
                pids.append(int(entry.name))
    return pids


def test_every_case_passes_its_check(facts):
    expect_ok(measured(facts, "smoke", "suspend*", "neighbour*", "slice*", "preempt*", "green*"))
    assert held_processes() == []


def test_a_bare_program_is_suspended_and_resumed_with_every_step_timed(facts):
    (result,) = measured(facts, "smoke", "suspend?resident=2MiB]")
    expect_ok([result])
    for step in ("lock", "checkpoint", "restore", "unlock"):
        assert all(0 < seconds < 10 for seconds in values(result, step))
    assert values(result, "freed")[0] > 2**21
    assert held_processes() == []


@pytest.mark.slow
def test_a_program_survives_twenty_suspensions_at_one_gibibyte(facts):
    results = measured(facts, "full", "suspend?resident=1GiB]")
    expect_ok(results)
    assert len(values(results[0], "self")) == 20


@pytest.mark.slow
def test_each_kind_of_memory_survives_or_is_refused_and_leaves_the_device_clean(facts):
    results = measured(facts, "full", "suspend_kinds*")
    expect_ok(results)
    outcomes = {result.case.id: dict(result.notes)["outcome"] for result in results}
    assert any(outcome == "resumed with all its data" for outcome in outcomes.values()), outcomes
    assert held_processes() == []


def test_a_program_moves_to_every_gpu_and_back(facts):
    if len(facts.devices) < 3:
        pytest.skip("needs two GPUs")
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        pytest.skip("CUDA_VISIBLE_DEVICES is set: a migration is refused")
    expect_ok(measured(facts, "smoke", "migrate*"))
    assert held_processes() == []


def test_a_neighbour_that_fills_the_gpu_takes_most_of_it_from_another_process(facts):
    results = measured(facts, "quick", "neighbour*")
    expect_ok(results)
    for result in results:
        assert "time-sliced" in result.labels
        assert values(result, "relative")[0] < 0.9, result.case.id
        assert 0.5 < values(result, "sum")[0] < 1.6, result.case.id


@pytest.mark.slow
def test_a_green_context_keeps_a_spinning_neighbour_away(facts):
    results = measured(facts, "full", "neighbour?victim=gemm,aggressor=spin,how=green]")
    expect_ok(results)
    assert values(results[0], "relative")[0] > 0.7, "it has SMs of its own"


@pytest.mark.slow
def test_time_slices_last_longer_than_their_switches(facts):
    (result,) = measured(facts, "full", "slice*")
    expect_ok([result])
    slices, switches, gaps = (np.median(values(result, label)) for label in ("self", "switch", "gap"))
    assert 1e-4 < slices < 0.1
    assert gaps < switches < slices


@pytest.mark.slow
def test_two_green_contexts_never_meet_and_more_sms_deliver_more(facts):
    results = measured(facts, "full", "green*")
    expect_ok(results)
    assert all(values(result, "disjoint") == [100.0] for result in results)
    seconds = {dict(result.case.params)["units"]: np.median(values(result, "gemm.self")) for result in results}
    assert seconds[16] / seconds[64] == pytest.approx(4, rel=0.25)


@pytest.mark.slow
def test_an_urgent_kernel_of_higher_priority_waits_less_than_one_of_equal_priority(facts):
    results = {dict(result.case.params)["how"]: result for result in measured(facts, "full", "preempt*blocks=16]")}
    expect_ok(list(results.values()))
    delays = {way: np.median(values(result, "delay")) for way, result in results.items()}
    assert delays["priority"] < delays["streams"]
    assert delays["green"] < delays["streams"]
