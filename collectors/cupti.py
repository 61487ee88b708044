"""Bytes that an NVIDIA GPU's memory and second cache move, through CUPTI's PM sampling: no replay, nothing is slowed.

The extra `counters` brings cupti-python, which wants a libcupti of its own version. The driver lets root read them, or
everybody where its module has NVreg_RestrictProfilingToAdminUsers=0. One program at a time: a profiler that samples
the same GPU finds them taken, and the other way round.

Of an H200 the bytes read and written by kernels and copies of counted size came out within 0.01 %. `cupti.l2` is what
is looked up in the slices of the second cache: what crosses to the other half of the cache is looked up in both.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpubench.api.collector import DISTRIBUTION, Counter, CounterSource, Device, Lacking, Measure, Missing

from ._nvml import Turns, is_nvidia

_PERIOD_S = 0.1
_INTERVAL_NS = 10_000_000  # of a hardware sample
_BUFFER_BYTES = 16 * 2**20  # of the GPU's memory: a second of samples takes some 100 kB
_MOST_SAMPLES = 128  # of a reading, twelve times what a period holds
_SECTOR_BYTES = 32  # of the second cache
_GRANT = "run as root, or load the driver's module with NVreg_RestrictProfilingToAdminUsers=0"

# counter → the hardware's metric, and the bytes that one of it is
_METRICS: dict[str, tuple[str, int]] = {
    "cupti.dram.read": ("dram__bytes_read.sum", 1),
    "cupti.dram.write": ("dram__bytes_write.sum", 1),
    "cupti.l2": ("lts__t_sectors.sum", _SECTOR_BYTES),
    "cupti.pcie.read": ("pcie__read_bytes.sum", 1),
    "cupti.pcie.write": ("pcie__write_bytes.sum", 1),
}
_MEASURES = {"cupti.dram.read": Measure.DRAM_READ, "cupti.dram.write": Measure.DRAM_WRITTEN}
# PM sampling is one pass: what does not fit is left out, the last first
_SETS = tuple(tuple(_METRICS)[:count] for count in (5, 3, 2))


def _counter(name: str) -> Counter:
    shown = f"ncu --metrics {_METRICS[name][0]} COMMAND"
    return Counter(name, "B/s", "window", _PERIOD_S, shown, _MEASURES.get(name, Measure.OTHER))


def _libraries() -> Path | None:
    """Where the distribution nvidia-cuda-cupti keeps its libraries; None where the system's serve."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        for found in sorted(Path(root).glob("*/lib/libcupti.so.*")):
            return found.parent
    return None


def _loaded() -> Any:
    """The module cupti.pm_sampling, on the libraries of its own version; raises Lacking."""
    if importlib.util.find_spec("cupti") is None:
        raise Lacking("cupti-python is not installed", f"pip install '{DISTRIBUTION}[counters]'")
    folder = _libraries()
    if folder:  # before anything loads another version
        for library in ("libnvperf_host.so", "libnvperf_target.so", *sorted(p.name for p in folder.glob("libcupti*"))):
            ctypes.CDLL(str(folder / library), mode=ctypes.RTLD_GLOBAL)
    try:
        from cupti import pm_sampling
    except ImportError as error:
        raise Missing(f"cupti-python does not load ({error})", "install it anew") from error
    return pm_sampling


def _ordinal(device: Device) -> int:
    """The device's number in this process, by its PCI id, as the driver counts; no context is made."""
    driver = ctypes.CDLL("libcuda.so.1")
    found = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetByPCIBusId(ctypes.byref(found), device.pci.encode()):
        raise Missing(f"the driver does not know {device.id} by its PCI id", "check CUDA_VISIBLE_DEVICES")
    return found.value


class Sampling:
    """PM sampling of one GPU, begun; `names` are the counters that fit one pass."""

    def __init__(self, pm: Any, device: Device) -> None:
        self.names, self._collector = _fitting(pm, device)
        self._collector.start()

    def read(self) -> dict[str, float]:
        """The mean rate of each counter over the hardware's samples since the last reading, B/s; nothing of none."""
        samples = [each for each in self._collector.decode(_MOST_SAMPLES) if each.start_timestamp]  # the first has none
        if not samples:
            return {}
        seconds = sum(sample.end_timestamp - sample.start_timestamp for sample in samples) * 1e-9
        sums = [sum(sample.metric_values[place] for sample in samples) for place in range(len(self.names))]
        return {name: total * _METRICS[name][1] / seconds for name, total in zip(self.names, sums, strict=True)}

    def close(self) -> None:
        """End it."""
        self._collector.stop()
        self._collector.disable()


def _fitting(pm: Any, device: Device) -> tuple[tuple[str, ...], Any]:
    """The most counters that this GPU samples in one pass, by trying, each time anew; and what samples them."""
    for names in _SETS:
        collector = _enabled(pm, device)
        try:
            metrics = [_METRICS[name][0] for name in names]
            collector.configure(metrics=metrics, sampling_interval=_INTERVAL_NS, hardware_buffer_size=_BUFFER_BYTES)
        except (ValueError, pm.cupti.cupti.cuptiError):  # refused: several passes, or a metric that it does not have
            collector.disable()
        else:
            return names, collector
    raise Lacking(f"{device.id} samples none of these counters", "")


def _enabled(pm: Any, device: Device) -> Any:
    collector = pm.Collector(_ordinal(device))
    try:
        collector.enable()
    except PermissionError as error:
        raise Missing(f"no permission to read {device.id}'s hardware counters", _GRANT) from error
    except RuntimeError as error:
        raise Missing(f"{device.id}'s hardware counters are not to be had: {error}", "") from error
    return collector


class CuptiSource:
    """PM sampling of each device; raises Missing where the driver does not permit it."""

    def __init__(self, devices: Sequence[Device]) -> None:
        pm = _loaded()
        self._samplings = {device.id: Sampling(pm, device) for device in devices}
        self._one_at_a_time = Turns()  # evaluated for two GPUs at once it ended in a fault (13.4)

    def read(self, device: Device, names: Sequence[str]) -> Mapping[str, float | None]:
        with self._one_at_a_time:
            found = self._samplings[device.id].read()
        return {name: found.get(name) for name in names}

    def lacking(self, device: Device) -> Mapping[str, str]:
        """The counters that do not fit one pass with the others."""
        sampled = self._samplings[device.id].names
        return {name: "it does not fit one pass with the others" for name in _METRICS if name not in sampled}

    def close(self) -> None:
        for sampling in self._samplings.values():
            sampling.close()


class Cupti:
    """The collector of an NVIDIA GPU's hardware counters."""

    counters = tuple(_counter(name) for name in _METRICS)

    def accepts(self, device: Device) -> bool:
        return is_nvidia(device)

    def open(self, devices: Sequence[Device]) -> CounterSource:
        return CuptiSource(devices)


collector = Cupti()
