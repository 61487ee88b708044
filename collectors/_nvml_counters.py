"""Define NVML's counters: each with the command that shows the same number, and a function that reads it.

Periods follow the duration of a call, as measured on an H200 with driver 580: a few microseconds for most, 3 ms for
the energy, 0.9 ms for a violation time, 3 ms for a direction of all 18 NVLinks, 21 ms for a direction of PCIe."""

from collections.abc import Callable
from typing import Any

from gpubench.api import collector as gb

from ._nvml import Turns, fast, slow, slowest
from ._nvml_events import BITS
from ._nvml_watch import event_reasons, field, instant_power_w, sm_clock_hz

Reader = Callable[[Any, Any], float]

XID = "nvml.xid.errors"  # read from a set of events that the source holds

_FAST_S = 0.1
_LINK_S = 0.25
_ENERGY_S = 0.5
_STATE_S = 1.0
_PCIE_S = 2.0
_KIB, _MILLI, _NANO = 1024, 1e-3, 1e-9
_EVERY_LINK = 0xFFFFFFFF  # nvml.h: the sum over all links


def _query_command(name: str) -> str:
    """Return the command that shows the field `name` of nvidia-smi."""
    return f"nvidia-smi --query-gpu={name} --format=csv"


def _clock(name: str) -> Reader:
    """Return a reader of a clock in hertz; `name` is its constant in pynvml, such as NVML_CLOCK_MEM."""
    return lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, getattr(nvml, name)) * 1e6


def _nvlink(name: str) -> Reader:
    """Return a reader of the bytes over all NVLinks since the driver was loaded: data without protocol."""
    return lambda nvml, gpu: float(field(nvml, gpu, getattr(nvml, name), _EVERY_LINK).ullVal) * _KIB


def _violation(name: str) -> Reader:
    """Return a reader of the seconds since the driver was loaded in which a policy lowered the clocks."""
    return lambda nvml, gpu: nvml.nvmlDeviceGetViolationStatus(gpu, getattr(nvml, name)).violationTime * _NANO


def _ecc(name: str) -> Reader:
    """Return a reader of the number of memory errors since the driver was loaded."""
    return lambda nvml, gpu: float(nvml.nvmlDeviceGetTotalEccErrors(gpu, getattr(nvml, name), nvml.NVML_VOLATILE_ECC))


def _remapped(place: int) -> Reader:
    """Return a reader of one value of nvmlDeviceGetRemappedRows, by its index in NVML's answer."""
    return lambda nvml, gpu: float(nvml.nvmlDeviceGetRemappedRows(gpu)[place])


def _pcie(name: str) -> Reader:
    """Return a reader of the PCIe traffic in bytes per second over 20 ms; NVML counts in units of 1000 bytes."""
    return lambda nvml, gpu: float(nvml.nvmlDeviceGetPcieThroughput(gpu, getattr(nvml, name))) * 1000


# What each counter measures; the other counters are stored and displayed only.
_MEASURES = {
    "power": gb.Measure.BOARD_POWER,
    "clock.sm": gb.Measure.CORE_CLOCK,
    "clock.memory": gb.Measure.MEMORY_CLOCK,
    "temperature": gb.Measure.TEMPERATURE,
    "temperature.memory": gb.Measure.MEMORY_TEMPERATURE,
    "utilization.gpu": gb.Measure.BUSY,
    "memory.used": gb.Measure.MEMORY_USED,
    "event_reasons": gb.Measure.THROTTLE_REASONS,
    "nvlink.tx": gb.Measure.NVLINK_SENT,
    "nvlink.rx": gb.Measure.NVLINK_RECEIVED,
    "energy": gb.Measure.ENERGY,
    "pcie.tx": gb.Measure.PCIE_SENT,
    "pcie.rx": gb.Measure.PCIE_RECEIVED,
}


def _counter(name: str, unit: str, kind: gb.CounterKind, period_s: float, command: str) -> gb.Counter:
    """Return the counter `nvml.` + `name`, with its measure; `command` shows the same number."""
    bits = BITS if kind == "event" else ()
    return gb.Counter(f"nvml.{name}", unit, kind, period_s, command, _MEASURES.get(name, gb.Measure.OTHER), bits)


def _gauge(name: str, unit: str, period_s: float, command: str, reader: Reader) -> tuple[gb.Counter, Reader]:
    """Return a counter of a momentary value, with its reader."""
    return _counter(name, unit, "gauge", period_s, command), reader


def _sum(name: str, unit: str, period_s: float, command: str, reader: Reader) -> tuple[gb.Counter, Reader]:
    return _counter(name, unit, "cumulative", period_s, command), reader


def _window(name: str, unit: str, period_s: float, command: str, reader: Reader) -> tuple[gb.Counter, Reader]:
    """Return a counter of a mean over NVML's own window, with its reader."""
    return _counter(name, unit, "window", period_s, command), reader


def _rows_command(name: str) -> str:
    """Return the command that shows a field of the remapped rows."""
    return f"nvidia-smi --query-remapped-rows=remapped_rows.{name} --format=csv"


_FAST = (
    _gauge("power", "W", _FAST_S, _query_command("power.draw.instant"), instant_power_w),
    _gauge("clock.sm", "Hz", _FAST_S, _query_command("clocks.sm"), sm_clock_hz),
    _gauge("clock.graphics", "Hz", _FAST_S, _query_command("clocks.gr"), _clock("NVML_CLOCK_GRAPHICS")),
    _gauge("clock.memory", "Hz", _FAST_S, _query_command("clocks.mem"), _clock("NVML_CLOCK_MEM")),
    _gauge("clock.video", "Hz", _FAST_S, _query_command("clocks.video"), _clock("NVML_CLOCK_VIDEO")),
    _gauge(
        "temperature",
        "°C",
        _FAST_S,
        _query_command("temperature.gpu"),
        lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    ),
    _gauge(
        "temperature.memory",
        "°C",
        _FAST_S,
        _query_command("temperature.memory"),
        lambda nvml, gpu: field(nvml, gpu, nvml.NVML_FI_DEV_MEMORY_TEMP).uiVal,
    ),
    _window(
        "utilization.gpu",
        "%",
        _FAST_S,
        _query_command("utilization.gpu"),
        lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    ),
    _window(
        "utilization.memory",
        "%",
        _FAST_S,
        _query_command("utilization.memory"),
        lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).memory,
    ),
    _window(
        "utilization.encoder",
        "%",
        _FAST_S,
        _query_command("utilization.encoder"),
        lambda nvml, gpu: nvml.nvmlDeviceGetEncoderUtilization(gpu)[0],
    ),
    _window(
        "utilization.decoder",
        "%",
        _FAST_S,
        _query_command("utilization.decoder"),
        lambda nvml, gpu: nvml.nvmlDeviceGetDecoderUtilization(gpu)[0],
    ),
    _gauge(
        "memory.used",
        "B",
        _FAST_S,
        _query_command("memory.used"),
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    ),
    (
        _counter("event_reasons", "bit mask", "event", _FAST_S, _query_command("clocks_event_reasons.active")),
        event_reasons,
    ),
    _sum("nvlink.tx", "B", _LINK_S, "nvidia-smi nvlink -gt d", _nvlink("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX")),
    _sum("nvlink.rx", "B", _LINK_S, "nvidia-smi nvlink -gt d", _nvlink("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX")),
)
_SLOWER = (
    _sum(
        "energy",
        "J",
        _ENERGY_S,
        "dcgmi dmon -e 156",
        lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) * _MILLI,
    ),
    _sum("violation.power", "s", _ENERGY_S, "dcgmi dmon -e 240", _violation("NVML_PERF_POLICY_POWER")),
    _sum("violation.thermal", "s", _ENERGY_S, "dcgmi dmon -e 241", _violation("NVML_PERF_POLICY_THERMAL")),
    _sum("violation.sync_boost", "s", _ENERGY_S, "dcgmi dmon -e 242", _violation("NVML_PERF_POLICY_SYNC_BOOST")),
    _sum("violation.board", "s", _ENERGY_S, "dcgmi dmon -e 243", _violation("NVML_PERF_POLICY_BOARD_LIMIT")),
    _sum("violation.reliability", "s", _ENERGY_S, "dcgmi dmon -e 245", _violation("NVML_PERF_POLICY_RELIABILITY")),
)
_STATE = (
    _gauge(
        "processes",
        "processes",
        _STATE_S,
        "nvidia-smi --query-compute-apps=pid --format=csv",
        lambda nvml, gpu: len(nvml.nvmlDeviceGetComputeRunningProcesses(gpu)),
    ),
    _sum(
        "ecc.corrected",
        "errors",
        _STATE_S,
        _query_command("ecc.errors.corrected.volatile.total"),
        _ecc("NVML_MEMORY_ERROR_TYPE_CORRECTED"),
    ),
    _sum(
        "ecc.uncorrected",
        "errors",
        _STATE_S,
        _query_command("ecc.errors.uncorrected.volatile.total"),
        _ecc("NVML_MEMORY_ERROR_TYPE_UNCORRECTED"),
    ),
    _gauge("remapped.correctable", "rows", _STATE_S, _rows_command("correctable"), _remapped(0)),
    _gauge("remapped.uncorrectable", "rows", _STATE_S, _rows_command("uncorrectable"), _remapped(1)),
    _gauge("remapped.pending", "0 or 1", _STATE_S, _rows_command("pending"), _remapped(2)),
    _gauge("remapped.failure", "0 or 1", _STATE_S, _rows_command("failure"), _remapped(3)),
    _sum(
        "pcie.replays",
        "replays",
        _STATE_S,
        "nvidia-smi -q -d PCIE",
        lambda nvml, gpu: nvml.nvmlDeviceGetPcieReplayCounter(gpu),
    ),
    _gauge(
        "pcie.generation",
        "generation",
        _STATE_S,
        _query_command("pcie.link.gen.gpucurrent"),
        lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
    ),
    _gauge(
        "pcie.width",
        "lanes",
        _STATE_S,
        _query_command("pcie.link.width.current"),
        lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
    ),
)
_PCIE = (
    _window("pcie.tx", "B/s", _PCIE_S, "nvidia-smi dmon -s t", _pcie("NVML_PCIE_UTIL_TX_BYTES")),
    _window("pcie.rx", "B/s", _PCIE_S, "nvidia-smi dmon -s t", _pcie("NVML_PCIE_UTIL_RX_BYTES")),
)

READERS = dict((*_FAST, *_SLOWER, *_STATE, *_PCIE))
XIDS = gb.Counter(XID, "errors", "cumulative", _FAST_S, "dmesg | grep Xid")
COUNTERS = (*READERS, XIDS)
READ = {counter.name: reader for counter, reader in READERS.items()}


def _lock_of_period(period_s: float) -> Turns:
    """Return the lock of the counters with that period; slow calls do not delay fast ones."""
    return {_FAST_S: fast, _PCIE_S: slowest}.get(period_s, slow)


TURNS = {counter.name: _lock_of_period(counter.period_s) for counter in COUNTERS}
