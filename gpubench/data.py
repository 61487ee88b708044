"""Tables with sources. A peak is the vendor's data-sheet figure ("spec"), dense, at its boost clock."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpubench.model import Device


@dataclass(frozen=True, slots=True)
class Peak:
    """A limit in SI units and where the figure is from."""

    value: float
    source: str


_HOPPER = "NVIDIA H100/H200 SXM data sheet, dense rates"
_AMPERE = "NVIDIA A100 80 GB SXM data sheet, dense rates"
_CDNA3 = "AMD Instinct MI300X data sheet, dense rates"
_PCIE = "PCI Express base specification: GT/s x 16 lanes x 128/130"

_H100_RATES = {
    "tensor.float16": 989e12,
    "tensor.bfloat16": 989e12,
    "tensor.tf32": 494e12,
    "tensor.float8": 1979e12,
    "tensor.int8": 1979e12,
    "float32": 67e12,
    "tensor.float64": 67e12,
    "float64": 34e12,
}
_A100_RATES = {
    "tensor.float16": 312e12,
    "tensor.bfloat16": 312e12,
    "tensor.tf32": 156e12,
    "tensor.int8": 624e12,
    "float32": 19.5e12,
    "tensor.float64": 19.5e12,
    "float64": 9.7e12,
}
_MI300X_RATES = {
    "tensor.float16": 1307e12,
    "tensor.bfloat16": 1307e12,
    "tensor.tf32": 654e12,
    "tensor.float8": 2610e12,
    "float32": 163e12,
    "tensor.float64": 163e12,
}
_PCIE_GEN5_X16 = 32e9 * 16 * 128 / 130 / 8
_PCIE_GEN4_X16 = _PCIE_GEN5_X16 / 2

# Device name pattern → (limits in SI units, source). The first that matches is used.
_MODELS: tuple[tuple[str, dict[str, float], str], ...] = (
    (
        r"\bH200\b(?!.*(NVL|MIG))",
        {"dram": 4.8e12, "link.h2d": _PCIE_GEN5_X16, "link.peer": 450e9, **_H100_RATES},
        _HOPPER,
    ),
    (
        r"\bH100\b(?!.*(PCIe|NVL|MIG))",
        {"dram": 3.35e12, "link.h2d": _PCIE_GEN5_X16, "link.peer": 450e9, **_H100_RATES},
        _HOPPER,
    ),
    (
        r"\bA100\b.*SXM.*80(?!.*MIG)",
        {"dram": 2.039e12, "link.h2d": _PCIE_GEN4_X16, "link.peer": 300e9, **_A100_RATES},
        _AMPERE,
    ),
    (r"\bMI300X\b", {"dram": 5.3e12, "link.h2d": _PCIE_GEN5_X16, "link.peer": 64e9, **_MI300X_RATES}, _CDNA3),
)


def peak(device: Device, limit: str) -> Peak | None:
    """The spec of one limit of this device, or None where no table has it (never a guess)."""
    for pattern, rates, source in _MODELS:
        if re.search(pattern, device.name):
            if limit not in rates:
                return None
            return Peak(rates[limit], _PCIE if limit == "link.h2d" else source)
    return None
