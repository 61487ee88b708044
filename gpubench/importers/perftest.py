"""Import a file of linux-rdma perftest (ib_write_bw, ib_read_lat and others), written by `--out_json`.

A file has one message size. The names come from `src/perftest_parameters.c` and `.h` of version 26.04, unchanged since
24.01. Older versions do not write JSON, and neither does any version with `--sl` for quality of service. The file does
not state the unit of a rate: it is MiB/s, or Gb/s with `--report_gbits`. The message rate, whose unit is known, shows
which one it is. Latencies are in µs; a file of `--report-cycles` looks the same and must not be imported. The latency
of a write or send test is half a round trip, the latency of a read or atomic test a whole one."""

import math
import re
from typing import Any

from gpubench.api import importer as gb

_MIB, _GBIT = 2.0**20, 1.25e8  # bytes/s of one MiB/s and of one Gb/s
_TOLERANCE = 0.02  # the message rate and the byte rate may differ by this share, because both are rounded
_RATES = (("BW_average", "BW_average", "B/s"), ("BW_peak", "BW_peak", "B/s"), ("MsgRate", "MsgRate", "item/s"))
_TIMES = (
    ("t_typical", "median", "us"),
    ("t_avg", "mean", "us"),
    ("t_min", "min", "us"),
    ("t_max", "max", "us"),
    ("percentile_99", "p99", "us"),
    ("percentile_99.9", "p99.9", "us"),
)
_AXES = {"Connection_type": "connection", "Number_of_qps": "qps", "Mtu": "mtu", "TX_depth": "tx_depth"}
_NOTES = ("Link_type", "Transport_type", "GID_index", "Post_List", "CQ_Moderation", "PCIe_relax_order", "cuda_device")
_GPU = ("cuda_device", "Use_ROCm_memory", "Use_MUSA_memory")


def _read(text: str) -> gb.Imported:
    if not re.search(r'"test_info"', text):
        raise gb.BadOutput("written by perftest before version 24.01, which left out the quotes; use a newer one")
    body = gb.json_object(text)
    test, figures = (gb.json_value(body, key, dict) for key in ("test_info", "results"))
    name = re.sub(r"_Test$", "", gb.json_value(test, "test", str)).lower()
    size = gb.json_value(figures, "MsgSize", int)
    if not re.fullmatch(r"\w{1,80}", name) or not 0 < size < 2**40:
        raise gb.BadOutput(f"a test {name!r:.80} with messages of {size} bytes is not possible")
    stated = {key: value for key, value in test.items() if isinstance(value, str | int)}
    axes = tuple((axis, stated[key]) for key, axis in _AXES.items() if key in stated)
    memory = (("memory", "GPU"),) if any(test.get(key) not in (None, "OFF") for key in _GPU) else ()
    notes = tuple((key, str(stated[key])) for key in _NOTES if key in stated)
    device = gb.make_device(gb.json_value(test, "Device", str), "RDMA device")
    series = _rates(figures, size) if "BW_average" in figures else _times(figures)
    output = gb.Output("perftest", "imported: RDMA as perftest measured it", {device.id: device})
    output.add(name, (("size_bytes", size), *axes, *memory), series, (device.id,), notes=notes)
    title = f"{name} by message size"
    return output.imported(gb.View("curve", title, (name,), "size_bytes", series=series[0].name, log_x=True))


def _rates(figures: dict[str, Any], size: int) -> list[gb.Series]:
    """Return the average rate, the peak rate if it is stated (a timed test prints 0), and the messages per second."""
    messages, average = gb.measured_number(figures, "MsgRate") * 1e6, gb.measured_number(figures, "BW_average")
    units = [unit for unit in (_MIB, _GBIT) if math.isclose(average * unit, messages * size, rel_tol=_TOLERANCE)]
    if len(units) != 1:
        raise gb.BadOutput(
            f"{average:g} is neither the MiB/s nor the Gb/s of {messages:g} messages of {size} bytes per s"
        )
    rates = {key: gb.measured_number(figures, key) * units[0] for key in ("BW_average", "BW_peak") if key in figures}
    return gb.quantities({key: rate for key, rate in rates.items() if rate} | {"MsgRate": messages}, _RATES)


def _times(figures: dict[str, Any]) -> list[gb.Series]:
    series = gb.quantities({key: gb.measured_number(figures, key) for key, _, _ in _TIMES if key in figures}, _TIMES)
    if not series:
        raise gb.BadOutput("there is neither a bandwidth nor a latency")
    return series


importer: gb.Importer = gb.Reader(
    "perftest (linux-rdma): RDMA bandwidth and latency of --out_json; JSON",
    gb.has(r'test_info"?\s*:\s*\{', r'MsgSize"?\s*:'),  # older versions omit the quotes
    _read,
)
