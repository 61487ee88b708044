"""Read the specifications of each model of GPU from `data_sheets.toml`: dense rates, memory, links in one direction.

Look up how much the medians of fresh processes differ on a model of GPU, from shipped recordings.

`tests/studies/reproducibility_table.py` writes `reproducibility.toml` from the recordings in `tests/recordings`."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from gpubench.model import Device
from gpubench.model.facts import MIG

PCIE_SOURCE = "PCI Express base specification: GT/s x 16 lanes x 128/130"
_PCIE_GEN5_X16 = 32e9 * 16 * 128 / 130 / 8
_MEMORY_SLICES = 8  # of a card that MIG splits (NVIDIA MIG User Guide, "Concepts")


@dataclass(frozen=True, slots=True)
class Sheet:
    """The peaks of the models whose name matches `pattern`, in SI units, with the document that states them.

    `units` is the number of compute units of the whole board and `board_gb` its memory, for models that can be split
    into several devices. `others` are the sources of single peaks that the document does not state."""

    pattern: str
    peaks: Mapping[str, float]
    source: str
    address: str
    others: Mapping[str, str]
    memory_gb: tuple[float, float] | None = None
    units: int = 0
    board_gb: int = 0

    def source_of(self, name: str) -> str:
        """Return the source of a peak, without the address of the document that most peaks share."""
        return self.others.get(name, self.source)

    def is_of(self, device: Device) -> bool:
        """Return whether the sheet applies to a device, by its name and memory; a memory of 0 was not read and fits."""
        low, high = self.memory_gb or (0.0, float("inf"))
        fits = device.kind == "mig" or not device.memory_bytes or low <= device.memory_bytes / 1e9 <= high
        return bool(re.search(self.pattern, device.name)) and fits and device.kind != "vgpu"

    def mig_share(self, name: str) -> float:
        """Return the share of the memory's bandwidth that a MIG instance has, by its slices of memory; else 1."""
        profile = MIG.search(name)
        if profile is None or not self.board_gb:
            return 1.0
        return round(int(profile[2]) / self.board_gb * _MEMORY_SLICES) / _MEMORY_SLICES


@cache
def tables() -> Mapping[str, Any]:
    """Return the content of `data_sheets.toml`, which is read once; do not change it."""
    return tomllib.loads((files("gpubench.knowledge") / "data_sheets.toml").read_text(encoding="utf-8"))


@cache
def data_sheets() -> tuple[Sheet, ...]:
    """Return the sheets of `data_sheets.toml` in their order: the first that matches a device is used."""
    return tuple(map(_sheet, tables()["sheet"]))


def _sheet(row: Mapping[str, Any]) -> Sheet:
    peaks = {name: value * 1e12 for name, value in row.get("tflops", {}).items()}
    for name, key in (("dram", "dram_gbps"), ("link.peer", "peer_gbps"), ("link.h2d", "c2c_gbps")):
        if key in row:
            peaks[name] = row[key] * 1e9
    if "pcie" in row:
        peaks["link.h2d"] = _PCIE_GEN5_X16 / 2 ** (5 - row["pcie"])
    link = f"NVLink-C2C, {row['source']}" if "c2c_gbps" in row else PCIE_SOURCE
    low, high = row.get("memory_gb", (0.0, float("inf")))
    return Sheet(
        row["pattern"], peaks, row["source"], row["address"], {"link.h2d": link, **row.get("from", {})},
        (low, high), row.get("units", 0), row.get("board_gb", 0),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordedDeviation:
    """The standard deviation of the medians of fresh processes, for one case on one model of GPU, in % of their mean.

    `recordings` are the names of files in `tests/recordings`, and `date` is the date of these recordings."""

    model: str
    case: str
    percent: float
    processes: int
    recordings: tuple[str, ...]
    date: str

    @property
    def text(self) -> str:
        """The source of the figure: `NVIDIA H200, 2026-11-20, recordings headline/1, headline/2`."""
        return f"{self.model}, {self.date}, recordings {', '.join(self.recordings)}"


def recorded_deviation(model: str, case_id: str) -> RecordedDeviation | None:
    """Return the deviation of a case on a model of GPU, both by their exact names; None if there is no recording."""
    return recorded_deviations().get((model, case_id))


@cache
def recorded_deviations() -> dict[tuple[str, str], RecordedDeviation]:
    """Return the deviations of `reproducibility.toml`, which gpubench ships, by model of GPU and case id.

    The file is read once, so do not change the dictionary."""
    text = (files("gpubench.knowledge") / "reproducibility.toml").read_text(encoding="utf-8")
    rows = (
        RecordedDeviation(
            row["model"], row["case"], row["percent"], row["processes"], tuple(row["recordings"]), row["date"]
        )
        for row in tomllib.loads(text)["reproducibility"]
    )
    return {(row.model, row.case): row for row in rows}
