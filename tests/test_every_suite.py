"""Every present and future suite builds, runs and passes its own check on the host, with no mock."""

import importlib.util
import os
from pathlib import Path

import _make as make
import pytest
from _sinks import ResultSink

from gpubench import plugins
from gpubench.analysis.quantities import headline, judged_values
from gpubench.authoring.axes import Target
from gpubench.base.errors import UsageError
from gpubench.knowledge.key_figures import BUILT_IN_SUITES, OF_GPU, OF_HOST
from gpubench.measuring import plan as planning
from gpubench.measuring.runner import Runner
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model import Facts, Settings, store

SUITES = plugins.names("suites")
IDS = Path(__file__).parent / "golden" / "ids.txt"  # of the cases of the quick tier
GPUS_ALONE = {"inference", "p2p", "tensor"}  # these need kernels of a GPU, peer access or matrix units


def test_built_in_suites_are_found():
    assert set(SUITES) >= {"bandwidth", "compression", "gemm", "ipc", "latency"}


def test_a_suite_for_gpus_alone_is_refused_on_a_host_before_anything_starts():
    facts = Facts(tuple(plugins.load("backends", "host").devices()))
    for name in GPUS_ALONE:
        with pytest.raises(UsageError, match=f"{name} needs a GPU; none here"):
            planning.make(facts, Settings((name,), ("host",), "smoke"))


@pytest.mark.parametrize("is_alone", [True, False], ids=["one process", "several ranks"])
def test_every_suite_runs_on_the_host_and_every_case_passes_its_check(is_alone):
    facts = Facts(tuple(plugins.load("backends", "host").devices()))
    plan = planning.make(facts, Settings(tuple(sorted(set(SUITES) - GPUS_ALONE)), ("host",), "smoke"))
    jobs = [job for job in plan.jobs if (job.case.ranks == 1) == is_alone]
    shelf, again = ResultSink(), ResultSink()
    with Runner(plan, SamplingProcess((), 0.0), shelf) as runner:
        runner.run(jobs, 0.0, lambda event: None)
    assert [result.case.id for result in shelf] == [job.case.id for job in jobs]
    slowed = [job for job, result in zip(jobs, shelf, strict=True) if result.cause == "skipped-work"]
    assert len(slowed) <= 2, "a busy machine may lengthen the one call that is compared, and hardly two"
    with Runner(plan, SamplingProcess((), 0.0), again) as runner:
        runner.run(slowed, 0.0, lambda event: None)
    for result in (*(result for result in shelf if result.cause != "skipped-work"), *again):
        if result.cause == "discarded":  # if a hypervisor steals most samples, the suite is not at fault
            continue
        if result.case.suite == "training" and importlib.util.find_spec("torch") is None:
            assert (result.status, result.reason.partition(";")[0]) == ("skipped", "torch is not installed")
            continue
        assert (result.status, result.reason) == ("ok", ""), result.case.id
        assert (judged_values(headline(result)) > 0).all(), result.case.id


@pytest.mark.parametrize("name", sorted(set(SUITES) - GPUS_ALONE))
@pytest.mark.parametrize("tier", ["smoke", "quick", "full"])
def test_ids_are_unique_and_views_name_real_cases(name, tier):
    facts = Facts(tuple(plugins.load("backends", "host").devices()))
    plan = planning.make(facts, Settings((name,), ("host",), tier))
    ids = [job.case.id for job in plan.jobs]
    assert len(ids) == len(set(ids))
    suite = planning.load_suite(name)
    for view in suite.views:
        assert set(view.cases) <= set(suite.definitions), view.title


def test_no_released_id_of_a_case_of_two_h200_is_lost():
    """A new case needs no change here; with GPUBENCH_WRITE_GOLDEN it is added, so that its id cannot change later."""
    facts = store.read_run(IDS.parents[1] / "recordings/h200x2-quick.jsonl.gz").manifest.facts
    suites = [planning.load_suite(name) for name in SUITES]
    ids = {case.id for suite in suites for case in suite.cases(Target(facts, facts.devices[0], "quick"))}
    if os.environ.get("GPUBENCH_WRITE_GOLDEN"):
        IDS.write_text("\n".join(sorted({*ids, *IDS.read_text().splitlines()})) + "\n", encoding="utf-8")
    assert set(IDS.read_text(encoding="utf-8").splitlines()) - ids == set()


def test_the_key_figures_of_every_run_are_no_suite_s_own_choice():
    assert set(SUITES) == BUILT_IN_SUITES
    assert not any(planning.load_suite(name).key_figures for name in SUITES)


def test_quick_measures_every_key_figure_of_a_gpu_at_exactly_its_parameters_and_every_one_of_the_host():
    facts = make.facts(
        make.device(memory_bytes=2**37, cache_bytes=60 * 2**20, peers=("cuda:1",)),
        make.device("cuda:1", memory_bytes=2**37, peers=("cuda:0",)),
        make.device("host", "CPU", dtypes=("float64", "float32"), cache_bytes=2**25, memory_bytes=2**35),
    )
    for device_id, figures in (("cuda:0", OF_GPU), ("host", OF_HOST)):
        for name, figure in figures:
            cases = planning.load_suite(name).cases(Target(facts, facts.device(device_id), "quick"))
            params = [set(case.params) for case in cases if case.name == figure.case]
            wanted = {  # on the host sizes follow its caches
                (axis, value) for axis, value in figure.params if axis != "size_bytes" or device_id != "host"
            }
            assert any(wanted <= those for those in params), figure.title


@pytest.mark.parametrize("name", SUITES)
def test_the_function_that_builds_a_case_describes_it(name):
    for definition in planning.load_suite(name).definitions.values():
        assert definition.build.__doc__, definition.name
