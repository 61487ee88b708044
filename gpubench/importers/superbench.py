"""Import the metrics of SuperBench (Microsoft): `results-summary.jsonl`, one line per node.

The metrics have the flat names of `results-summary.json`, without units. The documentation of SuperBench states the
units of the benchmarks below. Other metrics are left out and counted, because it is unknown whether more of them is
better."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpubench.api.importer import BadOutput, Case, Device, Imported, Importer, Result, Series, SuiteInfo

from . import _parsing as parsing

_SUITE = "superbench"
_SECONDS = ("s", "less")
# Benchmark and metric, without the rank → factor to SI, unit, better: its user tutorial, "Micro Benchmarks" and "Model
# Benchmarks"; also the names of before version 0.4 (FP64, H2D_Mem_BW, …_overhead, …_cost).
_METRICS: tuple[tuple[str, float, str, str], ...] = (
    (r"kernel-launch.*/(event|wall)_(time|overhead)", 1e-3, *_SECONDS),
    (r"gemm-flops.*/(fp|tf|bf)\d+(_tc|_xdlops)?(_flops)?", 1e9, "FLOP/s", "more"),
    (r"gemm-flops.*/int\d+(_tc|_xdlops)?(_iops)?", 1e9, "op/s", "more"),
    (r"pytorch-matmul/nosharding(_time)?", 1e-3, *_SECONDS),
    (r"pytorch-sharding-matmul/\w+", 1e-3, *_SECONDS),
    (r"pytorch-computation-communication-overlap/\w+(_time|_cost)", 1e-3, *_SECONDS),
    (r"mem-bw.*/(h2d|d2h|d2d)(_mem)?_bw", 1e9, "B/s", "more"),
    (r"gpu-copy-bw.*/.+_bw", 1e9, "B/s", "more"),
    (r"gpu-stream.*/.+_bw", 1e9, "B/s", "more"),
    (r"nvbandwidth.*/.+_bw", 1e9, "B/s", "more"),
    (r"nvbandwidth.*/.+_lat", 1e-9, *_SECONDS),
    (r"ib-loopback.*/ib_(write|read|send)_bw_\d+", 1e9, "B/s", "more"),
    (r"[nr]ccl-bw.*/\w+_(algbw|busbw)", 1e9, "B/s", "more"),
    (r"[nr]ccl-bw.*/\w+_time", 1e-6, *_SECONDS),
    (r".*models/.+/steptime_\w+", 1e-3, *_SECONDS),
    (r".*(models|model-benchmarks|megatron)\S*/(\w+_)?(train|inference)_step_time(_\d+)?", 1e-3, *_SECONDS),
    (r".*models/.+/throughput_\w+", 1.0, "sample/s", "more"),
    (r".*(models|model-benchmarks|megatron)\S*/(\w+_)?(train|inference)_throughput(_\d+)?", 1.0, "sample/s", "more"),
)


@dataclass(frozen=True, slots=True)
class SuperBench:
    """Importer of the summaries that SuperBench writes."""

    summary: str = "SuperBench (Microsoft): results-summary.jsonl"

    def accepts(self, text: str) -> bool:
        """Return whether the first line has a node and metrics as `benchmark/metric`."""
        line = text.lstrip().partition("\n")[0]
        return line.startswith("{") and '"node"' in line and bool(re.search(r'"[\w-]+(:[\w-]+)?/[^"]+"\s*:', line))

    def read(self, text: str) -> Imported:
        """Return the content of the output, with a result per node and metric.

        The case is the benchmark with the metric."""
        nodes = [(number, _parse_node(number, line)) for number, line in enumerate(text.split("\n"), 1) if line]
        results: list[Result] = []
        devices: dict[str, Device] = {}
        left_out: dict[str, None] = {}
        for index, (number, metrics) in enumerate(nodes):
            name = parsing.json_value(metrics, "node", str)
            for metric, value in metrics.items():
                if metric != "node" and value is not None:
                    results += _result(f"line {number}", index, metric, value, left_out)
            devices |= {device: _device(device, name) for r in results for device in r.devices if device not in devices}
        if not results:
            raise BadOutput("no metric has a known unit")
        info = SuiteInfo(_SUITE, "imported: metrics as SuperBench summed them up")
        return Imported(info, tuple(devices.values()), tuple(results), left_out=tuple(left_out))


def _parse_node(number: int, line: str) -> dict[str, Any]:
    """Return the node's name and metrics from line number `number`, a JSON object."""
    try:
        metrics = json.loads(line, parse_constant=_none_for_constant)
    except (ValueError, RecursionError) as error:
        raise BadOutput(f"line {number}: not JSON") from error
    if not isinstance(metrics, dict):
        raise BadOutput(f"line {number}: not a JSON object")
    return metrics


def _none_for_constant(text: str) -> None:
    """Return None for NaN and similar constants, which stand for a metric that was not measured."""
    del text


def _device(device_id: str, node: str) -> Device:
    return parsing.make_device(device_id, details=(("hostname", node),))


def _result(where: str, node: int, metric: str, value: object, left_out: dict[str, None]) -> Iterator[Result]:
    """Yield the result of a metric, or add its name to `left_out` if its unit is unknown."""
    name, _, rank = metric.partition(":") if metric.count(":") == 1 else (metric, "", "")
    if name.endswith("return_code"):
        yield from _failed_result(where, node, name, value)
        return
    rule = next((candidate for candidate in _METRICS if re.fullmatch(candidate[0], name, re.IGNORECASE)), None)
    if rule is None:
        left_out.setdefault(name)
        return
    _, factor, unit, better = rule
    number = parsing.number(str(value), f"{where}, {metric}")
    series = Series("value", unit, (number * factor,), better="more" if better == "more" else "less")
    ids = (f"node{node}/gpu:{rank}" if rank.isdecimal() else f"node{node}",)
    yield Result(Case(_SUITE, name), ids, "ok", series=(series,))


def _failed_result(where: str, node: int, name: str, value: object) -> Iterator[Result]:
    """Yield a failed result if the return code `value` of a benchmark is not 0; nothing otherwise."""
    if isinstance(value, int | float) and value != 0:
        value = parsing.number(str(value), f"{where}, {name}")
        case = Case(_SUITE, name.rpartition("/")[0])
        yield Result(case, (f"node{node}",), "failed", cause="return-code", reason=f"return code {value:g}")


importer: Importer = SuperBench()
