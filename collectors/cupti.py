"""Count the bytes that an NVIDIA GPU's memory and L2 cache move, by CUPTI's PM sampling, without replay or slowdown.

The extra `counters` installs cupti-python, which needs a libcupti of the same version. The driver lets root read the
counters, or all users if its module has NVreg_RestrictProfilingToAdminUsers=0. Only one program at a time can sample a
GPU: a profiler and this collector exclude each other.

On an H200 the bytes read and written by kernels and copies of counted size came out within 0.01 %. `cupti.l2` counts
look-ups in the slices of the L2 cache: bytes that cross to the other half of the cache are looked up in both."""

import ctypes
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpubench.api import collector as gb

from ._nvml import NvidiaCollector, Turns

_PERIOD_S = 0.1
_INTERVAL_NS = 10_000_000  # the time between two hardware samples
_BUFFER_BYTES = 16 * 2**20  # bytes of GPU memory for samples, which take about 100 kB per second
_MOST_SAMPLES = 128  # the most samples of a reading: twelve times the samples of a period
_SECTOR_BYTES = 32  # the size of a sector of the L2 cache
_GRANT = "run as root, or load the driver's module with NVreg_RestrictProfilingToAdminUsers=0"

# counter → the hardware's metric, the bytes per unit of it, and what the counter measures
_METRICS: dict[str, tuple[str, int, gb.Measure]] = {
    "cupti.dram.read": ("dram__bytes_read.sum", 1, gb.Measure.DRAM_READ),
    "cupti.dram.write": ("dram__bytes_write.sum", 1, gb.Measure.DRAM_WRITTEN),
    "cupti.l2": ("lts__t_sectors.sum", _SECTOR_BYTES, gb.Measure.OTHER),
    "cupti.pcie.read": ("pcie__read_bytes.sum", 1, gb.Measure.OTHER),
    "cupti.pcie.write": ("pcie__write_bytes.sum", 1, gb.Measure.OTHER),
}
# PM sampling takes a single pass: counters that do not fit are left out, the last ones first
_SETS = tuple(tuple(_METRICS)[:count] for count in (5, 3, 2))


def _counter(name: str) -> gb.Counter:
    metric, _, measures = _METRICS[name]
    return gb.Counter(name, "B/s", "window", _PERIOD_S, f"ncu --metrics {metric} COMMAND", measures)


def _library_folder() -> Path | None:
    """Return the folder of the libraries of nvidia-cuda-cupti; None if that distribution is not installed."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        for library in sorted(Path(root).glob("*/lib/libcupti.so.*")):
            return library.parent
    return None


def _load_pm_sampling() -> Any:
    """Return the module cupti.pm_sampling, after loading CUPTI's libraries from the distribution nvidia-cuda-cupti."""
    if importlib.util.find_spec("cupti") is None:
        raise gb.OptionalUnavailable("cupti-python is not installed", gb.installation.with_extra("counters"))
    folder = _library_folder()
    if folder:  # load this version before other code loads another one
        for library in (
            "libnvperf_host.so",
            "libnvperf_target.so",
            *sorted(path.name for path in folder.glob("libcupti*")),
        ):
            ctypes.CDLL(str(folder / library), mode=ctypes.RTLD_GLOBAL)
    try:
        from cupti import pm_sampling
    except ImportError as error:
        raise gb.Unavailable(f"cupti-python does not load ({error})", "reinstall it") from error
    return pm_sampling


def _device_number(device: gb.Device) -> int:
    """Return the driver's number for the device in this process, found by PCI address, without creating a context."""
    driver = ctypes.CDLL("libcuda.so.1")
    ordinal = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetByPCIBusId(ctypes.byref(ordinal), device.pci.encode()):
        raise gb.Unavailable(f"the driver does not know {device.id} by its PCI id", "check CUDA_VISIBLE_DEVICES")
    return ordinal.value


class Sampling:
    """PM sampling of one GPU, which runs until `close`; `names` are the counters that fit into one pass.

    Raises Unavailable, like `Source`."""

    def __init__(self, pm: Any, device: gb.Device) -> None:
        """Begin to sample the device; `pm` is the module cupti.pm_sampling."""
        self.names, self._collector = _configure_sampler(pm, device)
        self._collector.start()

    def read(self) -> dict[str, float]:
        """Return the mean rate in B/s of each counter over the hardware's samples since the last reading, by name.

        The result is empty if there was no sample since then."""
        decoded = self._collector.decode(_MOST_SAMPLES)
        samples = [sample for sample in decoded if sample.start_timestamp]  # the first sample has no timestamp
        if not samples:
            return {}
        seconds = sum(sample.end_timestamp - sample.start_timestamp for sample in samples) * 1e-9
        sums = [sum(sample.metric_values[place] for sample in samples) for place in range(len(self.names))]
        return {name: total * _METRICS[name][1] / seconds for name, total in zip(self.names, sums, strict=True)}

    def close(self) -> None:
        """Stop sampling."""
        self._collector.stop()
        self._collector.disable()


def _configure_sampler(pm: Any, device: gb.Device) -> tuple[tuple[str, ...], Any]:
    for names in _SETS:
        collector = _enable_sampler(pm, device)
        try:
            metrics = [_METRICS[name][0] for name in names]
            collector.configure(metrics=metrics, sampling_interval=_INTERVAL_NS, hardware_buffer_size=_BUFFER_BYTES)
        except (
            ValueError,
            pm.cupti.cupti.cuptiError,
        ):  # the set needs several passes, or the GPU does not have one of its metrics
            collector.disable()
        else:
            return names, collector
    raise gb.OptionalUnavailable(f"{device.id} supports none of these counters", "")


def _enable_sampler(pm: Any, device: gb.Device) -> Any:
    collector = pm.Collector(_device_number(device))
    try:
        collector.enable()
    except PermissionError as error:
        raise gb.Unavailable(f"no permission to read {device.id}'s hardware counters", _GRANT) from error
    except RuntimeError as error:
        raise gb.Unavailable(f"{device.id}'s hardware counters are unavailable: {error}", "") from error
    return collector


class Source:
    """PM sampling of each device. Raises Unavailable if a library is missing or the driver does not permit it."""

    def __init__(self, devices: Sequence[gb.Device]) -> None:
        """Begin to sample each device."""
        pm = _load_pm_sampling()
        self._samplings = {device.id: Sampling(pm, device) for device in devices}
        self._one_at_a_time = Turns()  # decoding for two GPUs at once crashed with CUPTI 13.4

    def read(self, device: gb.Device, names: Sequence[str]) -> Mapping[str, float | None]:
        """Return the mean rates of the counters `names` since the last reading, in B/s by name.

        A counter that is not sampled, or had no sample since then, is None."""
        with self._one_at_a_time:
            rates = self._samplings[device.id].read()
        return {name: rates.get(name) for name in names}

    def unsupported(self, device: gb.Device) -> Mapping[str, str]:
        """Return the counters that do not fit into one pass with the others, each name with that reason."""
        sampled = self._samplings[device.id].names
        return {
            name: "it does not fit into one pass with the other counters" for name in _METRICS if name not in sampled
        }

    def close(self) -> None:
        for sampling in self._samplings.values():
            sampling.close()


class Cupti(NvidiaCollector):
    """The collector of an NVIDIA GPU's hardware counters."""

    counters = tuple(_counter(name) for name in _METRICS)

    def open(self, devices: Sequence[gb.Device]) -> gb.CounterSource:
        """Return the hardware counters of these devices. Raises Unavailable without a library or the permission."""
        return Source(devices)


collector = Cupti()
