"""Import vLLM's `vllm bench serve`: the JSON of `--save-result` or `--append-result`, one object per run.

The names come from `vllm/benchmarks/serve.py` of 2026; `benchmark_serving.py` of 2024 has the same names, without
`failed`. Times are in ms. The file names neither the GPUs nor the format of the weights, but `--metadata` can add them:
`gpu=NAME`, `tp=N` (or `tensor_parallel_size=N`) and `quantization=FORMAT`."""

from typing import Any

from gpubench.api import importer as gb

from . import _served


def _model(fields: dict[str, Any]) -> _served.ServedModel:
    # `--metadata` writes numbers as texts.
    stated = next((fields[key] for key in ("tp", "tensor_parallel_size") if key in fields), "1")
    with gb.place("tp"):
        gpus = gb.whole_number(str(stated))
    quantization = fields.get("quantization")
    weight_format = quantization if isinstance(quantization, str) else ""
    return _served.ServedModel(
        gb.json_value(fields, "model_id", str), weight_format, _served.stated_count({"tp": gpus}, "tp")
    )


def _read(text: str) -> gb.Imported:
    output = gb.Output("vllm", "imported: a served language model as vLLM's client measured it")
    for fields in gb.json_objects(text):
        device = gb.make_device("gpu:0", gb.json_value(fields, "gpu", str)) if "gpu" in fields else gb.UNSTATED
        output.devices[device.id] = device
        failures = gb.measured_number(fields, "failed") if "failed" in fields else 0
        notes, labels = ((("failed requests", f"{failures:.0f}"),), ("failed-requests",)) if failures else ((), ())
        _served.add_client_run(
            output, device.id, _model(fields), fields, "spec_decode_acceptance_length", notes, labels
        )
    return _served.imported(output)


_SUMMARY = "vLLM: bench serve, tokens per second and times of requests; JSON"
importer: gb.Importer = gb.Reader(_SUMMARY, gb.has('"tokenizer_id"', '"output_throughput"'), _read)
