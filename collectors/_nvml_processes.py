"""List the processes on an NVIDIA GPU through NVML: the processes that nvidia-smi lists."""

from collections.abc import Sequence
from typing import Any

from gpubench.api import collector as gb

from ._nvml import NvmlAccess, is_lost

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
