"""Import vLLM's `vllm bench serve`: the JSON of `--save-result` or `--append-result`, one object per run.

The names are those of `vllm/benchmarks/serve.py` of 2026; those of `benchmark_serving.py` of 2024 are the same, without
`failed`. Times are in ms. The file names neither the GPUs nor the format of the weights, but `--metadata` can add them:
`gpu=NAME`, `tp=N` (or `tensor_parallel_size=N`) and `quantization=FORMAT`."""

from dataclasses import dataclass
from typing import Any

from gpubench.api.importer import BadOutput, Case, Device, Imported, Importer, Result, Series

from . import _parsing as parsing
from . import _served

_SUITE = "vllm"
_MOST_GPUS = 4096


@dataclass(frozen=True, slots=True)
class VllmBench:
    """Importer of the output of vLLM's serving benchmark."""

    summary: str = "vLLM: bench serve, tokens per second and times of requests; JSON"

    def accepts(self, text: str) -> bool:
        """Return whether the text has the model's tokenizer and a rate of tokens."""
        return '"tokenizer_id"' in text and '"output_throughput"' in text

    def read(self, text: str) -> Imported:
        """Return the content of the output, with a result per run.

        The axes are the model, the mean lengths, and the requests in flight or their rate."""
        runs = [(fields, _device(fields)) for fields in parsing.json_objects(text)]
        results = [_result(fields, device) for fields, device in runs]
        title = "imported: a served language model as vLLM's client measured it"
        return _served.make_imported(_SUITE, title, [device for _, device in runs], results, [])


def _device(fields: dict[str, Any]) -> Device:
    """Return the GPU that the metadata in a run's JSON object name, else a device without a name."""
    return parsing.make_device("gpu:0", parsing.json_value(fields, "gpu", str)) if "gpu" in fields else parsing.UNSTATED


def _model(fields: dict[str, Any]) -> _served.ServedModel:
    """Return the model with the facts that a run's JSON object states."""
    # `--metadata` writes numbers as texts.
    stated = next((fields[key] for key in ("tp", "tensor_parallel_size") if key in fields), "1")
    gpus = parsing.whole_number(str(stated), "tp")
    if not 0 < gpus <= _MOST_GPUS:
        raise BadOutput(f"tp is {gpus}, which is not a possible number of GPUs")
    quantization = fields.get("quantization")
    weight_format = quantization if isinstance(quantization, str) else ""
    return _served.ServedModel(parsing.json_value(fields, "model_id", str), weight_format, gpus)


def _result(fields: dict[str, Any], device: Device) -> Result:
    """Return the result of a run on this device from the run's JSON object."""
    served = _model(fields)
    if _served.is_empty(fields):
        return _served.failed_result(_SUITE, device, served)
    accepted = parsing.measured_number(fields, "spec_decode_acceptance_length") if _speculates(fields) else 1.0
    load = _served.client_load(fields, max(1.0, accepted))
    name, params = _served.case_axes(load, served, _served.request_rate(fields), fields.get("max_concurrency"))
    output, note = load.output_rate(served)
    requests = Series(
        "request_throughput", "request/s", (parsing.measured_number(fields, "request_throughput"),), better="more"
    )
    failures = parsing.measured_number(fields, "failed") if "failed" in fields else 0
    labels = ("failed-requests",) if failures else ()
    notes = (note, *((("failed requests", f"{failures:.0f}"),) if failures else ()))
    series = (output, requests, *_served.request_times(fields))
    return Result(Case(_SUITE, name, params), (device.id,), "ok", series=series, labels=labels, notes=notes)


def _speculates(fields: dict[str, Any]) -> bool:
    """Return whether the JSON object of a run states that the server decoded speculatively."""
    return fields.get("spec_decode_acceptance_length") is not None


importer: Importer = VllmBench()
