"""Import SGLang's `bench_serving`: its JSON Lines, one object per run.

The names come from `python/sglang/bench_serving.py` of version 0.5. Times are in ms, and an unlimited request rate is
written as `Infinity`. `server_info` has the arguments of an SGLang server: the model, the formats of its weights and
its cache, and the number of GPUs that hold a part of each matrix. The GPUs are not named. Version 0.4 did not write
`server_info`; such a run has no % of peak."""

from typing import Any

from gpubench.api import importer as gb

from . import _served


def _model(info: dict[str, Any]) -> _served.ServedModel:
    if not isinstance(info.get("model_path"), str):
        return _served.ServedModel("", unstated="the client did not ask the server for its model (server_info)")
    gpus, replicas, stages = (_served.stated_count(info, key) for key in ("tp_size", "dp_size", "pp_size"))
    unstated = "several replicas or pipeline stages share the load" if replicas * stages > 1 else ""
    quantization, cache = (
        value if isinstance(value := info.get(key), str) else "" for key in ("quantization", "kv_cache_dtype")
    )
    itemsize = 1.0 if cache.startswith("fp8") else 2.0
    return _served.ServedModel(info["model_path"], quantization, gpus, itemsize, unstated)


def _read(text: str) -> gb.Imported:
    output = gb.Output("sglang", "imported: a served language model as SGLang's client measured it")
    for fields in gb.json_objects(text):
        info = fields["server_info"] if isinstance(fields.get("server_info"), dict) else {}
        if isinstance(info.get("version"), str):
            output.versions["sglang"] = info["version"]
        data = (("dataset", fields["dataset_name"]),) if isinstance(fields.get("dataset_name"), str) else ()
        _served.add_client_run(output, gb.UNSTATED.id, _model(info), fields, "accept_length", data)
    return _served.imported(output)


_SUMMARY = "SGLang: bench_serving, tokens per second and times of requests; JSON Lines"
importer: gb.Importer = gb.Reader(_SUMMARY, gb.has('"total_output_tokens_retokenized"', '"output_throughput"'), _read)
