"""Every present and future suite builds, runs and passes its own check on the host, with no mock."""

import pytest

from gpubench import plugins
from gpubench.analysis.quantities import headline, judged_values
from gpubench.base.errors import UsageError
from gpubench.measuring import plan as planning
from gpubench.measuring.runner import Runner
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model import Facts, Settings

SUITES = plugins.names("suites")
GPUS_ALONE = {"p2p", "tensor"}  # these need peer access between devices or matrix units, which a host does not have


class SuiteSink(list):
    """A sink that keeps the results."""

    result = list.append

    def samples(self, samples):
        pass

    def remark(self, remark):
        pass


def test_built_in_suites_are_found():
    assert set(SUITES) >= {"bandwidth", "compression", "gemm", "ipc", "latency"}


def test_a_suite_for_gpus_alone_is_refused_on_a_host_before_anything_starts():
    facts = Facts(tuple(plugins.load("backends", "host").devices()))
    for name in GPUS_ALONE:
        with pytest.raises(UsageError, match=f"{name}: no case runs on host"):
            planning.make(facts, Settings((name,), ("host",), "smoke"))


@pytest.mark.parametrize("name", sorted(set(SUITES) - GPUS_ALONE))
def test_a_suite_runs_on_the_host_and_every_case_passes_its_check(name):
    facts = Facts(tuple(plugins.load("backends", "host").devices()))
    plan = planning.make(facts, Settings((name,), ("host",), "smoke"))
    shelf = SuiteSink()
    with Runner(plan, SamplingProcess((), 0.0), shelf) as runner:
        runner.run(plan.jobs, 0.0, lambda event: None)
    assert [result.case.id for result in shelf] == [job.case.id for job in plan.jobs]
    for result in shelf:
        if result.cause == "discarded":  # if a hypervisor steals most samples, the suite is not at fault
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


@pytest.mark.parametrize("name", SUITES)
def test_key_figures_are_of_cases_with_these_axes(name):
    suite = planning.load_suite(name)
    assert suite.info().key_figures
    for figure in suite.key_figures:
        axes = {axis for axis, _ in suite.definitions[figure.case].axes}
        assert {axis for axis, _ in figure.params} <= axes, figure.title


@pytest.mark.parametrize("name", SUITES)
def test_the_function_that_builds_a_case_describes_it(name):
    for definition in planning.load_suite(name).definitions.values():
        assert definition.build.__doc__, definition.name
