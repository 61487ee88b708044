"""Import llama.cpp's `llama-bench`: the JSON of `-o json` (a list) or `-o jsonl` (one object per line).

The names come from `tools/llama-bench/llama-bench.cpp` of build 5163 (2025) and of 2026; builds of 2023 do not write
`n_depth`, which is then 0. Every repetition is a sample, in ns. A test processes a prompt (pp), generates tokens one by
one (tg), or both (pg). The number of parameters identifies the model, and the size of the file gives the bytes that a
step reads."""

import re
from typing import Any

from gpubench.api import importer as gb

_TOKENS, _MOST_TOKENS = ("n_prompt", "n_gen", "n_depth"), 1e9
_AXES = ("n_batch", "n_ubatch", "n_gpu_layers", "type_k", "type_v", "flash_attn", "split_mode")
_NOTES = ("backends", "cpu_info", "gpu_info", "model_size", "model_n_params", "test_time")
_CACHE_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_0": 22 / 32, "q4_0": 18 / 32}  # ggml's blocks
_TENSOR = {"F16": "tensor.float16", "BF16": "tensor.bfloat16"}


def _reason_not_counted(test: dict[str, Any], kind: str, gpus: list[str], format16: str, model: gb.Model | None) -> str:
    layers, formats = test.get("n_gpu_layers"), {str(test.get(key)) for key in ("type_k", "type_v")}
    host = test.get("no_kv_offload") or test.get("n_cpu_moe") or (test.get("tensor_buft_overrides") or "none") != "none"
    takes_turns = len(set(gpus)) < 2 and test.get("split_mode") in ("layer", "none")
    reasons = (
        (kind == "pg", "the time has a prompt and a generation in it"),
        (not gpus or layers == 0, "it ran on the host"),
        (not model, f"the table of language models has none of {test['model_n_params']:.0f} parameters"),
        (model and isinstance(layers, int) and 0 <= layers <= model.depth, f"only {layers} layers were on the GPU"),
        (host, "a part of the model was in the memory of the host"),
        (len(gpus) > 1 and not takes_turns, "several GPUs worked at once, or are not alike"),
        (kind == "pp" and not format16, "which peak bounds products of quantised weights is not known"),
        (kind == "pp" and test.get("n_depth"), "the prompt followed a filled cache"),
        (kind == "tg" and not formats <= _CACHE_BYTES.keys(), "the format of the cache is not known"),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _work(test: dict[str, Any], kind: str, gpus: list[str]) -> tuple[gb.Work, str, tuple[str, str]]:
    """Return the work of a repetition, the name of the peak to compare with, and a note (name, text)."""
    parameters = gb.measured_number(test, "model_n_params")
    model = gb.LANGUAGE_MODELS.get(gb.model_of_size(round(parameters)) if parameters >= 1 else "")
    named = re.search(r"\b(BF16|F16)\b", test["model_type"])
    reason = _reason_not_counted(test, kind, gpus, named[1] if named else "", model)
    if reason or not model:
        return gb.Work(), "", ("no share", reason)
    weights, prompt = gb.measured_number(test, "model_size") * model.size / model.parameters, test["n_prompt"]
    if named and kind == "pp":
        explanation = f"operations of a prompt of {prompt} tokens, {model.source}"
        return model.prefill(prompt, weights), _TENSOR[named[1]], ("operations", explanation)
    context = test.get("n_depth", 0) + (test["n_gen"] + 1) / 2
    itemsize = sum(_CACHE_BYTES[str(test[key])] for key in ("type_k", "type_v")) / 2
    read = f"{weights / 1e9:.2f} GB of weights and keys and values of {context:.0f} tokens per step, {model.source}"
    return gb.Work(moved=test["n_gen"] * model.step(1, context, weights, itemsize).moved), "dram", ("bytes", read)


def _add_test(output: gb.Output, test: dict[str, Any]) -> None:
    tokens = {key: gb.json_value(test, key, int) for key in _TOKENS if key in test or key != "n_depth"}
    for key, count in tokens.items():
        if not 0 <= count < _MOST_TOKENS:
            raise gb.BadOutput(f"{key} is {count}, which is not possible")
    axes: dict[str, Any] = {"model": gb.json_value(test, "model_type", str)}
    if not test["n_prompt"] + test["n_gen"]:
        raise gb.BadOutput("a test without tokens")
    gpus = [name.strip() for name in str(test.get("gpu_info") or "").split(",") if name.strip()]
    names = ("gpu:0", gpus[0]) if gpus and test.get("n_gpu_layers") != 0 else ("cpu:0", str(test.get("cpu_info") or ""))
    output.devices[names[0]] = gb.make_device(*names)
    if "build_commit" in test:
        output.versions["llama.cpp"] = f"{test.get('build_number', '')} ({test['build_commit']})"
    kind = "pg" if test["n_prompt"] and test["n_gen"] else "pp" if test["n_prompt"] else "tg"
    axes |= {key: count for key, count in tokens.items() if count}
    axes |= {key: test[key] for key in _AXES if isinstance(test.get(key), int | str)}
    params = tuple((key, int(value) if isinstance(value, bool) else value) for key, value in axes.items())
    samples = gb.json_value(test, "samples_ns", list)
    seconds = tuple(gb.measured_number({"samples_ns": sample}, "samples_ns") / 1e9 for sample in samples)
    work, limit, note = _work(test, kind, gpus)
    work = gb.Work(work.moved, flops=work.flops, items=test["n_prompt"] + test["n_gen"])
    series = gb.Series("tokens", "s", seconds, work=work, quantity="items", limit=limit, item="token")
    notes = tuple((key, str(test[key])) for key in _NOTES if test.get(key) not in (None, ""))
    output.add(kind, params, (series,), names[:1], notes=(note, *notes))


def _read(text: str) -> gb.Imported:
    output = gb.Output("llama-bench", "imported: a language model as llama-bench measured it")
    for test in gb.json_objects(text):
        _add_test(output, test)
    return output.imported()


_SUMMARY = "llama-bench (llama.cpp): tokens per second of prompts and of generation; JSON, JSON Lines"
importer: gb.Importer = gb.Reader(_SUMMARY, gb.has('"model_n_params"', '"samples_ns"'), _read)
