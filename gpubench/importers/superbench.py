"""Import the metrics of SuperBench (Microsoft): `results-summary.jsonl`, one line per node.

The metrics have the flat names of `results-summary.json`, without units. The documentation of SuperBench states the
units of the benchmarks below. Other metrics are left out and counted, because it is unknown whether more of them is
better."""

import json
import re
from typing import Any

from gpubench.api import importer as gb

# Benchmark and metric, without the rank → factor to SI, SI unit: its user tutorial, "Micro Benchmarks" and "Model
# Benchmarks"; also the names of before version 0.4 (FP64, H2D_Mem_BW, …_overhead, …_cost).
_METRICS = (
    (r"kernel-launch.*/(event|wall)_(time|overhead)", 1e-3, "s"),
    (r"gemm-flops.*/(fp|tf|bf)\d+(_tc|_xdlops)?(_flops)?", 1e9, "FLOP/s"),
    (r"gemm-flops.*/int\d+(_tc|_xdlops)?(_iops)?", 1e9, "op/s"),
    (r"pytorch-matmul/nosharding(_time)?", 1e-3, "s"),
    (r"pytorch-sharding-matmul/\w+", 1e-3, "s"),
    (r"pytorch-computation-communication-overlap/\w+(_time|_cost)", 1e-3, "s"),
    (r"mem-bw.*/(h2d|d2h|d2d)(_mem)?_bw", 1e9, "B/s"),
    (r"gpu-copy-bw.*/.+_bw", 1e9, "B/s"),
    (r"gpu-stream.*/.+_bw", 1e9, "B/s"),
    (r"nvbandwidth.*/.+_bw", 1e9, "B/s"),
    (r"nvbandwidth.*/.+_lat", 1e-9, "s"),
    (r"ib-loopback.*/ib_(write|read|send)_bw_\d+", 1e9, "B/s"),
    (r"[nr]ccl-bw.*/\w+_(algbw|busbw)", 1e9, "B/s"),
    (r"[nr]ccl-bw.*/\w+_time", 1e-6, "s"),
    (r".*models/.+/steptime_\w+", 1e-3, "s"),
    (r".*(models|model-benchmarks|megatron)\S*/(\w+_)?(train|inference)_step_time(_\d+)?", 1e-3, "s"),
    (r".*models/.+/throughput_\w+", 1.0, "sample/s"),
    (r".*(models|model-benchmarks|megatron)\S*/(\w+_)?(train|inference)_throughput(_\d+)?", 1.0, "sample/s"),
)


def _accepts(text: str) -> bool:
    """Return whether the first line has a node and metrics as `benchmark/metric`."""
    line = text.lstrip().partition("\n")[0]
    return line.startswith("{") and '"node"' in line and bool(re.search(r'"[\w-]+(:[\w-]+)?/[^"]+"\s*:', line))


def _read(text: str) -> gb.Imported:
    output = gb.Output("superbench", "imported: metrics as SuperBench summed them up")
    nodes = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line]
    for index, (number, line) in enumerate(nodes):
        with gb.place(f"line {number}"):
            _add_node(output, f"node{index}", line)
    return output.imported()


def _add_node(output: gb.Output, node: str, line: str) -> None:
    try:
        metrics = json.loads(line, parse_constant=lambda _: None)  # NaN and others: a metric that was not measured
    except (ValueError, RecursionError) as error:
        raise gb.BadOutput("not JSON") from error
    details, first = (("hostname", gb.json_value(metrics, "node", str)),), len(output.results)
    for metric, value in metrics.items():
        if metric != "node" and value is not None:
            _add_metric(output, node, metric, value)
    for name in (name for result in output.results[first:] for name in result.devices):
        output.devices[name] = gb.make_device(name, details=details)


def _add_metric(output: gb.Output, node: str, metric: str, value: Any) -> None:
    """Add the result of a metric, or its name to `left_out` if its unit is unknown."""
    name, _, rank = metric.partition(":") if metric.count(":") == 1 else (metric, "", "")
    rule = next((rule for rule in _METRICS if re.fullmatch(rule[0], name, re.IGNORECASE)), None)
    if name.endswith("return_code"):
        if isinstance(value, int | float) and value != 0:
            reason = f"return code {gb.number(str(value)):g}"
            output.add_unmeasured(name.rpartition("/")[0], (), (node,), "return-code", reason)
    elif rule:
        with gb.place(metric):
            series = gb.quantity("value", rule[2], gb.number(str(value)) * rule[1])
        output.add(name, (), [series], (f"{node}/gpu:{rank}" if rank.isdecimal() else node,))
    else:
        output.left_out.setdefault(name)


importer: gb.Importer = gb.Reader("SuperBench (Microsoft): results-summary.jsonl", _accepts, _read)
