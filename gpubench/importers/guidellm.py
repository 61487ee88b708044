"""Import GuideLLM's report (`--output kind=json`, `benchmarks.json`): a served language model under each load.

The names come from `src/guidellm/benchmark/schemas` of version 0.7 (report version 2) and from published reports of 0.5
(report version 1), whose metrics are alike. Only requests that succeeded count. A strategy `concurrent` or
`synchronous` keeps its number of requests in flight; the others are open."""

import math
from typing import Any

from gpubench.api import importer as gb

from . import _served

_TIMES = (  # metric, series, unit
    ("time_to_first_token_ms", "time_to_first_token", "ms"),
    ("time_per_output_token_ms", "time_per_output_token", "ms"),
    ("inter_token_latency_ms", "inter_token_latency", "ms"),
    ("request_latency", "request_latency", "s"),
)
_STATISTICS = ("mean", "median", "percentiles/p90", "percentiles/p99")


def _metric(metrics: dict[str, Any], name: str, statistic: str = "mean") -> float:
    path, _, key = f"{name}/successful/{statistic}".rpartition("/")
    return gb.measured_number(gb.json_value(metrics, path, dict), key)


def _add_benchmark(output: gb.Output, item: dict[str, Any]) -> None:
    config, metrics = (gb.json_value(item, key, dict) for key in ("config", "metrics"))
    model = gb.json_value(config, "backend/model", str, "")
    served = _served.ServedModel(model, unstated="" if model else "the model is not stated")
    requests = gb.measured_number(gb.json_value(metrics, "request_totals", dict), "successful")
    if not requests or not _metric(metrics, "output_token_count", "total_sum"):
        _served.add_unanswered(output, gb.UNSTATED.id, served)
        return
    kind = gb.json_value(config, "strategy/type_", str, "") or gb.json_value(config, "strategy/kind", str)
    streams = 1 if kind == "synchronous" else gb.json_value(config, "strategy", dict).get("streams")
    rate = _served.request_rate({"request_rate": gb.json_value(config, "strategy", dict).get("rate")})
    inputs, outputs = (_metric(metrics, f"{side}_token_count", "total_sum") for side in ("prompt", "output"))
    decode_s = _metric(metrics, "request_latency") - _metric(metrics, "time_to_first_token_ms") / 1e3
    if not (duration := gb.measured_number(item, "duration")):
        raise gb.BadOutput("a benchmark without a duration")
    load = _served.ServingLoad(duration, requests, inputs, outputs, max(0.0, decode_s), math.isfinite(rate))
    times = [
        gb.quantity(f"{statistic.rpartition('/')[2]}_{series}", unit, _metric(metrics, name, statistic))
        for name, series, unit in _TIMES
        for statistic in _STATISTICS
    ]
    series = (gb.quantity("request_throughput", "request/s", _metric(metrics, "requests_per_second")), *times)
    _served.add_run(output, gb.UNSTATED.id, served, load, streams, rate, series)


def _read(text: str) -> gb.Imported:
    body = gb.json_object(text)
    if (version := gb.json_value(body, "metadata/version", int)) not in (1, 2):
        raise gb.BadOutput(f"a report of version {version}, but gpubench reads versions 1 and 2")
    output = gb.Output("guidellm", "imported: a served language model as GuideLLM measured it")
    output.versions["guidellm"] = gb.json_value(body, "metadata/guidellm_version", str)
    for item in gb.json_value(body, "benchmarks", list):
        _add_benchmark(output, item)
    return _served.imported(output)


_SUMMARY = "GuideLLM: tokens per second and times of requests under each load; JSON"
_ACCEPTS = gb.has(r'"guidellm_version"\s*:', r'"request_totals"\s*:')
importer: gb.Importer = gb.Reader(_SUMMARY, _ACCEPTS, _read)
