"""Share the parts of the NVIDIA collectors: NVML's binding, handles of devices, locks, and the meaning of errors."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpubench.api import collector as gb

_PATIENCE_S = 1.0
_JETSON = Path("/etc/nv_tegra_release")
_WSL = Path("/dev/dxg")
_NO_INSTANCE = 0xFFFFFFFF  # of a process on a card without MIG (nvml.h, nvmlProcessInfo_t)


class Turns:
    """A lock for calls that must run one after the other, held by `with`.

    If a call hangs, the next one goes ahead after one second; later calls do not wait while the lock is held."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own = threading.local()
        self._is_stuck = False

    def __enter__(self) -> None:
        """Wait for the lock, at most one second, and not at all after a wait in vain."""
        self._own.taken = self._lock.acquire(timeout=0 if self._is_stuck else _PATIENCE_S)
        self._is_stuck = not self._own.taken

    def __exit__(self, *error: object) -> None:
        """Release the lock, if it was obtained."""
        if self._own.taken:
            self._lock.release()


# A thread for each GPU and period reads NVML. With two GPUs that read at once the process crashed (driver 580), because
# something overwrote memory that Python used (docs/counters.md). So calls of one kind run one at a time, and none waits
# for slower ones.
fast = Turns()  # for calls that take microseconds
slow = Turns()  # for calls that take milliseconds
slowest = Turns()  # for calls that take up to 20 ms

# After these errors no call for the device works any more (nvml.h, nvmlReturn_t).
_LOST = (
    "NVML_ERROR_GPU_IS_LOST",
    "NVML_ERROR_DRIVER_NOT_LOADED",
    "NVML_ERROR_RESET_REQUIRED",
    "NVML_ERROR_GPU_NOT_FOUND",
    "NVML_ERROR_UNINITIALIZED",
)


class NvidiaCollector:
    """A collector that reads NVIDIA GPUs."""

    def accepts(self, device: gb.Device) -> bool:
        """Return whether the architecture is one that CUDA reports."""
        return device.architecture.vendor == "nvidia"


class NvmlAccess:
    """An open NVML with the handle of each device. Raises Unavailable if NVML or a device is not available."""

    def __init__(self, devices: Sequence[gb.Device]) -> None:
        self._nvml = initialised()
        self._handles = {device.id: handle_of(self._nvml, device) for device in devices}

    def close(self) -> None:
        self._nvml.nvmlShutdown()


@contextlib.contextmanager
def opened() -> Iterator[Any]:
    """Open NVML, yield its binding (the module pynvml), and close NVML at the end of the context.

    Raises Unavailable if NVML is not available."""
    nvml = initialised()
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def initialised() -> Any:
    """Return NVML's binding, the module pynvml, after initialising it; each call needs an `nvmlShutdown`.

    Raises Unavailable if the binding is not installed or NVML does not start."""
    try:
        import pynvml
    except ImportError as error:
        raise gb.Unavailable(
            "the Python package nvidia-ml-py is not installed", gb.installation.packages("nvidia-ml-py")
        ) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        how = (
            "this Jetson's driver has none; run tegrastats beside it"
            if _JETSON.exists()
            else "check it with nvidia-smi"
        )
        raise gb.Unavailable(f"NVML does not start ({error})", how) from error
    return pynvml


# What a device lacks that is not a whole card, as a clause for the reason of a missing counter.
_LACKS = {
    "card": "",
    "mig": "a MIG instance shares clocks, power and links with the other instances of its card",
    "vgpu": "the host of a virtual GPU keeps its clocks, power and errors to itself",
    "integrated": "an integrated GPU has no power sensor, memory clock or link of its own",
}


def lacking(device: gb.Device, reasons: Mapping[str, str]) -> dict[str, str]:
    """Return the reasons of missing readings by name, each with what this kind of device lacks."""
    clause = lack_of(device)
    return {name: f"{reason}; {clause}" if clause else reason for name, reason in reasons.items()}


def lack_of(device: gb.Device) -> str:
    """Return what a device lacks that is not a whole card of this machine's own driver; empty for such a card."""
    wsl = "under WSL the driver belongs to Windows and answers only a part" if _WSL.exists() else ""
    return _LACKS[device.kind] or wsl


def instance_of(nvml: Any, gpu: Any, is_mig: bool) -> tuple[int, int] | None:
    """Return the numbers of a MIG device's GPU instance and compute instance; None for another device.

    `nvml` is the module pynvml, and `gpu` its handle. Raises NVMLError if NVML refuses a call."""
    return (nvml.nvmlDeviceGetGpuInstanceId(gpu), nvml.nvmlDeviceGetComputeInstanceId(gpu)) if is_mig else None


def is_of(instance: tuple[int, int] | None, at: Any) -> bool:
    """Return whether NVML's process or event `at` belongs to a MIG device, or to no instance; True for a whole card."""
    places = (at.gpuInstanceId, at.computeInstanceId) if instance else ()
    return all(place in (own, _NO_INSTANCE) for place, own in zip(places, instance or (), strict=True))


def handle_of(nvml: Any, device: gb.Device) -> Any:
    """Return NVML's handle of the device, found by UUID or PCI address, because NVML's index is not CUDA's ordinal.

    `nvml` is the initialised module pynvml. Raises Unavailable if NVML does not know the device."""
    try:
        if device.uuid:
            return nvml.nvmlDeviceGetHandleByUUID(device.uuid)
        return nvml.nvmlDeviceGetHandleByPciBusId(device.pci)
    except nvml.NVMLError as error:
        raise gb.Unavailable(
            f"NVML does not know {device.id}, which CUDA sees ({error})", "check the driver"
        ) from error


def answer(nvml: Any, device: gb.Device, call: Callable[[], float]) -> float | None:
    """Return the value of `call`, a call of NVML, as a float; None if NVML refuses the call.

    `nvml` is the module pynvml. Raises Unavailable if the device is lost."""
    try:
        return float(call())
    except nvml.NVMLError as error:
        if is_lost(nvml, error):
            raise gb.Unavailable(f"{device.id} is lost ({error})", "look at dmesg, then restart the machine") from error
        return None


def is_lost(nvml: Any, error: Any) -> bool:
    """Return whether `error`, an NVMLError, means that no call for the device works any more.

    `nvml` is the module pynvml."""
    return error.value in [getattr(nvml, name) for name in _LOST]
