"""Import the summaries of NVIDIA's AIPerf and of its forerunner GenAI-Perf, as JSON.

The files are `profile_export_aiperf.json` and `profile_export_genai_perf.json`. The names are those of AIPerf's
`JsonExportData` (schema 1.0 to 1.4, versions to 0.13) and of GenAI-Perf 0.0.16. Each metric is an object with its unit.
`input_config` names the model and the load in three forms: AIPerf's `models` and `phases`, its earlier
`endpoint.model_names` and `loadgen`, and GenAI-Perf's `model_names` and `perf_analyzer.stimulus`. AIPerf's telemetry
names the GPUs of the server's machine."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpubench.api.importer import BadOutput, Case, Device, Imported, Importer, Result, Series

from . import _parsing as parsing
from . import _served

_SUITE = "aiperf"
_LATENCIES = ("time_to_first_token", "time_to_second_token", "inter_token_latency", "request_latency")
_STATISTICS = ("avg", "p50", "p90", "p95", "p99", "max")
_SECONDS = {"sec": 0, "s": 0, "ms": parsing.MILLI, "us": parsing.MICRO, "ns": parsing.NANO}


@dataclass(frozen=True, slots=True)
class Aiperf:
    """Importer of the summaries that AIPerf or GenAI-Perf exports."""

    summary: str = "AIPerf, GenAI-Perf (NVIDIA): tokens per second and times of requests; JSON"

    def accepts(self, text: str) -> bool:
        """Return whether the text has the configuration of a run and the rates of its requests and tokens."""
        return all(f'"{key}"' in text for key in ("input_config", "request_throughput", "output_token_throughput"))

    def read(self, text: str) -> Imported:
        """Return the content of the output, with a result per run.

        The axes are the model, the mean lengths, and the requests in flight or their rate."""
        runs = [_Export(export) for export in parsing.json_objects(text)]
        title = "imported: a served language model as AIPerf measured it"
        versions = [("aiperf", run.version) for run in runs if run.version]
        return _served.make_imported(
            _SUITE, title, [run.device for run in runs], [run.result() for run in runs], versions
        )


class _Export:
    """One exported run, made from its JSON object; `version` is that of AIPerf, empty if unstated.

    Raises BadOutput if the object has no configuration."""

    def __init__(self, export: dict[str, Any]) -> None:
        """Take one object of the output; raises BadOutput if the configuration is missing."""
        self._fields = export
        self._config = parsing.json_value(export, "input_config", dict)
        gpus = list(_gpus(export))
        self.device: Device = parsing.make_device("gpu:0", gpus[0]) if gpus else parsing.UNSTATED
        version = export.get("aiperf_version")
        self.version = version if isinstance(version, str) else ""
        unstated = f"which of the {len(gpus)} GPUs served is not stated" if len(gpus) > 1 else ""
        self._served = _served.ServedModel(_model_name(self._config), unstated=unstated)

    def _metric(self, name: str, statistic: str = "avg") -> float:
        """Return a statistic (`avg`, `p50`, …) of a metric in the metric's own unit."""
        return parsing.measured_number(parsing.json_value(self._fields, name, dict), statistic)

    def _seconds(self, name: str, statistic: str) -> float:
        """Return a statistic (`avg`, `p50`, …) of a metric in seconds."""
        unit = parsing.json_value(parsing.json_value(self._fields, name, dict), "unit", str)
        if unit not in _SECONDS:
            raise BadOutput(f"{name} is in {unit[:40]!r}, which is not a known unit of time")
        return parsing.to_si(self._metric(name, statistic), _SECONDS[unit])

    def _latencies(self) -> Iterator[Series]:
        """Yield a series in seconds for each statistic that is stated of each latency of requests."""
        for name in _LATENCIES:
            for statistic in _STATISTICS if isinstance(self._fields.get(name), dict) else ():
                if self._fields[name].get(statistic) is not None:
                    yield parsing.time_series(f"{statistic}_{name}", self._seconds(name, statistic))

    def _load(self, is_open: bool) -> _served.ServingLoad:
        """Return the load of the run: requests, tokens and times. With `is_open`, requests arrive at random."""
        requests, rate = self._metric("request_count"), self._metric("request_throughput")
        duration = requests / rate
        inputs, outputs = (self._metric(f"{side}_sequence_length") for side in ("input", "output"))
        tokens = self._metric("output_token_throughput") * duration
        decode_s = 0.0
        if all(name in self._fields for name in ("request_latency", "time_to_first_token")):
            decode_s = self._seconds("request_latency", "avg") - self._seconds("time_to_first_token", "avg")
        elif "inter_token_latency" in self._fields:
            decode_s = self._seconds("inter_token_latency", "avg") * (outputs - 1)
        return _served.ServingLoad(duration, requests, inputs * requests, tokens, max(0.0, decode_s), is_open)

    def result(self) -> Result:
        """Return the result of the run, which has failed if no request was answered with a token."""
        rates = [self._metric(name) for name in ("request_count", "request_throughput", "output_token_throughput")]
        if not all(rates):
            return _served.failed_result(_SUITE, self.device, self._served)
        concurrency, rate = _requested_load(self._config)
        load = self._load(math.isfinite(rate))
        name, params = _served.case_axes(load, self._served, rate, concurrency)
        output, note = load.output_rate(self._served)
        requests = Series("request_throughput", "request/s", (rates[1],), better="more")
        series = (output, requests, *self._latencies())
        return Result(Case(_SUITE, name, params), (self.device.id,), "ok", series=series, notes=(note,))


def _nested(value: object, *keys: str) -> object:
    """Return the value under nested keys of a JSON object, or None if one of them is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _gpus(export: dict[str, Any]) -> Iterator[str]:
    """Yield the name of each GPU in the telemetry of an exported run."""
    endpoints = _nested(export, "telemetry_data", "endpoints")
    for endpoint in endpoints.values() if isinstance(endpoints, dict) else ():
        gpus = _nested(endpoint, "gpus")
        for gpu in gpus.values() if isinstance(gpus, dict) else ():
            yield parsing.json_value(gpu, "gpu_name", str)


def _model_name(config: dict[str, Any]) -> str:
    """Return the name of the first model in the `input_config` of a run; empty if it has none."""
    listed = (_nested(config, "models", "items"), _nested(config, "endpoint", "model_names"), config.get("model_names"))
    first = next((names[0] for names in listed if isinstance(names, list) and names), config.get("model"))
    name = _nested(first, "name") if isinstance(first, dict) else first
    return name if isinstance(name, str) else ""


def _requested_load(config: dict[str, Any]) -> tuple[object, float]:
    """Return the number of requests in flight, as it is stated, and the requests per second."""
    phases = config.get("phases")
    measured = [phase for phase in phases if _is_measured(phase)] if isinstance(phases, list) else []
    forms = (measured[0] if measured else None, config.get("loadgen"), _nested(config, "perf_analyzer", "stimulus"))
    requested = next((form for form in forms if isinstance(form, dict)), {})
    rate = next((requested[key] for key in ("rate", "request_rate") if requested.get(key) is not None), math.inf)
    return requested.get("concurrency"), _served.request_rate({"request_rate": rate})


def _is_measured(phase: object) -> bool:
    """Return whether a phase in the `input_config` is the measured one (`profiling`), and not a warm-up."""
    return "profiling" in (_nested(phase, "name"), _nested(phase, "kind"))


importer: Importer = Aiperf()
