"""The head of every summary: the devices, the key figures, whether to trust them, and the notes."""

import itertools
from dataclasses import replace
from pathlib import Path

import _make as make
import pytest

from gpubench.analysis import trust
from gpubench.analysis.frame import listing
from gpubench.analysis.key_figures import key_values
from gpubench.analysis.overview import overview
from gpubench.analysis.summary import Summary
from gpubench.knowledge.floors import built_in_floors
from gpubench.knowledge.key_figures import GROUPS, OF_GPU, OF_HOST
from gpubench.model import SAMPLER, Device, KeyFigure, Remark, SuiteInfo, store
from gpubench.stats import Interval

RECORDINGS = Path(__file__).parent / "recordings"
GPU_TITLES = [figure.title for _, figure in OF_GPU]


def read(size_bytes=2**30, seconds=1e-3, dtype="float32", **fields):
    """Return a result of `bandwidth/read` that moved its size at each call."""
    of = make.case("read", size_bytes=size_bytes, dtype=dtype)
    times = (seconds * 0.999, seconds, seconds * 1.001) * 3
    return make.result(make.timing(*times, moved=float(size_bytes)), of=of, **fields)


def overview_of(*results, key=(), remarks=(), complete=True, **fields):
    """Return the overview of a run of these results; `key` are the key figures that the suite `mine` declares."""
    suites = (SuiteInfo("mine", "memory bandwidth", key_figures=tuple(key)),)
    run = replace(make.run(*results, suites=suites, **fields), remarks=tuple(remarks), complete=complete)
    return overview(Summary(run))


def test_the_overview_of_a_recorded_h200_has_the_key_figures_that_it_measured():
    summary = overview(Summary(store.read_run(RECORDINGS / "whole/h200.jsonl.gz")))
    assert summary.devices == ("NVIDIA H200 (cuda:0), 132 SMs, 139.8 GiB",)
    assert summary.conditions[:3] == ("driver 580.159.04", "CUDA 13.2", "tier quick")
    assert summary.conditions[3:5] == ("384 of 534 cases in 1 min 18 s", "2026-11-28 07:06 UTC")
    assert [value.title for value in summary.values] == [*GPU_TITLES[:6], *GPU_TITLES[8:]]
    first = summary.values[0]
    assert (first.title, first.figure.text, first.case_id) == (
        "Memory read",
        "4692 GB/s",
        "bandwidth/read[size=4GiB,dtype=float32]",
    )
    assert first.of_spec == pytest.approx(0.978, abs=1e-3)
    assert first.of_expected == pytest.approx(1.020, abs=1e-3)
    assert summary.trust == "trustworthy: yes"
    assert summary.limitations[1] == "the power cap limited 14 of 384 cases: the clock fell to 1.486 GHz"
    assert [(line.name, line.ended) for line in summary.suites][2] == ("compilers", "8 ok")


def test_devices_of_one_model_share_a_line():
    summary = overview(Summary(store.read_run(RECORDINGS / "h200x2-quick.jsonl.gz")))
    assert summary.devices == ("2 × NVIDIA H200 (cuda:0, cuda:1), 132 SMs, 139.8 GiB",)
    assert [value.title for value in summary.values] == [*GPU_TITLES[:4], "Host to device, pinned"]


def test_the_key_figures_of_gpus_are_eight_and_two_with_peers_and_those_of_the_host_eight():
    assert GPU_TITLES == [
        "Memory read",
        "Memory copy",
        "Memory latency",
        "GEMM bfloat16",
        "GEMM float8",
        "Host to device, pinned",
        "Copy between GPUs",
        "All-reduce",
        "Llama-3-8B step, float16",
        "Llama-3-8B prefill",
    ]
    assert [figure.title for _, figure in OF_HOST] == [
        "Memory read",
        "Memory copy",
        "Memory latency",
        "GEMM float64",
        "GEMM float32",
        "Zstandard-1 compression, text",
        "Zstandard-1 decompression, text",
        "Copy between processes",
    ]


def test_what_an_older_run_declared_for_a_suite_of_gpubench_is_no_key_figure():
    """The recording declares six and measured all of them, and none of the eight."""
    run = store.read_run(RECORDINGS / "h200-tensor.jsonl.gz")
    assert sum(len(suite.key_figures) for suite in run.manifest.suites) == 6
    assert [value.title for value in key_values(Summary(run))] == []


def test_a_product_in_float64_and_zstandard_are_key_figures_of_the_host_alone():
    stages = [make.timing(1e-3, moved=1e9, name=f"{way}.hot") for way in ("compress", "decompress")]
    zstd = make.case("roundtrip", "compression", corpus="text", codec="zstd-1", size_bytes=2**22, chunk_bytes=2**16)
    product = make.case("square", "gemm", dtype="float64", n=2048)
    on_host = [
        make.result(make.timing(1e-3), of=product, devices=("host",)),
        make.result(*stages, of=zstd, devices=("host",)),
    ]
    facts = make.facts(make.device("host", "ExampleCPU"), make.device())
    assert [value.title for value in overview_of(*on_host, facts=facts).values] == [
        "GEMM float64",
        "Zstandard-1 compression, text",
        "Zstandard-1 decompression, text",
    ]
    on_gpu = [replace(result, devices=("cuda:0",)) for result in on_host]
    assert overview_of(*on_gpu, facts=facts).values == ()


def test_a_key_figure_is_the_nearest_case_of_each_device_and_may_be_another_series():
    results = [read(2**20), read(2**28), read(2**30, dtype="float64")]
    (value,) = overview_of(*results).values
    assert value.case_id == "bandwidth/read[size=256MiB,dtype=float32]"
    assert overview_of(read(dtype="float64")).values == ()
    mine = [replace(read(), case=make.case("read", "mine", size_bytes=size)) for size in (2**20, 2**28)]
    (value,) = overview_of(*mine, key=[KeyFigure("Memory read", "read")]).values
    assert value.case_id == "mine/read[size=256MiB]"
    facts = make.facts(make.device("cuda:0"), make.device("cuda:1"))
    summary = overview_of(read(), read(devices=("cuda:1",)), facts=facts)
    assert [value.devices for value in summary.values] == [("cuda:0",), ("cuda:1",)]
    stages = (make.timing(1e-3, moved=1e9, name="compress.hot"), make.timing(2e-3, moved=1e9, name="decompress.hot"))
    result = make.result(*stages, of=make.case("roundtrip", suite="mine"))
    key = KeyFigure("Decompression", "roundtrip", series="decompress.hot")
    (value,) = overview_of(result, key=[key]).values
    assert value.figure.text == "500.0 GB/s"


def test_a_key_figure_below_what_its_model_should_reach_matters_most():
    summary = overview_of(read(2**32, seconds=2**32 / 4.0e12))
    assert summary.limitations[0] == "Memory read reaches 87 % of the 4600 GB/s expected of this model"
    assert summary.values[0].is_below_expectation
    assert summary.trust == "trustworthy: yes"


@pytest.mark.parametrize(("slower", "is_below"), [(1.0, False), (1.25, True)])
def test_a_latency_above_the_expected_one_is_below_expectation(slower, is_below):
    floor = next(floor for floor in built_in_floors() if floor.better == "less")
    value = overview(Summary(store.read_run(RECORDINGS / "whole/h200.jsonl.gz"))).values[2]
    interval = Interval(*[floor.expected * slower] * 3)
    slow = replace(value, floor=floor, figure=replace(value.figure, interval=interval))
    assert slow.of_expected == pytest.approx(slower)
    assert slow.is_below_expectation == is_below


def test_key_figures_stand_in_groups_and_each_group_stands_once():
    summary = overview(Summary(store.read_run(RECORDINGS / "whole/h200.jsonl.gz")))
    groups = [group for group, _ in itertools.groupby(summary.values, lambda value: value.group)]
    assert groups == ["memory", "compute", "links", "models"]
    assert {value.figure.better for value in summary.values if value.title == "Memory latency"} == {"less"}
    for values in (OF_GPU, OF_HOST):
        groups = [GROUPS.get(f"{suite}/{figure.case}") or GROUPS[suite] for suite, figure in values]
        assert sorted(set(groups), key=groups.index) == [group for group, _ in itertools.groupby(groups)]


def test_what_is_expected_cites_other_runs_than_the_one_shown():
    """The floors of the H200 were measured on 2026-11-20, some of them in runs that gpubench ships."""
    shown = overview(Summary(store.read_run(RECORDINGS / "whole/h200.jsonl.gz")))
    assert shown.expected_note == "of expected: cards of this model in other runs of 2026-11-20 (docs/gate.md)"
    source = overview(Summary(store.read_run(RECORDINGS / "h200x2-quick.jsonl.gz")))
    assert source.conditions[4].startswith("2026-11-20")
    assert (source.has_expectations, source.expected_note) == (False, "")
    assert all(floor.date for floor in built_in_floors() if "not measured here" not in floor.source)


WIDE = make.timing(*(1e-3, 2e-3) * 6, moved=1e9)
SKIPPED = make.result(status="skipped", cause="devices", reason="needs 2 devices")
INVALID = make.result(status="invalid", cause="not-finite", reason="NaN", of=make.case("copy"))


@pytest.mark.parametrize(
    ("results", "doubt"),
    [
        ([make.result(status="failed", cause="wrong-answer")], "1 case failed (wrong answer)"),
        ([read(labels=("loaded",))], "in 1 of 1 cases other programs kept the host busy (loaded)"),
        ([read(discarded=(("thermal", 5),))], "in 1 of 1 cases heat slowed the device down (thermal)"),
        ([SKIPPED, INVALID], "nothing was measured"),
        ([], "nothing was measured"),
        ([replace(read(), series=(WIDE,))], "Memory read is uncertain by ± 33 % (no known cause)"),
    ],
)
def test_failed_disturbed_uncertain_and_missing_cases_make_a_run_untrustworthy(results, doubt):
    assert overview_of(*results).trust == f"trustworthy: no, because {doubt}"


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"labels": ("unsettled",)}, "it still drifted at the end of the measuring time"),
        ({"labels": ("power-capped",)}, "the power cap changed its clock"),
        ({"series": (make.timing(1e-3, 2e-3, 3e-3, moved=1e9),)}, "only 3 samples"),
    ],
)
def test_the_cause_of_a_wide_interval_is_named(fields, cause):
    (doubt,) = overview_of(replace(read(), **{"series": (WIDE,), **fields})).doubts
    assert doubt.startswith("Memory read is uncertain by ± ")
    assert doubt.endswith(f" % ({cause})")
    processes = [replace(read(seconds=seconds), replicate=index) for index, seconds in enumerate((1e-3, 2e-3, 3e-3))]
    assert overview_of(*processes).doubts == ("Memory read is uncertain by ± 67 % (its 3 processes differ)",)


def test_the_worst_doubt_stands_in_a_short_sentence_and_the_others_below_it():
    """Eight GPUs with ten wide key figures each made a sentence that terminals cut in its middle."""
    facts = make.facts(*(make.device(f"cuda:{index}") for index in range(8)))
    of = [make.case("read", size_bytes=2**32, dtype="float32"), make.case("copy", size_bytes=2**30, dtype="float32")]
    wide = [make.result(WIDE, of=case, devices=(device.id,)) for device in facts.devices for case in of]
    failed = [
        make.result(status="failed", cause=cause, of=make.case(cause)) for cause in ("crash", "hang", "hang", "suite")
    ]
    sick = [Remark(0.1, "event", trust.HEALTH_SOURCE, f"cuda:{index}", "3 uncorrected ECC errors") for index in (0, 1)]
    summary = overview_of(*wide, *failed, remarks=sick, facts=facts)
    assert summary.trust == (
        "trustworthy: no, because 4 cases failed (hang, crash, and 1 more cause), and 3 more reasons"
    )
    assert summary.limitations[:3] == (
        "cuda:0 is unhealthy: 3 uncorrected ECC errors",
        "cuda:1 is unhealthy: 3 uncorrected ECC errors",
        "Memory read is uncertain by ± 33 % (no known cause), and 15 more key figures",
    )
    assert all(len(text) <= 120 for text in (summary.trust, *summary.limitations))


def test_disturbances_of_other_cases_than_key_figures_are_a_note_but_a_doubt_if_there_is_no_key_figure():
    others = [make.result(make.timing(1e-3), of=make.case("write", n=size)) for size in range(10, 29)]
    loaded = make.result(make.timing(1e-3), of=make.case("write"), labels=("loaded",))
    assert overview_of(*others, loaded).trust == "trustworthy: yes"
    assert overview_of(*others[:5], loaded).doubts == ("in 1 of 6 cases other programs kept the host busy (loaded)",)
    beside_key = overview_of(*others[:5], loaded, read())
    assert beside_key.trust == "trustworthy: yes"
    assert beside_key.limitations == ("in 1 of 7 cases other programs kept the host busy (loaded)",)


def test_noise_of_a_case_that_is_no_key_figure_is_no_doubt():
    """An older version declared decoding beside products, ± 27 % on a healthy H200, a key figure."""
    noisy = make.timing(*(1e-3, 2e-3) * 6, moved=1e9)
    neighbour = make.case("neighbour", "virtual", victim="decode", aggressor="gemm")
    key = KeyFigure("Decoding beside matrix products", "neighbour", (("victim", "decode"), ("aggressor", "gemm")))
    declaring = make.run(
        read(), make.result(noisy, of=neighbour), suites=(SuiteInfo("virtual", "neighbours", key_figures=(key,)),)
    )
    assert overview(Summary(declaring)).trust == "trustworthy: yes"


def test_a_dead_sampler_an_interruption_and_a_sick_device_are_doubts_and_an_import_is_not_checked():
    died = Remark(0.1, "lost", SAMPLER, "", "missing from here on: the sampling process ended: killed by SIGKILL")
    assert overview_of(read(), remarks=[died]).doubts == ("the sampler died during the run, so counters are missing",)
    summary = overview(Summary(store.read_run(RECORDINGS / "whole/h200x2-compression.jsonl.gz")))
    assert summary.doubts == ("the sampler died during the run, so counters are missing",)
    imported = make.facts(Device("cuda:0", "imported", "NVIDIA H200", ""))
    assert overview_of(read(), facts=imported).trust == "trustworthy: imported, not checked"
    failed = make.result(status="failed", cause="wrong-answer", of=make.case("copy"))
    with_failure = overview_of(read(), failed, facts=imported)
    assert with_failure.trust == "trustworthy: imported, not checked"
    assert with_failure.limitations == ("1 case failed (wrong answer)",)
    sick = Remark(0.1, "event", trust.HEALTH_SOURCE, "cuda:0", "3 uncorrected ECC errors")
    summary = overview_of(read(), remarks=[sick], complete=False)
    assert summary.doubts == (
        "the run was interrupted before all cases were measured (`run --resume` continues it)",
        "cuda:0 is unhealthy: 3 uncorrected ECC errors",
    )


def test_missing_libraries_and_figures_of_the_host_are_limitations():
    missing = make.result(status="skipped", cause="missing", reason="nvCOMP is missing; pip install it")
    elsewhere = make.result(status="skipped", cause="devices", reason="needs 2 devices", of=make.case("peer"))
    assert overview_of(read(), elsewhere, missing).limitations == (
        "1 case skipped: nvCOMP is missing; pip install it",
        "1 case skipped: needs 2 devices",
    )
    host = make.facts(make.device("host", "ExampleCPU", units=8))
    summary = overview_of(read(devices=("host",)), facts=host)
    assert summary.devices == ("ExampleCPU (host), 8 cores",)
    assert summary.limitations == ("these are figures of the host processor, not of a GPU",)


def test_every_built_in_floor_is_a_positive_figure_with_a_source():
    for floor in built_in_floors():
        assert floor.expected > 0
        assert 0 < floor.tolerance_percent < 100
        assert floor.source
        assert floor.better == ("less" if floor.unit == "s" else "more")


def test_figures_without_expectations_clocks_and_checks_are_told():
    summary = overview_of(make.result(make.timing(1e-3), of=make.case("read", size_bytes=2**32, dtype="float32")))
    assert [value.of_expected for value in summary.values] == [None]
    assert not summary.has_expectations
    assert key_values(Summary(make.run())) == []
    capped = replace(read(), series=(), labels=("power-capped",))
    assert "the power cap limited 1 of 1 cases" in overview_of(capped).limitations
    summary = overview_of(replace(read(), labels=("unchecked",)), replace(read(), labels=("unchecked", "loaded")))
    assert "nothing checks the answers of 2 cases (unchecked)" in summary.limitations


def leading(run):
    """Return the figures that lead the section of each suite, by suite, as titles and values."""
    suites = {suite.name: suite.leading for suite in listing(Summary(run))}
    return {
        name: [(value.title, value.figure.text, value.figure.half_width_text) for value in values]
        for name, values in suites.items()
        if values
    }


def test_figures_that_measure_the_device_lead_the_sections_of_their_suites_with_axes_and_intervals():
    run = store.read_run(RECORDINGS / "whole/h200.jsonl.gz")
    assert leading(run) == {
        "compression": [
            ("LZ4 compression, text, size=256MiB, chunk=64KiB", "13.93 GB/s", "± 0.06 % range"),
            ("LZ4 decompression, text, size=256MiB, chunk=64KiB", "96.90 GB/s", "± 0.2 %"),
        ],
        "soak": [
            ("Product, compared bit by bit, float16, size=4096", "777.3 TFLOP/s", "± 0.4 %"),
            ("Memory written and read, random, size=256MiB", "882.1 GB/s", "± 0.4 %"),
            ("Copy to the device, size=16MiB", "53.75 GB/s", "± 0.4 %"),
        ],
    }


@pytest.mark.parametrize(
    ("of", "series"),
    [
        (make.case("death", "patterns", path="same", phase="mapped"), "hot"),  # our own time limit
        (make.case("topology", "patterns", topology="ring"), "hot"),  # summed over directions
        (make.case("limits", "virtual", of="units"), "units reached"),
        (make.case("suspend", "virtual", resident_bytes=2**21), "hot"),
        (make.case("pull", "ipc", path="same", size_bytes=2**30), "hot"),  # inside one GPU
        (make.case("roundtrip", "compression", corpus="ids", codec="lz4", chunk_bytes=2**16), "compress.hot"),
        (make.case("hgemm", "tensor", rung="wgmma", n=4096), "of_vendor"),  # a tie under the power cap
        (make.case("adaptive", "patterns", link="h2d"), "regret_median"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.name}",
)
def test_figures_that_do_not_measure_the_device_are_no_key_figures(of, series):
    run = make.run(make.result(make.timing(1e-3, moved=1e9, name=series), of=of))
    assert (key_values(Summary(run)), leading(run)) == ([], {})


def test_a_filtered_list_shows_only_the_leading_figures_of_its_cases():
    run = store.read_run(RECORDINGS / "whole/h200.jsonl.gz")
    (suite,) = listing(Summary(run), ["soak/memory"])
    assert [value.title for value in suite.leading] == ["Memory written and read, random, size=256MiB"]
    two_gpus = store.read_run(RECORDINGS / "h200x2-quick.jsonl.gz")
    (two,) = [suite for suite in listing(Summary(two_gpus)) if suite.name == "ipc"]
    assert [value.title for value in two.leading] == ["Copy between processes on two GPUs, size=1GiB"]
