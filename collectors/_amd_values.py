"""Define AMD's counters, and recognise the numbers that stand for a missing value."""

import math

from gpubench.api import collector as gb

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
    gb.Counter("amd.power", "W", "gauge", _FAST_S, _smi("-p", "--showpower"), gb.Measure.BOARD_POWER),
    gb.Counter("amd.clock.gfx", "Hz", "gauge", _FAST_S, _smi("-c", "--showclocks"), gb.Measure.CORE_CLOCK),
    gb.Counter("amd.clock.memory", "Hz", "gauge", _FAST_S, _smi("-c", "--showclocks"), gb.Measure.MEMORY_CLOCK),
    gb.Counter("amd.temperature.hotspot", "°C", "gauge", _FAST_S, _smi("-t", "--showtemp"), gb.Measure.TEMPERATURE),
    gb.Counter(
        "amd.temperature.memory", "°C", "gauge", _FAST_S, _smi("-t", "--showtemp"), gb.Measure.MEMORY_TEMPERATURE
    ),
    gb.Counter("amd.utilization.gfx", "%", "window", _FAST_S, _smi("-u", "--showuse"), gb.Measure.BUSY),
    gb.Counter("amd.utilization.memory", "%", "window", _FAST_S, _smi("-u", "--showmemuse")),
    gb.Counter("amd.dram", "%", "window", _FAST_S, _smi("-u", "--showmemuse"), gb.Measure.DRAM_SHARE),
    gb.Counter("amd.memory.used", "B", "gauge", _FAST_S, _smi("-m", "--showmeminfo vram"), gb.Measure.MEMORY_USED),
    gb.Counter("amd.energy", "J", "cumulative", _SLOW_S, _smi("-E", "--showenergycounter"), gb.Measure.ENERGY),
    gb.Counter("amd.pcie.replays", "replays", "cumulative", _SLOW_S, _smi("-P", "--showreplaycount")),
    gb.Counter(
        "amd.throttle",
        "bit mask",
        "event",
        _FAST_S,
        _smi("-v", "--showmetrics (indep_throttle_status)"),
        gb.Measure.THROTTLE_REASONS,
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
