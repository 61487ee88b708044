"""Output of clients of language models: tokens per second, and their share of the GPU's memory bandwidth.

No server was at hand: the files in tests/imports are made up by the formats of these versions, with numbers that agree
with each other.

- vllm-serve*: `vllm/benchmarks/serve.py` of vLLM's main branch of 2026 (`--save-result`, `--append-result`).
- sglang: `python/sglang/bench_serving.py` of SGLang 0.5; its second line has no `server_info`, as in 0.4.
- llama-bench: the objects of llama.cpp's build 5163, as `-o json` and `-o jsonl`.
- aiperf: schema 1.4 of AIPerf 0.12. genai-perf: GenAI-Perf 0.0.16.
"""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from _command import gpubench

from gpubench.analysis import serving
from gpubench.analysis.summary import Summary
from gpubench.base.errors import FileError
from gpubench.importers import _served
from gpubench.knowledge.language_models import LANGUAGE_MODELS
from gpubench.tools import foreign

IMPORTS = Path(__file__).parent / "imports"
H200_READS = 4.8e12  # B/s, from the data sheet
LLAMA = LANGUAGE_MODELS["llama-3-8b"]
HALVES = 2.0 * LLAMA.size
SEVERAL_GPUS = "several GPUs worked at once, or are not alike"
KV = 131_072  # bytes of keys and values per token of Llama-3-8B
QWEN = {"model_names": ["Qwen/Qwen3-8B"]}


def results(name):
    return foreign.read(IMPORTS / name).content.results


def changed(tmp_path, name, number=0, **edits):
    """Return the results of a file of JSON objects, of which object `number` has other values; None removes a key."""
    text = (IMPORTS / name).read_text()
    objects = [json.loads(line) for line in text.splitlines()] if name.endswith("l") else [json.loads(text)]
    objects = objects[0] if isinstance(objects[0], list) else objects
    objects[number] = {key: value for key, value in {**objects[number], **edits}.items() if value is not None}
    path = tmp_path / name
    path.write_text("\n".join(map(json.dumps, objects)))
    return foreign.read(path).content.results


def series(result):
    return {timing.label: timing for timing in result.series}


def note(result):
    return dict(result.notes)


def figure(source):
    """Return the headline of the only case of a source, as every report shows it."""
    (spread,) = Summary(foreign.run([source], [])).spreads()
    return spread.figure


def test_tokens_per_second_of_vllm_have_their_share_of_what_the_memory_allows():
    share = figure(foreign.read(IMPORTS / "vllm-serve.json"))
    batch = 128 * 255 * 7e-3 / 14.8  # 128 requests with 255 tokens each, 7 ms per token
    assert share.text == "2214 token/s"
    assert share.share_of("spec").limit == "dram"
    assert share.share == pytest.approx((HALVES + batch * (1024 + 128) * KV) / 7e-3 / H200_READS, rel=1e-6)


def test_runs_of_one_case_in_one_file_are_replicates_and_failed_requests_are_a_label():
    run = foreign.run([foreign.read(IMPORTS / "vllm-serve-appended.json")], [])
    assert [result.replicate for result in run.results] == [0, 1]
    assert {result.labels for result in run.results} == {("failed-requests",)}
    assert note(run.results[0])["failed requests"] == "1"
    assert run.results[0].case.id.startswith("vllm/open[model=Llama-3.1-8B-Instruct,input=1024,output=256")


def test_one_request_at_a_time_and_an_infinite_rate_are_counted(tmp_path):
    output, duration = 1 + 1000, 1000 * 4e-3 + 50e-3
    load = _served.ServingLoad(duration, 1, 100, output, 1000 * 4e-3, is_open=False)
    work, _ = load.work(_served.ServedModel("llama-3-8b"))
    assert work.moved == 1000 * (HALVES + (100 + output / 2) * KV)
    assert _served.request_rate({"request_rate": math.inf}) == math.inf
    assert all("rate=" not in result.case.id for result in results("sglang.jsonl"))


@pytest.mark.parametrize("rate", [0.1, 0.3, 1.0, 3.0])
def test_the_steps_of_requests_that_arrive_at_random_are_those_of_a_simulated_server(rate):
    """A step takes 10 ms at every batch size and a prefill almost nothing, so the busy time gives the steps."""
    step_s, output, queries = 10e-3, 201, 4000
    times = serving.ServingTimes({64: 1e-9}, {64: serving.StepLine(step_s, 0.0)})
    served = serving.simulate(times, serving.poisson(rate, queries, seed=3), 64, output)
    started = np.maximum.accumulate(np.concatenate([[0.0], served.last[:-1]]))
    busy_s = float(np.sum(np.maximum(0.0, served.last - np.maximum(served.first, started))))
    decode_s = float(np.mean(served.last - served.first))
    load = _served.ServingLoad(float(served.last[-1]), queries, 64 * queries, output * queries, decode_s, is_open=True)
    counted = (load.output_tokens - load.requests) / load.batch
    assert counted == pytest.approx(busy_s / step_s, rel=0.05)


def test_tokens_that_speculation_adds_to_a_step_take_no_bytes_of_weights(tmp_path):
    (plain,) = results("vllm-serve.json")
    (doubled,) = changed(tmp_path, "vllm-serve.json", spec_decode_acceptance_length=2.0)
    assert doubled.series[0].work.moved == pytest.approx(plain.series[0].work.moved / 2)
    assert doubled.series[0].work.items == plain.series[0].work.items


@pytest.mark.parametrize(
    ("edits", "weights"),
    [
        ({}, HALVES),
        ({"model_id": "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8"}, LLAMA.size + LLAMA.head.size),
        ({"quantization": "fp8"}, LLAMA.size + LLAMA.head.size),
        (
            {"model_id": "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4"},
            (LLAMA.size - LLAMA.head.size) * (4 + 16 / 128) / 8 + 2 * LLAMA.head.size,
        ),
        ({"model_id": "org/Meta-Llama-3.1-8B-GPTQ-Int8"}, LLAMA.size + LLAMA.head.size),
        ({"quantization": "bfloat16"}, HALVES),
        ({"model_id": "/srv/awq/Meta-Llama-3.1-8B"}, HALVES),
        ({"tp": "4"}, HALVES / 4),
    ],
)
def test_the_bytes_of_weights_follow_from_their_format_and_the_gpus_that_share_them(tmp_path, edits, weights):
    (result,) = changed(tmp_path, "vllm-serve.json", **edits)
    gpus, batch = int(edits.get("tp", 1)), 128 * 255 * 7e-3 / 14.8
    cache = batch * (1024 + 128) * KV / gpus
    steps = 128 * 255 / batch
    assert result.series[0].work.moved == pytest.approx(steps * (weights + cache), rel=1e-6)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"model_id": "/home/somebody/models/secret-13b"}, "the table of language models does not have secret-13b"),
        ({"quantization": "torchao"}, "how many bits the weights have is not known: torchao"),
        (
            {"model_id": "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"},
            "how many bits the weights have is not known: GGUF",
        ),
        ({"mean_tpot_ms": None}, "the time from the first to the last token is not stated"),
        ({"total_output_tokens": 128, "output_throughput": 128 / 14.8}, "the answers have one token each"),
    ],
)
def test_without_a_count_of_bytes_there_is_no_share_of_peak_and_a_note_gives_the_reason(tmp_path, edits, message):
    (result,) = changed(tmp_path, "vllm-serve.json", **edits)
    assert (result.status, result.series[0].limit, result.series[0].work.moved) == ("ok", "", 0)
    assert note(result)["no share"] == message
    assert "somebody" not in result.case.id


def test_naming_a_gpu_that_no_file_names_gives_a_share_of_its_peak():
    source = foreign.read(IMPORTS / "sglang.jsonl")
    assert {device.name for device in source.content.devices} == {"device not stated"}
    run = foreign.run([foreign.with_gpu_name(source, "NVIDIA H200")], [])
    with_bytes, without_bytes = Summary(run).spreads()
    assert with_bytes.figure.share_of("spec").source == "NVIDIA H100/H200 SXM data sheet, dense rates"
    moved = with_bytes.row.result.series[0].work.moved
    assert with_bytes.figure.share == pytest.approx(moved / 150 / H200_READS)
    assert without_bytes.figure.share_of("spec") is None


@pytest.mark.parametrize(
    ("name", "unstated"), [("sglang.jsonl", True), ("vllm-serve.json", False), ("genai-perf.json", False)]
)
def test_the_gpu_is_requested_if_a_share_of_its_peak_could_be_given(name, unstated):
    assert foreign.gpu_is_unstated(foreign.read(IMPORTS / name)) is unstated


def test_the_command_takes_the_name_of_a_gpu_that_the_output_does_not_state(tmp_path):
    done = gpubench("import", IMPORTS / "sglang.jsonl", "--gpu", "NVIDIA H200", "-o", "run.jsonl", cwd=tmp_path)
    assert (done.returncode, "name it with --gpu" in done.stderr) == (0, False)
    output = gpubench("show", "run.jsonl", cwd=tmp_path).stdout
    assert re.search(r"concurrency=64\] +1748 token/s +24\.7 % dram", output)
    refused = gpubench("import", IMPORTS / "aiperf.json", "--gpu", "NVIDIA H200", "-o", "other.jsonl", cwd=tmp_path)
    assert refused.returncode == 2
    assert "states its devices: NVIDIA H100 80GB HBM3" in refused.stderr


def test_each_of_the_gpus_of_sglang_reads_its_part_of_the_weights_and_of_a_cache_of_8_bits(tmp_path):
    with_bytes, without_bytes = results("sglang.jsonl")
    llama = LANGUAGE_MODELS["llama-3-70b"]
    batch = 512 * 18.0 / 150
    steps = 512 * 511 / batch
    step = llama.size + llama.head.size + batch * 1280 * llama.cache_bytes(1)
    assert with_bytes.series[0].work.moved == pytest.approx(steps * step / 2)
    assert note(without_bytes)["no share"].startswith("the client did not ask the server for its model")
    info = {"model_path": "meta-llama/Llama-3.1-70B-Instruct", "tp_size": 2, "dp_size": 2}
    replicas = changed(tmp_path, "sglang.jsonl", server_info=info)[0]
    assert note(replicas)["no share"] == "several replicas or pipeline stages share the load"


def test_every_repetition_of_llama_bench_is_a_sample_with_its_share(tmp_path):
    prompt, generated, quantised = results("llama-bench.json")
    alike = changed(tmp_path, "llama-bench.json", number=1, gpu_info="NVIDIA H200, NVIDIA H200")[1]
    assert alike.series[0].work.moved == generated.series[0].work.moved, "one GPU's memory bounds layers in turn"
    assert generated.series[0].values == (0.64, 0.644, 0.636)
    run = foreign.run([foreign.read(IMPORTS / "llama-bench.json")], [])
    spreads = {spread.case.id: spread for spread in Summary(run).spreads()}
    share = spreads[generated.case.id].figure
    assert share.text == "200.0 token/s"
    assert share.share == pytest.approx(200 * (HALVES + 64.5 * KV) / H200_READS, rel=1e-3)
    assert spreads[prompt.case.id].figure.share_of("spec").limit == "tensor.float16"
    assert prompt.series[0].work.flops == LLAMA.prefill(512, 0.0).flops
    weights = 4912898304 * LLAMA.size / LLAMA.parameters
    assert quantised.series[0].work.moved == pytest.approx(128 * (weights + 4160.5 * KV / 2 * 34 / 32))


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"n_gpu_layers": 0}, "it ran on the host"),
        ({"gpu_info": ""}, "it ran on the host"),
        ({"n_gpu_layers": 20}, "only 20 layers were on the GPU"),
        ({"no_kv_offload": True}, "a part of the model was in the memory of the host"),
        ({"tensor_buft_overrides": "exps=CPU"}, "a part of the model was in the memory of the host"),
        ({"gpu_info": "NVIDIA H200, NVIDIA H100"}, SEVERAL_GPUS),
        ({"gpu_info": "NVIDIA H200, NVIDIA H200", "split_mode": "row"}, SEVERAL_GPUS),
        ({"type_k": "iq4_nl"}, "the format of the cache is not known"),
        ({"model_n_params": 46_702_792_704}, "the table of language models has none of 46702792704 parameters"),
        ({"n_prompt": 512}, "the time has a prompt and a generation in it"),
        ({"n_prompt": 512, "n_gen": 0, "n_depth": 512}, "the prompt followed a filled cache"),
        (
            {"n_prompt": 512, "n_gen": 0, "model_type": "llama 8B Q8_0"},
            "which peak bounds products of quantised weights is not known",
        ),
    ],
)
def test_a_test_of_llama_bench_whose_bytes_are_not_known_has_no_share(tmp_path, edits, message):
    result = changed(tmp_path, "llama-bench.json", number=1, **edits)[1]
    assert (result.series[0].limit, result.series[0].work.moved) == ("", 0)
    assert note(result)["no share"] == message


def test_aiperf_names_its_gpu_its_model_and_the_measured_phase(tmp_path):
    source = foreign.read(IMPORTS / "aiperf.json")
    (result,) = source.content.results
    assert [device.name for device in source.content.devices] == ["NVIDIA H100 80GB HBM3"]
    assert result.case.id == "aiperf/closed[model=Qwen2.5-7B-Instruct,input=512,output=381,concurrency=32]"
    assert series(result)["p99_time_to_first_token"].values == (90e-3,)
    qwen = LANGUAGE_MODELS["qwen2.5-7b"]
    batch = 10 * 3.04
    rate = 10 * 380 / batch * (2.0 * qwen.size + batch * (512 + 381 / 2) * qwen.cache_bytes())
    assert figure(source).share == pytest.approx(rate / 3.35e12)
    gpus = {f"gpu_{index}": {"gpu_name": "NVIDIA H200"} for index in range(8)}
    (result,) = changed(tmp_path, "aiperf.json", telemetry_data={"endpoints": {"here": {"gpus": gpus}}})
    assert note(result)["no share"] == "which of the 8 GPUs served is not stated"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"endpoint": QWEN, "loadgen": {"concurrency": 4}}, "closed[model=Qwen3-8B,{},concurrency=4]"),
        ({"endpoint": QWEN, "loadgen": {"request_rate": 2.5}}, "open[model=Qwen3-8B,{},requests=200,rate=2.5]"),
        ({**QWEN, "perf_analyzer": {"stimulus": {"concurrency": 1}}}, "closed[model=Qwen3-8B,{},concurrency=1]"),
        ({}, "open[model=unnamed,{},requests=200]"),
    ],
)
def test_the_earlier_forms_of_aiperfs_configuration_are_read_too(tmp_path, config, expected):
    (result,) = changed(tmp_path, "aiperf.json", input_config=config)
    assert result.case.id == f"aiperf/{expected.format('input=512,output=381')}"


@pytest.mark.parametrize("name", ["vllm-serve.json", "sglang.jsonl"])
def test_a_run_without_an_answer_is_a_failed_case(tmp_path, name):
    result = changed(tmp_path, name, completed=0, total_output_tokens=0, output_throughput=0.0)[0]
    assert (result.status, result.cause) == ("failed", "no-result")
    assert result.reason == "no request was answered with a token"


UNMEASURED = "is missing, or is not a measured number"
UNKNOWN_FORM = "is missing, or has another form than in the known versions"
DAMAGED = (
    ("vllm-serve.json", '"duration": 14.8', '"duration": NaN', "NaN is not a number"),
    ("vllm-serve.json", '"duration": 14.8', '"duration": 148', "output_throughput .* edited or damaged"),
    ("vllm-serve.json", '"duration": 14.8', '"duration": Infinity', f"'duration' {UNMEASURED}"),
    ("vllm-serve.json", '"mean_tpot_ms": 7.0', '"mean_tpot_ms": -7.0', f"'mean_tpot_ms' {UNMEASURED}"),
    ("vllm-serve.json", '"completed": 128', '"completed": "128"', f"'completed' {UNMEASURED}"),
    ("vllm-serve.json", '"tp": "1"', '"tp": "0"', "tp is 0, which is not a possible number"),
    ("vllm-serve.json", '"tp": "1"', '"tp": "many"', "is not a whole number"),
    ("vllm-serve.json", '"gpu": "NVIDIA H200"', '"gpu": 7', f"'gpu' {UNKNOWN_FORM}"),
    ("vllm-serve.json", '"p99_itl_ms": 12.25}', '"p99_itl_', "not JSON"),
    ("sglang.jsonl", '"request_rate": Infinity', '"request_rate": NaN', "NaN is not a number"),
    ("sglang.jsonl", '"tp_size": 2', '"tp_size": -2', "tp_size is -2"),
    ("sglang.jsonl", '"max_concurrent_requests": 64}\n', '"max_conc\n', "line 1: not JSON"),
    ("llama-bench.json", '"samples_ns": [\n      640000000', '"samples_ns": [\n      -1', f"'samples_ns' {UNMEASURED}"),
    ("llama-bench.json", '"n_gen": 128', '"n_gen": true', "'n_gen' is missing"),
    ("llama-bench.json", '"n_gen": 128', '"n_gen": -1', "n_gen is -1"),
    ("llama-bench.json", '"model_type": "llama 8B F16"', '"model_type": ["llama"]', "'model_type' is missing"),
    ("llama-bench.json", "\n]\n", "\n", "not JSON"),
    ("llama-bench.json", "[\n", "[\n7,\n", "not JSON objects"),
    ("aiperf.json", '"unit": "ms"', '"unit": "fortnights"', "is in 'fortnights', which is not a known unit of time"),
    ("aiperf.json", '"avg": 3810.0', '"avg": [3810.0]', "'avg' is missing, or is not a measured number"),
    ("aiperf.json", '"gpu_name": "NVIDIA H100 80GB HBM3"', '"gpu_name": 1', "'gpu_name' is missing"),
)


@pytest.mark.parametrize(("name", "old", "new", "message"), DAMAGED)
def test_a_damaged_output_of_a_client_is_refused_in_one_line_that_names_the_file(tmp_path, name, old, new, message):
    text = (IMPORTS / name).read_text()
    assert old in text
    path = tmp_path / name
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(FileError, match=message) as refused:
        foreign.read(path)
    assert re.fullmatch(re.escape(f"{path}: ") + ".+", str(refused.value))


def test_a_run_of_aiperf_without_an_answer_is_a_failed_case(tmp_path):
    (result,) = changed(tmp_path, "aiperf.json", request_count={"unit": "requests", "avg": 0})
    assert (result.status, result.case.id) == ("failed", "aiperf/open[model=Qwen2.5-7B-Instruct]")
