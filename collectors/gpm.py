"""What a GPU's units do, through NVML's GPM (Hopper and later, no privilege): shares of time between two samples.

A utilisation is a mean over the units and over the window. 100 % of `gpm.dram` is 2 × the memory's clock × the width
of the bus as the driver reports it: of an H200 4814 GB/s, as reads, writes and copies of counted size showed.
Traffic counts what crosses the link, packet headers too: 7 % more than the payload of a copy from the host.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpubench.api.collector import Counter, CounterSource, Device, Lacking, Measure

from ._nvml import answer, initialised, is_nvidia, known, slow

_PERIOD_S = 0.12
_LEAST_S = 0.1  # nvml.h: two samples want 100 ms between them
_MIB = 2**20

# (name, NVML's metric, its unit here, what one of NVML's is of it), in the order of nvml.h, nvmlGpmMetricId_t
_METRICS = (
    ("gpu", "GRAPHICS_UTIL", "%", 1),
    ("sm", "SM_UTIL", "%", 1),
    ("occupancy", "SM_OCCUPANCY", "%", 1),
    ("integer", "INTEGER_UTIL", "%", 1),
    ("tensor", "ANY_TENSOR_UTIL", "%", 1),
    ("tensor.double", "DFMA_TENSOR_UTIL", "%", 1),
    ("tensor.half", "HMMA_TENSOR_UTIL", "%", 1),
    ("tensor.integer", "IMMA_TENSOR_UTIL", "%", 1),
    ("dram", "DRAM_BW_UTIL", "%", 1),
    ("fp64", "FP64_UTIL", "%", 1),
    ("fp32", "FP32_UTIL", "%", 1),
    ("fp16", "FP16_UTIL", "%", 1),
    ("pcie.tx", "PCIE_TX_PER_SEC", "B/s", _MIB),
    ("pcie.rx", "PCIE_RX_PER_SEC", "B/s", _MIB),
    ("nvlink.rx", "NVLINK_TOTAL_RX_PER_SEC", "B/s", _MIB),
    ("nvlink.tx", "NVLINK_TOTAL_TX_PER_SEC", "B/s", _MIB),
)
# nvml.h; the binding has them by the same names, but is imported only where a GPU is opened
_NUMBERS = dict(
    zip((name for name, *_ in _METRICS), (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 20, 21, 60, 61), strict=True)
)


_MEASURES = {
    "gpu": Measure.BUSY,
    "sm": Measure.SM_ACTIVITY,
    "tensor": Measure.TENSOR_ACTIVITY,
    "dram": Measure.DRAM_SHARE,
    "fp64": Measure.FP64_ACTIVITY,
    "fp32": Measure.FP32_ACTIVITY,
    "fp16": Measure.FP16_ACTIVITY,
    "pcie.tx": Measure.PCIE_SENT,
    "pcie.rx": Measure.PCIE_RECEIVED,
    "nvlink.tx": Measure.NVLINK_SENT,
    "nvlink.rx": Measure.NVLINK_RECEIVED,
}


def _counter(name: str, unit: str) -> Counter:
    shown = f"nvidia-smi dmon --gpm-metrics {_NUMBERS[name]}"
    return Counter(f"gpm.{name}", unit, "window", _PERIOD_S, shown, _MEASURES.get(name, Measure.OTHER))


class Samples:
    """Two samples of one GPU: the last and the one that is taken now, which change places."""

    def __init__(self, nvml: Any, gpu: Any) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._ask = nvml.c_nvmlGpmMetricsGet_t()
        self._ask.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._ask.numMetrics = len(_METRICS)
        for place, (name, *_) in enumerate(_METRICS):
            self._ask.metrics[place].metricId = _NUMBERS[name]
        self._last, self._now = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._take(self._last)

    def _take(self, sample: Any) -> None:
        self._nvml.nvmlGpmSampleGet(self._gpu, sample)
        self._at = time.monotonic()

    def read(self) -> dict[str, tuple[int, float]]:
        """Of each metric NVML's status and its value since the last reading; nothing while that is too near."""
        if time.monotonic() - self._at < _LEAST_S:
            return {}
        self._take(self._now)
        self._ask.sample1, self._ask.sample2 = self._last, self._now
        self._nvml.nvmlGpmMetricsGet(self._ask)
        self._last, self._now = self._now, self._last
        found = {}
        for place, (name, _, _, scale) in enumerate(_METRICS):
            metric = self._ask.metrics[place]
            found[f"gpm.{name}"] = (int(metric.nvmlReturn), float(metric.value) * scale)
        return found

    def free(self) -> None:
        """Give both samples back."""
        for sample in (self._last, self._now):
            self._nvml.nvmlGpmSampleFree(sample)


class GpmSource:
    """GPM, open; a metric that a card lacks reads as None, a lost GPU raises Missing."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._nvml = initialised()
        handles = {device.id: known(self._nvml, device) for device in devices}
        self._samples = {name: Samples(self._nvml, gpu) for name, gpu in handles.items() if self._supports(gpu)}
        if not self._samples:
            raise Lacking("this GPU has no GPM counters", "they came with Hopper, and want a GPU that is not split")

    def _supports(self, gpu: Any) -> bool:
        try:
            return bool(self._nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice)
        except self._nvml.NVMLError:
            return False

    def read(self, device: Device, names: Sequence[str]) -> Mapping[str, float | None]:
        found = self._read(device)
        return {name: found[name][1] if name in found and found[name][0] == 0 else None for name in names}

    def _read(self, device: Device) -> dict[str, tuple[int, float]]:
        found: dict[str, tuple[int, float]] = {}

        def read() -> float:
            with slow:
                found.update(self._samples[device.id].read())
            return 0.0

        answer(self._nvml, device, read)
        return found

    def lacking(self, device: Device) -> Mapping[str, str]:
        """The metrics that NVML refuses for this device, and its words."""
        if device.id not in self._samples:
            return {f"gpm.{name}": "this GPU has no GPM counters" for name, *_ in _METRICS}
        time.sleep(_LEAST_S)  # once, as sampling begins
        found = self._read(device)
        return {name: str(self._nvml.NVMLError(status)) for name, (status, _) in found.items() if status}

    def close(self) -> None:
        for samples in self._samples.values():
            samples.free()
        self._nvml.nvmlShutdown()


class Gpm:
    """The collector of what an NVIDIA GPU's units do."""

    counters = tuple(_counter(name, unit) for name, _, unit, _ in _METRICS)

    def accepts(self, device: Device) -> bool:
        return is_nvidia(device)

    def open(self, devices: Sequence[Device]) -> CounterSource:
        return GpmSource(devices)


collector = Gpm()
