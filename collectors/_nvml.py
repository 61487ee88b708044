"""NVML, open: the binding, a device's handle, and what an error means. For the collectors that read through it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from gpubench.api.collector import Device, Missing

_PATIENCE_S = 1.0


class Turns:
    """Calls that are made one after the other; one that does not come back holds up the others for a second, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._is_stuck = False

    def __enter__(self) -> None:
        self._mine.taken = self._lock.acquire(timeout=0 if self._is_stuck else _PATIENCE_S)
        self._is_stuck = not self._mine.taken

    def __exit__(self, *error: object) -> None:
        if self._mine.taken:
            self._lock.release()


# NVML is read by a thread for each GPU and period. With two GPUs and no turns that ended in a fault (driver 580):
# something wrote over memory that Python used (docs/counters.md). Calls of one kind are therefore made one at a time,
# and none is held up by slower ones.
fast = Turns()  # microseconds
slow = Turns()  # milliseconds
slowest = Turns()  # 20 ms

# errors after which no call for the device will answer (nvml.h, nvmlReturn_t)
_LOST = (
    "NVML_ERROR_GPU_IS_LOST",
    "NVML_ERROR_DRIVER_NOT_LOADED",
    "NVML_ERROR_RESET_REQUIRED",
    "NVML_ERROR_GPU_NOT_FOUND",
    "NVML_ERROR_UNINITIALIZED",
)


def is_nvidia(device: Device) -> bool:
    """NVIDIA GPUs: the architecture CUDA reports."""
    return device.arch.startswith("sm_")


def initialised() -> Any:
    """The binding, initialised; each call wants an `nvmlShutdown`. Raises Missing."""
    try:
        import pynvml
    except ImportError as error:
        raise Missing("NVML's binding is not installed", "pip install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Missing(f"NVML does not start ({error})", "check the driver with nvidia-smi") from error
    return pynvml


def handle(nvml: Any, device: Device) -> Any:
    """The device's handle, by UUID, else by PCI id: NVML's index is not CUDA's ordinal."""
    if device.uuid:
        return nvml.nvmlDeviceGetHandleByUUID(device.uuid)
    return nvml.nvmlDeviceGetHandleByPciBusId(device.pci)


def known(nvml: Any, device: Device) -> Any:
    """The device's handle; Missing where NVML does not know it."""
    try:
        return handle(nvml, device)
    except nvml.NVMLError as error:
        raise Missing(f"NVML does not know {device.id}, which CUDA sees ({error})", "check the driver") from error


def answer(nvml: Any, device: Device, call: Callable[[], float]) -> float | None:
    """What a call answers, None where it has none to give; Missing where the device is lost."""
    try:
        return float(call())
    except nvml.NVMLError as error:
        if error.value in [getattr(nvml, name) for name in _LOST]:
            raise Missing(f"{device.id} is lost ({error})", "look at dmesg, then restart the machine") from error
        return None


def reasons(nvml: Any, calls: Mapping[str, Callable[[], float]]) -> dict[str, str]:
    """Of each call that is refused the reason, in NVML's words: `Not Supported`, `Insufficient Permissions`."""
    found = {}
    for name, call in calls.items():
        try:
            call()
        except nvml.NVMLError as error:
            found[name] = str(error)
    return found
