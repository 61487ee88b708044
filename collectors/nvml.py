"""NVIDIA's counters through NVML (the distribution nvidia-ml-py), joined by UUID or PCI id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpubench.api import Counter, CounterSource, Device, Missing, Watch

from ._nvml_watch import NvmlWatch, event_reasons, sm_clock_hz

_FAST_S = 0.1
_SLOW_S = 0.5  # the energy call takes 3 ms


def _query(name: str) -> str:
    return f"nvidia-smi --query-gpu={name} --format=csv"


_Reader = Callable[[Any, Any], float]


def _instant_power(nvml: Any, gpu: Any) -> float:
    """Watts now: nvmlDeviceGetPowerUsage is a mean over a second on Ampere and later."""
    (field,) = nvml.nvmlDeviceGetFieldValues(gpu, [nvml.NVML_FI_DEV_POWER_INSTANT])
    if field.nvmlReturn:
        raise nvml.NVMLError(field.nvmlReturn)
    return float(field.value.uiVal) / 1000


# counter → how to read it from (pynvml, handle), in SI units
_READERS: tuple[tuple[Counter, _Reader], ...] = (
    (
        Counter("nvml.power", "W", "gauge", _FAST_S, _query("power.draw.instant")),
        _instant_power,
    ),
    (
        Counter("nvml.clock.sm", "Hz", "gauge", _FAST_S, _query("clocks.sm")),
        sm_clock_hz,
    ),
    (
        Counter("nvml.clock.memory", "Hz", "gauge", _FAST_S, _query("clocks.mem")),
        lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM) * 1e6,
    ),
    (
        Counter("nvml.temperature", "°C", "gauge", _FAST_S, _query("temperature.gpu")),
        lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    ),
    (
        Counter("nvml.utilization.gpu", "%", "window", _FAST_S, _query("utilization.gpu")),
        lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    ),
    (
        Counter("nvml.utilization.memory", "%", "window", _FAST_S, _query("utilization.memory")),
        lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).memory,
    ),
    (
        Counter("nvml.memory.used", "B", "gauge", _FAST_S, _query("memory.used")),
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    ),
    (
        Counter("nvml.event_reasons", "bit mask", "event", _FAST_S, _query("clocks_event_reasons.active")),
        event_reasons,
    ),
    (
        Counter("nvml.energy", "J", "cumulative", _SLOW_S, "dcgmi dmon -e 156"),
        lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,
    ),
)
_READ = {counter.name: reader for counter, reader in _READERS}


def _initialised() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise Missing("NVML's binding is not installed", "pip install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Missing(f"NVML does not start ({error})", "check the driver with nvidia-smi") from error
    return pynvml


def _handle(nvml: Any, device: Device) -> Any:
    if device.uuid:
        return nvml.nvmlDeviceGetHandleByUUID(device.uuid)
    return nvml.nvmlDeviceGetHandleByPciBusId(device.pci)


def _known(nvml: Any, device: Device) -> Any:
    try:
        return _handle(nvml, device)
    except nvml.NVMLError as error:
        raise Missing(f"NVML does not know {device.id}, which CUDA sees ({error})", "check the driver") from error


class NvmlSource:
    """An open NVML; a counter that a card lacks, or that fails, reads as None."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._nvml = _initialised()
        self._handles = {device.id: _known(self._nvml, device) for device in devices}

    def read(self, device: Device, names: Sequence[str]) -> Mapping[str, float | None]:
        return {name: self._value(self._handles[device.id], name) for name in names}

    def _value(self, handle: Any, name: str) -> float | None:
        try:
            return float(_READ[name](self._nvml, handle))
        except self._nvml.NVMLError:
            return None

    def close(self) -> None:
        self._nvml.nvmlShutdown()


# setting → how to read it; what a card does not support is left out
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


class Nvml:
    """The collector of NVIDIA GPUs."""

    counters = tuple(counter for counter, _ in _READERS)

    def accepts(self, device: Device) -> bool:
        """NVIDIA GPUs: the architecture CUDA reports."""
        return device.arch.startswith("sm_")

    def versions(self) -> Mapping[str, str]:
        nvml = _initialised()
        try:
            return {"nvidia.driver": str(nvml.nvmlSystemGetDriverVersion())}
        finally:
            nvml.nvmlShutdown()

    def describe(self, device: Device) -> Mapping[str, str]:
        nvml = _initialised()
        try:
            handle = _known(nvml, device)
            return {name: text for name, read in _SETTINGS if (text := self._setting(nvml, handle, read))}
        finally:
            nvml.nvmlShutdown()

    def _setting(self, nvml: Any, handle: Any, read: Callable[[Any, Any], object]) -> str:
        try:
            return str(read(nvml, handle))
        except nvml.NVMLError:
            return ""

    def open(self, devices: Sequence[Device]) -> CounterSource:
        return NvmlSource(devices)

    def watch(self, device: Device) -> Watch:
        nvml = _initialised()
        return NvmlWatch(nvml, _known(nvml, device), device)


collector = Nvml()
