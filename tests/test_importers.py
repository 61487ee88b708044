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
numbers that are made up. So are these, whose forms were compared with public ones:

- nccl-tests.json: src/util.cu of NVIDIA/nccl-tests (JSON 1 and 2). nvloom: the reader in cli/plot_heatmaps.py of
  NVIDIA/nvloom 1.3; no output is public.
- ncu-*: the documentation, and outputs in the tests of several public parsers, one with decimal commas.
- guidellm: the schemas of 0.7; of 0.5 reports-v2/concurrent4-benchmarks.json of nirjhar17/guidellm-pd-disaggregation.
- vllm-*, sglang, llama-bench*, aiperf and genai-perf: see test_importers_inference.py.
"""

import dataclasses
import json
import os
import random
import re
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpubench import plugins
from gpubench.analysis.summary import Summary
from gpubench.api import importer as door
from gpubench.authoring import outputs
from gpubench.base.errors import BadOutput, FileError
from gpubench.model import store
from gpubench.tools import foreign

IMPORTS = Path(__file__).parent / "imports"
GOLDEN = Path(__file__).parent / "golden" / "imports"
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


def described(name):
    """Return a line for each device, version, omission and result that a file of another tool is read as."""
    content = read(name).content
    yield f"## {name}"
    for device in content.devices:
        facts = (device.id, device.name, device.arch, device.units, device.cache_bytes, device.pci, device.details)
        yield "device: " + ", ".join(map(str, facts))
    yield from (f"version: {name} {version}" for name, version in content.versions)
    yield from (f"left out: {metric}" for metric in content.left_out)
    for result in content.results:
        figures = (
            f"{series.label} = {', '.join(f'{value:.10g}' for value in series.values)} {series.unit} ({series.better})"
            + "".join(f", {name} {value:.10g}" for name, value in dataclasses.asdict(series.work).items() if value)
            for series in result.series
        )
        notes = (f"{name}: {value}" for name, value in result.notes)
        state = " ".join(filter(None, (result.status, result.cause, result.reason, *result.labels)))
        yield " | ".join((f"{result.case.id} on {', '.join(result.devices)}", state, *figures, *notes))


@pytest.mark.parametrize("name", FILES)
def test_every_device_version_and_value_of_a_file_is_the_stored_one(name):
    """Set GPUBENCH_WRITE_GOLDEN to write a changed description, and compare it with the file by eye."""
    path = GOLDEN / f"{name}.txt"
    written = "\n".join(described(name)) + "\n"
    if os.environ.get("GPUBENCH_WRITE_GOLDEN"):
        path.write_text(written, encoding="utf-8")
    assert written == path.read_text(encoding="utf-8")


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


def test_wrong_values_fail_a_collective_and_ranks_that_share_a_device_count_one_by_one(tmp_path):
    text = (IMPORTS / "rccl-tests.txt").read_text().replace("367.51      0", "367.51     50")
    (tmp_path / "wrong.txt").write_text(text)
    failed = [result for result in foreign.read(tmp_path / "wrong.txt").content.results if result.status == "failed"]
    assert [(result.cause, result.reason) for result in failed] == [("wrong-answer", "50 values are out of bounds")]
    text = (IMPORTS / "rccl-tests.txt").read_text().replace("device  5", "device  4")
    (tmp_path / "shared.txt").write_text(text)
    result = foreign.read(tmp_path / "shared.txt").content.results[0]
    assert (dict(result.case.params)["ranks"], result.devices.count("rocm:4")) == (8, 2)


def test_two_files_that_do_not_name_their_measurement_are_not_merged():
    with pytest.raises(FileError, match="import them one by one"):
        foreign.run([read("nccl-tests-old.txt"), read("nccl-tests-old.txt")], [])


def test_a_rate_that_google_benchmark_prints_is_the_size_over_its_processor_time():
    (result,) = (r for r in read("google-benchmark.json").content.results if r.case.name == "BM_Copy/4096")
    series = {one.name: one.values for one in result.series}
    assert [4096 / seconds for seconds in series["cpu_time"]] == pytest.approx(series["bytes_per_second"])


def test_files_of_several_tools_are_one_run_and_a_case_again_is_its_next_replicate():
    run = foreign.run([read("babelstream-5.0.txt"), read("babelstream.csv"), read("babelstream-mib.txt")], [])
    copies = [result for result in run.results if result.case.name == "Copy"]
    assert [result.replicate for result in copies] == [0, 1, 2]
    (spread,) = (spread for spread in Summary(run).spreads() if spread.case.name == "Copy")
    assert len(spread.medians) == 3
    run = foreign.run([read("rccl-tests.txt"), read("gpu-cache.txt"), read("gpu-latency.txt")], [])
    assert run.manifest.settings.suites == ("nccl-tests", "gpu-benches")
    (view,) = (view for suite in run.manifest.suites for view in suite.views if view.title == "gpu-cache")
    assert view.cases == ("gpu-cache",)
    run = foreign.run([read("nvbandwidth-v0.5.json"), read("nvbandwidth-v0.8.txt")], [])
    assert [device.name for device in run.manifest.facts.devices] == ["NVIDIA GeForce RTX 3050 Laptop GPU"]


def test_files_of_two_machines_are_not_joined(tmp_path):
    (tmp_path / "other.txt").write_text((IMPORTS / "nvbandwidth-v0.8.txt").read_text().replace("RTX 3050", "RTX 4090"))
    with pytest.raises(FileError, match="cuda:0 is another device"):
        foreign.run([read("nvbandwidth-v0.8.txt"), foreign.read(tmp_path / "other.txt")], [])


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
    ("ncu-raw.csv", '"3.20"', '"3,20"', "comma as its decimal mark"),
    ("ncu-raw.csv", '"3.20"', '"27.595.520"', "comma as its decimal mark"),
    ("nccl-tests.json", '"version": 2', '"version": 3', "JSON of version 3"),
    ("nccl-tests.json", '"ngpus": 2', '"ngpus": 1000000000', "GPUs in each of 1 processes are not possible"),
    ("nccl-tests.json", "34.9,", "true,", "'True' is not a number"),
    ("ncu-raw.csv", "void copy", "x" * 200_000, "ncu: field larger than field limit"),
    ("dcgm-diag-3.json", '"warnings": [', '"warnings": 1, "w": [', "'warnings' is missing, or has another form"),
    ("guidellm.json", '"version": 2', '"version": 3', "report of version 3"),
    ("google-benchmark.json", '"time_unit": "us"', '"time_unit": "h"', "not a known unit"),
    ("pytest-benchmark.json", '"version"', '"edition"', "'version' is missing"),
    ("hyperfine.json", '"user": 0.000615', '"user": "0.000615"', "'user' is missing, or is not a measured number"),
)


ALIKE = (
    ("nccl-tests.json", '"version": 2', '"version": 1'),
    ("guidellm.json", '"version": 2', '"version": 1'),
    ("guidellm.json", '"type_": "concurrent"', '"kind": "concurrent"'),
    ("nvloom.txt", "\nMin device", "\nsleeping for 1 s\nMin device"),
)


@pytest.mark.parametrize(("name", "old", "new"), ALIKE)
def test_forms_of_several_versions_are_read_alike(tmp_path, name, old, new):
    text = (IMPORTS / name).read_text()
    (tmp_path / name).write_text(text.replace(old, new))
    assert old in text
    assert foreign.read(tmp_path / name).content.results == read(name).content.results


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


FOREIGN = ("", "hello\n", "{}", "[1]", '{"a": {}}', "size count\n", "\x00\xff", "# a\n\n| b |\n", '{"nvbandwidth": 1}')


@pytest.mark.parametrize("text", FOREIGN)
def test_a_foreign_file_is_refused(tmp_path, text):
    (tmp_path / "x").write_text(text)
    with pytest.raises(FileError):
        foreign.read(tmp_path / "x")


def test_files_of_other_kinds_and_the_wrong_tool_are_refused(tmp_path):
    (tmp_path / "run.jsonl").write_bytes(store.encode_run(foreign.run([read("gpu-cache.txt")], [])))
    with pytest.raises(FileError, match="no output of a known tool"):
        foreign.read(tmp_path / "run.jsonl")
    with pytest.raises(FileError, match="this is not an output of mixbench"):
        foreign.read(IMPORTS / "gpu-cache.txt", "mixbench")
    (tmp_path / "x").write_text('{"meta": {}, "nvbench": 1, "benchmarks": ' + "[" * 100_000)
    with pytest.raises(FileError):
        foreign.read(tmp_path / "x")


def test_undecodable_bytes_and_terminal_colours_are_tolerated(tmp_path):
    data = (IMPORTS / "babelstream-5.0.txt").read_bytes().replace(b"Triad ", b"\x1b[1m\nTriad\x1b[0m ")
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


@settings(max_examples=300)
@given(
    name=st.sampled_from(FILES),
    edits=st.lists(st.tuples(st.floats(0, 1), st.sampled_from(PIECES)), min_size=1, max_size=8),
)
@example("ncu-raw.csv", [(0.0, '"')])
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


PROGRAM = '{"version": 2, "nccl_version": 1, "out_of_place": 1, "bus_bw": 1, "args": ["%s"]}'


@pytest.mark.parametrize(("text", "piece"), [*(("%s", piece) for piece in ("\n", " ", "Running x.\n")), (PROGRAM, "x")])
def test_the_time_for_refusing_a_file_is_linear_in_its_size(text, piece):
    """A pattern that backtracks over blanks from every line would take minutes for 100 kB of empty lines."""
    seconds = []
    for count in (2_500, 40_000):
        start = time.process_time()
        assert parsed(text % (piece * count)) is None
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
