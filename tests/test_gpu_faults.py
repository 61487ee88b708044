"""On a real GPU (`pytest -m gpu`): a kernel that faults or never ends costs its case, and leaves no memory behind."""

import os
import sys

import pytest
from test_runner import PLUGIN, ListSink, outcomes

from gpubench import plugins
from gpubench.measuring import inventory
from gpubench.measuring import plan as planning
from gpubench.measuring.runner import Runner
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model import Settings

pytestmark = pytest.mark.gpu

FAULTS = {
    "illegal": ("failed", "error", "cudaErrorIllegalAddress"),
    "asserting": ("failed", "error", "cudaErrorAssert"),
    "exhausting": ("failed", "error", "OutOfMemoryError"),
    "endless": ("failed", "hang", "no answer within 10"),
}
RESTARTS = 100
GROWTH_MIB = 64  # allowed growth of used device memory over all restarts: below 0.1 % and below the size of a context


@pytest.fixture(scope="module")
def facts():
    return inventory.facts()


@pytest.fixture(autouse=True)
def faults(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([PLUGIN, *sys.path]))
    monkeypatch.syspath_prepend(PLUGIN)


def run(facts, names):
    """Run these cases of the suite `faults` with the usual time limits and return the results."""
    plan = planning.make(facts, Settings(("faults",), (facts.devices[0].id,), "smoke"))
    jobs = {job.case.name: job for job in plan.jobs}
    shelf = ListSink()
    with Runner(plan, SamplingProcess(plan.facts.devices, 0.0), shelf) as runner:
        runner.run([jobs[name] for name in names], 0.0, lambda event: None)
    return shelf


def assert_each_costs_itself(shelf, times):
    expected = [
        row for name, (status, cause, _) in FAULTS.items() for row in ((name, status, cause), ("good", "ok", ""))
    ]
    assert outcomes(shelf) == expected * times
    for result in shelf.results:
        if result.case.name in FAULTS:
            assert FAULTS[result.case.name][2] in result.reason


def test_each_fault_of_a_kernel_costs_its_case_and_the_next_one_is_clean(facts):
    shelf = run(facts, [name for fault in FAULTS for name in (fault, "good")])
    assert_each_costs_itself(shelf, 1)
    (endless,) = (result for result in shelf.results if result.case.name == "endless")
    assert endless.elapsed_s < 60, (
        "an endless kernel costs its limit, the opening of the device and the end of its worker"
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_each_fault_of_a_kernel_is_followed_by_a_clean_case_twenty_times(facts):
    assert_each_costs_itself(run(facts, [name for fault in FAULTS for name in (fault, "good")] * 20), 20)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_restarts_of_a_worker_leave_the_devices_memory_flat(facts):
    gpu = plugins.load("backends", facts.devices[0].backend).open(facts.devices[0])
    run(facts, ["illegal", "good"])
    before = gpu.free_bytes()
    shelf = run(facts, ["illegal", "good"] * RESTARTS)
    assert outcomes(shelf) == [("illegal", "failed", "error"), ("good", "ok", "")] * RESTARTS
    assert before - gpu.free_bytes() < GROWTH_MIB * 2**20
