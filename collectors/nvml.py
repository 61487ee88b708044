"""Collect NVIDIA's counters through NVML (the distribution nvidia-ml-py); devices are found by UUID or PCI address."""

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpubench.api import collector as gb

from ._nvml import NvidiaCollector, NvmlAccess, answer, handle_of, initialised, opened
from ._nvml_counters import COUNTERS, READ, TURNS, XID
from ._nvml_health import NvmlHealth
from ._nvml_processes import NvmlProcesses
from ._nvml_watch import NvmlWatch
from ._refusals import refusals


class Xids:
    """The Xid errors of one GPU (NVIDIA's XID catalogue explains each), read from a set of events without waiting.

    `read` and the constructor raise NVMLError if NVML refuses the events."""

    def __init__(self, nvml: Any, gpu: Any) -> None:
        """Begin to listen to the errors of the GPU with NVML's handle `gpu`."""
        self._nvml = nvml
        self._events = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, self._events)
        self._count = 0
        self._numbers: deque[int] = deque()  # several threads append and remove

    def read(self) -> float:
        """Return the number of errors since this object was created, and keep the new ones for `take`, without waiting.

        Raises NVMLError if NVML refuses the events."""
        try:
            while True:
                self._numbers.append(int(self._nvml.nvmlEventSetWait_v2(self._events, 0).eventData))
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
        """Return the call that reads a counter of a device."""
        gpu = self._handles[device.id]
        return partial(self._count_xids, device) if name == XID else partial(READ[name], self._nvml, gpu)

    def _count_xids(self, device: gb.Device) -> float:
        """Return the number of Xid errors since the first reading. Raises NVMLError if NVML refuses the events."""
        if device.id not in self._xids:
            self._xids[device.id] = Xids(self._nvml, self._handles[device.id])
        return self._xids[device.id].read()

    def unsupported(self, device: gb.Device) -> Mapping[str, str]:
        """Return the counters that NVML refuses for this device, with its text, such as `Not Supported`."""
        readers = {counter.name: self._reader_of(device, counter.name) for counter in COUNTERS}
        return refusals(readers, self._nvml.NVMLError)

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
