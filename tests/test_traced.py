"""A traced program: records decoded, and the time of the device divided, on events known in advance."""

import json
from dataclasses import replace

import _make as make
import numpy as np
import pytest

from gpubench.analysis import phases as traced_programs
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.phase_tables import phase_tables
from gpubench.model import SuiteInfo
from gpubench.tools import rendering
from gpubench.tools.profile import traced
from gpubench.tools.profile.inside import COPY, EVENT, KERNEL, RecordDecoder

# as cupti-python describes them: fields at any offset of a record whose size is a multiple of eight
FIELDS = {"kind": "i4", "device_id": "u4", "start": "u8", "end": "u8", "stream_id": "u4", "bytes": "u8", "name": "i8"}
FIELDS["copy_kind"] = "u1"
PLACES = {
    10: {"kind": 0, "start": 16, "end": 24, "device_id": 40, "stream_id": 48, "name": 104},
    1: {"kind": 0, "copy_kind": 4, "bytes": 8, "start": 16, "end": 24, "device_id": 32, "stream_id": 40},
}
SIZES = {10: 248, 1: 112}


def layout(names, offsets, size):
    formats = [FIELDS[name] for name in names]
    return np.dtype({"names": list(names), "formats": formats, "offsets": list(offsets), "itemsize": size})


LAYOUTS = {kind: layout(places, places.values(), SIZES[kind]) for kind, places in PLACES.items()}


def record(kind, **fields):
    made = np.zeros(1, LAYOUTS[kind])
    for name, value in {"kind": kind, **fields}.items():
        made[name] = value
    return made.tobytes()


def test_records_of_several_kinds_are_decoded():
    records = RecordDecoder([LAYOUTS], {7: "first", 9: "second"}.get)
    buffer = b"".join(
        (
            record(10, start=10, end=20, device_id=1, stream_id=5, name=9),
            record(1, start=12, end=30, copy_kind=1, bytes=4096, stream_id=6),
            record(10, start=20, end=25, name=7),
            record(10, start=30, end=35, name=9),
        )
    )
    events = np.sort(records.events(np.frombuffer(buffer, np.uint8)), order="start")
    assert [records.texts[name] if name >= 0 else "" for name in events["name"]] == ["second", "", "first", "second"]
    assert events["kind"].tolist() == [KERNEL, COPY, KERNEL, KERNEL]
    assert events["end"].tolist() == [20, 30, 25, 35]
    assert (events["bytes"][1], events["copy"][1], events["stream"].tolist()) == (4096, 1, [5, 6, 0, 0])
    assert events["device"].tolist() == [1, 0, 0, 0]


def test_records_of_unknown_kinds_and_other_sizes_are_told_apart():
    records = RecordDecoder([LAYOUTS], str)
    buffer = record(10, start=1, end=2) + np.array([99], "i4").tobytes() + bytes(60)
    assert len(records.events(np.frombuffer(buffer, np.uint8))) == 0
    assert records.unknown == 1
    shorter = layout(PLACES[10], PLACES[10].values(), 216)
    records = RecordDecoder([LAYOUTS, {**LAYOUTS, 10: shorter}], str)
    buffer = b"".join(record(10, start=n, end=n + 1)[:216] for n in range(1, 5)) + record(1, start=9, end=10)
    assert np.sort(records.events(np.frombuffer(buffer, np.uint8))["start"]).tolist() == [1, 2, 3, 4, 9]
    assert records.unknown == 0


def trace_files(folder, rows, names, clocks=((0, 0), (10**10, 10**10)), **about):
    events = np.zeros(len(rows), EVENT)
    for event, (start, end, kind, name_id, size) in zip(events, rows, strict=True):
        event["start"], event["end"], event["kind"], event["bytes"] = start, end, kind, size
        event["name"], event["copy"] = (name_id, 0) if kind == KERNEL else (-1, name_id)
    (folder / "events").write_bytes(events.tobytes() + b"torn")
    (folder / "names").write_text("".join(json.dumps(name) + "\n" for name in names))
    fields = {"clocks": clocks, "dropped": 0, "unknown": 0, "reason": "", **about}
    (folder / "about").write_text(json.dumps(fields))
    return traced.read(folder)


MS = 1_000_000
ROWS = [
    (1 * MS, 3 * MS, KERNEL, 0, 0),
    (2 * MS, 5 * MS, COPY, 1, 2**20),  # overlaps the kernel by 1 ms
    (5 * MS + 20_000, 6 * MS, KERNEL, 1, 0),  # a gap of 20 µs
    (9 * MS, 11 * MS, KERNEL, 0, 0),  # a wait of 3 ms
]
NAMES = ["_ZN2at6native4gemmILi4EEEvPf", "plain"]


def test_the_time_of_the_device_is_divided_and_kernels_are_named_and_summed_the_longest_first(tmp_path):
    first, gemm, plain, copy = traced.results(trace_files(tmp_path, ROWS, NAMES), ["cuda:0"], zero=0.0)
    seconds = {series.label: series.values[0] for series in first.series}
    assert seconds == pytest.approx(
        {"busy": 6.98e-3, "kernels": 4.98e-3, "copies": 3e-3, "overlap": 1e-3, "launch gaps": 20e-6, "waits": 3e-3}
    )
    assert first.window == pytest.approx((1e-3, 11e-3))
    ids = [result.case.id for result in (gemm, plain, copy)]
    assert ids == ["profile/kernel[name=gemm]", "profile/kernel[name=plain]", "profile/copy[kind=h2d]"]
    total, _, calls = gemm.series
    assert (total.values, calls.values) == (pytest.approx((4e-3,)), (2.0,))
    assert dict(gemm.notes)["name"] == "void at::native::gemm<4>(float*)"
    assert copy.series[-1].values == (2.0**20,)


def test_cuptis_clock_is_converted_by_two_moments_on_both_clocks(tmp_path):
    clocks = ((0, 50 * 10**9), (2 * 10**9, 52 * 10**9 + 2000))  # the second clock has another zero and is 1 ppm faster
    files = trace_files(tmp_path, [(10**9, 2 * 10**9, KERNEL, 0, 0)], NAMES, clocks)
    assert files.start[0] == pytest.approx(51.000001, abs=1e-9)


def test_a_trace_that_did_not_start_says_why(tmp_path):
    assert traced.read(tmp_path).reason == "the script ended before it was traced"
    assert trace_files(tmp_path, ROWS, NAMES, reason="cuptiActivityEnable: no driver").reason.startswith(
        "cuptiActivity"
    )
    assert trace_files(tmp_path, [], NAMES).reason == "no kernel and no copy was recorded"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void at::native::elementwise_kernel<4, at::F, (anonymous)>(int, at::F)", "elementwise_kernel"),
        ("sm90_xmma_gemm_bf16_tn_n_tilesize128x128x64", "sm90_xmma_gemm_bf16_tn_n_tilesize128x128x64"),
        ("(anonymous)", "(anonymous)"),
    ],
)
def test_a_kernel_is_called_by_its_own_name(name, expected):
    assert traced.brief(name) == expected


def test_the_reports_show_kernels_copies_and_slices(tmp_path):
    trace = trace_files(tmp_path, ROWS, NAMES)
    results = traced.results(trace, ["cuda:0"], zero=0.0)
    samples = traced.events(trace, list(enumerate(results)), ["cuda:0"], zero=0.0)
    run = make.run(*results, sampled=samples, suites=(SuiteInfo("profile", "what it did"),))
    device, kernels, forwarding = phase_tables(Summary(run))
    assert device.rows[0][3:7] == ("4.98 ms (50 %)", "3.00 ms (30 %)", "1.00 ms (10 %)", "20.0 µs (0 %)")
    assert [row[0] for row in kernels.rows] == ["gemm", "plain", "copy h2d, 1.000 MiB"]
    assert forwarding.rows == (
        ("cuda:0", "copies to the host", "0", "1.01 ×", "1.01 ×", "1.01 ×"),
        ("cuda:0", "every call", "4", "1.01 ×", "1.05 ×", "1.41 ×"),
    )
    events = json.loads(rendering.report("trace").render(run))["traceEvents"]
    slices = [(event["name"], event["dur"]) for event in events if event.get("tid", 0) >= 1000 and event["ph"] == "X"]
    assert slices == [("gemm", 2000.0), ("h2d", 3000.0), ("plain", pytest.approx(980.0)), ("gemm", 2000.0)]
    assert "Kernels and copies" in rendering.report("html").render(run)
    assert "Kernels and copies" in rendering.report("md").render(run)


def test_calls_that_wait_and_bytes_that_cross_the_link_slow_a_program_down():
    work = traced_programs.ForwardedWork("cuda:0", 4.0, 1000, 2000, 2e9)
    assert work.slowdowns(1e-3, 1e9) == pytest.approx((1 + (1 + 2) / 4, 1 + (2 + 2) / 4))
    assert replace(work, fewest=0, copied_bytes=0).slowdowns(1.0, 1e9)[0] == 1.0


@pytest.mark.parametrize("name", ["trace", "kernel", "copy"])
def test_a_result_that_only_has_the_name_of_a_traced_one_is_no_part_of_a_trace(name):
    """A user's own suite may also be called `profile`."""
    run = make.run(make.result(of=make.case(name, suite="profile")), suites=(SuiteInfo("profile", "another"),))
    assert phase_tables(Summary(run)) == []


def test_slices_with_missing_columns_or_results_are_drawn_as_far_as_possible():
    samples = make.samples([1.0], columns=[1.0])
    slices = replace(
        samples,
        collector="trace",
        columns=(("trace.time", (1.0, None)), ("trace.stream", (None, 2.0)), ("trace.result", (7.0, None))),
        at=(1.0, 2.0),
    )
    run = make.run(make.result(window=(0.0, 1.0)), sampled=(replace(samples, collector="trace"), slices))
    events = json.loads(rendering.report("trace").render(run))["traceEvents"]
    slices = [event for event in events if event.get("tid", 0) >= 1000 and "dur" in event]
    drawn = [(event["name"], event["dur"], event["tid"]) for event in slices]
    assert drawn == [("another", 1e6, 1000), ("another", 0.0, 1002)]
