"""Deaths of real ranks in real processes, and the patterns that each machine can run."""

import _make as make
import pytest
from _sinks import ResultSink

from gpubench.analysis.quantities import judged_values
from gpubench.measuring import inventory
from gpubench.measuring import plan as planning
from gpubench.measuring.runner import Runner
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model import Settings

H200 = {"memory_bytes": 150 * 10**9, "cache_bytes": 60 * 2**20, "units": 132}
ONE = make.facts(make.device(**H200))
TWO = make.facts(make.device(peers=("cuda:1",), **H200), make.device("cuda:1", peers=("cuda:0",), **H200))
APPLICATIONS = ("abort", "death", "gradients", "layer", "snapshot", "stages", "weights")
MOST_S = {"": 1.0, "rebuild": 3.0, "staged": 3.0, "abort": 3.0}
MOST_REBUILD_S = 10.0  # seconds to rebuild a communicator


def planned(facts, tier, device="cuda:0"):
    """Return name, ranks and devices of the jobs that can run."""
    jobs = planning.make(facts, Settings(("patterns",), (device,), tier)).jobs
    able = [job for job in jobs if job.case.name in APPLICATIONS and not planning.missing_devices(job)]
    return {(job.case.name, job.case.ranks, len(job.devices)) for job in able}


def test_with_two_gpus_each_has_a_rank_and_deaths_have_a_third_rank():
    assert planned(TWO, "full") >= {
        ("abort", 3, 2),
        ("death", 3, 2),
        ("death", 3, 1),
        ("gradients", 2, 2),
        ("layer", 2, 2),
        ("snapshot", 2, 1),
        ("stages", 2, 2),
        ("weights", 4, 1),
    }
    assert {name for name, _, _ in planned(TWO, "quick")} == {"gradients", "layer", "stages"}


def test_one_gpu_has_the_patterns_that_run_in_several_processes_on_it():
    assert planned(ONE, "quick") == set()
    assert {name for name, _, _ in planned(ONE, "full")} == {"death", "snapshot", "stages", "weights"}


def run(facts, device, tier, *filters):
    """Return the results of the selected jobs that can run."""
    plan = planning.make(facts, Settings(("patterns",), (device,), tier, filters=filters))
    shelf = ResultSink()
    with Runner(plan, SamplingProcess((), 0.0), shelf, 120.0) as runner:
        runner.run([job for job in plan.jobs if not planning.missing_devices(job)], 0.0, lambda event: None)
    assert shelf
    assert [(result.case.id, result.status, result.reason) for result in shelf if result.status != "ok"] == []
    return shelf


def expect_fast(results):
    """Assert that every death is noticed in time and every group continues soon."""
    for result in results:
        for series in result.series:
            if series.role == "primary" and series.unit == "s":
                most = (
                    MOST_REBUILD_S if (result.case.name, series.stage) == ("abort", "rebuild") else MOST_S[series.stage]
                )
                assert 0 < float(judged_values(series).max()) < most, (result.case.id, series.label)


@pytest.mark.slow
def test_ranks_continue_after_a_death_in_each_phase():
    results = run(inventory.facts(), "host", "full", "death")
    assert {result.case.param("phase") for result in results} == {
        "opening",
        "mapped",
        "copying",
        "barrier",
        "collective",
    }
    expect_fast(results)


@pytest.mark.slow
def test_work_is_resumed_from_memory_and_from_a_file_whenever_its_process_dies():
    results = run(inventory.facts(), "host", "full", "snapshot")
    lost = {(result.case.param("medium"), result.case.param("amid")): value(result, "lost") for result in results}
    assert lost == {("memory", "step"): 5, ("memory", "save"): 8, ("file", "step"): 5, ("file", "save"): 8}


def value(result, name):
    (named_series,) = (series for series in result.series if series.name == name)
    return named_series.values[0]


@pytest.fixture(scope="module")
def gpu():
    machine = inventory.facts()
    return machine, next(device for device in machine.devices if device.backend == "cupy")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", ["death", "abort"])
def test_gpus_continue_after_a_death(gpu, name):
    facts, device = gpu
    if name == "abort" and not device.peers:
        pytest.skip("needs two GPUs")
    expect_fast(run(facts, device.id, "full", name))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", ["snapshot", "stages", "weights"])
def test_patterns_of_one_gpu_pass_their_checks(gpu, name):
    facts, device = gpu
    run(facts, device.id, "smoke", name)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gradients", "layer"])
def test_patterns_of_several_gpus_pass_their_checks(gpu, name):
    facts, device = gpu
    if not device.peers:
        pytest.skip("needs two GPUs")
    run(facts, device.id, "smoke", name)
