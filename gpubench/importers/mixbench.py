"""Import mixbench: operations and bytes per second over arithmetic intensity, for each type of number.

GFLOPS, GIOPS and GB/sec are multiples of 1e9. The time is that of one kernel, in ms. An intensity is per byte as the
kernel counts them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gpubench.api.importer import BadOutput, Case, Device, Imported, Importer, Result, Series, SuiteInfo, View

from . import _parsing as parsing

_SUITE = "mixbench"
_VERSION = re.compile(r"(mixbench[\w/-]*) \((v[^)]+)\)")
_ITERATIONS = "Compute iters"
_COLUMNS = {"ex.time": "time", "GFLOPS": "operations", "GIOPS": "operations", "GB/sec": "bandwidth"}
_INTENSITIES = ("Flops/byte", "Iops/byte")
_VERSION_NAMES = {"CUDA driver version": "cuda.driver", "Driver version": "driver"}


@dataclass(slots=True)
class _MixbenchOutput:
    """The content of the output, as far as it has been read.

    `facts` are the lines `name: value` before the table, and `versions` are those of software by name."""

    facts: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)  # the kinds of numbers that the table has, in order
    columns: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Mixbench:
    """Importer of the output of mixbench."""

    summary: str = "mixbench (E. Konstantinidis): operations and bytes over intensity; text"

    def accepts(self, text: str) -> bool:
        """Return whether the text has the two lines of the table's head."""
        return bool(re.search(r"^[ \t]*Experiment ID, .+\n[ \t]*Compute iters, ", text, re.MULTILINE))

    def read(self, text: str) -> Imported:
        """Return the content of the output, with a result per type of number and row.

        The axis is the number of iterations. Raises BadOutput if the output is damaged."""
        output = _MixbenchOutput()
        for number, line in parsing.numbered_lines(text):
            _read_line(output, f"line {number}", line)
        if not output.results:
            raise BadOutput("the table has no rows")
        device = _device(output.facts)
        results = tuple(_on_device(device, result) for result in output.results)
        names = tuple(dict.fromkeys(result.case.name for result in results))
        view = View("curve", "Operations", names, x="iterations", series="operations", log_x=True, log_y=True)
        info = SuiteInfo(_SUITE, "imported: operations and bytes over intensity as mixbench measured them", (view,))
        return Imported(info, (device,), results, tuple(output.versions.items()))


def _read_line(output: _MixbenchOutput, where: str, line: str) -> None:
    """Add the content of one line to `output`; `where` names the line. Raises BadOutput if a row is damaged."""
    if line.startswith("Experiment ID,"):
        output.kinds = [cell.strip() for cell in line.split(",")[1:] if cell.strip()]
    elif line.startswith(_ITERATIONS):
        output.columns = [cell.strip() for cell in line.split(",")]
        _check_head(output, where)
    elif output.columns and re.match(r"\d+,", line):
        output.results += _row(output, where, [cell.strip() for cell in line.split(",")])
    elif version := _VERSION.search(line):
        output.versions["mixbench"] = f"{version[1]} {version[2]}"
    elif ":" in line and not output.columns:
        name, _, value = line.partition(":")
        output.facts.setdefault(name.strip(), value.strip())
        if name.strip() in _VERSION_NAMES:
            output.versions[_VERSION_NAMES[name.strip()]] = value.strip()


def _check_head(output: _MixbenchOutput, where: str) -> None:
    """Raise BadOutput if the head of the table is damaged or has an unknown column; `where` names the line."""
    starts = _first_columns(output.columns)
    allowed = {*_COLUMNS, *_INTENSITIES, _ITERATIONS}
    if len(starts) != len(output.kinds) or not set(output.columns) <= allowed:
        raise BadOutput(f"{where}: unknown columns: newer than the known versions")


def _first_columns(columns: Sequence[str]) -> list[int]:
    """Return the index of the first column of each type of number, which is the column of the intensity."""
    return [index for index, name in enumerate(columns) if name in _INTENSITIES]


def _row(output: _MixbenchOutput, where: str, cells: Sequence[str]) -> Iterator[Result]:
    """Yield a result without a device for each type of number in a row; `where` names the line."""
    if len(cells) != len(output.columns):
        raise BadOutput(f"{where}: {len(cells)} columns where the head has {len(output.columns)}")
    iterations = parsing.whole_number(cells[0], where)
    ends = [*_first_columns(output.columns), len(cells)]
    for kind, (start, end) in zip(output.kinds, pairwise(ends), strict=True):
        named = dict(zip(output.columns[start:end], cells[start:end], strict=True))
        yield _result(kind, iterations, named, where)


def _result(kind: str, iterations: int, cells: dict[str, str], where: str) -> Result:
    """Return the result, without a device, of one type of number in a row; `where` names the line."""
    series = {_COLUMNS[name]: _series(name, cell, where) for name, cell in cells.items() if name in _COLUMNS}
    if set(series) != {"time", "operations", "bandwidth"}:
        raise BadOutput(f"{where}: the time, the rate of operations or the bandwidth of {kind} is missing")
    intensity = next(cells[name] for name in _INTENSITIES if name in cells)
    name = kind.lower().removesuffix(" ops").removesuffix(" operations").replace(" ", "-")
    case = Case(_SUITE, name, (("iterations", iterations),))
    notes = (("operations a byte", str(parsing.number(intensity, where))),)
    ordered = tuple(series[name] for name in ("operations", "bandwidth", "time"))
    return Result(case, (), "ok", series=ordered, notes=notes)


def _series(column: str, cell: str, where: str) -> Series:
    """Return the series, in SI units, of the cell in `column`: `ex.time`, `GB/sec`, `GFLOPS` or `GIOPS`."""
    value = parsing.number(cell, where)
    if column == "ex.time":
        return parsing.time_series("time", parsing.to_si(value, parsing.MILLI))
    if column == "GB/sec":
        return parsing.rate_series("bandwidth", parsing.to_si(value, parsing.GIGA))
    return Series(
        "operations", "FLOP/s" if column == "GFLOPS" else "op/s", (parsing.to_si(value, parsing.GIGA),), better="more"
    )


def _on_device(device: Device, result: Result) -> Result:
    return Result(result.case, (device.id,), "ok", series=result.series, notes=result.notes)


def _device(facts: dict[str, str]) -> Device:
    """Return the device that the lines `name: value` before the table describe; unstated if they do not."""
    if "Device" not in facts and "Total SPs" not in facts:
        return parsing.UNSTATED
    memory = re.fullmatch(r"(\d{1,12}) MB", facts.get("Total global mem", ""))
    cache = re.fullmatch(r"(\d{1,12}) KB", facts.get("L2 cache size", ""))
    capability = re.fullmatch(r"(\d+)\.(\d+)", facts.get("Compute Capability", ""))
    units = re.search(r"\((\d{1,9}) MPs", facts.get("Total SPs", "")) or re.fullmatch(
        r"()(\d{1,9})", facts.get("Total CUs", "")
    )
    return parsing.make_device(
        "device:0",
        facts.get("Device", ""),
        arch=f"sm_{capability[1]}{capability[2]}" if capability else "",
        memory_bytes=int(memory[1]) * 2**20 if memory else 0,
        cache_bytes=int(cache[1]) * 2**10 if cache else 0,
        units=int(units[units.lastindex or 1]) if units else 0,
    )


importer: Importer = Mixbench()
