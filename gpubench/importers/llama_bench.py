"""Import llama.cpp's `llama-bench`: the JSON of `-o json` (a list) or `-o jsonl` (one object per line).

The names are those of `tools/llama-bench/llama-bench.cpp` of build 5163 (2025) and of 2026; builds of 2023 do not write
`n_depth`, which is then 0. Every repetition is a sample, in ns. A test processes a prompt (pp), generates tokens one by
one (tg), or both (pg). The number of parameters identifies the model, and the size of the file gives the bytes that a
step reads."""

import re
from dataclasses import dataclass
from typing import Any

from gpubench.api.importer import (
    LANGUAGE_MODELS,
    BadOutput,
    Case,
    Device,
    Imported,
    Importer,
    Params,
    Result,
    Series,
    SuiteInfo,
    Work,
    model_of_size,
)

from . import _parsing as parsing

_SUITE = "llama-bench"
_MOST_TOKENS = 1e9
_AXES = ("n_batch", "n_ubatch", "n_gpu_layers", "type_k", "type_v", "flash_attn", "split_mode")
_NOTES = ("backends", "cpu_info", "gpu_info", "model_size", "model_n_params", "test_time")
_CACHE_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_0": 22 / 32, "q4_0": 18 / 32}  # ggml's blocks
_TENSOR = {"F16": "tensor.float16", "BF16": "tensor.bfloat16"}


@dataclass(frozen=True, slots=True)
class LlamaBench:
    """Importer of the output of llama-bench."""

    summary: str = "llama-bench (llama.cpp): tokens per second of prompts and of generation; JSON, JSON Lines"

    def accepts(self, text: str) -> bool:
        """Return whether the text has the number of parameters and samples."""
        return '"model_n_params"' in text and '"samples_ns"' in text

    def read(self, text: str) -> Imported:
        """Return the content of the output, with a result per test.

        The axes are the model, the numbers of tokens and the settings. Raises BadOutput if the output is damaged."""
        tests = [_LlamaTest(fields) for fields in parsing.json_objects(text)]
        devices = {test.device.id: test.device for test in tests}
        builds = [("llama.cpp", test.build) for test in tests if test.build]
        info = SuiteInfo(_SUITE, "imported: a language model as llama-bench measured it")
        results = tuple(test.result() for test in tests)
        return Imported(info, tuple(devices.values()), results, tuple(dict(builds).items()))


class _LlamaTest:
    """One test: an object of the output, with its tokens, its device and its build.

    `build` is empty if it is not stated. Raises BadOutput if a field is missing or there are no tokens."""

    def __init__(self, fields: dict[str, Any]) -> None:
        """Take one object of the output; raises BadOutput if a field or the tokens are missing."""
        self._fields = fields
        self._prompt, self._generated = self._tokens("n_prompt"), self._tokens("n_gen")
        self._depth = self._tokens("n_depth") if "n_depth" in fields else 0
        self._type = parsing.json_value(fields, "model_type", str)
        if not self._prompt + self._generated:
            raise BadOutput("a test without tokens")
        self._gpus = [name.strip() for name in str(fields.get("gpu_info") or "").split(",") if name.strip()]
        self._is_on_gpu = bool(self._gpus) and fields.get("n_gpu_layers") != 0
        cpu = str(fields.get("cpu_info") or "")
        self.device: Device = (
            parsing.make_device("gpu:0", self._gpus[0]) if self._is_on_gpu else parsing.make_device("cpu:0", cpu)
        )
        self.build = f"{fields.get('build_number', '')} ({fields['build_commit']})" if "build_commit" in fields else ""

    def _tokens(self, key: str) -> int:
        """Return the number of tokens under a key. Raises BadOutput if it is missing, negative or not below 10⁹."""
        count = parsing.json_value(self._fields, key, int)
        if not 0 <= count < _MOST_TOKENS:
            raise BadOutput(f"{key} is {count}, which is not possible")
        return count

    @property
    def _kind(self) -> str:
        """Return the kind of test: pp (a prompt), tg (generation) or pg (both)."""
        return "pg" if self._prompt and self._generated else "pp" if self._prompt else "tg"

    def result(self) -> Result:
        """Return the result of the test: a sample per repetition, in s, with the tokens as the work."""
        samples = parsing.json_value(self._fields, "samples_ns", list)
        seconds = tuple(parsing.measured_number({"samples_ns": sample}, "samples_ns") / 1e9 for sample in samples)
        tokens = self._prompt + self._generated
        moved, limit, note = self._work_and_note()
        work = Work(moved.moved, flops=moved.flops, items=tokens)
        series = Series("tokens", "s", seconds, work=work, quantity="items", limit=limit, item="token")
        case = Case(_SUITE, self._kind, self._params())
        notes = tuple((key, str(self._fields[key])) for key in _NOTES if self._fields.get(key) not in (None, ""))
        return Result(case, (self.device.id,), "ok", series=(series,), notes=(note, *notes))

    def _params(self) -> Params:
        """Return the axes of the test: the model, the numbers of tokens that are not 0, and the settings."""
        tokens = {"n_prompt": self._prompt, "n_gen": self._generated, "n_depth": self._depth}
        settings = {key: self._fields[key] for key in _AXES if isinstance(self._fields.get(key), int | str)}
        values = {**{key: count for key, count in tokens.items() if count}, **settings}
        axes = ((key, int(value) if isinstance(value, bool) else value) for key, value in values.items())
        return (("model", self._type), *axes)

    def _work_and_note(self) -> tuple[Work, str, tuple[str, str]]:
        """Return the work of a repetition, the name of the peak to compare with, and a note (name, text)."""
        reason = self._reason_not_counted()
        if reason:
            return Work(), "", ("no share", reason)
        parameters = parsing.measured_number(self._fields, "model_n_params")
        model = LANGUAGE_MODELS[model_of_size(round(parameters))]
        weights = parsing.measured_number(self._fields, "model_size") * model.size / model.parameters
        if self._kind == "pp":
            explanation = f"operations of a prompt of {self._prompt} tokens, {model.source}"
            return (
                model.prefill(self._prompt, weights),
                _TENSOR[self._sixteen_bit_format()],
                ("operations", explanation),
            )
        context = self._depth + (self._generated + 1) / 2
        itemsize = sum(_CACHE_BYTES[str(self._fields[key])] for key in ("type_k", "type_v")) / 2
        moved = self._generated * model.step(1, context, weights, itemsize).moved
        explanation = (
            f"{weights / 1e9:.2f} GB of weights and keys and values of {context:.0f} tokens per step, {model.source}"
        )
        return Work(moved=moved), "dram", ("bytes", explanation)

    def _sixteen_bit_format(self) -> str:
        """Return `F16` or `BF16` if the weights have that format; empty if they are quantised."""
        match = re.search(r"\b(BF16|F16)\b", self._type)
        return match[1] if match else ""

    def _reason_not_counted(self) -> str:
        """Return a clause that says why bytes or operations cannot be counted; empty if they can."""
        fields = self._fields
        parameters = parsing.measured_number(fields, "model_n_params")
        key = model_of_size(round(parameters)) if parameters >= 1 else ""
        if self._kind == "pg":
            return "the time has a prompt and a generation in it"
        if not self._is_on_gpu:
            return "it ran on the host"
        if not key:
            return f"the table of language models has none of {parameters:.0f} parameters"
        layers = fields.get("n_gpu_layers")
        if isinstance(layers, int) and 0 <= layers <= LANGUAGE_MODELS[key].depth:
            return f"only {layers} layers were on the GPU"
        if (
            fields.get("no_kv_offload")
            or fields.get("n_cpu_moe")
            or fields.get("tensor_buft_overrides") not in (None, "none")
        ):
            return "a part of the model was in the memory of the host"
        if len(self._gpus) > 1 and (len(set(self._gpus)) > 1 or fields.get("split_mode") not in ("layer", "none")):
            return "several GPUs worked at once, or are not alike"
        if self._kind == "pp" and not self._sixteen_bit_format():
            return "which peak bounds products of quantised weights is not known"
        if self._kind == "pp" and self._depth:
            return "the prompt followed a filled cache"
        if self._kind == "tg" and not {str(fields.get("type_k")), str(fields.get("type_v"))} <= _CACHE_BYTES.keys():
            return "the format of the cache is not known"
        return ""


importer: Importer = LlamaBench()
