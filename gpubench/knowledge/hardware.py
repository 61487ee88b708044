"""Look up peaks of hardware in tables with sources: data sheets, and the rates of a compute unit per clock cycle."""

import re
from dataclasses import dataclass

from gpubench.knowledge.data_sheets import DATA_SHEETS, PCIE_SOURCE, DataSheet
from gpubench.model import Device


@dataclass(frozen=True, slots=True)
class Peak:
    """A hardware limit in SI units (or bytes and operations per clock cycle), with the source of the figure."""

    value: float
    source: str


def peak(device: Device, limit: str) -> Peak | None:
    """Return the data sheet's peak of a device in SI units; None if no table has it, because it is never guessed.

    `limit` is the id of the peak, such as `dram`, `link.h2d` or `tensor.float16` (`gpubench.model.LIMITS`)."""
    sheet = next((sheet for sheet in DATA_SHEETS if sheet.is_of(device.name, device.memory_bytes)), None)
    name = "link.h2d" if limit == "link.d2h" else limit  # each direction has its own lanes
    if sheet is None or name not in sheet.peaks:
        return None
    if name == "link.h2d":  # the devices of a split card share the link, and each can use all of it
        return Peak(sheet.peaks[name], PCIE_SOURCE)
    details = dict(device.details)
    if details.get("partition.compute", "SPX") != "SPX":
        return _peak_of_partition(sheet, device, name, details.get("partition.memory", ""))
    return Peak(sheet.peaks[name], sheet.source)


def _peak_of_partition(sheet: DataSheet, device: Device, limit: str, memory: str) -> Peak | None:
    """Return the peak of one device of a partitioned AMD card (CDNA 3 white paper, "partitioning"); None if unknown."""
    if limit == "dram" and re.fullmatch(r"NPS[1-8]", memory):
        return Peak(sheet.peaks[limit] / int(memory[3:]), f"{memory}, of {sheet.source}")
    if limit == "dram" or limit.startswith("link.") or not (device.units and sheet.units):
        return None
    source = f"{device.units} of {sheet.units} compute units of {sheet.source}"
    return Peak(sheet.peaks[limit] * device.units / sheet.units, source)


# Dense operations of one SM or CU per clock cycle; a fused multiply-add counts as two.
_AMPERE_CLOCK = {
    "tensor.float16": 2048.0,
    "tensor.bfloat16": 2048.0,
    "tensor.tf32": 1024.0,
    "tensor.int8": 4096.0,
    "float16": 512.0,
    "float32": 128.0,
    "int32": 128.0,
    "tensor.float64": 128.0,
    "float64": 64.0,
}
_HOPPER_CLOCK = {
    "tensor.float16": 4096.0,
    "tensor.bfloat16": 4096.0,
    "tensor.tf32": 2048.0,
    "tensor.float8": 8192.0,
    "tensor.int8": 8192.0,
    "float16": 512.0,
    "float32": 256.0,
    "int32": 128.0,
    "tensor.float64": 256.0,
    "float64": 128.0,
}
_CDNA2_CLOCK = {
    "tensor.float16": 1024.0,
    "tensor.bfloat16": 1024.0,
    "tensor.int8": 1024.0,
    "float32": 256.0,  # the rate of matrix instructions; packed vector instructions reach it too
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
# 2·M·N·K operations of an instruction over its cycles, times the four matrix cores of a CU
_CDNA4_CLOCK = {
    "tensor.float16": 4096.0,
    "tensor.bfloat16": 4096.0,
    "tensor.float8": 8192.0,
    "float32": 256.0,
    "tensor.float64": 128.0,
}
_SHARED_CLOCK = {"shared": 128.0}  # bytes: 32 banks of 4 bytes

# Architecture → (operations or bytes per clock cycle of one SM or CU, source).
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
    "gfx950": (
        _CDNA4_CLOCK,
        "AMD, Matrix Core Programming on CDNA 3 and CDNA 4 (ROCm blogs, 2025), cycles of matrix instructions",
    ),
}
# Architectures whose memory moves two words per pin and cycle of the clock that the driver reports: 2 x 1593 MHz x
# 5120 bit is the A100's 2.04 TB/s, 2 x 2619 MHz x 5120 bit the H100's 3.35, 2 x 1600 MHz x 4096 bit a die of the
# MI250X. The MI300X reports another clock (1300 MHz for 5.2 Gbit/s): left out.
_DOUBLE_RATE = ("gfx90a",)


def per_clock(device: Device, limit: str) -> Peak | None:
    """Return the operations of one SM or CU of this device per clock cycle, for `shared` the bytes; None if unknown.

    `limit` is the id of a peak, such as `tensor.float16`; a fused multiply-add counts as two operations."""
    rates, source = _CLOCKS.get(device.arch, ({}, ""))
    return Peak(rates[limit], source) if limit in rates else None


def per_clock_limits(arch: str) -> tuple[str, ...]:
    """Return the ids of the peaks that the table has for this architecture (`sm_90`, `gfx942`)."""
    return tuple(_CLOCKS.get(arch, ({}, ""))[0])


# The unified L1 and shared memory of one SM, in bytes.
_UNIFIED_L1: dict[str, int] = {"sm_80": 192 * 1024, "sm_89": 128 * 1024, "sm_90": 256 * 1024}
# The vector L1 of one CU, in bytes.
_VECTOR_L1: dict[str, int] = {"gfx90a": 16 * 1024, "gfx942": 32 * 1024, "gfx950": 32 * 1024}


def first_cache(device: Device) -> Peak | None:
    """Return the size of the first cache level of one SM or CU of this device in bytes; None if no table has it."""
    if device.arch in _UNIFIED_L1:
        return Peak(
            _UNIFIED_L1[device.arch],
            "size in this architecture, one memory with shared memory (CUDA Programming Guide)",
        )
    if device.arch in _VECTOR_L1:
        return Peak(
            _VECTOR_L1[device.arch], "size in this architecture (AMD Instinct microarchitecture, ROCm documentation)"
        )
    return None


def bytes_per_memory_clock(device: Device) -> Peak | None:
    """Return the bytes that the device's memory moves per memory clock cycle, 2 × bus width / 8; None if unknown.

    It is unknown without a bus width, and for architectures whose memory moves other than two words per cycle."""
    bits = dict(device.details).get("memory.bus_bits", "")
    if not bits.isdigit() or not (device.architecture.vendor == "nvidia" or device.arch in _DOUBLE_RATE):
        return None
    return Peak(2 * int(bits) / 8, f"2 × {bits} bit, as the driver reports the bus")
