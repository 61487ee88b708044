"""Import SGLang's `bench_serving`: its JSON Lines, one object per run.

The names are those of `python/sglang/bench_serving.py` of version 0.5. Times are in ms, and an unlimited request rate
is written as `Infinity`. `server_info` has the arguments of an SGLang server: the model, the formats of its weights and
its cache, and the number of GPUs that hold a part of each matrix. The GPUs are not named. Version 0.4 did not write
`server_info`; such a run has no % of peak."""

from dataclasses import dataclass
from typing import Any

from gpubench.api.importer import BadOutput, Case, Imported, Importer, Result, Series

from . import _parsing as parsing
from . import _served

_SUITE = "sglang"
_MOST_GPUS = 4096


@dataclass(frozen=True, slots=True)
class SglangBench:
    """Importer of the output of SGLang's serving benchmark."""

    summary: str = "SGLang: bench_serving, tokens per second and times of requests; JSON Lines"

    def accepts(self, text: str) -> bool:
        """Return whether the text has the second count of output tokens that SGLang makes, and a rate of tokens."""
        return '"total_output_tokens_retokenized"' in text and '"output_throughput"' in text

    def read(self, text: str) -> Imported:
        """Return the content of the output, with a result per run.

        The axes are the model, the mean lengths, and the requests in flight or their rate."""
        runs = parsing.json_objects(text)
        infos = [fields["server_info"] for fields in runs if isinstance(fields.get("server_info"), dict)]
        versions = [("sglang", info["version"]) for info in infos if isinstance(info.get("version"), str)]
        title = "imported: a served language model as SGLang's client measured it"
        return _served.make_imported(_SUITE, title, [parsing.UNSTATED], [_result(fields) for fields in runs], versions)


def _model(fields: dict[str, Any]) -> _served.ServedModel:
    """Return the model that the server states in a run's JSON object, with the unknown facts about it."""
    info = fields.get("server_info")
    if not isinstance(info, dict) or not isinstance(info.get("model_path"), str):
        return _served.ServedModel("", unstated="the client did not ask the server for its model (server_info)")
    gpus, replicas, stages = (_count(info, key) for key in ("tp_size", "dp_size", "pp_size"))
    unstated = "several replicas or pipeline stages share the load" if replicas * stages > 1 else ""
    quantization, cache = info.get("quantization"), info.get("kv_cache_dtype")
    itemsize = 1.0 if isinstance(cache, str) and cache.startswith("fp8") else 2.0
    weight_format = quantization if isinstance(quantization, str) else ""
    return _served.ServedModel(info["model_path"], weight_format, gpus, itemsize, unstated)


def _count(info: dict[str, Any], key: str) -> int:
    """Return the count under a key of the server's arguments, 1 if it is missing."""
    count = parsing.json_value(info, key, int) if key in info else 1
    if not 0 < count <= _MOST_GPUS:
        raise BadOutput(f"{key} is {count}, which is not possible")
    return count


def _result(fields: dict[str, Any]) -> Result:
    """Return the result of a run from its JSON object; it has failed if no request was answered with a token."""
    served = _model(fields)
    if _served.is_empty(fields):
        return _served.failed_result(_SUITE, parsing.UNSTATED, served)
    accepted = parsing.measured_number(fields, "accept_length") if fields.get("accept_length") is not None else 1.0
    load = _served.client_load(fields, max(1.0, accepted))
    name, params = _served.case_axes(load, served, _served.request_rate(fields), fields.get("max_concurrency"))
    output, note = load.output_rate(served)
    requests = Series(
        "request_throughput", "request/s", (parsing.measured_number(fields, "request_throughput"),), better="more"
    )
    data = (("dataset", fields["dataset_name"]),) if isinstance(fields.get("dataset_name"), str) else ()
    series = (output, requests, *_served.request_times(fields))
    return Result(Case(_SUITE, name, params), (parsing.UNSTATED.id,), "ok", series=series, notes=(note, *data))


importer: Importer = SglangBench()
