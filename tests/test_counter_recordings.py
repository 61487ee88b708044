"""Counters recorded on H200s, replayed: they agree with each other and with the declared work."""

from pathlib import Path

import numpy as np
import pytest

from gpubench.analysis.summary import Summary, case_counters
from gpubench.model import store

FOLDER = Path(__file__).parent / "recordings" / "counters"


@pytest.fixture(scope="module", params=sorted(path.name for path in FOLDER.glob("*.gz")))
def run(request):
    return store.read_run(FOLDER / request.param)


@pytest.fixture(scope="module")
def cases():
    return Summary(store.read_run(FOLDER / "h200-cases.jsonl.gz"))


@pytest.fixture(scope="module")
def sustained():
    return Summary(store.read_run(FOLDER / "h200-sustained.jsonl.gz"))


def figures_of_case(summary, case):
    (result,) = [result for result in summary.run.results if result.case.id.startswith(case)]
    return case_counters(summary, result)


def track(summary, name, device="cuda:0"):
    return next(track for track in summary.counters.tracks if (track.device, track.counter.name) == (device, name))


@pytest.mark.parametrize("case", ["read", "write", "copy"])
def test_pm_sampling_sees_the_bytes_that_stream_counts_within_three_per_cent(cases, case):
    """Windows of 0.6 s, a third of which is gaps and warm-up; over seconds the difference is 0.01 %."""
    traffic = figures_of_case(cases, f"bandwidth/{case}[size=4GiB").traffic
    assert traffic.by == "cupti.dram.read + cupti.dram.write"
    assert traffic.ratio == pytest.approx(1, abs=0.03)


def test_reading_moves_no_bytes_the_other_way(cases):
    (result,) = [result for result in cases.run.results if result.case.name == "read"]
    means = {
        name: track(cases, name).during(*result.window).values.mean()
        for name in ("cupti.dram.read", "cupti.dram.write")
    }
    assert means["cupti.dram.write"] < 0.01 * means["cupti.dram.read"]


@pytest.mark.parametrize(
    ("case", "label"),
    [
        ("bandwidth/read[size=4GiB", "DRAM"),
        ("gemm/square[dtype=float64", "power"),
        ("gemm/square[dtype=float32", "compute"),
        ("latency/chase[size=64KiB", "latency"),
        ("latency/launch", "launch"),
    ],
)
def test_the_counters_and_the_shares_of_a_case_name_what_bounds_it(cases, case, label):
    assert figures_of_case(cases, case).bound.label == label


def test_the_energy_counter_is_the_integral_of_power_within_three_per_cent_over_thirty_seconds(sustained):
    (result,) = sustained.run.results
    energy, power = track(sustained, "nvml.energy"), track(sustained, "nvml.power")
    inside = (energy.at >= result.window[0]) & (energy.at <= result.window[1])
    at, joules = energy.at[inside], energy.values[inside]
    grid = np.linspace(at[0], at[-1], 30_001)
    watts = np.interp(grid, power.at, power.values)
    integral = float(np.sum((watts[1:] + watts[:-1]) / 2 * np.diff(grid)))
    assert at[-1] - at[0] > 29
    assert joules[-1] - joules[0] == pytest.approx(integral, rel=0.03)


def test_a_product_under_the_cap_for_thirty_seconds_is_bound_by_power_and_says_so(sustained):
    counters = figures_of_case(sustained, "gemm/sustained")
    assert counters.bound.label == "power"
    assert {reason.name: reason.seconds for reason in counters.throttled}["power cap"] == pytest.approx(30, rel=0.05)
    assert {use.by for use in counters.bound.evidence} >= {"gpm.tensor", "mean clock over nominal clock"}


def test_slow_readings_delayed_no_fast_one(run):
    late_s = {chunk.columns[0][0]: chunk.late_s for chunk in run.samples}
    busy_s = {chunk.columns[0][0]: chunk.busy_s / len(chunk.at) for chunk in run.samples}
    assert busy_s["nvml.pcie.tx"] > 0.04
    assert late_s["nvml.power"] < 0.01


def test_nvlink_counters_rise_on_both_ends_alike():
    summary = Summary(store.read_run(FOLDER / "h200x2-links.jsonl.gz"))
    rises = {
        (device, way): np.ptp(track(summary, f"nvml.nvlink.{way}", device).values)
        for device in ("cuda:0", "cuda:1")
        for way in ("tx", "rx")
    }
    assert rises["cuda:0", "rx"] > 2**30
    assert rises["cuda:0", "rx"] == pytest.approx(rises["cuda:1", "tx"], rel=0.01)
    assert rises["cuda:0", "tx"] == pytest.approx(rises["cuda:1", "rx"], rel=0.01), (
        "the last reading of each stands at its own time"
    )


def test_unsupported_counters_of_the_recorded_machine_are_remarks_and_no_warnings(cases):
    absent = {remark.words for remark in cases.run.remarks}
    assert "no nvml.nvlink.tx: Not Supported" in absent
    assert cases.run.messages == ()
