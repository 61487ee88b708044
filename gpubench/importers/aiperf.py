"""Import the summaries of NVIDIA's AIPerf and of its forerunner GenAI-Perf, as JSON.

The files are `profile_export_aiperf.json` and `profile_export_genai_perf.json`. The names come from AIPerf's
`JsonExportData` (schema 1.0 to 1.4, versions to 0.13) and GenAI-Perf 0.0.16. Each metric is an object with its unit.
`input_config` names the model and the load in three forms: AIPerf's `models` and `phases`, its earlier
`endpoint.model_names` and `loadgen`, and GenAI-Perf's `model_names` and `perf_analyzer.stimulus`. AIPerf's telemetry
names the GPUs of the server's machine."""

import math
from typing import Any

from gpubench.api import importer as gb

from . import _served

_LATENCIES = ("time_to_first_token", "time_to_second_token", "inter_token_latency", "request_latency")
_STATISTICS = ("avg", "p50", "p90", "p95", "p99", "max")
_UNITS = {"sec": "s", "s": "s", "ms": "ms", "us": "us", "ns": "ns"}
_Fields = dict[str, Any]


def _metric(export: _Fields, name: str, statistic: str = "avg") -> float:
    return gb.measured_number(gb.json_value(export, name, dict), statistic)


def _time(export: _Fields, name: str, statistic: str = "avg") -> gb.Series:
    unit = gb.json_value(export, f"{name}/unit", str)
    if unit not in _UNITS:
        raise gb.BadOutput(f"{name} is in {unit[:40]!r}, which is not a known unit of time")
    return gb.quantity(f"{statistic}_{name}", _UNITS[unit], _metric(export, name, statistic))


def _load(export: _Fields, is_open: bool) -> _served.ServingLoad:
    inputs, outputs = (_metric(export, f"{side}_sequence_length") for side in ("input", "output"))
    duration = (requests := _metric(export, "request_count")) / _metric(export, "request_throughput")
    tokens, decode_s = _metric(export, "output_token_throughput") * duration, 0.0
    if "request_latency" in export and "time_to_first_token" in export:
        decode_s = _time(export, "request_latency").values[0] - _time(export, "time_to_first_token").values[0]
    elif "inter_token_latency" in export:
        decode_s = _time(export, "inter_token_latency").values[0] * (outputs - 1)
    return _served.ServingLoad(duration, requests, inputs * requests, tokens, max(0.0, decode_s), is_open)


def _model_name(config: _Fields) -> str:
    lists = [gb.json_value(config, path, list, []) for path in ("models/items", "endpoint/model_names", "model_names")]
    first = next((names[0] for names in lists if names), config.get("model"))
    return gb.json_value({"name": first.get("name") if isinstance(first, dict) else first}, "name", str, "")


def _requested_load(config: _Fields) -> _Fields:
    phases = [phase for phase in gb.json_value(config, "phases", list, []) if isinstance(phase, dict)]
    measured = [phase for phase in phases if "profiling" in (phase.get("name"), phase.get("kind"))]
    forms = [gb.json_value(config, path, dict, {}) for path in ("loadgen", "perf_analyzer/stimulus")]
    return next(filter(None, [*measured, *forms]), {})


def _add_export(output: gb.Output, export: _Fields) -> None:
    config = gb.json_value(export, "input_config", dict)
    endpoints = gb.json_value(export, "telemetry_data/endpoints", dict, {}).values()
    machines = [gb.json_value(endpoint, "gpus", dict, {}) for endpoint in endpoints]
    gpus = [gb.json_value(gpu, "gpu_name", str) for machine in machines for gpu in machine.values()]
    device = gb.make_device("gpu:0", gpus[0]) if gpus else gb.UNSTATED
    output.devices[device.id] = device
    output.versions |= {"aiperf": export["aiperf_version"]} if isinstance(export.get("aiperf_version"), str) else {}
    unstated = f"which of the {len(gpus)} GPUs served is not stated" if len(gpus) > 1 else ""
    served = _served.ServedModel(_model_name(config), unstated=unstated)
    rates = [_metric(export, name) for name in ("request_count", "output_token_throughput", "request_throughput")]
    if not all(rates):
        _served.add_unanswered(output, device.id, served)
        return
    requested, stated = _requested_load(config), {name: gb.json_value(export, name, dict, {}) for name in _LATENCIES}
    rate = _served.request_rate({"request_rate": requested.get("rate", requested.get("request_rate"))})
    times = [
        _time(export, name, key) for name in _LATENCIES for key in _STATISTICS if stated[name].get(key) is not None
    ]
    series = (gb.quantity("request_throughput", "request/s", rates[-1]), *times)
    load = _load(export, math.isfinite(rate))
    _served.add_run(output, device.id, served, load, requested.get("concurrency"), rate, series)


def _read(text: str) -> gb.Imported:
    output = gb.Output("aiperf", "imported: a served language model as AIPerf measured it")
    for export in gb.json_objects(text):
        _add_export(output, export)
    return _served.imported(output)


_SUMMARY = "AIPerf, GenAI-Perf (NVIDIA): tokens per second and times of requests; JSON"
_ACCEPTS = gb.has('"input_config"', '"request_throughput"', '"output_token_throughput"')
importer: gb.Importer = gb.Reader(_SUMMARY, _ACCEPTS, _read)
