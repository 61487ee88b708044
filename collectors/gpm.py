"""Collect the activity of a GPU's parts through NVML's GPM (Hopper and later, no privilege): shares of time.

A utilisation is a mean over the SMs and over the window between two samples. 100 % of `gpm.dram` is 2 × the memory's
clock × the width of the bus as the driver reports it: 4814 GB/s on an H200, as reads, writes and copies of counted size
showed. Traffic includes packet headers: it is 7 % more than the payload of a copy from the host."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpubench.api import collector as gb

from ._nvml import NvidiaCollector, NvmlAccess, answer, slow

_PERIOD_S = 0.12
_LEAST_S = 0.1  # nvml.h: two samples need 100 ms between them
_MIB = 2**20


class Metric(NamedTuple):
    """A metric: its name here, its name and number in nvml.h (nvmlGpmMetricId_t), and the quantity that it measures.

    `scale` is the factor from NVML's unit to `unit`."""

    name: str
    nvml_name: str
    number: int  # the number in the binding, which is imported only when a GPU is opened
    measures: gb.Measure
    unit: str = "%"
    scale: int = 1  # factor from NVML's unit to ours


_METRICS = (
    Metric("gpu", "GRAPHICS_UTIL", 1, gb.Measure.BUSY),
    Metric("sm", "SM_UTIL", 2, gb.Measure.SM_ACTIVITY),
    Metric("occupancy", "SM_OCCUPANCY", 3, gb.Measure.OTHER),
    Metric("integer", "INTEGER_UTIL", 4, gb.Measure.OTHER),
    Metric("tensor", "ANY_TENSOR_UTIL", 5, gb.Measure.TENSOR_ACTIVITY),
    Metric("tensor.double", "DFMA_TENSOR_UTIL", 6, gb.Measure.OTHER),
    Metric("tensor.half", "HMMA_TENSOR_UTIL", 7, gb.Measure.OTHER),
    Metric("tensor.integer", "IMMA_TENSOR_UTIL", 9, gb.Measure.OTHER),
    Metric("dram", "DRAM_BW_UTIL", 10, gb.Measure.DRAM_SHARE),
    Metric("fp64", "FP64_UTIL", 11, gb.Measure.FP64_ACTIVITY),
    Metric("fp32", "FP32_UTIL", 12, gb.Measure.FP32_ACTIVITY),
    Metric("fp16", "FP16_UTIL", 13, gb.Measure.FP16_ACTIVITY),
    Metric("pcie.tx", "PCIE_TX_PER_SEC", 20, gb.Measure.PCIE_SENT, "B/s", _MIB),
    Metric("pcie.rx", "PCIE_RX_PER_SEC", 21, gb.Measure.PCIE_RECEIVED, "B/s", _MIB),
    Metric("nvlink.rx", "NVLINK_TOTAL_RX_PER_SEC", 60, gb.Measure.NVLINK_RECEIVED, "B/s", _MIB),
    Metric("nvlink.tx", "NVLINK_TOTAL_TX_PER_SEC", 61, gb.Measure.NVLINK_SENT, "B/s", _MIB),
)


def _counter(metric: Metric) -> gb.Counter:
    command = f"nvidia-smi dmon --gpm-metrics {metric.number}"
    return gb.Counter(f"gpm.{metric.name}", metric.unit, "window", _PERIOD_S, command, metric.measures)


class GpmSamples:
    """Two samples of one GPU, the previous and the current one, which are swapped at each reading."""

    def __init__(self, nvml: Any, gpu: Any) -> None:
        """Take the first sample of the GPU with NVML's handle `gpu`; `nvml` is the initialised module pynvml."""
        self._nvml = nvml
        self._gpu = gpu
        self._ask = nvml.c_nvmlGpmMetricsGet_t()
        self._ask.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._ask.numMetrics = len(_METRICS)
        for place, metric in enumerate(_METRICS):
            self._ask.metrics[place].metricId = metric.number
        self._last, self._now = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._take(self._last)

    def _take(self, sample: Any) -> None:
        self._nvml.nvmlGpmSampleGet(self._gpu, sample)
        self._at = time.monotonic()

    def read(self) -> dict[str, tuple[int, float]]:
        """Return, for each counter by name, NVML's status and the mean value since the last reading.

        Values are in the counter's unit. A value counts only if the status is 0."""
        if time.monotonic() - self._at < _LEAST_S:
            return {}
        self._take(self._now)
        self._ask.sample1, self._ask.sample2 = self._last, self._now
        self._nvml.nvmlGpmMetricsGet(self._ask)
        self._last, self._now = self._now, self._last
        answers = zip(_METRICS, self._ask.metrics, strict=False)
        return {
            f"gpm.{metric.name}": (int(metric_answer.nvmlReturn), float(metric_answer.value) * metric.scale)
            for metric, metric_answer in answers
        }

    def free(self) -> None:
        """Free both samples."""
        for sample in (self._last, self._now):
            self._nvml.nvmlGpmSampleFree(sample)


def _why_without(device: gb.Device) -> str:
    """Return why a device has no GPM counters."""
    if device.architecture.number < (9, 0):
        return f"GPM counters begin with sm_90 (Hopper); this GPU is {device.arch}"
    kinds = {"mig": "a MIG instance", "vgpu": "a virtual GPU", "integrated": "an integrated GPU", "card": "this GPU"}
    return f"the driver gives {kinds[device.kind]} no GPM counters"


class Source(NvmlAccess):
    """GPM counters; an unsupported metric is None. Raises Unavailable if a GPU is lost or has no GPM."""

    def __init__(self, devices: Sequence[gb.Device]) -> None:
        """Begin to sample each device that supports GPM."""
        super().__init__(devices)
        self._samples = {  # samples of a MIG instance need another call
            device.id: GpmSamples(self._nvml, self._handles[device.id])
            for device in devices
            if device.kind != "mig" and self._supports(self._handles[device.id])
        }
        if not self._samples:
            raise gb.OptionalUnavailable(_why_without(devices[0]), "they need a whole Hopper GPU or a newer one")

    def _supports(self, gpu: Any) -> bool:
        """Return whether the GPU with NVML's handle `gpu` has GPM counters; a GPU whose answer is an error has none."""
        try:
            return bool(self._nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice)
        except self._nvml.NVMLError:
            return False

    def read(self, device: gb.Device, names: Sequence[str]) -> Mapping[str, float | None]:
        """Return the means of the counters `names` since the last reading, by name, each in its unit.

        A counter is None if the GPU does not support it, or if the last reading was less than 0.1 s ago."""
        values = {name: value for name, (status, value) in self._read(device).items() if status == 0}
        return {name: values.get(name) for name in names}

    def _read(self, device: gb.Device) -> dict[str, tuple[int, float]]:
        answers: dict[str, tuple[int, float]] = {}

        def read() -> float:
            """Read the samples into `answers`, one GPU at a time, and return 0."""
            with slow:
                answers.update(self._samples[device.id].read())
            return 0.0

        answer(self._nvml, device, read)
        return answers

    def unsupported(self, device: gb.Device) -> Mapping[str, str]:
        """Return the counters that NVML refuses for this device, each name with NVML's reason; takes 0.1 s."""
        if device.id not in self._samples:
            return {counter.name: _why_without(device) for counter in Gpm.counters}
        time.sleep(_LEAST_S)  # once, when sampling begins
        return {name: str(self._nvml.NVMLError(status)) for name, (status, _) in self._read(device).items() if status}

    def close(self) -> None:
        for samples in self._samples.values():
            samples.free()
        super().close()


class Gpm(NvidiaCollector):
    """The collector of the activity of an NVIDIA GPU's parts."""

    counters = tuple(_counter(metric) for metric in _METRICS)

    def open(self, devices: Sequence[gb.Device]) -> gb.CounterSource:
        """Return the source of these devices' GPM counters.

        Raises OptionalUnavailable if no device has them, and Unavailable if NVML is not available."""
        return Source(devices)


collector = Gpm()
