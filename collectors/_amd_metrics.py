"""Parse the table gpu_metrics of the driver amdgpu, which the GPU's firmware fills (Linux kernel, kgd_pp_interface.h).

Accelerators use format 1; its content revision says where each field is. A field that a firmware does not fill has all
bits set and reads as None."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from ._amd_events import HBM_THERMAL, PACKAGE_POWER, PROCHOT, SOCKET_THERMAL, VR_THERMAL

# One step of energy_accumulator, 2⁻¹⁶ J
ENERGY_STEP_J = 2.0**-16
_HEADER = struct.Struct("<HBB")
_MEGA = 1e6
# The reasons whose residencies gpu_metrics has from revision 6 on, in its order
RESIDENCIES = (PROCHOT, PACKAGE_POWER, SOCKET_THERMAL, VR_THERMAL, HBM_THERMAL)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The places of the fields of a content revision, in bytes from the beginning; 0 stands for a missing field.

    `size` is the size of the table in bytes, and `energy` the place of the energy."""

    size: int
    energy: int
    clocks: tuple[int, int]  # the index of the first clock, and their number
    throttle: int = 0
    residencies: int = 0
    dram: int = 0


# On the MI200 (revision 3) average_umc_activity is how busy the memory's clock domain is (AverageUclkActivity), from
# revision 4 on the used share of the bandwidth (DramBandwidthUtilization): aldebaran_ppt.c, smu_v13_0_6_ppt.c.
# Revisions 4 and 5 have a throttle status that smu_v13_0_6_ppt.c always leaves 0.
_LAYOUTS: Mapping[int, _Layout] = {
    1: _Layout(96, 24, (54, 1)),
    2: _Layout(104, 24, (54, 1)),
    3: _Layout(120, 24, (54, 1), throttle=112),
    4: _Layout(288, 24, (240, 8), dram=14),
    5: _Layout(360, 88, (312, 8), dram=14),
    6: _Layout(1664, 16, (264, 8), residencies=36, dram=14),
    7: _Layout(2208, 24, (296, 8), residencies=44, dram=14),
    8: _Layout(3360, 24, (296, 8), residencies=44, dram=14),
}


@dataclass(frozen=True, slots=True)
class GpuMetrics:
    """The values of one table; a field that the revision or the firmware does not have is None.

    `energy_steps` count ENERGY_STEP_J, `reasons` is the mask of throttle reasons (_amd_events), and `residencies` are
    the cycles of the firmware during which each of RESIDENCIES held."""

    energy_steps: int | None
    clock_hz: float | None
    reasons: int | None
    residencies: tuple[int, ...] | None
    dram_percent: int | None


def parsed(table: bytes) -> GpuMetrics | None:
    """Return the values of the table gpu_metrics, given as its bytes.

    The result is None if the table is truncated or of an unknown revision."""
    if len(table) < _HEADER.size:
        return None
    size, form, content = _HEADER.unpack_from(table)
    layout = _LAYOUTS.get(content) if form == 1 else None
    if layout is None or size != len(table) or size < layout.size:
        return None
    first, count = layout.clocks
    clocks = [mhz for place in range(count) if (mhz := _unpack_field("<H", table, first + 2 * place)) is not None]
    counted = [_unpack_field("<I", table, layout.residencies + 4 * place) for place in range(len(RESIDENCIES))]
    has_residencies = layout.residencies and any(cycles is not None for cycles in counted)
    return GpuMetrics(
        energy_steps=_unpack_field("<Q", table, layout.energy),
        clock_hz=sum(clocks) / len(clocks) * _MEGA if clocks else None,
        reasons=_unpack_field("<Q", table, layout.throttle) if layout.throttle else None,
        residencies=tuple(cycles or 0 for cycles in counted) if has_residencies else None,
        dram_percent=_unpack_field("<H", table, layout.dram) if layout.dram else None,
    )


def _unpack_field(form: str, table: bytes, place: int) -> int | None:
    """Return the number at the byte `place` of the table, in the form of `struct`; None if all its bits are set."""
    raw = table[place : place + struct.calcsize(form)]
    return None if raw == b"\xff" * len(raw) else int(struct.unpack(form, raw)[0])


class ThrottleReasons:
    """The throttle reasons of one GPU between two tables.

    An MI200 has a mask of the reasons that hold now."""

    def __init__(self) -> None:
        self._last: tuple[int, ...] | None = None

    def since(self, metrics: GpuMetrics) -> int | None:
        """Return the mask of the reasons that held since the last call; None if this firmware does not report them.

        `metrics` are the values of the newest table."""
        if metrics.residencies is None:
            return metrics.reasons
        last, self._last = self._last or metrics.residencies, metrics.residencies
        rises = zip(RESIDENCIES, last, metrics.residencies, strict=True)
        return sum(bit for bit, before, now in rises if now != before)
