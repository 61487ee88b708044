"""Collect NVIDIA's counters through NVML (the distribution nvidia-ml-py); devices are found by UUID or PCI address."""

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpubench.api import collector as gb

from ._nvml import (
    NvidiaCollector,
    NvmlAccess,
    answer,
    fast,
    handle_of,
    initialised,
    instance_of,
    is_lost,
    is_of,
    lacking,
    opened,
    slow,
    slowest,
)
from ._nvml_health import NvmlHealth
from ._nvml_watch import BITS, NvmlWatch, event_reasons, field, instant_power_w, sm_clock_hz
from ._strangers import refusals

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
    return lambda nvml, gpu: float(field(nvml, gpu, getattr(nvml, name), _EVERY_LINK).ullVal) * _KIB


def _violation(name: str) -> Reader:
    return lambda nvml, gpu: nvml.nvmlDeviceGetViolationStatus(gpu, getattr(nvml, name)).violationTime * _NANO


def _ecc(name: str) -> Reader:
    return lambda nvml, gpu: float(nvml.nvmlDeviceGetTotalEccErrors(gpu, getattr(nvml, name), nvml.NVML_VOLATILE_ECC))


def _remapped(place: int) -> Reader:
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
    return _counter(name, unit, "gauge", period_s, command), reader


def _sum(name: str, unit: str, period_s: float, command: str, reader: Reader) -> tuple[gb.Counter, Reader]:
    return _counter(name, unit, "cumulative", period_s, command), reader


def _window(name: str, unit: str, period_s: float, command: str, reader: Reader) -> tuple[gb.Counter, Reader]:
    return _counter(name, unit, "window", period_s, command), reader


def _rows_command(name: str) -> str:
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


TURNS = {counter.name: {_FAST_S: fast, _PCIE_S: slowest}.get(counter.period_s, slow) for counter in COUNTERS}


_KINDS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")


class NvmlProcesses(NvmlAccess):
    """Lists the programs that compute or draw on each GPU. One that does both is listed once."""

    def read(self, device: gb.Device) -> Sequence[gb.DeviceProcess]:
        """Return the processes on the device, each once with its bytes of memory, None if unknown.

        Raises Unavailable if the device is lost."""
        memory: dict[int, float | None] = {}
        for kind in _KINDS:
            for process in self._list_processes(device, kind):
                used = None if process.usedGpuMemory is None else float(process.usedGpuMemory)
                memory[process.pid] = max(filter(None, (memory.get(process.pid), used)), default=used)
        return [gb.DeviceProcess(pid, size) for pid, size in memory.items()]

    def _list_processes(self, device: gb.Device, kind: str) -> Sequence[Any]:
        """Return what the function `kind` of pynvml lists for the device: objects with `pid` and `usedGpuMemory`."""
        try:
            processes: Sequence[Any] = getattr(self._nvml, kind)(self._handles[device.id])
            return processes
        except self._nvml.NVMLLibraryMismatchError:  # a driver before 510 has an older form of the call
            return ()
        except self._nvml.NVMLError as error:
            if is_lost(self._nvml, error):
                raise gb.Unavailable(
                    f"{device.id} is lost ({error})", "look at dmesg, then restart the machine"
                ) from error
            return ()


class Xids:
    """The Xid errors of one GPU (NVIDIA's XID catalogue explains each), read from a set of events without waiting.

    `read` and the constructor raise NVMLError if NVML refuses the events."""

    def __init__(self, nvml: Any, gpu: Any, is_mig: bool = False) -> None:
        """Begin to listen to the errors of the GPU with NVML's handle `gpu`; of a MIG device not to its neighbours'."""
        self._nvml = nvml
        self._instance = instance_of(nvml, gpu, is_mig)
        self._events = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, self._events)
        self._count = 0
        self._numbers: deque[int] = deque()  # several threads append and remove

    def read(self) -> float:
        """Return the number of errors since this object was created, and keep the new ones for `take`, without waiting.

        Raises NVMLError if NVML refuses the events."""
        try:
            while True:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
                if is_of(self._instance, event):
                    self._numbers.append(int(event.eventData))
                    self._count += 1
        except self._nvml.NVMLError as error:
            if error.value != self._nvml.NVML_ERROR_TIMEOUT:
                raise
        return self._count

    def take(self) -> list[int]:
        """Return the numbers of the Xids that `read` collected since the last call, the oldest first."""
        numbers = []
        with contextlib.suppress(IndexError):
            while True:
                numbers.append(self._numbers.popleft())
        return numbers


class Source(NvmlAccess):
    """Counters through NVML; a counter that the GPU does not support, or that fails, is None.

    Raises Unavailable if NVML is not available or a GPU is lost."""

    def __init__(self, devices: Sequence[gb.Device]) -> None:
        """Open NVML and find the handle of each device."""
        super().__init__(devices)
        self._xids: dict[str, Xids] = {}

    def read(self, device: gb.Device, names: Sequence[str]) -> Mapping[str, float | None]:
        """Return these counters, each in its unit; None for one that NVML refuses."""
        return {name: self._answer(device, name) for name in names}

    def _answer(self, device: gb.Device, name: str) -> float | None:
        """Return the counter `name` in its unit, in turn with other calls of its speed; None if NVML refuses it."""
        with TURNS[name]:
            return answer(self._nvml, device, self._reader_of(device, name))

    def _reader_of(self, device: gb.Device, name: str) -> Callable[[], float]:
        gpu = self._handles[device.id]
        return partial(self._count_xids, device) if name == XID else partial(READ[name], self._nvml, gpu)

    def _count_xids(self, device: gb.Device) -> float:
        if device.id not in self._xids:
            self._xids[device.id] = Xids(self._nvml, self._handles[device.id], device.kind == "mig")
        return self._xids[device.id].read()

    def unsupported(self, device: gb.Device) -> Mapping[str, str]:
        """Return the counters that NVML refuses for this device, with the reason, such as `Not Supported`."""
        readers = {counter.name: self._reader_of(device, counter.name) for counter in COUNTERS}
        return lacking(device, refusals(readers, self._nvml.NVMLError))

    def messages(self, device: gb.Device) -> Sequence[str]:
        """Return a sentence about each Xid error that was counted since the last call."""
        numbers = self._xids[device.id].take() if device.id in self._xids else []
        return [f"Xid {number}: look it up in NVIDIA's XID catalogue and in dmesg" for number in numbers]


# setting → how to read it; a setting that the card does not support is left out
_SETTINGS: tuple[tuple[str, Callable[[Any, Any], object]], ...] = (
    ("power.limit_w", lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000),
    ("ecc", lambda nvml, gpu: "on" if nvml.nvmlDeviceGetEccMode(gpu)[0] else "off"),
    ("mig", lambda nvml, gpu: "on" if nvml.nvmlDeviceGetMigMode(gpu)[0] else "off"),
    ("compute_mode", lambda nvml, gpu: nvml.nvmlDeviceGetComputeMode(gpu)),
    ("pcie.generation", lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)),
    ("pcie.width", lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)),
    (
        "clock.application_hz",  # `nvidia-smi -ac`; a clock locked by `-lgc` has no query
        lambda nvml, gpu: nvml.nvmlDeviceGetApplicationsClock(gpu, nvml.NVML_CLOCK_SM) * 1_000_000,
    ),
    ("clock.sm_most_hz", lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1_000_000),
)


class Nvml(NvidiaCollector):
    """The collector of NVIDIA GPUs. Its methods raise Unavailable if NVML or a device is not available."""

    counters = COUNTERS

    def versions(self) -> Mapping[str, str]:
        """Return the version of NVIDIA's driver."""
        with opened() as nvml:
            return {"nvidia.driver": str(nvml.nvmlSystemGetDriverVersion())}

    def describe(self, device: gb.Device) -> Mapping[str, str]:
        """Return the settings of the device that a gate compares, as texts by name (`power.limit_w`).

        A setting that the card does not support is left out."""
        with opened() as nvml:
            gpu = handle_of(nvml, device)
            return {name: text for name, read in _SETTINGS if (text := self._setting(nvml, gpu, read))}

    def _setting(self, nvml: Any, gpu: Any, read: Callable[[Any, Any], object]) -> str:
        """Return the setting that `read` gets from pynvml and the handle `gpu`, as text; empty if it is unsupported."""
        try:
            return str(read(nvml, gpu))
        except nvml.NVMLError:
            return ""

    def open(self, devices: Sequence[gb.Device]) -> gb.CounterSource:
        """Return the NVML counters of these devices."""
        return Source(devices)

    def watch(self, device: gb.Device) -> gb.Watch:
        """Return the watch of one device during a case."""
        nvml = initialised()
        return NvmlWatch(nvml, handle_of(nvml, device), device)

    def health(self, devices: Sequence[gb.Device]) -> gb.HealthSource:
        """Return the health of NVIDIA GPUs, from NVML and the kernel log."""
        del devices
        return NvmlHealth(initialised(), Xids)

    def processes(self, devices: Sequence[gb.Device]) -> gb.ProcessSource:
        """Return the lister of the processes on these devices."""
        return NvmlProcesses(devices)


collector = Nvml()
