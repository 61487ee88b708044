"""Import mixbench: operations and bytes per second over arithmetic intensity, for each type of number.

GFLOPS, GIOPS and GB/sec are multiples of 1e9. The time is one kernel's, in ms. An intensity is per byte as the kernel
counts them."""

import re
from dataclasses import dataclass, field
from itertools import pairwise

from gpubench.api import importer as gb

_VERSION = re.compile(r"(mixbench[\w/-]*) \((v[^)]+)\)")
_VERSION_NAMES = {"CUDA driver version": "cuda.driver", "Driver version": "driver"}
_INTENSITIES = ("Flops/byte", "Iops/byte")
_OPERATIONS = (("GFLOPS", "operations", "GFLOPS"), ("GIOPS", "operations", "GIOPS"))
_QUANTITIES = (*_OPERATIONS, ("GB/sec", "bandwidth", "GB/s"), ("ex.time", "time", "ms"))


@dataclass(slots=True)
class _Table(gb.Output):
    facts: dict[str, str] = field(default_factory=dict)  # the lines `name: value` before the table
    kinds: list[str] = field(default_factory=list)  # the types of number in the table, in order
    columns: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # the column of each type's intensity, which is its first

    def take(self, line: str) -> None:
        cells = [cell.strip() for cell in line.split(",")]
        if line.startswith("Experiment ID,"):
            self.kinds = [cell for cell in cells[1:] if cell]
        elif line.startswith("Compute iters"):
            self.columns, self.starts = cells, [index for index, name in enumerate(cells) if name in _INTENSITIES]
            allowed = {"Compute iters", *_INTENSITIES, *(column for column, _, _ in _QUANTITIES)}
            if len(self.starts) != len(self.kinds) or not set(cells) <= allowed:
                raise gb.BadOutput("unknown columns: newer than the known versions")
            device = _device(self.facts)
            self.devices = {device.id: device}
        elif self.columns and re.match(r"\d+,", line):
            self._add_row(cells)
        elif version := _VERSION.search(line):
            self.versions["mixbench"] = f"{version[1]} {version[2]}"
        elif ":" in line and not self.columns:
            name, value = (part.strip() for part in line.split(":", 1))
            self.facts.setdefault(name, value)
            if name in _VERSION_NAMES:
                self.versions[_VERSION_NAMES[name]] = value

    def _add_row(self, cells: list[str]) -> None:
        gb.row(self.columns, cells)
        params = (("iterations", gb.whole_number(cells[0])),)
        for kind, (start, end) in zip(self.kinds, pairwise([*self.starts, len(cells)]), strict=True):
            series = gb.quantities(gb.row(self.columns[start:end], cells[start:end]), _QUANTITIES)
            if [timing.name for timing in series] != ["operations", "bandwidth", "time"]:
                raise gb.BadOutput(f"the time, the rate of operations or the bandwidth of {kind} is missing")
            name = kind.lower().removesuffix(" ops").removesuffix(" operations").replace(" ", "-")
            notes = (("operations a byte", str(gb.number(cells[start]))),)
            self.add(name, params, series, tuple(self.devices), notes=notes)


def _device(facts: dict[str, str]) -> gb.Device:
    """Return the device that the lines before the table describe; unstated if they do not."""
    if "Device" not in facts and "Total SPs" not in facts:
        return gb.UNSTATED

    def count(name: str, pattern: str) -> int:
        match = re.match(pattern, facts.get(name, ""))
        return int(match[1]) if match else 0

    capability = re.fullmatch(r"(\d+)\.(\d+)", facts.get("Compute Capability", ""))
    return gb.make_device(
        "device:0",
        facts.get("Device", ""),
        arch=f"sm_{capability[1]}{capability[2]}" if capability else "",
        memory_bytes=count("Total global mem", r"(\d{1,12}) MB$") * 2**20,
        cache_bytes=count("L2 cache size", r"(\d{1,12}) KB$") * 2**10,
        units=count("Total SPs", r".*\((\d{1,9}) MPs") or count("Total CUs", r"(\d{1,9})$"),
    )


def _read(text: str) -> gb.Imported:
    table = _Table("mixbench", "imported: operations and bytes over intensity as mixbench measured them")
    gb.read_lines(text, table.take)
    curve = gb.View("curve", "Operations", table.cases(), "iterations", series="operations", log_x=True, log_y=True)
    return table.imported(curve)


_ACCEPTS = gb.has(r"^[ \t]*Experiment ID, .+\n[ \t]*Compute iters, ")
importer: gb.Importer = gb.Reader(
    "mixbench (E. Konstantinidis): operations and bytes over intensity; text", _ACCEPTS, _read
)
