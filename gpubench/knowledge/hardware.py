"""Look up peaks of hardware in tables with sources: data sheets, and the rates of a compute unit per clock cycle."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from gpubench.knowledge.data_sheets import Sheet, data_sheets, tables
from gpubench.model import Architecture, Device


@dataclass(frozen=True, slots=True)
class Peak:
    """A hardware limit in SI units (or bytes and operations per clock cycle), with the source of the figure."""

    value: float
    source: str


def peak(device: Device, limit: str) -> Peak | None:
    """Return the data sheet's peak of a device in SI units; None if no table has it, because it is never guessed.

    `limit` is the id of the peak, such as `dram`, `link.h2d` or `tensor.float16` (`gpubench.model.LIMITS`)."""
    sheet = _sheet_of(device)
    name = "link.h2d" if limit == "link.d2h" else limit  # each direction has its own lanes
    if sheet is None:
        return None
    details = dict(device.details)
    if name == "link.h2d" and "memory.integrated" in details and "dram" in sheet.peaks:
        source = f"half of the one memory that host and GPU share, which a copy reads and writes: {sheet.source}"
        return Peak(sheet.peaks["dram"] / 2, source)
    if name not in sheet.peaks:
        return None
    if name == "link.h2d":  # the devices of a split card share the link, and each can use all of it
        return Peak(sheet.peaks[name], sheet.source_of(name))
    if device.kind == "mig":
        return _peak_of_mig(sheet, device, name)
    if details.get("partition.compute", "SPX") != "SPX":
        return _peak_of_partition(sheet, device, name, details.get("partition.memory", ""))
    return Peak(sheet.peaks[name], sheet.source_of(name))


def address_of(device: Device) -> str:
    """Return the address of a device's data sheet, or of a public text that quotes it; empty without a sheet."""
    sheet = _sheet_of(device)
    return sheet.address if sheet else ""


def _sheet_of(device: Device) -> Sheet | None:
    return next((sheet for sheet in data_sheets() if sheet.is_of(device)), None)


def _peak_of_mig(sheet: Sheet, device: Device, limit: str) -> Peak | None:
    """Return the peak of a MIG instance: its slices of the memory, or its SMs of the card's; None if unknown."""
    if limit == "dram" and sheet.board_gb:
        share = sheet.mig_share(device.name)
        return Peak(sheet.peaks[limit] * share, f"{share * 8:.0f} of 8 slices of memory of {sheet.source_of(limit)}")
    if limit == "dram" or limit.startswith("link."):  # an instance has no peers
        return None
    return _share_of_units(sheet, device, limit)


def _peak_of_partition(sheet: Sheet, device: Device, limit: str, memory: str) -> Peak | None:
    """Return the peak of one device of a partitioned AMD card (CDNA 3 white paper, "partitioning"); None if unknown."""
    if limit == "dram" and re.fullmatch(r"NPS[1-8]", memory):
        return Peak(sheet.peaks[limit] / int(memory[3:]), f"{memory}, of {sheet.source_of(limit)}")
    return None if limit == "dram" or limit.startswith("link.") else _share_of_units(sheet, device, limit)


def _share_of_units(sheet: Sheet, device: Device, limit: str) -> Peak | None:
    if not (device.units and sheet.units):
        return None
    source = f"{device.units} of {sheet.units} compute units of {sheet.source_of(limit)}"
    return Peak(sheet.peaks[limit] * device.units / sheet.units, source)


# Architectures whose memory moves two words per pin and cycle of the clock that the driver reports: 2 x 1593 MHz x
# 5120 bit is the A100's 2.04 TB/s, 2 x 2619 MHz x 5120 bit the H100's 3.35, 2 x 1600 MHz x 4096 bit a die of the
# MI250X. The MI300X reports another clock (1300 MHz for 5.2 Gbit/s): left out.
_DOUBLE_RATE = Architecture.parse("gfx90a")


def _rates(architecture: Architecture) -> tuple[dict[str, float], str]:
    row = _by_architecture("clock").get(architecture, {})
    return row.get("rates", {}), row.get("source", "")


@cache
def _by_architecture(table: str) -> dict[Architecture, Any]:
    return {Architecture.parse(name): row for name, row in tables()[table].items()}


def per_clock(device: Device, limit: str) -> Peak | None:
    """Return the operations of one SM or CU of this device per clock cycle, for `shared` the bytes; None if unknown.

    `limit` is the id of a peak, such as `tensor.float16`; a fused multiply-add counts as two operations."""
    rates, source = _rates(device.architecture)
    return Peak(float(rates[limit]), source) if limit in rates else None


def per_clock_limits(arch: str) -> tuple[str, ...]:
    """Return the ids of the peaks that the table has for this architecture (`sm_90`, `gfx942`)."""
    return tuple(_rates(Architecture.parse(arch))[0])


def first_cache(device: Device) -> Peak | None:
    """Return the size of the first cache level of one SM or CU of this device in bytes; None if no table has it."""
    kib = _by_architecture("first_cache_kib").get(device.architecture)
    if kib is None:
        return None
    is_nvidia = device.architecture.vendor == "nvidia"
    unified = "one memory with shared memory (CUDA Programming Guide)"
    vector = "vector L1 (AMD Instinct microarchitecture, ROCm documentation)"
    return Peak(kib * 1024, f"size in this architecture, {unified if is_nvidia else vector}")


def bytes_per_memory_clock(device: Device) -> Peak | None:
    """Return the bytes that the device's memory moves per memory clock cycle, 2 × bus width / 8; None if unknown.

    It is unknown without a bus width, and for architectures whose memory moves other than two words per cycle."""
    bits = dict(device.details).get("memory.bus_bits", "")
    if not bits.isdigit() or not (device.architecture.vendor == "nvidia" or device.architecture == _DOUBLE_RATE):
        return None
    return Peak(2 * int(bits) / 8, f"2 × {bits} bit, as the driver reports the bus")
