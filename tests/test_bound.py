"""The bound of a window from plain shares, and of a run from the counters in each result's window."""

import dataclasses
from pathlib import Path

import _make as make
import pytest

from gpubench.analysis.bound import Activity, Bound, Use, bound_by
from gpubench.analysis.counters import Traffic
from gpubench.analysis.summary import Summary, case_counters
from gpubench.model import Counter, Device, EventBit, EventClass, Measure, Samples, Work, store

H200 = Device(
    "cuda:0",
    "cupy",
    "NVIDIA H200",
    "sm_90",
    units=132,
    details=(("clock.sm_hz", "1980000000"), ("memory.bus_bits", "6016")),
)
RECORDINGS = Path(__file__).parent / "recordings"


def use(share, by="gpm.thing"):
    """Return the use of a resource as a share, and the counter or peak that gave it."""
    return Use(share, by)


def label(**activity):
    bound = bound_by(Activity(**activity))
    return bound.label if bound else None


# ---- the rule


@pytest.mark.parametrize(
    ("activity", "expected"),
    [
        ({"dram": (use(0.96),), "compute": (use(0.03),), "busy": use(0.99)}, "DRAM"),
        ({"dram": (use(0.15),), "compute": (use(0.93),), "busy": use(0.99)}, "compute"),
        ({"dram": (use(0.62),), "compute": (use(0.7),)}, "compute"),
        ({"dram": (use(0.01),), "link": (use(0.9),), "busy": use(0.0)}, "link"),
        ({"dram": (use(0.2),), "l2": (use(0.8),), "busy": use(0.99)}, "L2"),
        ({"dram": (use(0.59),), "busy": use(0.99)}, "latency"),
        ({"dram": (use(0.1),), "compute": (use(0.1),), "busy": use(0.4)}, "host"),
        ({"dram": (use(0.1),), "busy": use(0.99), "launch": use(0.9)}, "launch"),
        ({"busy": use(0.2), "launch": use(0.9)}, "launch"),
        ({"dependent": True}, "latency"),
        ({}, None),
        ({"dram": (use(0.3),)}, None),
    ],
)
def test_the_most_used_resource_is_the_bound_and_without_one_the_remaining_rules_decide(activity, expected):
    assert label(**activity) == expected


@pytest.mark.parametrize(
    ("resource", "capped", "clock", "expected"),
    [
        ("compute", 1.0, 0.7, "power"),
        ("compute", 1.0, 0.99, "compute"),
        ("compute", 0.2, 0.7, "compute"),
        ("dram", 1.0, 0.7, "DRAM"),
    ],
)
def test_arithmetic_alone_is_bound_by_power_where_the_power_cap_lowered_its_clock(resource, capped, clock, expected):
    assert label(**{resource: (use(0.9),)}, capped=use(capped), clock=use(clock)) == expected


def test_the_evidence_of_a_bound_lists_high_shares_in_descending_order():
    bound = bound_by(
        Activity(dram=(use(0.91, "share of dram peak (data sheet)"), use(0.95, "gpm.dram"), use(0.1, "other")))
    )
    assert bound == Bound("DRAM", (use(0.95, "gpm.dram"), use(0.91, "share of dram peak (data sheet)")))
    assert bound.text == "DRAM (gpm.dram 95.0 %, share of dram peak (data sheet) 91.0 %)"


ACME_BITS = (EventBit(1 << 40, "sips from the mains", EventClass.POWER_CAP),)


# ---- joined to a run

MEMORY_HZ = 3201e6
PEAK = 2 * MEMORY_HZ * 6016 / 8


def run_of(result, columns, at, counters):
    chunks = [
        make.Samples(name.partition(".")[0], "cuda:0", tuple(at), ((name, tuple(values)),))
        for name, values in columns.items()
    ]
    return make.run(result, counters=counters, sampled=chunks, facts=make.facts(H200))


def counter(name, unit="%", kind="window"):
    return make.counter(name, unit, kind, 0.1, f"read {name}")


def timed_case(moved=4e9, seconds=1e-3, calls=1, count=900, **more):
    timing = make.timing(*[seconds] * count, moved=moved, limit="dram", warmup_s=0.1, calls=calls)
    return make.result(timing, window=(10.0, 11.0), **more)


def join(result, columns, at=(10.05, 10.2, 10.4, 10.6, 10.8), kinds=None):
    counters = tuple(counter(name, kind=(kinds or {}).get(name, "window")) for name in columns)
    run = run_of(result, columns, at, counters)
    return case_counters(Summary(run), run.results[0])


def test_the_memory_traffic_of_a_counter_stands_beside_the_declared_bytes():
    columns = {"gpm.dram": [50.0, 83.0, 83.0, 83.0, 83.0], "nvml.clock.memory": [MEMORY_HZ] * 5}
    counters = join(timed_case(), columns, kinds={"nvml.clock.memory": "gauge"})
    assert counters.traffic.seen == pytest.approx(0.83 * PEAK), (
        "a reading whose window began before the case is left out"
    )
    assert counters.traffic.counted == pytest.approx(4e12)
    assert counters.traffic.ratio == pytest.approx(0.83 * PEAK / 4e12)
    assert counters.bound.label == "DRAM"
    assert "gpm.dram" in [share.by for share in counters.bound.evidence]


def test_hardware_counters_are_preferred_to_shares_of_a_peak():
    columns = {"cupti.dram.read": [3e12] * 5, "cupti.dram.write": [1e12] * 5, "gpm.dram": [80.0] * 5}
    assert join(timed_case(), columns).traffic == Traffic(
        pytest.approx(4e12), pytest.approx(4e12), "cupti.dram.read + cupti.dram.write"
    )


def test_bytes_that_did_not_reach_memory_came_from_a_cache():
    columns = {"gpm.dram": [2.0] * 5, "nvml.clock.memory": [MEMORY_HZ] * 5, "gpm.gpu": [99.0] * 5}
    result = make.result(make.timing(*[1e-3] * 900, moved=9e9, warmup_s=0.1), window=(10.0, 11.0))
    assert join(result, columns, kinds={"nvml.clock.memory": "gauge"}).bound.label == "L2"


def test_the_time_under_the_power_cap_is_the_share_of_readings_in_the_window():
    columns = {"nvml.event_reasons": [0, 4, 4, 0x21, 4]}
    counters = join(timed_case(), columns, kinds={"nvml.event_reasons": "event"})
    seconds = {reason.name: reason.seconds for reason in counters.throttled}
    assert seconds == pytest.approx({"power cap": 0.6, "thermal, by software": 0.2})


def test_counters_of_a_window_with_two_loads_are_not_attributed_to_one():
    timings = (make.timing(*[1e-3] * 450, moved=4e9), make.timing(*[1e-3] * 450, name="cold", moved=4e9))
    counters = join(make.result(*timings, window=(10.0, 11.0)), {"cupti.dram.read": [3e12] * 5, "gpm.gpu": [10.0] * 5})
    assert (counters.bound, counters.traffic) == (None, None)


@pytest.mark.parametrize("status", ["failed", "invalid", "skipped"])
def test_a_case_that_is_not_ok_has_no_label(status):
    assert join(timed_case(status=status), {"gpm.dram": [90.0] * 5}).bound is None


def test_the_labels_of_a_recorded_h200_are_those_of_its_cases_and_few_are_bound_by_their_launch():
    run = store.read_run(RECORDINGS / "h200-quick.jsonl.gz")
    summary = Summary(run)
    bounds = {result.case.id: case_counters(summary, result).bound for result in run.results}
    labels = {case: bound.label for case, bound in bounds.items() if bound}
    assert labels["bandwidth/triad[size=1GiB,dtype=float32]"] == "DRAM"
    assert labels["bandwidth/h2d[memory=pinned,size=256MiB]"] == "link"
    assert labels["gemm/square[dtype=bfloat16,n=8192]"] == "power"
    assert labels["gemm/square[dtype=float32,n=8192]"] == "compute"
    assert labels["latency/chase[size=4GiB]"] == "latency"
    launched = {case for case, label in labels.items() if label == "launch"}
    assert launched == {"latency/launch", *(f"ipc/pull[path=same,size={size}]" for size in ("4KiB", "64KiB", "1MiB"))}


@pytest.mark.parametrize(
    ("mode", "call_s", "share"),
    [
        ("hot", 2.0e-6, 1.36 / 2.0),
        ("cold", 2.0e-6, 1.36 / 2.0),
        ("hot", 4.1e-6, None),  # 8 MiB copied within the cache: an empty kernel takes a third of it
        ("graph", 0.9e-6, 0.51 / 0.9),
        ("graph", 1.4e-6, None),
        ("self", 0.1e-6, None),  # this is a step within a kernel
        ("host", 1.7e-6, None),
    ],
)
def test_a_call_is_bound_by_its_launch_where_an_empty_kernel_takes_half_of_its_time(mode, call_s, share):
    run = run_of(make.result(make.timing(*[call_s] * 9, name=mode)), {}, (), ())
    bound = case_counters(Summary(run), run.results[0]).bound
    assert (bound and bound.label) == ("launch" if share else None)
    if bound:
        assert [use.fraction for use in bound.evidence] == [pytest.approx(share)]


def test_the_empty_kernel_of_the_run_is_preferred_to_the_recorded_one():
    launch = make.timing(*[3e-6] * 9, items=1.0), make.timing(*[1e-6] * 9, name="graph", items=1.0)
    results = (
        make.result(*launch, of=make.case("launch", "latency")),
        make.result(make.timing(*[4e-6] * 9)),
        make.result(make.timing(*[4e-6] * 9), of=make.case("other"), devices=("cuda:1",)),
    )
    facts = make.facts(H200, dataclasses.replace(H200, id="cuda:1"))
    summary = Summary(make.run(*results, facts=facts))
    bounds = [case_counters(summary, result).bound for result in results]
    assert bounds[1] == Bound("launch", (use(0.75, "launch time of an empty kernel"),))
    assert bounds[2] is None, "another device's launches say nothing of this one's"


def test_a_third_partys_collector_decides_what_bounds_a_case_without_a_change_of_the_core():
    """The names of its counters are unknown; their measures are declared."""
    acme_counters = (
        Counter("acme.lanes", "%", "window", 0.1, "acme --lanes", Measure.TENSOR_ACTIVITY),
        Counter("acme.state", "bit mask", "event", 0.1, "acme --state", Measure.THROTTLE_REASONS, ACME_BITS),
        Counter("acme.hertz", "Hz", "gauge", 0.1, "acme --clock", Measure.CORE_CLOCK),
    )
    at = tuple(0.2 + 0.1 * n for n in range(8))
    columns = (("acme.lanes", (91.0,) * 8), ("acme.state", (float(1 << 40),) * 8), ("acme.hertz", (1.2e9,) * 8))
    device = make.device("acme:0", "Acme One", details=(("clock.sm_hz", "2e9"),))
    timed = make.timing(*[0.05] * 18, quantity="flops", work=Work(flops=1e12))
    result = make.result(timed, devices=("acme:0",), window=(0.0, 1.0))
    facts = make.facts(device)
    run = make.run(result, facts=facts, sampled=[Samples("acme", "acme:0", at, columns)], counters=acme_counters)
    figures = case_counters(Summary(run), result)
    assert figures.bound.label == "power"
    assert [use.by for use in figures.bound.evidence] == [
        "samples under the power cap",
        "mean clock over nominal clock",
        "acme.lanes",
    ]
    assert [(reason.name, reason.share) for reason in figures.throttled] == [("sips from the mains", 1.0)]
