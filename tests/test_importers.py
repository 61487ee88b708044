"""The output of other tools is read to the last digit; damaged, foreign or newer output is refused in one line.

tests/imports holds excerpts of what these tools really printed, cut to a few rows, with names of hosts and paths
replaced. Where they are from:

- nvbandwidth-*: a run on an RTX 3050 and a report on seven GPUs in public repositories; NVIDIA's k8s-dra-driver-gpu
  documentation (two nodes); issue 34 of NVIDIA/nvbandwidth (failed); the output that NVIDIA/DCGM tests with (JSON).
- rccl-tests: AMD's notes on the MI350X. nccl-tests-2.17: a published report on eight PCIe GPUs. nccl-tests-old: the log
  that microsoft/superbenchmark tests with.
- nvbench.json: python/scripts of NVIDIA/nvbench; nvbench.csv: R100001/Programming-Massively-Parallel-Processors.
- babelstream-5.0, -mib, *.csv: BabelStream 5.0 built and run for this test; -3.3 and gpu-stream-1.0: results/ of
  UoB-HPC/BabelStream.
- gpu-*, cuda-memcpy, um-stream: the results and the README of RRZE-HPC/gpu-benches.
- mixbench-*: the READMEs of ekondis/mixbench.
- transferbench-1.62, -p2p: AMD's notes on the MI350X; -iterations: pull request 50 of ROCm/TransferBench; -bars: an
  article on an MI210.
- superbench: tests/analyzer of microsoft/superbenchmark.
- osu-*: notes of several centres on OSU Micro-Benchmarks 5.4 to 7.5. gpu-fryer: a note on two V100.
- mlperf-*: results and notes in public repositories, cut behind the percentiles.
- dcgm-diag-*: the outputs that NVIDIA/DCGM tests with, and one of an operator.
- google-benchmark, pytest-benchmark, hyperfine: versions 1.7.1, 5.3.1 and 1.15 run for this test.

No machine with RDMA was at hand: perftest-*.json are written by the format strings of linux-rdma/perftest 26.04, with
numbers that are made up. So are nccl-tests.json (version 2.19), nvloom (1.3), ncu-* (the columns of Nsight Compute's
documentation), guidellm (the schemas of 0.7), and vllm-*, sglang, llama-bench*, aiperf and genai-perf: see
test_importers_inference.py.
"""

from __future__ import annotations

import json
import os
import random
import re
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench import plugins
from gpubench.analysis.summary import Summary
from gpubench.api import importer as door
from gpubench.authoring import outputs
from gpubench.base.errors import BadOutput, FileError
from gpubench.model import store
from gpubench.tools import foreign

IMPORTS = Path(__file__).parent / "imports"
FILES = sorted(path.name for path in IMPORTS.iterdir())
TOOLS = {
    "nvbandwidth": "nvbandwidth",
    "rccl-tests": "nccl_tests",
    "nccl-tests.json": "nccl_tests_json",
    "nccl-tests": "nccl_tests",
    "nvbench": "nvbench",
    "babelstream": "babelstream",
    "gpu-stream-1": "babelstream",
    "gpu-fryer": "gpu_fryer",
    "gpu-": "gpu_benches",
    "cuda-memcpy": "gpu_benches",
    "um-stream": "gpu_benches",
    "mixbench": "mixbench",
    "transferbench": "transferbench",
    "superbench": "superbench",
    "perftest": "perftest",
    "vllm": "vllm_bench",
    "sglang": "sglang_bench",
    "llama-bench": "llama_bench",
    "aiperf": "aiperf",
    "genai-perf": "aiperf",
    "google-benchmark": "google_benchmark",
    "pytest-benchmark": "pytest_benchmark",
    "hyperfine": "hyperfine",
    "osu": "osu",
    "mlperf": "mlperf",
    "dcgm": "dcgm_diag",
    "nvloom": "nvloom",
    "ncu": "ncu",
    "guidellm": "guidellm",
}
GIB = 2**30


def read(name):
    return foreign.read(IMPORTS / name)


def case(name, case_id):
    """Return the one result of that case in a file."""
    (content,) = (result for result in read(name).content.results if result.case.id == case_id)
    return content


def values(name, case_id):
    """Return the values of each series of a case by its name, headline first."""
    return {series.label: series.values for series in case(name, case_id).series}


@pytest.mark.parametrize("name", FILES)
def test_the_tool_is_recognised_by_its_output(name):
    expected = next(tool for prefix, tool in TOOLS.items() if name.startswith(prefix))
    assert read(name).tool == expected


@pytest.mark.parametrize("name", FILES)
def test_an_import_is_a_run_file_like_any_other(name, tmp_path):
    path = tmp_path / "run.jsonl"
    run = foreign.run([read(name)], ["gpubench", "import", name])
    path.write_bytes(store.encode_run(run))
    assert store.read_run(path) == run
    assert Summary(run).spreads()
    assert {device for result in run.results for device in result.devices} <= {d.id for d in run.manifest.facts.devices}


@pytest.mark.parametrize("name", FILES)
def test_facts_that_the_output_does_not_state_are_missing(name):
    run = foreign.run([read(name)], [])
    assert (run.manifest.settings.tier, run.manifest.counters, run.samples) == ("", (), ())
    assert {device.backend for device in run.manifest.facts.devices} == {"imported"}
    assert not any(device.uuid for device in run.manifest.facts.devices)


def test_no_gpu_is_asked_for_where_only_tests_that_did_not_run_have_no_device():
    source = read("nvbandwidth-v0.5.json")
    assert any(result.devices == () for result in source.content.results)
    assert not foreign.gpu_is_unstated(source)


def test_nvbandwidth_text_has_its_device_versions_and_units():
    content = read("nvbandwidth-v0.8.txt").content
    (device,) = content.devices
    assert (device.id, device.name, device.pci) == ("cuda:0", "NVIDIA GeForce RTX 3050 Laptop GPU", "00000000:01:00")
    assert dict(content.versions) == {"nvbandwidth": "v0.8", "cuda.runtime": "12.8", "nvidia.driver": "572.83"}
    assert values("nvbandwidth-v0.8.txt", "nvbandwidth/host_to_device_memcpy_ce[row=0,column=0]") == {
        "bandwidth": (12.98e9,)
    }
    latency = case("nvbandwidth-v0.8.txt", "nvbandwidth/host_device_latency_sm[row=0,column=0]").series[0]
    assert (latency.unit, latency.better, latency.values[0]) == ("s", "less", pytest.approx(613.22e-9))


def test_nvbandwidth_matrices_of_one_test_are_cases_of_their_own_and_pairs_have_two_devices():
    content = read("nvbandwidth-7gpus.txt").content
    names = {result.case.name for result in content.results}
    assert names == {
        "device_to_host_bidirectional_memcpy_ce",
        "device_to_device_bidirectional_memcpy_read_ce_read1",
        "device_to_device_bidirectional_memcpy_read_ce_total",
    }
    assert len(content.results) == 7 + 42 + 42, "the diagonal is N/A"
    pair = case(
        "nvbandwidth-7gpus.txt", "nvbandwidth/device_to_device_bidirectional_memcpy_read_ce_total[row=4,column=6]"
    )
    assert (pair.devices, pair.series[0].values) == (("cuda:4", "cuda:6"), (1521.15e9,))
    assert {device.name for device in content.devices} == {"device not stated"}


def test_nvbandwidth_on_two_nodes_has_a_device_per_process():
    content = read("nvbandwidth-nodes.txt").content
    assert [device.id for device in content.devices][3:5] == ["process3/cuda:3", "process4/cuda:0"]
    assert dict(content.devices[4].details)["hostname"] == "nvbandwidth-test-worker-1"
    assert content.results[0].devices == ("process0/cuda:0", "process1/cuda:1")


def test_a_failed_test_of_nvbandwidth_is_a_failed_case_with_its_message():
    (result,) = read("nvbandwidth-failed.txt").content.results
    assert (result.status, result.cause) == ("failed", "no-result")
    assert result.reason == "Invalid value when checking the pattern at 0x70a640000000"


def test_nvbandwidth_json_gives_the_same_results_as_its_text_and_the_waived_tests():
    name = "nvbandwidth-v0.5.json"
    assert values(name, "nvbandwidth/host_to_device_memcpy_ce[row=0,column=0]") == {"bandwidth": (12.3964e9,)}
    assert values(name, "nvbandwidth/host_device_latency_sm[row=0,column=0]")["latency"] == (649.879e-9,)
    assert case(name, "nvbandwidth/device_to_device_memcpy_read_ce").status == "skipped"
    assert dict(read(name).content.versions)["nvbandwidth"] == "v0.5"


def test_collectives_are_named_by_the_command_line_and_have_both_places():
    case_id = "nccl-tests/all_reduce[size=8GiB,type=float,redop=sum,root=-1,ranks=8,place={}]"
    assert values("rccl-tests.txt", case_id.format("in")) == {
        "busbw": (367.51e9,),
        "algbw": (210.01e9,),
        "time": (pytest.approx(40903e-6),),
    }
    assert values("rccl-tests.txt", case_id.format("out"))["busbw"] == (360.97e9,)
    result = case("rccl-tests.txt", case_id.format("in"))
    assert result.devices == tuple(f"rocm:{index}" for index in range(8))
    assert read("rccl-tests.txt").content.devices[1].name == "AMD Instinct MI350X"


def test_the_headline_of_a_small_collective_is_its_time_because_its_bandwidth_is_rounded_to_zero():
    case_id = "nccl-tests/all_reduce[size=8B,type=float,redop=sum,root=-1,ranks=8,place=out]"
    series_values = values("rccl-tests.txt", case_id)
    assert next(iter(series_values)) == "time"
    assert series_values["time"] == (pytest.approx(58.63e-6),)


def test_collectives_of_the_newest_version_say_their_name_and_version():
    content = read("nccl-tests-2.17.txt").content
    assert {result.case.name for result in content.results} == {"all_reduce"}
    assert dict(content.versions) == {"nccl-tests": "2.17.6"}
    assert content.devices[0].id == "unknown"


def test_collectives_of_an_old_version_without_validation_say_so_and_have_no_name():
    content = read("nccl-tests-old.txt").content
    assert {result.case.name for result in content.results} == {"unnamed"}
    assert {result.notes for result in content.results} == {(("validation", "off"),)}
    assert "redop" not in dict(content.results[0].case.params)


def test_wrong_values_make_a_collective_fail(tmp_path):
    text = (IMPORTS / "rccl-tests.txt").read_text().replace("367.51      0", "367.51     50")
    (tmp_path / "wrong.txt").write_text(text)
    failed = [result for result in foreign.read(tmp_path / "wrong.txt").content.results if result.status == "failed"]
    assert [(result.cause, result.reason) for result in failed] == [("wrong-answer", "50 values are out of bounds")]


def test_ranks_that_share_a_device_are_counted_one_by_one(tmp_path):
    text = (IMPORTS / "rccl-tests.txt").read_text().replace("device  5", "device  4")
    (tmp_path / "shared.txt").write_text(text)
    result = foreign.read(tmp_path / "shared.txt").content.results[0]
    assert (dict(result.case.params)["ranks"], result.devices.count("rocm:4")) == (8, 2)


def test_two_files_that_do_not_name_their_measurement_are_not_merged():
    with pytest.raises(FileError, match="import them one by one"):
        foreign.run([read("nccl-tests-old.txt"), read("nccl-tests-old.txt")], [])


def test_nvbench_json_has_every_mean_in_si_and_its_devices():
    name = "nvbench.json"
    case_id = "nvbench/copy_sweep_grid_shape[BlockSize=256,NumBlocks=64]"
    figures = {series.label: (series.unit, series.better) for series in case(name, case_id).series}
    assert list(figures)[:2] == ["cold/time/gpu/mean", "batch/time/gpu/mean"]
    assert figures["cold/bw/global/bytes_per_second"] == ("B/s", "more")
    assert figures["cold/bw/item_rate"] == ("item/s", "more")
    assert not any("stdev" in name or "walltime" in name for name in figures)
    (device,) = read(name).content.devices
    assert (device.name, device.arch, device.units, device.cache_bytes) == ("Quadro GV100", "sm_70", 80, 6291456)
    (skipped,) = (result for result in read(name).content.results if result.status == "skipped")
    assert skipped.reason.startswith("Not a conversion")


def test_nvbench_csv_gives_the_series_that_its_json_gives():
    name = "nvbench.csv"
    kernel = "Simple Matrix Matrix Multiplication (Different Rows and Columns sizes)"
    axes = "T=U32,Num Rows 1=2,Num Cols 1 / Rows 2=2,Num Cols 2=2,Num Threads=16"
    assert values(name, f"nvbench/{kernel}[{axes}]") == {
        "cold/time/gpu/mean": (3.2204376701370073e-06,),
        "batch/time/gpu/mean": (1.752181507412339e-06,),
        "cold/time/cpu/mean": (7.4620973148094114e-06,),
        "cold/bw/item_rate": (2484134.400172898,),
        "cold/bw/global/bytes_per_second": (14904806.401037388,),
    }
    assert [result.status for result in read(name).content.results] == ["ok", "skipped", "ok"]


def test_babelstream_in_mib_is_converted_and_both_forms_have_one_id():
    case_id = "babelstream/Copy[elements=4194304,precision=double]"
    assert values("babelstream-5.0.txt", case_id) == {
        "best": (29929.759e6,),
        "min": (0.00224,),
        "mean": (0.00334,),
        "max": (0.00717,),
    }
    assert values("babelstream-mib.txt", case_id)["best"] == (26085.440 * 2**20,)
    assert values("babelstream.csv", case_id)["best"] == (25165.6e6,)
    single = values("babelstream-mib.csv", "babelstream/Copy[elements=4194304,precision=float]")
    assert single["best"] == (pytest.approx(23551.2 * 2**20),)
    assert single["best"][0] == pytest.approx(2 * 4 * 4194304 / single["min"][0], rel=1e-5), "its own times agree"


def test_babelstream_of_older_versions_keeps_the_size_as_it_was_rounded():
    assert values("babelstream-3.3.txt", "babelstream/Triad[array=268.4 MB,precision=double]")["best"] == (
        436491.299e6,
    )
    assert read("babelstream-3.3.txt").content.devices[0].name == "TITAN Xp"
    assert len(read("gpu-stream-1.0.txt").content.results) == 4, "the line of the geometric mean is no kernel"


@pytest.mark.parametrize(
    ("name", "case_id", "expected"),
    [
        ("gpu-stream.txt", "gpu-stream.triad[block=32,blocks=1,threads=3456]", {"bandwidth": (142e9,)}),
        ("gpu-stream-old.txt", "gpu-stream.5pt[block=16,threads=1728]", {"bandwidth": (37e9,)}),
        ("gpu-cache.txt", "gpu-cache[size=2KiB]", {"bandwidth": (11837.5e9,)}),
        ("gpu-l2-cache.txt", "gpu-l2-cache[size=512KiB,total=2MiB]", {"bandwidth": (11745e9,)}),
        (
            "gpu-roofline.txt",
            "gpu-roofline[iterations=1,blocks=1056]",
            {"operations": (1890e9,), "bandwidth": (3780e9,)},
        ),
        ("cuda-memcpy.txt", "cuda-memcpy[size=1MiB]", {"bandwidth": (9.25e9,), "time": (0.11e-3,)}),
        ("um-stream.txt", "um-stream[size=24GiB]", {"bandwidth": (5e9,), "time": (pytest.approx(5.1083),)}),
    ],
)
def test_each_program_of_gpu_benches_is_read(name, case_id, expected):
    assert values(name, f"gpu-benches/{case_id}") == expected


def test_gpu_latency_has_cycles_and_the_seconds_that_they_are_at_the_printed_clock():
    series_values = values("gpu-latency.txt", "gpu-benches/gpu-latency[size=2kB]")
    assert series_values["cycles"] == (33.0,)
    assert series_values["latency"] == (pytest.approx(33 / 1410e6),)


def test_mixbench_has_a_case_per_type_of_number():
    series_values = values("mixbench-cuda.txt", "mixbench/half-precision[iterations=1]")
    assert series_values == {"operations": (634.22e9,), "bandwidth": (422.81e9,), "time": (0.32e-3,)}
    integers = case("mixbench-cuda.txt", "mixbench/integer[iterations=0]")
    assert integers.series[0].unit == "op/s"
    assert dict(integers.notes) == {"operations a byte": "0.25"}
    (device,) = read("mixbench-cuda.txt").content.devices
    assert (device.name, device.arch, device.units) == ("GeForce RTX 2070", "sm_75", 36)
    assert device.cache_bytes == 4096 * 1024


def test_mixbench_names_no_device_if_the_runtime_gives_no_name():
    (device,) = read("mixbench-hip.txt").content.devices
    assert (device.name, device.units) == ("device not stated", 104)
    assert {r.case.name for r in read("mixbench-hip.txt").content.results} >= {"packed-single-precision", "integer"}
    assert read("mixbench-sycl.txt").content.devices[0].units == 48


def test_transferbench_has_transfers_executors_and_aggregates():
    name = "transferbench-1.62.txt"
    transfer = "transferbench/transfer[test=3,size=2MiB,transfer=1,path=G1->G001:008->G0]"
    assert values(name, transfer) == {"bandwidth": (46.304e9,), "time": (0.045e-3,)}
    assert case(name, transfer).devices == ("gpu:1", "gpu:0")
    assert values(name, "transferbench/executor[test=1,size=256MiB,executor=GPU 00]")["bandwidth"] == (56.299e9,)
    assert case(name, "transferbench/aggregate[test=3,size=3MiB]").devices == ("unknown",)
    assert case(name, "transferbench/transfer[test=5,size=256MiB,transfer=0,path=C0->C000:004->N]").devices == (
        "cpu:0",
    )
    assert values("transferbench-bars.txt", "transferbench/transfer[test=0,size=1GiB,transfer=0,path=D0->D0:1->G0]")


def test_transferbench_iterations_are_samples_in_the_order_in_which_they_ran():
    series_values = values(
        "transferbench-iterations.txt", "transferbench/transfer[test=1,size=64MiB,transfer=0,path=G0->GPU00:004->G1]"
    )
    assert series_values["bandwidth"][:3] == (33.307e9, 33.546e9, 33.544e9)
    assert series_values["time"][0] == 2.015e-3
    assert len(series_values["bandwidth"]) == 10
    aggregate = values("transferbench-iterations.txt", "transferbench/aggregate[test=1,size=64MiB]")
    assert aggregate["bandwidth"] == (29.349e9,)


def test_transferbench_pairs_are_a_matrix_in_each_direction():
    name, tail = "transferbench-p2p.txt", "from=gpu:0,to=gpu:1,executor=GFX,size=256MiB]"
    assert values(name, f"transferbench/p2p.uni[{tail}") == {"bandwidth": (57.39e9,)}
    assert values(name, f"transferbench/p2p.bi.both[{tail}") == {"bandwidth": (109.30e9,)}
    assert {result.case.name for result in read(name).content.results} == {
        *("p2p.uni", "p2p.bi.send", "p2p.bi.receive", "p2p.bi.both")
    }


def test_superbench_metrics_without_a_stated_unit_are_left_out_and_named():
    source = read("superbench.jsonl")
    assert source.content.left_out == ("gpu-sm-copy-bw/dtoh", "ib-loopback/IB_write_512_Avg_0")
    first = {r.case.name: (r.devices, r.series[0]) for r in source.content.results if r.devices[0].startswith("node0")}
    assert first["gemm-flops/FP64"][1].values == (pytest.approx(9040.85e9),), "the last of two ranks"
    assert first["nccl-bw/allreduce_8589934592_busbw"][1].unit == "B/s"
    assert first["kernel-launch/event_overhead"][1].values == (pytest.approx(0.1e-3),)
    assert first["bert_models/pytorch-bert-base/throughput_train_float32"][1].better == "more"
    assert dict(source.content.devices[0].details) == {"hostname": "sb-validation-01"}


def test_google_benchmark_has_a_sample_per_repetition_and_its_errors():
    name = "google-benchmark.json"
    series = case(name, "google-benchmark/BM_Copy/4096").series
    assert [(one.name, one.unit, len(one.values)) for one in series] == [
        *(
            ("real_time", "s", 2),
            ("cpu_time", "s", 2),
            ("bytes_per_second", "B/s", 2),
            ("items_per_second", "item/s", 2),
        )
    ]
    assert 4096 / series[1].values[0] == pytest.approx(series[2].values[0]), "the rate is by processor time"
    failed = case(name, "google-benchmark/BM_Error")
    assert (failed.status, failed.reason) == ("failed", "no device")
    assert read(name).content.left_out == ("BM_Wide/cells:64/real_time cells",)


def test_pytest_benchmark_has_its_rounds_or_else_the_statistics():
    rounds = case("pytest-benchmark.json", "pytest-benchmark/test_b.py::test_sum[n=10]").series
    assert [(one.name, one.values[0]) for one in rounds] == [("time", 9.084000339498743e-08)]
    saved = case("pytest-benchmark-saved.json", "pytest-benchmark/test_b.py::test_sort").series
    assert [one.name for one in saved] == ["median", "min", "mean", "max"]
    assert read("pytest-benchmark.json").content.devices[0].name == "AMD EPYC"


def test_hyperfine_has_every_run_and_a_command_that_failed_is_a_failed_case():
    good, bad = read("hyperfine.json").content.results
    assert good.series[0].values == (0.0007205240000000001, 0.000693173, 0.002364866)
    assert (bad.status, bad.reason) == ("failed", "3 of 3 runs ended with exit status 1")


FIGURES = (  # file, case, the series by label
    ("osu-bw.txt", "osu/bandwidth[size=256MiB,library=MPI,buffers=cuda,type=MPI_CHAR]", {"bandwidth": 279573.25e6}),
    ("osu-5.4.txt", "osu/bandwidth[size=1B,library=MPI,buffers=cuda,from=host,to=host]", {"bandwidth": 0.41e6}),
    (
        "osu-allreduce.txt",
        "osu/allreduce-latency[size=16MiB,library=MPI,buffers=cuda]",
        {"latency": 8630.58e-6, "min": 8619.5e-6, "max": 8642.46e-6},
    ),
    ("dcgm-diag-3.json", "dcgm-diag/pcie-gpu-to-host-bandwidth", {"value": 13.08e9}),
    ("dcgm-diag-3.json", "dcgm-diag/pcie-gpu-to-host-latency", {"value": 4.386e-6}),
    ("dcgm-diag-4.json", "dcgm-diag/passed", {"tests": 1.0}),
    (
        "mlperf-offline.txt",
        "mlperf/Offline[sut=SUT_Offline,mode=PerformanceOnly]",
        {"samples": 45786.8, "mean_latency": 332.352184971, "p50.00": 332.405489517, "p90.00": 596.98202426},
    ),
    ("nvloom.txt", "nvloom/device_to_device_unidir_write_sm[row=0,column=1]", {"bandwidth": 771.52e9}),
    ("nvloom.txt", "nvloom/bisect_device_to_device_write_sm[row=1->0,column=0]", {"bandwidth": 764.5e9}),
    (
        "ncu-raw.csv",
        "ncu/kernel[name=gemm_tiled_kernel,grid=(4096, 1, 1),block=(1024, 1, 1)]",
        {"time": 10.196e-3, "dram": 5.55e9},
    ),
    (
        "nccl-tests.json",
        "nccl-tests/all_reduce[size=8GiB,type=float,redop=sum,root=-1,ranks=2,place=in]",
        {"busbw": 393.98e9, "algbw": 210.12e9, "time": 40880e-6},
    ),
)


@pytest.mark.parametrize(("name", "case_id", "expected"), FIGURES)
def test_a_printed_figure_becomes_a_series_in_si_units(name, case_id, expected):
    assert {label: of[0] for label, of in values(name, case_id).items()} == pytest.approx(expected, rel=1e-12)


def test_gpu_fryer_has_a_figure_per_gpu_and_each_launch_of_a_kernel_is_a_sample():
    means = [(result.devices, result.series[0].values) for result in read("gpu-fryer.txt").content.results]
    assert means == [(("cuda:0",), (6208e9,)), (("cuda:1",), (6332e9,))]
    (kernel,) = read("ncu-iterations.csv").content.results
    assert {series.name: series.values for series in kernel.series} == {
        "time": (2.02e-6, 2.05e-6),
        "dram": (1.10e12, 1.08e12),
    }


def test_a_diagnosis_that_failed_and_an_invalid_result_of_mlperf_are_failed_cases():
    (failed,) = (result for result in read("dcgm-diag-4.json").content.results if result.status == "failed")
    assert failed.reason == "Persistence Mode: Persistence mode for GPU 0 is disabled."
    (skipped,) = (result for result in read("dcgm-diag-3.json").content.results if result.status == "skipped")
    assert skipped.reason.startswith("GPU 0: Unable to find hardware diagnostic")
    (invalid,) = read("mlperf-server.txt").content.results
    assert (invalid.status, invalid.cause) == ("failed", "invalid-result")
    assert invalid.reason.endswith("not Performance constraints satisfied, Early stopping satisfied")


def test_guidellms_load_with_a_fixed_concurrency_is_closed_and_has_the_bytes_of_its_steps():
    closed, open_ = read("guidellm.json").content.results
    assert (closed.case.name, open_.case.name) == ("closed", "open")
    rate = closed.series[0]
    assert rate.work.items / rate.values[0] == pytest.approx(20 * 128)
    assert rate.limit == "dram"
    assert next(s for s in open_.series if s.name == "p99_time_to_first_token").values == (pytest.approx(0.044),)


def test_the_same_case_again_is_its_next_replicate_and_so_three_runs_can_be_compared():
    run = foreign.run([read("babelstream-5.0.txt"), read("babelstream.csv"), read("babelstream-mib.txt")], [])
    copies = [result for result in run.results if result.case.name == "Copy"]
    assert [result.replicate for result in copies] == [0, 1, 2]
    (spread,) = (spread for spread in Summary(run).spreads() if spread.case.name == "Copy")
    assert len(spread.medians) == 3


def test_files_of_several_tools_are_one_run_with_a_suite_each():
    run = foreign.run([read("rccl-tests.txt"), read("gpu-cache.txt"), read("gpu-latency.txt")], [])
    assert run.manifest.settings.suites == ("nccl-tests", "gpu-benches")
    (view,) = (view for suite in run.manifest.suites for view in suite.views if view.title == "gpu-cache")
    assert view.cases == ("gpu-cache",)


def test_files_of_two_machines_are_not_joined(tmp_path):
    (tmp_path / "other.txt").write_text((IMPORTS / "nvbandwidth-v0.8.txt").read_text().replace("RTX 3050", "RTX 4090"))
    with pytest.raises(FileError, match="cuda:0 is another device"):
        foreign.run([read("nvbandwidth-v0.8.txt"), foreign.read(tmp_path / "other.txt")], [])


def test_a_device_that_one_file_names_and_another_does_not_is_one():
    run = foreign.run([read("nvbandwidth-v0.5.json"), read("nvbandwidth-v0.8.txt")], [])
    assert [device.name for device in run.manifest.facts.devices] == ["NVIDIA GeForce RTX 3050 Laptop GPU"]


DAMAGED = (
    ("nvbandwidth-v0.8.txt", "84.33\n\nSUM", "8.433\n\nSUM", "do not add up to its SUM"),
    ("nvbandwidth-7gpus.txt", " 4    760.17    760.91", " 4    760.17", "a row of .* is incomplete"),
    ("nvbandwidth-v0.8.txt", "613.22\n", "61x.22\n", "is not a number"),
    ("nvbandwidth-v0.5.json", '"12.3964"', '"13.3964"', "do not add up"),
    ("nvbandwidth-v0.5.json", '"name" : "host_to_device_memcpy_ce"', '"title" : "x"', "'name' is missing"),
    ("nvbandwidth-v0.5.json", "(GB/s)", "(TB/s)", "neither GB/s nor ns"),
    ("rccl-tests.txt", "  210.01  367.51      0", "  210.01", "columns where the head has"),
    ("rccl-tests.txt", "(us)  (GB/s)  (GB/s)            (us)", "(ms)  (GB/s)  (GB/s)            (ms)", "units"),
    ("nvbench.json", '"major": 1', '"major": 2', "JSON of version"),
    ("nvbench.json", '"states"', '"conditions"', "'states' is missing"),
    ("nvbench.json", "0.0010034715849794225", "nan", "is not a number"),
    ("nvbench.csv", ",No,4,", ",No,4,5,", "columns where the head has"),
    ("babelstream-5.0.txt", "0.00349     0.01243     0.00604", "0.00349", "the row of Triad is incomplete"),
    ("babelstream-5.0.txt", "MB/s", "XB/s", "the unit XB"),
    ("babelstream.csv", "4194304,8,25165.6", "4194304,2,25165.6", "elements of 2 bytes"),
    ("gpu-stream.txt", "3456       1", "3457       1", "an incomplete row"),
    ("gpu-cache.txt", "1.0%    8425.6 GB/s", "1.0%", "an incomplete row"),
    ("mixbench-cuda.txt", "GIOPS, GB/sec", "GIOPS, GB/sec, W", "unknown columns"),
    ("mixbench-cuda.txt", " 104.42, 417.68,", " 104.42,", "columns where the head has"),
    ("transferbench-1.62.txt", "56.309 GB/s |    4.767 ms", "56.309 TB/s |    4.767 ms", "neither GB/s nor ms"),
    ("transferbench-p2p.txt", "55.47     55.54      2132.28", "55.47     55.54", "columns where the head has"),
    ("superbench.jsonl", "25.6", '"fast"', "is not a number"),
    ("superbench.jsonl", '"mem-bw/H2D_Mem_BW:0": 25.6,', '"mem-bw', "not JSON"),
    ("perftest-write-bw.json", "393.92", "100.00", "neither the MiB/s nor the Gb/s"),
    ("perftest-write-bw.json", '"MsgRate": 0.751343', '"MsgRate": NaN', "NaN is not a number"),
    ("perftest-write-bw.json", '"BW_average": 393.92,\n', "", "neither a bandwidth nor a latency"),
    ("perftest-write-bw.json", '"MsgSize": 65536', '"MsgSize": "64k"', "'MsgSize' is missing"),
    ("perftest-write-bw.json", '"n_iterations"', 'sl: 3,\n"n_iterations"', "not JSON"),
    ("perftest-write-bw.json", '"MsgRate": 0.751343\n}\n}\n', '"MsgRa', "not JSON"),
    ("perftest-write-bw.json", '"test_info"', "test_info", "before version 24.01"),
    ("osu-validated.txt", "23346.67              Pass", "23346.67", "columns where the head has"),
    ("osu-bw.txt", "Avg Latency(us)", "Avg Latency(ms)", "newer than the known versions"),
    ("mlperf-offline.txt", "Test Parameters Used", "", "it ends before the parameters"),
    ("dcgm-diag-3.json", '"status": "SKIP"', '"state": "SKIP"', "'status' is missing"),
    ("nvloom.txt", "770.25\tN/A", "77.025\tN/A", "add up to"),
    ("nvloom.txt", "1541.77 GB/s", "1541.77 TB/s", "neither GB/s nor ns"),
    ("ncu-raw.csv", "10,196,000", "10196,00", "not a number with a decimal point"),
    ("ncu-raw.csv", '"ns"', '"ticks"', "not a known unit"),
    ("nccl-tests.json", '"version": 1', '"version": 2', "JSON of version 2"),
    ("guidellm.json", '"version": 2', '"version": 3', "report of version 3"),
    ("google-benchmark.json", '"time_unit": "us"', '"time_unit": "h"', "not a known unit"),
    ("pytest-benchmark.json", '"version"', '"edition"', "'version' is missing"),
    ("hyperfine.json", '"user": 0.000615', '"user": "0.000615"', "'user' is missing, or is not a measured number"),
)


@pytest.mark.parametrize(("name", "old", "new", "message"), DAMAGED)
def test_a_damaged_or_newer_output_is_refused_in_one_line_that_names_the_file(tmp_path, name, old, new, message):
    text = (IMPORTS / name).read_text()
    assert old in text
    path = tmp_path / name
    path.write_text(text.replace(old, new))
    with pytest.raises(FileError, match=message) as refused:
        foreign.read(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello\n",
        "{}",
        "[1]",
        '{"a": {}}',
        "size count\n",
        "\x00\xff",
        "# a report\n\n| a | b |\n",
        '{"nvbandwidth": 1}',
    ],
)
def test_a_foreign_file_is_refused(tmp_path, text):
    (tmp_path / "x").write_text(text)
    with pytest.raises(FileError):
        foreign.read(tmp_path / "x")


def test_a_run_file_of_our_own_is_no_output_of_another_tool(tmp_path):
    (tmp_path / "run.jsonl").write_bytes(store.encode_run(foreign.run([read("gpu-cache.txt")], [])))
    with pytest.raises(FileError, match="no output of a known tool"):
        foreign.read(tmp_path / "run.jsonl")


def test_the_wrong_tool_is_refused():
    with pytest.raises(FileError, match="this is not an output of mixbench"):
        foreign.read(IMPORTS / "gpu-cache.txt", "mixbench")


def test_undecodable_bytes_and_terminal_colours_are_tolerated(tmp_path):
    data = (IMPORTS / "babelstream-5.0.txt").read_bytes().replace(b"Triad ", b"\x1b[1mTriad\x1b[0m ")
    (tmp_path / "x").write_bytes(b"\xff\xfe noise\r\n" + data.replace(b"\n", b"\r\n"))
    assert len(foreign.read(tmp_path / "x").content.results) == 5


IMPORTERS = {name: plugins.load("importers", name) for name in plugins.names("importers")}


def parsed(text):
    """Return the content that an importer reads from the text; None if no importer takes it or it is refused."""
    for name, importer in IMPORTERS.items():
        if importer.accepts(text):
            try:
                return foreign.ImportedFile(Path("x"), name, foreign._check_storable(importer.read(text)))
            except BadOutput:
                return None
    return None


@pytest.mark.parametrize("name", FILES)
def test_an_output_that_is_truncated_anywhere_is_refused_or_read_up_to_there(name):
    text = (IMPORTS / name).read_text()
    complete = {(r.case.id, r.devices): r for r in read(name).content.results}
    for end in range(0, len(text), max(len(text) // 60, 1)):
        source = parsed(text[: text.rfind("\n", 0, end) + 1])
        for result in source.content.results if source else ():
            if result.status == "ok" and len(result.series[0].values) == 1 and "iterations" not in name:
                expected = complete[result.case.id, result.devices].series
                assert all(s.values == t.values for s, t in zip(result.series, expected, strict=True))
        parsed(text[:end])


PIECES = ("", "x", "-", "nan", "0", "1e999", "1e-320", "9" * 30, "9" * 400, "\n", "{", "|", "\t", "²", '"')


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(FILES),
    edits=st.lists(st.tuples(st.floats(0, 1), st.sampled_from(PIECES)), min_size=1, max_size=8),
)
def test_an_importer_reads_or_refuses_every_edited_output(name, edits):
    text = (IMPORTS / name).read_text()
    for place, piece in edits:
        at = int(place * len(text))
        text = text[:at] + piece + text[at + 1 :]
    source = parsed(text)
    if source:
        store.encode_run(foreign.run([source], []))


ABSURD = ("0", "-1", "1e308", "1e-320", "9" * 18, "9" * 30, "9" * 400, "1" * 5000)


@pytest.mark.parametrize("count", [4, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FILES)
def test_an_output_with_absurd_numbers_is_refused_or_becomes_a_run_file(name, count):
    text, chooser = (IMPORTS / name).read_text(), random.Random(name)
    numbers = [match.span() for match in re.finditer(r"\d[\d.]*", text)]
    for _ in range(count):
        (start, end), value = chooser.choice(numbers), chooser.choice(ABSURD)
        source = parsed(text[:start] + value + text[end:])
        if source:
            store.encode_run(foreign.run([source], []))


@pytest.mark.parametrize("piece", ["\n", " ", "Running x.\n"])
def test_the_time_for_refusing_a_file_is_linear_in_its_size(piece):
    """A pattern that backtracks over blanks from every line would take minutes for 100 kB of empty lines."""
    seconds = []
    for count in (2_500, 40_000):
        start = time.process_time()
        assert parsed(piece * count) is None
        seconds.append(time.process_time() - start)
    assert seconds[1] < 16 * 4 * max(seconds[0], 1e-3)


def test_an_output_of_too_many_lines_or_values_is_refused_in_one_line(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_text((IMPORTS / "nvbench.json").read_text())
    monkeypatch.setattr(outputs, "_MOST_VALUES", 100)
    with pytest.raises(FileError, match="nvbench: more than 100 values: split the output into parts"):
        foreign.read(path)
    monkeypatch.setattr(foreign, "_MOST_LINES", 100)
    with pytest.raises(FileError, match="more than 100 lines; cut the tool's output out of it"):
        foreign.read(path)


def test_the_example_of_the_door_is_an_importer():
    _, example = door.__doc__.split("more is better:\n\n")
    code, _ = example.split("\n\nIt raises")
    namespace = {}
    exec(textwrap.dedent(code), namespace)  # the documented code
    text = "copybench 1\nbytes  ms  GB/s\n1024  0.5  2.5\n"
    assert namespace["importer"].accepts(text)
    (result,) = namespace["importer"].read(text).results
    assert result.case.id == "copybench/copy[size=1KiB]"
    assert {series.label: (series.values, series.better) for series in result.series} == {
        "bandwidth": ((2.5e9,), "more"),
        "time": ((0.5e-3,), "less"),
    }
    with pytest.raises(BadOutput, match=r"line 3: 2 columns where the head has 3"):
        namespace["importer"].read(text.replace("2.5", ""))


@pytest.mark.parametrize("tool", plugins.names("importers"))
def test_every_importer_describes_its_input_in_a_sentence(tool):
    summary = plugins.load("importers", tool).summary
    assert summary
    assert "\n" not in summary


def test_deeply_nested_json_is_refused(tmp_path):
    (tmp_path / "x").write_text('{"meta": {}, "nvbench": 1, "benchmarks": ' + "[" * 100_000)
    with pytest.raises(FileError):
        foreign.read(tmp_path / "x")


def test_valid_json_of_another_form_is_refused(tmp_path):
    body = json.loads((IMPORTS / "nvbench.json").read_text())
    for key in ("meta", "devices", "benchmarks"):
        for wrong in (None, 1, "x", {}, [1], [None]):
            (tmp_path / "x").write_text(json.dumps({**body, "nvbench": 1, key: wrong}))
            with pytest.raises(FileError):
                foreign.read(tmp_path / "x")


def test_perftest_distinguishes_mib_from_gbit_by_the_rate_of_messages(tmp_path):
    name, case_id = (
        "perftest-write-bw.json",
        "perftest/rdma_write_bw[size=64KiB,connection=RC,qps=1,mtu=4096,tx_depth=128]",
    )
    assert values(name, case_id)["BW_average"] == (393.92e9 / 8,)
    assert values(name, case_id)["MsgRate"] == (751343.0,)
    path = tmp_path / "mib.json"
    path.write_text((IMPORTS / name).read_text().replace("393.92", "46958.92").replace("393.94", "0.00"))
    (result,) = foreign.read(path).content.results
    assert {series.label: series.values for series in result.series} == {
        "BW_average": (46958.92 * 2**20,),
        "MsgRate": (751343.0,),
    }


def test_perftest_latencies_of_a_gpus_memory_are_in_seconds_and_say_so():
    name = "perftest-read-lat.json"
    case_id = "perftest/rdma_read_latency[size=8B,connection=RC,qps=1,mtu=4096,tx_depth=1,memory=GPU]"
    assert values(name, case_id) == {
        "median": (3.3e-6,),
        "mean": (3.34e-6,),
        "min": (3.21e-6,),
        "max": (9.04e-6,),
        "p99": (4.02e-6,),
        "p99.9": (9.04e-6,),
    }


def test_an_imported_run_has_the_date_of_its_oldest_file(tmp_path):
    paths = [tmp_path / "first.txt", tmp_path / "second.txt"]
    for path, seconds in zip(paths, (1_700_000_000, 1_600_000_000), strict=True):
        path.write_bytes((IMPORTS / "nvbandwidth-v0.8.txt").read_bytes())
        os.utime(path, (seconds, seconds))
    run = foreign.run([foreign.read(path) for path in paths], [])
    assert run.manifest.started == "2020-09-13T12:26:40+00:00"


@pytest.mark.parametrize(
    ("name", "theirs", "ours"),
    [
        ("nvbandwidth-v0.8.txt", "host_to_device_memcpy_ce", "bandwidth/h2d[memory=pinned,size=256MiB]"),
        ("babelstream-5.0.txt", "Triad", "bandwidth/triad[size=1GiB,dtype=float64]"),
    ],
)
def test_an_equal_quantity_of_another_tool_is_compared_with_ours(call, tmp_path, name, theirs, ours):
    output, path = tmp_path / name, tmp_path / "theirs.jsonl"
    output.write_text((IMPORTS / name).read_text().replace("elements: 4194304", "elements: 134217728"))
    path.write_bytes(store.encode_run(foreign.run([foreign.read(output)], [])))
    recording = Path(__file__).parent / "recordings" / "whole" / "h200.jsonl.gz"
    status, out, said = call("compare", path, recording, "--filter", ours.replace("[", "*"))
    assert status == 0, said
    assert re.search(rf"compared as the same quantity: \S+/{theirs}\S* and {re.escape(ours)}", said)
    assert re.search(rf"inconclusive +{re.escape(ours)}(?: +[\d.]+ [GT]B/s){{2}}", out), out
