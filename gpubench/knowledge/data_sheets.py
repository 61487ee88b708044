"""State the specifications of each model of GPU: dense rates at the boost clock, memory, and links in one direction.

Look up how much the medians of fresh processes differ on a model of GPU, from shipped recordings.

`tests/studies/reproducibility_table.py` writes `reproducibility.toml` from the recordings in `tests/recordings`."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

PCIE_SOURCE = "PCI Express base specification: GT/s x 16 lanes x 128/130"
_PCIE_GEN5_X16 = 32e9 * 16 * 128 / 130 / 8
_PCIE_GEN4_X16 = _PCIE_GEN5_X16 / 2
_NVIDIA = "https://images.nvidia.com/aem-dam/Solutions/geforce"


@dataclass(frozen=True, slots=True)
class DataSheet:
    """The peaks of the models whose name matches `pattern`, in SI units, with the document that states them.

    `units` is the number of compute units of the whole board, for models that can be split into several devices."""

    pattern: str
    peaks: Mapping[str, float]
    source: str
    memory_gb: tuple[float, float] | None = None
    units: int = 0

    def is_of(self, name: str, memory_bytes: int) -> bool:
        """Return whether the sheet applies to a device of this name and memory; a memory of 0 was not read and fits."""
        low, high = self.memory_gb or (0.0, float("inf"))
        return bool(re.search(self.pattern, name)) and (not memory_bytes or low <= memory_bytes / 1e9 <= high)


_HOPPER_RATES = {
    "tensor.float16": 989e12,
    "tensor.bfloat16": 989e12,
    "tensor.tf32": 494e12,
    "tensor.float8": 1979e12,
    "tensor.int8": 1979e12,
    "float32": 67e12,
    "tensor.float64": 67e12,
    "float64": 34e12,
}
_HOPPER = "NVIDIA H100/H200 SXM data sheet, dense rates"
_H200 = {"dram": 4.8e12, "link.h2d": _PCIE_GEN5_X16, "link.peer": 450e9, **_HOPPER_RATES}
_H100 = {**_H200, "dram": 3.35e12}
_A100 = {
    "dram": 2.039e12,
    "link.h2d": _PCIE_GEN4_X16,
    "link.peer": 300e9,
    "tensor.float16": 312e12,
    "tensor.bfloat16": 312e12,
    "tensor.tf32": 156e12,
    "tensor.int8": 624e12,
    "float32": 19.5e12,
    "tensor.float64": 19.5e12,
    "float64": 9.7e12,
}
# An HGX board of eight has 36 PFLOP/s of float16 and bfloat16, 72 of float8 and int8; sparsity doubles each of them.
# Rates on which NVIDIA's documents disagree (float32, tf32, float64) are left out.
_B200 = {
    "dram": 8e12,
    "link.peer": 900e9,
    "tensor.float16": 2250e12,
    "tensor.bfloat16": 2250e12,
    "tensor.float8": 4500e12,
    "tensor.int8": 4500e12,
}
_L40S = {
    "dram": 864e9,
    "link.h2d": _PCIE_GEN4_X16,
    "tensor.float16": 362.05e12,
    "tensor.bfloat16": 362.05e12,
    "tensor.tf32": 183e12,
    "tensor.float8": 733e12,
    "float32": 91.6e12,
}
# GeForce boards multiply 16-bit and 8-bit floats at half the rate where they add up in float32, as gemm does.
_RTX_4090 = {
    "dram": 1.008e12,
    "link.h2d": _PCIE_GEN4_X16,
    "tensor.float16": 165.2e12,
    "tensor.bfloat16": 165.2e12,
    "tensor.float8": 330.3e12,
    "tensor.int8": 660.6e12,
    "float32": 82.6e12,
}
_RTX_5090 = {
    "dram": 1.792e12,
    "link.h2d": _PCIE_GEN5_X16,
    "tensor.float16": 209.5e12,
    "tensor.bfloat16": 209.5e12,
    "tensor.float8": 419e12,
    "float32": 104.8e12,
}
_RTX_PRO_6000 = {
    "dram": 1.792e12,
    "link.h2d": _PCIE_GEN5_X16,
    "tensor.float16": 503.8e12,
    "tensor.bfloat16": 503.8e12,
    "float32": 125e12,
}
_MI300X = {
    "dram": 5.3e12,
    "link.h2d": _PCIE_GEN5_X16,
    "link.peer": 64e9,
    "tensor.float16": 1307e12,
    "tensor.bfloat16": 1307e12,
    "tensor.tf32": 654e12,
    "tensor.float8": 2610e12,
    "float32": 163e12,
    "tensor.float64": 163e12,
}
# The white paper gives two contradictory rates of TF32, which is therefore left out.
_MI325X = {
    "dram": 6e12,
    "link.h2d": _PCIE_GEN5_X16,
    "link.peer": 64e9,
    "tensor.float16": 1307.4e12,
    "tensor.bfloat16": 1307.4e12,
    "tensor.float8": 2614.9e12,
    "tensor.int8": 2614.9e12,
    "float32": 163.4e12,
    "tensor.float64": 163.4e12,
    "float64": 81.7e12,
}
# AMD states the rates of 16 and 8 bits with two digits. The width of a link between GPUs is not stated.
_MI350X = {
    "dram": 8e12,
    "link.h2d": _PCIE_GEN5_X16,
    "tensor.float16": 2300e12,
    "tensor.bfloat16": 2300e12,
    "tensor.float8": 4600e12,
    "tensor.int8": 4600e12,
    "float32": 144.2e12,
    "tensor.float64": 72.1e12,
    "float64": 72.1e12,
}
_MI355X = {
    "dram": 8e12,
    "link.h2d": _PCIE_GEN5_X16,
    "tensor.float16": 2500e12,
    "tensor.bfloat16": 2500e12,
    "tensor.float8": 5000e12,
    "tensor.int8": 5000e12,
    "float32": 157.3e12,
    "tensor.float64": 78.6e12,
    "float64": 78.6e12,
}
_MI350_SOURCE = (
    "AMD Instinct MI350 Series microarchitecture, ROCm documentation "
    "(https://rocm.docs.amd.com/en/latest/reference/gpu-arch/mi350.html), dense rates"
)
# The rates of one die, which is a separate device: half of the 383, 95.7 and 47.9 TFLOP/s that the sheet gives for two.
_MI250X = {
    "dram": 1.6e12,
    "link.h2d": _PCIE_GEN4_X16,
    "tensor.float16": 191.5e12,
    "tensor.bfloat16": 191.5e12,
    "tensor.int8": 191.5e12,
    "float32": 47.85e12,
    "tensor.float64": 47.85e12,
    "float64": 23.95e12,
}

# The first sheet that matches is used.
DATA_SHEETS = (
    DataSheet(r"\bH200\b(?!.*(NVL|MIG))", _H200, _HOPPER),
    # Boards of 64, 94 and 96 GB are called H100 too. Their memory is another (HBM2e, or a sixth stack), and no document
    # of NVIDIA's that states its bandwidth was found: they have no data sheet here.
    DataSheet(r"\bH100\b(?!.*(PCIe|NVL|MIG|64 ?GB|94 ?GB|96 ?GB))", _H100, _HOPPER, memory_gb=(75.0, 90.0)),
    DataSheet(r"\bA100\b.*SXM.*80(?!.*MIG)", _A100, "NVIDIA A100 80 GB SXM data sheet, dense rates"),
    DataSheet(
        r"\bB200\b(?!.*MIG)",
        _B200,
        "an eighth of NVIDIA HGX B200 (https://www.nvidia.com/en-us/data-center/hgx/), dense rates",
    ),
    DataSheet(
        r"\bL40S\b", _L40S, "NVIDIA L40S data sheet (https://www.nvidia.com/en-us/data-center/l40s/), dense rates"
    ),
    DataSheet(
        r"\bRTX 4090\b(?! (D|Laptop)\b)",
        _RTX_4090,
        f"NVIDIA Ada GPU architecture v2.02, appendix A ({_NVIDIA}/ada/nvidia-ada-gpu-architecture.pdf), dense rates",
    ),
    DataSheet(
        r"\bRTX 5090\b(?! (D|Laptop)\b)",
        _RTX_5090,
        "NVIDIA RTX Blackwell GPU architecture, table 3 "
        f"({_NVIDIA}/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf), dense rates",
    ),
    DataSheet(
        r"\bRTX PRO 6000 Blackwell Workstation\b",
        _RTX_PRO_6000,
        "NVIDIA RTX PRO Blackwell GPU architecture v1.0, table 4, dense rates",
    ),
    DataSheet(
        r"\bRTX PRO 6000 Blackwell Server\b",
        {"dram": 1.597e12, "link.h2d": _PCIE_GEN5_X16, "float32": 120e12},
        "NVIDIA RTX PRO 6000 Blackwell Server Edition data sheet, December 2025, page 3",
    ),
    DataSheet(r"\bMI300X\b", _MI300X, "AMD Instinct MI300X data sheet, dense rates", units=304),
    DataSheet(
        r"\bMI325X\b",
        _MI325X,
        "AMD CDNA 3 white paper, table 1 and the sections on memory and communication "
        "(https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/white-papers/amd-cdna-3-white-paper.pdf)",
        units=304,
    ),
    DataSheet(r"\bMI350X\b", _MI350X, _MI350_SOURCE, units=256),
    DataSheet(r"\bMI355X\b", _MI355X, _MI350_SOURCE, units=256),
    DataSheet(
        r"\bMI250X\b",
        _MI250X,
        "half of the AMD Instinct MI250X data sheet, dense rates; MI250 microarchitecture, ROCm documentation",
    ),
)


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
