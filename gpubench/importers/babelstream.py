"""Import BabelStream (formerly GPU-STREAM): the best rate of each STREAM kernel with its times, as text or csv.

`--csv` writes the csv. The rate is the fastest run's, by STREAM's counting rule, in MB of 1e6 bytes, or with
`--mibibytes` in MiB. The tool does not print single runs; a case therefore has its best, mean and worst time and no
samples."""

import re
from dataclasses import dataclass, field

from gpubench.api import importer as gb

_UNITS = {"mbytes": 1e6, "mb": 1e6, "gb": 1e9, "mibytes": 2.0**20, "mib": 2.0**20, "gib": 2.0**30}
_HEAD = re.compile(r"Function\s+(?P<unit>\w+)/s(?:ec)?\s+Min \(sec\)\s+Max\s+Average")
_CSV_HEAD = re.compile(
    r"function(?P<comma>.)num_times(?P=comma)n_elements(?P=comma)sizeof(?P=comma)max_(?P<unit>\w+?)_per_sec"
    r"(?P=comma)min_runtime(?P=comma)max_runtime(?P=comma)avg_runtime"
)
_KERNELS = ("Init", "Copy", "Mul", "Add", "Triad", "Dot", "Nstream", "Read")  # only lines of these kernels are rows
_DEVICE = re.compile(r"Using (\w+) device:? (.+)$")
_DEVICE_IDS = {"CUDA": "cuda:0", "HIP": "rocm:0"}
_VERSIONS = {"Version": "babelstream", "Implementation": "babelstream.implementation"}
_TYPES = {"4": "float", "8": "double"}  # bytes of an element → type; it measures only these two
_QUANTITIES = (("best", "best", "B/s"), ("min", "min", "s"), ("mean", "mean", "s"), ("max", "max", "s"))


@dataclass(slots=True)
class _Table(gb.Output):
    facts: dict[str, str] = field(default_factory=dict)  # the lines `name: value`
    separator: str | None = None  # None for blanks
    factor: float = 0.0  # B/s in one unit of the rates; 0 before the head

    def take(self, line: str) -> None:
        cells = line.split(self.separator)
        if head := _HEAD.match(line) or _CSV_HEAD.match(line):
            self.separator, unit = head.groupdict().get("comma"), head["unit"]
            if unit.lower() not in _UNITS:
                raise gb.BadOutput(f"the unit {unit}: newer than the known versions")
            self.factor = _UNITS[unit.lower()]
        elif self.factor and cells[0] in _KERNELS and len(cells) > 1:
            self._add_row(cells)
        elif device := _DEVICE.match(line):
            name = _DEVICE_IDS.get(device[1], "device:0")
            self.devices = {name: gb.make_device(name, device[2].strip())}
        elif ":" in line:
            fact, value = (part.strip() for part in line.split(":", 1))
            self.facts[fact] = value
            if fact in _VERSIONS and value:
                self.versions[_VERSIONS[fact]] = value

    def _add_row(self, cells: list[str]) -> None:
        if len(cells) != (8 if self.separator else 5):
            raise gb.BadOutput(f"the row of {cells[0]} is incomplete")
        rate, shortest, longest, mean = map(gb.number, cells[-4:])
        columns = {"best": rate * self.factor, "min": shortest, "mean": mean, "max": longest}
        params = _size_in_row(cells) if self.separator else _printed_size(self.facts)
        self.add(cells[0], params, gb.quantities(columns, _QUANTITIES), tuple(self.devices) or (gb.UNSTATED.id,))


def _printed_size(facts: dict[str, str]) -> gb.Params:
    """Return the axes of the printed size: the number of elements, or in older versions the rounded megabytes."""
    precision = (("precision", facts["Precision"]),) if "Precision" in facts else ()
    if re.fullmatch(r"\d{1,18}", facts.get("Number of elements", "")):
        return (("elements", int(facts["Number of elements"])), *precision)
    array = facts.get("Array size", "").partition("(")[0].strip()
    return ((("array", array),) if array else ()) + precision


def _size_in_row(cells: list[str]) -> gb.Params:
    if cells[3] not in _TYPES:
        raise gb.BadOutput(f"elements of {cells[3]} bytes: newer than the known versions")
    return (("elements", gb.whole_number(cells[2])), ("precision", _TYPES[cells[3]]))


def _read(text: str) -> gb.Imported:
    table = _Table("babelstream", "imported: STREAM kernels as BabelStream measured them")
    gb.read_lines(text, table.take)
    return table.imported(gb.View("bars", "STREAM kernels", table.cases()))


importer: gb.Importer = gb.Reader(
    "BabelStream (University of Bristol): STREAM kernels; text or csv", gb.has_line(_HEAD, _CSV_HEAD), _read
)
