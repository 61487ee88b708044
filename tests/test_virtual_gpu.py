"""On a real GPU (`pytest -m gpu`): virtual memory, arrays that grow, allocators, forwarded calls, interposers."""

import numpy as np
import pytest
from _modules import suite_module
from test_virtual_memory import SUITE
from test_virtual_sharing_gpu import expect_ok, measured, values

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import WrongAnswer
from gpubench.devices import interposed
from gpubench.measuring import inventory
from gpubench.model import Case, Facts

pytestmark = pytest.mark.gpu
GROW = suite_module("virtual", "_grow")
GIB = 2**30
CASES = (
    "reserve",
    "create",
    "map?",
    "access",
    "unmap",
    "grow",
    "remap",
    "mapped",
    "churn",
    "call",
    "forward",
    "limits",
)


@pytest.fixture(scope="module")
def facts():
    return inventory.facts()


def params(result):
    return dict(result.case.params)


def headline(result):
    """Return the median of a case that times itself, in seconds per item: a sample holds a batch of calls."""
    (series,) = (series for series in result.series if series.label == "self")
    return float(np.median(series.values)) / series.work.items


def test_every_case_passes_its_check_and_forwarded_copies_arrive(facts):
    expect_ok(measured(facts, "smoke", *(f"{name}*" for name in CASES)))
    expect_ok(measured(facts, "full", "forward_copy*transport=tcp*delay_us=0*"))


def test_the_quick_tier_passes_and_every_step_takes_microseconds(facts):
    results = measured(facts, "quick", "reserve*", "create*", "map?size*", "access*", "unmap*", "remap*")
    expect_ok(results)
    for result in results:
        assert 1e-7 < headline(result) < 0.05, result.case.id


@pytest.mark.slow
def test_growing_in_place_beats_a_copy_twentyfold_at_16_gib_and_hardly_depends_on_the_size_before(facts):
    results = measured(facts, "full", "grow?way=vmm,from=*", "grow?way=copy,from=16GiB*")
    expect_ok(results)
    seconds = {(params(result)["way"], params(result)["from_bytes"]): headline(result) for result in results}
    assert seconds["copy", 16 * GIB] / seconds["vmm", 16 * GIB] > 20
    assert seconds["vmm", 16 * GIB] < 1.5 * seconds["vmm", GIB]  # two H200: 1.22 and 1.29 times


@pytest.mark.slow
def test_only_copies_need_memory_for_both_arrays(facts):
    results = measured(facts, "full", "grow*from=1GiB*", "grow?way=managed*")
    expect_ok(results)
    peaks = {params(result)["way"]: values(result, "peak per byte needed")[0] for result in results}
    assert peaks["vmm"] == pytest.approx(1.0, abs=0.05)
    assert peaks["vmm-2MiB"] == pytest.approx(1.0, abs=0.05)
    assert peaks["copy"] == pytest.approx(1.8, abs=0.1)  # both 1 GiB and 1.25 GiB are allocated, relative to 1.25 GiB
    assert peaks["pool"] == pytest.approx(1.8, abs=0.1)


def test_an_array_that_loses_a_word_when_it_grows_is_found(facts, monkeypatch):
    class ForgetfulMappedGrowth(GROW.MappedGrowth):  # type: ignore[name-defined, misc]
        def grow(self, at_peak):
            super().grow(at_peak)
            self.array(4096, 4104).fill(0)

    monkeypatch.setattr(GROW, "MappedGrowth", ForgetfulMappedGrowth)
    device = facts.devices[0]
    bench = Bench(
        plugins.load("backends", device.backend).open(device),
        Case("virtual", "grow", (("way", "vmm"),)),
        Target(Facts((device,)), device),
        SUITE.package,
        devices=(device,),
    )
    growth = GROW.Growth(bench, "vmm", 2**24, 2**21)
    with pytest.raises(WrongAnswer, match="1 of 2097152 old words are wrong"):
        growth.check()
    growth.close()


def test_many_handles_cost_hardly_any_bandwidth(facts):
    results = measured(facts, "full", "mapped*size=256MiB,access=triad]")
    expect_ok(results)
    rates = {params(result)["piece"]: 1 / np.median(values(result, "triad.hot")) for result in results}
    assert all(rate == pytest.approx(rates["malloc"], rel=0.1) for rate in rates.values()), rates


@pytest.mark.slow
def test_allocators_serve_ten_thousand_allocations_and_the_tight_trace_reports_its_first_failure(facts):
    results = measured(facts, "full", "churn*")
    expect_ok(results)
    for result in results:
        assert values(result, "first failure")[0] > 0
        if params(result)["trace"] == "step":
            assert 0.95 < values(result, "held per byte used")[0] < 4, result.case.id


def test_a_posted_launch_costs_less_than_an_answered_one_which_costs_the_delay_more(facts):
    results = measured(facts, "full", "forward?what=launch,transport=tcp*", "call*")
    expect_ok(results)
    seconds = {
        (params(result)["mode"], params(result)["delay_us"]): headline(result)
        for result in results
        if result.case.name == "forward"
    }
    assert seconds["posted", 0] < seconds["wait", 0]
    assert seconds["wait", 100] == pytest.approx(seconds["wait", 0] + 100e-6, rel=0.3)


def test_a_query_of_the_driver_takes_less_than_a_microsecond(facts):
    results = measured(facts, "full", "call*")
    attribute = next(result for result in results if params(result).get("what") == "attribute")
    assert headline(attribute) < 1e-6


@pytest.mark.slow
def test_nearly_all_memory_that_is_reported_free_can_be_allocated(facts):
    results = measured(facts, "full", "limits*")
    expect_ok(results)
    memory, units = (next(result for result in results if params(result)["of"] == of) for of in ("memory", "units"))
    assert 0.97 < values(memory, "allocatable")[0] / values(memory, "reported free")[0] <= 1.001
    assert values(units, "share of units") == [1.0]


def test_the_drivers_own_library_is_recognised(facts):
    plugins.load("backends", facts.devices[0].backend).open(facts.devices[0])
    libraries = {library.name: library for library in interposed.libraries()}
    assert not libraries["libcuda.so.1"].is_interposed, libraries
    assert libraries["libcuda.so.1"].origin.startswith(("the driver's own", "unverified")), libraries
    assert dict(facts.host)["libcuda"]
