"""Tables with sources: what vendors specify, dense rates at the boost clock, and what a unit does in a clock."""

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
    name = "link.h2d" if limit == "link.d2h" else limit  # both directions have lanes of their own
    for pattern, rates, source in _MODELS:
        if re.search(pattern, device.name):
            if name not in rates:
                return None
            return Peak(rates[name], _PCIE if name == "link.h2d" else source)
    return None


# Dense operations of one multiprocessor or compute unit in one clock; a fused multiply-add is two.
_AMPERE_CLOCK = {
    "tensor.float16": 2048.0,
    "tensor.bfloat16": 2048.0,
    "tensor.tf32": 1024.0,
    "tensor.int8": 4096.0,
    "float32": 128.0,
    "tensor.float64": 128.0,
    "float64": 64.0,
}
_HOPPER_CLOCK = {
    "tensor.float16": 4096.0,
    "tensor.bfloat16": 4096.0,
    "tensor.tf32": 2048.0,
    "tensor.float8": 8192.0,
    "tensor.int8": 8192.0,
    "float32": 256.0,
    "tensor.float64": 256.0,
    "float64": 128.0,
}
_CDNA2_CLOCK = {
    "tensor.float16": 1024.0,
    "tensor.bfloat16": 1024.0,
    "tensor.int8": 1024.0,
    "float32": 256.0,  # matrix; vector instructions reach it packed
    "tensor.float64": 256.0,
    "float64": 128.0,
}
_CDNA3_CLOCK = {
    "tensor.float16": 2048.0,
    "tensor.bfloat16": 2048.0,
    "tensor.tf32": 1024.0,
    "tensor.float8": 4096.0,
    "tensor.int8": 4096.0,
    "float32": 256.0,
    "tensor.float64": 256.0,
    "float64": 128.0,
}
_SHARED_CLOCK = {"shared": 128.0}  # bytes: 32 banks of 4 bytes

# Architecture → (operations or bytes a clock and unit, source).
_CLOCKS: dict[str, tuple[dict[str, float], str]] = {
    "sm_80": (
        _AMPERE_CLOCK | _SHARED_CLOCK,
        "NVIDIA A100 white paper, dense tensor core rates; CUDA Programming Guide",
    ),
    "sm_89": ({"float32": 256.0} | _SHARED_CLOCK, "CUDA Programming Guide, throughput of arithmetic instructions"),
    "sm_90": (
        _HOPPER_CLOCK | _SHARED_CLOCK,
        "NVIDIA H100 white paper, dense tensor core rates; CUDA Programming Guide",
    ),
    "gfx90a": (_CDNA2_CLOCK | _SHARED_CLOCK, "AMD Instinct MI250 microarchitecture, ROCm documentation"),
    "gfx942": (_CDNA3_CLOCK | _SHARED_CLOCK, "AMD Instinct MI300 microarchitecture, ROCm documentation"),
}
# Architectures whose memory moves two words a clock and pin at the clock that the driver reports: 2 x 1593 MHz x
# 5120 bit is the A100's 2.04 TB/s, 2 x 2619 MHz x 5120 bit the H100's 3.35, 2 x 1600 MHz x 4096 bit a die of the
# MI250X. The MI300X reports another clock (1300 MHz for 5.2 Gbit/s): left out.
_DOUBLE_RATE = ("sm_", "gfx90a")


def per_clock(device: Device, limit: str) -> Peak | None:
    """Operations (of `shared`: bytes) that one unit of this device does in one clock, or None where no table has it."""
    rates, source = _CLOCKS.get(device.arch, ({}, ""))
    return Peak(rates[limit], source) if limit in rates else None


def per_clock_limits(arch: str) -> tuple[str, ...]:
    """The limits that the table of this architecture has."""
    return tuple(_CLOCKS.get(arch, ({}, ""))[0])


# The unified L1 and shared memory of one multiprocessor, bytes.
_UNIFIED_L1: dict[str, int] = {"sm_80": 192 * 1024, "sm_89": 128 * 1024, "sm_90": 256 * 1024}
# The vector L1 of one compute unit, bytes.
_VECTOR_L1: dict[str, int] = {"gfx90a": 16 * 1024, "gfx942": 32 * 1024}


def first_cache(device: Device) -> Peak | None:
    """The size of the first cache of one unit of this device, bytes, or None where no table has it."""
    if device.arch in _UNIFIED_L1:
        return Peak(
            _UNIFIED_L1[device.arch], "the architecture's, one array with shared memory (CUDA Programming Guide)"
        )
    if device.arch in _VECTOR_L1:
        return Peak(_VECTOR_L1[device.arch], "the architecture's (AMD Instinct microarchitecture, ROCm documentation)")
    return None


def bytes_per_memory_clock(device: Device) -> Peak | None:
    """Bytes that its memory moves in one of its clocks, 2 x bus width / 8; None where that is not known."""
    bits = dict(device.details).get("memory.bus_bits", "")
    if not bits.isdigit() or not device.arch.startswith(_DOUBLE_RATE):
        return None
    return Peak(2 * int(bits) / 8, f"2 × {bits} bit, as the driver reports the bus")
