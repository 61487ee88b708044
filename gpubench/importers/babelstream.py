"""Import BabelStream (formerly GPU-STREAM): the best rate of each STREAM kernel with its times, as text or csv.

The csv is that of `--csv`. The rate is that of the fastest run by STREAM's counting rule, in MB of 1e6 bytes, or with
`--mibibytes` in MiB. The tool does not print single runs; a case therefore has its best, mean and worst time and no
samples."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpubench.api.importer import BadOutput, Case, Device, Imported, Importer, Params, Result, SuiteInfo, View

from . import _parsing as parsing

_SUITE = "babelstream"
_UNITS = {"MBytes": 1e6, "MB": 1e6, "GB": 1e9, "MiBytes": 2**20, "MiB": 2**20, "GiB": 2**30}
_HEAD = re.compile(r"Function\s+(\w+)/s(?:ec)?\s+Min \(sec\)\s+Max\s+Average")
_CSV_HEAD = re.compile(
    r"function(.)num_times\1n_elements\1sizeof\1max_(\w+?)_per_sec\1min_runtime\1max_runtime\1avg_runtime"
)
_KERNELS = ("Init", "Copy", "Mul", "Add", "Triad", "Dot", "Nstream", "Read")  # only lines of these kernels are rows
_DEVICE = re.compile(r"Using (\w+) device:? (.+)$")
_SIZES = {"4": "float", "8": "double"}  # bytes of an element → type; it measures only these two


@dataclass(frozen=True, slots=True)
class BabelStream:
    """Importer of the output of BabelStream."""

    summary: str = "BabelStream (University of Bristol): STREAM kernels; text or csv"

    def accepts(self, text: str) -> bool:
        """Return whether a line of the text is the head of the table or of the csv."""
        return any(_HEAD.match(line) or _CSV_HEAD.match(line) for _, line in parsing.numbered_lines(text))

    def read(self, text: str) -> Imported:
        """Return the content of the output, with a result per kernel; its axes are array size and precision.

        The size is exact if the tool printed it exactly. Raises BadOutput if the output is damaged."""
        facts: dict[str, str] = {}
        devices: list[Device] = []
        results: list[Result] = []
        head: re.Match[str] | None = None
        for number, line in parsing.numbered_lines(text):
            new_head = _HEAD.match(line) or _CSV_HEAD.match(line)
            if new_head:
                head = new_head
                _unit_factor(new_head, f"line {number}")
            elif head and _is_row(line, head):
                results.append(_result(f"line {number}", line, head, facts, devices))
            elif device := _DEVICE.match(line):
                devices = [parsing.make_device(_device_id(device[1]), device[2].strip())]
            elif ":" in line:
                name, _, value = line.partition(":")
                facts[name.strip()] = value.strip()
        if not results:
            raise BadOutput("the table has no rows")
        versions = {
            "babelstream": facts.get("Version", ""),
            "babelstream.implementation": facts.get("Implementation", ""),
        }
        names = tuple(dict.fromkeys(result.case.name for result in results))
        info = SuiteInfo(
            _SUITE, "imported: STREAM kernels as BabelStream measured them", (View("bars", "STREAM kernels", names),)
        )
        stated_versions = tuple((name, value) for name, value in versions.items() if value)
        return Imported(info, tuple(devices) or (parsing.UNSTATED,), tuple(results), stated_versions)


def _device_id(implementation: str) -> str:
    """Return the id of the only device, from the name of the implementation: CUDA gives `cuda:0`."""
    return {"CUDA": "cuda:0", "HIP": "rocm:0"}.get(implementation, "device:0")


def _unit_factor(head: re.Match[str], where: str) -> float:
    """Return the number of B/s in one unit of the rates below the head of a table, such as 1e6 for MBytes/sec."""
    unit_name = head[head.lastindex or 1]
    unit = next((factor for name, factor in _UNITS.items() if name.lower() == unit_name.lower()), None)
    if unit is None:
        raise BadOutput(f"{where}: the unit {unit_name}: newer than the known versions")
    return float(unit)


def _is_row(line: str, head: re.Match[str]) -> bool:
    """Return whether a line is a row of the table with this head: it begins with the name of a kernel."""
    end = r"\s" if head.lastindex == 1 else re.escape(head[1])
    return re.match(f"({'|'.join(_KERNELS)}){end}", line) is not None


def _result(where: str, line: str, head: re.Match[str], facts: dict[str, str], devices: Sequence[Device]) -> Result:
    """Return the result of a row: the best rate in B/s, and the shortest, mean and longest time in s."""
    cells = line.split() if head.lastindex == 1 else line.split(head[1])
    if len(cells) != (5 if head.lastindex == 1 else 8):
        raise BadOutput(f"{where}: the row of {cells[0]} is incomplete")
    rate, shortest, longest, mean = (parsing.number(cell, where) for cell in cells[-4:])
    params = _size_from_facts(facts) if head.lastindex == 1 else _size_from_columns(where, cells)
    series = (
        parsing.rate_series("best", rate * _unit_factor(head, where)),
        parsing.time_series("min", shortest),
        parsing.time_series("mean", mean),
        parsing.time_series("max", longest),
    )
    ids = (devices[0].id if devices else parsing.UNSTATED.id,)
    return Result(Case(_SUITE, cells[0], params), ids, "ok", series=series)


def _size_from_facts(facts: dict[str, str]) -> Params:
    """Return the axes of the printed size: the number of elements, or in older versions the rounded megabytes."""
    precision = (("precision", facts["Precision"]),) if "Precision" in facts else ()
    if re.fullmatch(r"\d{1,18}", facts.get("Number of elements", "")):
        return (("elements", int(facts["Number of elements"])), *precision)
    array = facts.get("Array size", "").partition("(")[0].strip()
    return ((("array", array),) if array else ()) + precision


def _size_from_columns(where: str, cells: Sequence[str]) -> Params:
    """Return the axes `elements` and `precision` from the cells of a csv row; `where` names its line."""
    if cells[3] not in _SIZES:
        raise BadOutput(f"{where}: elements of {cells[3]} bytes: newer than the known versions")
    return (("elements", parsing.whole_number(cells[2], where)), ("precision", _SIZES[cells[3]]))


importer: Importer = BabelStream()
