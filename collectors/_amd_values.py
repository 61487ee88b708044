"""Define AMD's counters, and recognise the numbers that stand for a missing value."""

from __future__ import annotations

import math

from gpubench.api.collector import Counter, Measure

from ._amd_events import BITS

_FAST_S = 0.1
_SLOW_S = 0.5
_ALL_ONES = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
# A larger number is a scaled sentinel (0xffffffff µW are 4295 W), not a reading.
_MOST = {"W": 4000.0, "°C": 150.0, "Hz": 1e10, "%": 100.0}


def _smi(amd: str, rocm: str) -> str:
    """Return the command that shows a counter; `amd` and `rocm` are the options of amd-smi and of rocm-smi."""
    return f"amd-smi metric {amd} (or rocm-smi {rocm})"


COUNTERS = (
    Counter("amd.power", "W", "gauge", _FAST_S, _smi("-p", "--showpower"), Measure.BOARD_POWER),
    Counter("amd.clock.gfx", "Hz", "gauge", _FAST_S, _smi("-c", "--showclocks"), Measure.CORE_CLOCK),
    Counter("amd.clock.memory", "Hz", "gauge", _FAST_S, _smi("-c", "--showclocks"), Measure.MEMORY_CLOCK),
    Counter("amd.temperature.hotspot", "°C", "gauge", _FAST_S, _smi("-t", "--showtemp"), Measure.TEMPERATURE),
    Counter("amd.temperature.memory", "°C", "gauge", _FAST_S, _smi("-t", "--showtemp"), Measure.MEMORY_TEMPERATURE),
    Counter("amd.utilization.gfx", "%", "window", _FAST_S, _smi("-u", "--showuse"), Measure.BUSY),
    Counter("amd.utilization.memory", "%", "window", _FAST_S, _smi("-u", "--showmemuse")),
    Counter("amd.dram", "%", "window", _FAST_S, _smi("-u", "--showmemuse"), Measure.DRAM_SHARE),
    Counter("amd.memory.used", "B", "gauge", _FAST_S, _smi("-m", "--showmeminfo vram"), Measure.MEMORY_USED),
    Counter("amd.energy", "J", "cumulative", _SLOW_S, _smi("-E", "--showenergycounter"), Measure.ENERGY),
    Counter("amd.pcie.replays", "replays", "cumulative", _SLOW_S, _smi("-P", "--showreplaycount")),
    Counter(
        "amd.throttle",
        "bit mask",
        "event",
        _FAST_S,
        _smi("-v", "--showmetrics (indep_throttle_status)"),
        Measure.THROTTLE_REASONS,
        BITS,
    ),
)
UNITS = {counter.name: counter.unit for counter in COUNTERS}


def valid(name: str, value: object, scale: float = 1.0) -> float | None:
    """Return the value of the counter `name` in its unit, `value` times `scale`; None for a missing value.

    A value is missing if it is text (`N/A`), a negative number (AMD's libraries return -1 for an error), a word of
    16, 32 or 64 ones, more than a GPU can reach, or 0 bytes of used memory, AMD's library's answer without the file."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if value < 0 or value in _ALL_ONES:
        return None
    scaled = value * scale
    if scaled > _MOST.get(UNITS[name], math.inf) or (name == "amd.memory.used" and not scaled):
        return None
    return float(scaled)
