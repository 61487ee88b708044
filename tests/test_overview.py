"""The head of every summary: the devices, the key figures, whether to trust them, and the notes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import _make as make
import pytest

from gpubench.analysis import trust
from gpubench.analysis.key_figures import key_values
from gpubench.analysis.overview import overview
from gpubench.analysis.summary import Summary
from gpubench.knowledge.floors import built_in_floors
from gpubench.model import KeyFigure, Remark, SuiteInfo, store

RECORDINGS = Path(__file__).parent / "recordings"
KEY = KeyFigure("Memory read", "read", (("size_bytes", 2**30), ("dtype", "float32")))


def read(size_bytes=2**30, seconds=1e-3, dtype="float32", **fields):
    """Return a result of `bandwidth/read` that moved its size at each call."""
    of = make.case("read", size_bytes=size_bytes, dtype=dtype)
    times = (seconds * 0.999, seconds, seconds * 1.001) * 3
    return make.result(make.timing(*times, moved=float(size_bytes)), of=of, **fields)


def overview_of(*results, key=(KEY,), remarks=(), complete=True, **fields):
    """Return the overview of a run of these results."""
    suites = (SuiteInfo("bandwidth", "memory bandwidth", key_figures=tuple(key)),)
    run = replace(make.run(*results, suites=suites, **fields), remarks=tuple(remarks), complete=complete)
    return overview(Summary(run))


def test_the_overview_of_a_recorded_h200_has_ten_key_figures():
    summary = overview(Summary(store.read_run(RECORDINGS / "whole/h200.jsonl.gz")))
    assert summary.devices == ("NVIDIA H200 (cuda:0), 132 SMs, 139.8 GiB",)
    assert summary.conditions[:3] == ("driver 580.159.04", "CUDA 13.2", "tier quick")
    assert summary.conditions[3:5] == ("303 cases in 54.5 s", "2026-11-20 17:43 UTC")
    assert len(summary.values) == 10
    first = summary.values[0]
    assert (first.title, first.figure.text, first.case_id) == (
        "Memory read",
        "4604 GB/s",
        "bandwidth/read[size=4GiB,dtype=float32]",
    )
    assert first.of_spec == pytest.approx(0.959, abs=1e-3)
    assert first.of_expected == pytest.approx(1.001, abs=1e-3)
    assert summary.trust == "trustworthy: yes"
    assert summary.limitations[0] == "the power cap limited 32 of 292 cases"
    assert [(line.name, line.ended) for line in summary.suites][2] == ("gemm", "44 ok, 1 skipped")


def test_devices_of_one_model_share_a_line():
    summary = overview(Summary(store.read_run(RECORDINGS / "h200x2-quick.jsonl.gz")))
    assert summary.devices == ("2 × NVIDIA H200 (cuda:0, cuda:1), 132 SMs, 139.8 GiB",)
    between = [value for value in summary.values if value.title == "Copy between processes"]
    assert [value.case_id for value in between] == ["ipc/pull[path=peer,size=1GiB]"]


def test_a_key_figure_takes_the_nearest_number_and_an_equal_text():
    results = [read(2**20), read(2**28), read(2**30, dtype="float64")]
    (value,) = overview_of(*results).values
    assert value.case_id == "bandwidth/read[size=256MiB,dtype=float32]"
    assert overview_of(read(dtype="float64")).values == ()


def test_of_equally_near_cases_the_last_one_is_the_key_figure():
    key = KeyFigure("Memory read", "read")
    (value,) = overview_of(read(2**20), read(2**28), key=[key]).values
    assert value.case_id == "bandwidth/read[size=256MiB,dtype=float32]"


def test_each_device_has_a_key_figure_of_its_own():
    facts = make.facts(make.device("cuda:0"), make.device("cuda:1"))
    summary = overview_of(read(), read(devices=("cuda:1",)), facts=facts)
    assert [value.devices for value in summary.values] == [("cuda:0",), ("cuda:1",)]


def test_a_key_figure_may_be_another_series_than_the_headline():
    stages = (make.timing(1e-3, moved=1e9, name="compress.hot"), make.timing(2e-3, moved=1e9, name="decompress.hot"))
    result = make.result(*stages, of=make.case("roundtrip", suite="bandwidth"))
    key = KeyFigure("Decompression", "roundtrip", series="decompress.hot")
    (value,) = overview_of(result, key=[key]).values
    assert value.figure.text == "500.0 GB/s"


def test_a_key_figure_below_what_its_model_should_reach_matters_most():
    summary = overview_of(read(2**32, seconds=2**32 / 4.0e12), key=[replace(KEY, params=(("size_bytes", 2**32),))])
    assert summary.limitations[0] == "Memory read reaches 87 % of the 4600 GB/s expected of this model"
    assert summary.values[0].is_below_expectation
    assert summary.trust == "trustworthy: yes"


@pytest.mark.parametrize(
    ("results", "doubt"),
    [
        ([make.result(status="failed", cause="wrong-answer")], "1 case failed (wrong answer)"),
        ([read(labels=("loaded",))], "in 1 of 1 cases other programs kept the host busy (loaded)"),
        ([read(discarded=(("thermal", 5),))], "in 1 of 1 cases heat slowed the device down (thermal)"),
    ],
)
def test_failed_and_disturbed_cases_make_a_run_untrustworthy(results, doubt):
    assert overview_of(*results).trust == f"trustworthy: no, because {doubt}"


def test_a_disturbance_of_one_case_in_twenty_that_is_no_key_figure_is_not_a_doubt():
    others = [read(2**size) for size in range(10, 29)]
    assert overview_of(*others, read(2**9, labels=("loaded",)), key=[]).trust == "trustworthy: yes"
    assert overview_of(*others[:5], read(2**9, labels=("loaded",)), key=[]).doubts != ()


def test_an_interrupted_run_and_a_sick_device_are_not_trusted():
    sick = Remark(0.1, "event", trust.HEALTH_SOURCE, "cuda:0", "3 uncorrected ECC errors")
    summary = overview_of(read(), remarks=[sick], complete=False)
    assert summary.doubts == (
        "the run was interrupted before all cases were measured (`run --resume` continues it)",
        "cuda:0 is unhealthy: 3 uncorrected ECC errors",
    )


def test_an_uncertain_key_figure_is_a_doubt():
    wide = make.timing(*(1e-3, 2e-3) * 6, moved=1e9)
    (doubt,) = overview_of(make.result(wide, of=make.case("read")), key=[KeyFigure("Memory read", "read")]).doubts
    assert doubt == "the 95 % confidence interval is wider than ± 5 %: Memory read ± 33 %"


def test_a_missing_library_is_named_with_the_way_to_get_it():
    missing = make.result(status="skipped", cause="missing", reason="nvCOMP is missing; pip install it")
    elsewhere = make.result(status="skipped", cause="devices", reason="needs 2 devices", of=make.case("peer"))
    assert overview_of(read(), elsewhere, missing).limitations == (
        "1 case skipped: nvCOMP is missing; pip install it",
        "1 case skipped: needs 2 devices",
    )


def test_a_run_of_the_host_says_that_it_measured_the_host():
    host = make.facts(make.device("host", "ExampleCPU", units=8))
    summary = overview_of(read(devices=("host",)), facts=host)
    assert summary.devices == ("ExampleCPU (host), 8 cores",)
    assert summary.limitations == ("these are figures of the host processor, not of a GPU",)


def test_an_empty_run_has_an_overview():
    summary = overview_of(key=[])
    assert (summary.values, summary.suites, summary.trust) == ((), (), "trustworthy: yes")


def test_every_built_in_floor_is_a_positive_figure_with_a_source():
    for floor in built_in_floors():
        assert floor.expected > 0
        assert 0 < floor.tolerance_percent < 100
        assert floor.source
        assert floor.better == ("less" if floor.unit == "s" else "more")


def test_a_floor_in_another_unit_is_no_expectation():
    summary = overview_of(make.result(make.timing(1e-3), of=make.case("read", size_bytes=2**32, dtype="float32")))
    assert [value.of_expected for value in summary.values] == [None]
    assert not summary.has_expectations
    assert key_values(Summary(make.run())) == []


def test_a_power_capped_result_without_series_has_no_clock():
    capped = replace(read(), series=(), labels=("power-capped",))
    assert "the power cap limited 1 of 1 cases" in overview_of(capped).limitations
