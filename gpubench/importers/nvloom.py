"""Import nvloom (NVIDIA): the matrices of its test cases, in GB/s or ns; text.

The forms come from `cli/util.h` and `cli/util.cpp` of version 1.3. A row and a column are a process (a GPU), a pair of
processes, a rack or a test's own label. The values of a matrix must add up to its line `Total`, as printed."""

import re
from dataclasses import dataclass, field

from gpubench.api import importer as gb

_TOTAL = re.compile(r"Total (?P<name>\S+) (?P<sum>[\d.]+|N/A) (?P<unit>\S+)$")
_SERIES = {"GB/s": "bandwidth", "ns": "latency"}
_VERSIONS = {"nvloom_cli": "nvloom", "CUDA version:": "cuda.runtime", "Driver version:": "nvidia.driver"}


@dataclass(slots=True)
class _Log(gb.Output):
    test: str = ""
    columns: list[str] = field(default_factory=list)
    cells: list[tuple[str, str, str]] = field(default_factory=list)  # row, column and printed value
    device: gb.Device = gb.UNSTATED

    def take(self, line: str) -> None:
        if running := re.match(r"Running (\S+)$", line):
            self.test, self.columns, self.cells = running[1], [], []
        elif total := _TOTAL.match(line):
            self._add_matrix(total["name"], total["sum"], total["unit"])
        elif re.match(r"(Min|Avg|Max|ExecutionTime|Done|sleeping for) ", line):
            return
        elif self.test:
            labels = [cell.strip() for cell in line.split("\t") if cell.strip() != "|"]
            if not self.columns:
                self.columns = labels
            else:
                row = gb.row(["", *self.columns], labels)
                self.cells += [(labels[0], column, cell) for column, cell in row.items() if column]
        elif process := re.match(r"Process \d+ \(.*\): device \d+: (.+?) \([\da-f:]+\)", line):
            self.device = gb.make_device("gpu", process[1])
        elif version := next((key for key in _VERSIONS if line.startswith(f"{key} ")), ""):
            self.versions[_VERSIONS[version]] = line.removeprefix(version).strip()

    def _add_matrix(self, name: str, printed_sum: str, unit: str) -> None:
        if unit not in _SERIES:
            raise gb.BadOutput(f"{name} is in {unit[:40]!r}, which is neither GB/s nor ns")
        values = [(row, column, cell.partition(";")[0]) for row, column, cell in self.cells]
        measured = [(row, column, cell) for row, column, cell in values if cell != "N/A"]
        total = sum(gb.number(cell) for _, _, cell in measured)
        if printed_sum == "N/A" or abs(total - gb.number(printed_sum)) > 0.01 * (len(measured) + 1):
            raise gb.BadOutput(f"the values of {name} add up to {total:.2f}, not to its Total {printed_sum}")
        self.devices[self.device.id] = self.device
        for row, column, cell in measured:
            axes = (("row", gb.number_or_text(row)), ("column", gb.number_or_text(column)))
            self.add(name, axes, [gb.quantity(_SERIES[unit], unit, cell)], (self.device.id,))
        self.test, self.columns, self.cells = "", [], []


def _read(text: str) -> gb.Imported:
    log = _Log("nvloom", "imported: a fabric of NVLink as nvloom measured it")
    gb.read_lines(text, log.take)
    return log.imported()


_ACCEPTS = gb.has(r"^nvloom_cli ", r"^Total \S+ ")
importer: gb.Importer = gb.Reader("nvloom (NVIDIA): bandwidth and latency of an NVLink fabric; text", _ACCEPTS, _read)
