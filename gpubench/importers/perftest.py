"""Import a file of linux-rdma perftest (ib_write_bw, ib_read_lat and others), written by `--out_json`.

A file has one message size. The names are those of `src/perftest_parameters.c` and `.h` of version 26.04, unchanged
since 24.01. Older versions do not write JSON, and neither does any version with `--sl` for quality of service. The file
does not state the unit of a rate: it is MiB/s, or Gb/s with `--report_gbits`. The message rate, whose unit is known,
shows which one it is. Latencies are in µs; a file of `--report-cycles` looks the same and must not be imported. The
latency of a write or send test is half a round trip, that of a read or atomic test a whole one."""

import math
import re
from dataclasses import dataclass
from typing import Any

from gpubench.api.importer import BadOutput, Case, Imported, Importer, Result, Series, SuiteInfo, View

from . import _parsing as parsing

_SUITE = "perftest"
_MIB, _GBIT = 2.0**20, 1.25e8  # bytes/s of one MiB/s and of one Gb/s
_TOLERANCE = 0.02  # the message rate and the byte rate may differ by this share, because both are rounded
_RATES = ("BW_average", "BW_peak")
_TIMES = {  # perftest's name → name of the series, the headline first
    "t_typical": "median",
    "t_avg": "mean",
    "t_min": "min",
    "t_max": "max",
    "percentile_99": "p99",
    "percentile_99.9": "p99.9",
}
_AXES = {"Connection_type": "connection", "Number_of_qps": "qps", "Mtu": "mtu", "TX_depth": "tx_depth"}
_NOTES = ("Link_type", "Transport_type", "GID_index", "Post_List", "CQ_Moderation", "PCIe_relax_order", "cuda_device")
_GPU = ("cuda_device", "Use_ROCm_memory", "Use_MUSA_memory")


@dataclass(frozen=True, slots=True)
class Perftest:
    """Importer of the files that the programs of perftest write."""

    summary: str = "perftest (linux-rdma): RDMA bandwidth and latency of --out_json; JSON"

    def accepts(self, text: str) -> bool:
        """Return whether the text has perftest's two objects, with or without the quotes that older versions omit."""
        return bool(re.search(r'"?\btest_info\b"?\s*:\s*\{', text) and re.search(r'"?\bMsgSize\b"?\s*:', text))

    def read(self, text: str) -> Imported:
        """Return the content of the output: one result, whose case is the test.

        The axes are the size of a message and the connection."""
        if not re.search(r'"test_info"', text):
            raise BadOutput("written by perftest before version 24.01, which left out the quotes; use a newer one")
        body = parsing.json_object(text)
        test, results = (parsing.json_value(body, key, dict) for key in ("test_info", "results"))
        name = re.sub(r"_Test$", "", parsing.json_value(test, "test", str)).lower()
        size = parsing.json_value(results, "MsgSize", int)
        if not re.fullmatch(r"\w{1,80}", name) or not 0 < size < 2**40:
            raise BadOutput(f"a test {name!r:.80} with messages of {size} bytes is not possible")
        axes = tuple((axis, test[key]) for key, axis in _AXES.items() if isinstance(test.get(key), str | int))
        device = parsing.make_device(parsing.json_value(test, "Device", str), "RDMA device")
        notes = tuple((key, str(test[key])) for key in _NOTES if isinstance(test.get(key), str | int))
        memory = (("memory", "GPU"),) if any(test.get(key) not in (None, "OFF") for key in _GPU) else ()
        case = Case(_SUITE, name, (("size_bytes", size), *axes, *memory))
        series = _rates(results, size) if "BW_average" in results else _times(results)
        return Imported(
            _suite_info(name, series), (device,), (Result(case, (device.id,), "ok", series=series, notes=notes),)
        )


def _rates(results: dict[str, Any], size: int) -> tuple[Series, ...]:
    """Return the average rate and, if it is stated, the peak rate (both in B/s), and the messages per second."""
    messages = _number(results, "MsgRate") * 1e6
    average = _number(results, "BW_average")
    payload = messages * size
    units = [unit for unit in (_MIB, _GBIT) if math.isclose(average * unit, payload, rel_tol=_TOLERANCE)]
    if len(units) != 1:
        raise BadOutput(f"{average:g} is neither the MiB/s nor the Gb/s of {messages:g} messages of {size} bytes per s")
    rates = {key: _number(results, key) * units[0] for key in _RATES if key in results}
    series = [
        parsing.rate_series(key, rate) for key, rate in rates.items() if rate
    ]  # a timed test has no peak: it prints 0
    return (*series, Series("MsgRate", "item/s", (messages,), better="more"))


def _times(results: dict[str, Any]) -> tuple[Series, ...]:
    """Return the latencies that the object `results` states, in seconds, the headline first."""
    if not any(key in results for key in _TIMES):
        raise BadOutput("there is neither a bandwidth nor a latency")
    return tuple(
        parsing.time_series(series_name, parsing.to_si(_number(results, key), parsing.MICRO))
        for key, series_name in _TIMES.items()
        if key in results
    )


def _number(results: dict[str, Any], key: str) -> float:
    """Return the number under `key` of the object `results`, which is from 0 to below 1e15."""
    value = results.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise BadOutput(f"{key!r} is missing, or is not a measured number")
    return float(value)


def _suite_info(name: str, series: tuple[Series, ...]) -> SuiteInfo:
    """Return the suite with a curve of the first of `series` over the message size; `name` is that of the test."""
    view = View("curve", f"{name} by message size", (name,), x="size_bytes", series=series[0].name, log_x=True)
    return SuiteInfo(_SUITE, "imported: RDMA as perftest measured it", (view,))


importer: Importer = Perftest()
