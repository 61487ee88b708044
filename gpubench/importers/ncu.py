"""Import the csv of NVIDIA Nsight Compute (`ncu --csv`, pages details and raw): the times of kernels.

NsightComputeCli.html describes the columns under "CSV". A launch is a sample of its kernel with its grid and block.
Only the duration and the rate of the memory are read. The profiler fixes the clocks, so compare with profiles alone. A
number has a point as its decimal mark and commas between thousands; in some locales ncu prints them the other way
round, so a file with any such number is refused."""

import csv
import re
from collections.abc import Iterable, Mapping

from gpubench.api import importer as gb

_TABLE = {  # metric of the raw page or of the details page → series
    "gpu__time_duration.sum": "time",
    "Duration": "time",
    "dram__bytes.sum.per_second": "dram",
    "Memory Throughput": "dram",
}
_TIMES = {name: unit for unit in ("ns", "us", "ms", "s") for name in (unit, f"{unit[:-1]}second")}
_PREFIXES = {"": 0, "K": 3, "M": 6, "G": 9, "T": 12}
_RATE = re.compile(r"([KMGT]?)byte/s(?:econd)?")
_NUMBER = re.compile(r"\d{1,3}(,\d{3})*(\.\d+)?|\d+(\.\d+)?([eE][+-]?\d+)?")
_OTHER_LOCALE = re.compile(r"\d{1,3}(\.\d{3}){2,}(,\d+)?|\d{1,3}(\.\d{3})*,(\d{1,2}|\d{4,})")  # 27.595.520, 65,77
_Metric = tuple[str, str, str]  # metric, unit, printed value


def _add_metric(launches: dict[str, dict[str, float]], launch: str, metric: _Metric) -> None:
    """Add the value of a metric of the table to its launch, in SI units; a share of peak is left out."""
    name, (unit, text) = _TABLE.get(metric[0], ""), metric[1:]
    if not name or unit == "%" or not text or text.lower() in ("n/a", "nan"):
        return
    if not _NUMBER.fullmatch(text):
        raise gb.BadOutput(f"{text[:40]!r} is not a number with a decimal point")
    value, rate = gb.number(text.replace(",", "")), _RATE.fullmatch(unit)
    if name == "time" and unit in _TIMES:
        launches.setdefault(launch, {})[name] = gb.quantity(name, _TIMES[unit], value).values[0]
    elif name == "dram" and rate:
        launches.setdefault(launch, {})[name] = gb.to_si(value, _PREFIXES[rate[1]])
    else:
        raise gb.BadOutput(f"{metric[0]} is in {unit[:40]!r}, which is not a known unit")


def _metrics(cells: Mapping[str, str], units: Mapping[str, str]) -> Iterable[_Metric]:
    if "Metric Name" in cells:
        if not {"Metric Unit", "Metric Value"} <= cells.keys():
            raise gb.BadOutput("a metric has no column for its unit or its value")
        return [(cells["Metric Name"], cells["Metric Unit"], cells["Metric Value"])]
    return [(name, units.get(name, ""), text) for name, text in cells.items() if name in _TABLE]


def _read(text: str) -> gb.Imported:
    lines = [line for line in text.splitlines() if line.startswith('"')]
    head, *rows = csv.reader(lines)
    if "ID" not in head:
        raise gb.BadOutput("its first row has no column ID")
    kernels: dict[tuple[gb.Params, str], dict[str, dict[str, float]]] = {}
    units: Mapping[str, str] = {}
    for number, row in enumerate(rows, 2):
        with gb.place(f"row {number}"):
            cells = gb.row(head, row)
            if not cells["ID"]:  # the raw page has the units in its second row
                units = cells
                continue
            axes = (("name", "Kernel Name"), ("grid", "Grid Size"), ("block", "Block Size"))
            params: gb.Params = tuple((axis, cells[column]) for axis, column in axes if column in cells)
            if other := next(filter(_OTHER_LOCALE.fullmatch, row), ""):
                raise gb.BadOutput(f"{other[:40]!r} has a comma as its decimal mark; profile again with LC_ALL=C")
            launches = kernels.setdefault((params, f"cuda:{cells.get('Device') or '0'}"), {})
            for metric in _metrics(cells, units):
                _add_metric(launches, cells["ID"], metric)
    output = gb.Output("ncu", "imported: kernels as Nsight Compute profiled them")
    for (params, device), launches in kernels.items():
        timed = [launch for launch in launches.values() if "time" in launch]
        series = [gb.quantity("time", "s", *(launch["time"] for launch in timed))] if timed else []
        if timed and all("dram" in launch for launch in timed):
            series.append(gb.quantity("dram", "B/s", *(launch["dram"] for launch in timed)))
        if series:
            output.add("kernel", params, series, (device,))
    return output.imported()


_ACCEPTS = gb.has(r'^"ID","Process ID",.*"Kernel Name",')
importer: gb.Importer = gb.Reader("Nsight Compute (NVIDIA): ncu --csv, details and raw; csv", _ACCEPTS, _read)
