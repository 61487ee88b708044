"""Call functions of CUDA's driver that CuPy does not bind, through cuda-bindings: virtual memory, pools, launches."""

import ctypes
import functools
import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from gpubench.base import installation
from gpubench.base.errors import Skip

_MISSING = "not found"  # the message of cuda-bindings about a missing call: Function "cuMemMap" not found


class DriverCallError(RuntimeError):
    """A call of the driver failed; the message begins with the error's name, `CUDA_ERROR_INVALID_VALUE`."""


class Driver:
    """Calls `cuda.bindings.driver`; a call returns its value instead of a tuple. Raises Skip without cuda-bindings."""

    def __init__(self) -> None:
        try:
            self.bindings: Any = importlib.import_module("cuda.bindings.driver")
        except ImportError as error:
            raise Skip(f"needs cuda-bindings ({error}): {installation.for_gpu()}") from error

    def __call__(self, name: str, *args: Any) -> Any:
        """Call the driver's function `name` with `args`, and return its value."""
        call = getattr(self.bindings, name, None)
        if call is None:
            raise Skip(f"the installed cuda-bindings do not have {name}: {installation.for_gpu()}")
        try:
            error, *values = call(*args)
        except RuntimeError as missing:
            if _MISSING not in str(missing):
                raise
            raise Skip(f"the driver does not have {name}; a newer driver may have it") from missing
        if int(error) != 0:
            raise DriverCallError(f"{error.name} from {name}")
        return values[0] if len(values) == 1 else tuple(values) or None

    def location(self, device: int) -> Any:
        """Return the CUmemLocation of the device with CUDA's index `device`."""
        place = self.bindings.CUmemLocation()
        place.type = self.bindings.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        place.id = device
        return place

    def access(self, device: int) -> Any:
        """Return the CUmemAccessDesc that gives the device with CUDA's index `device` read and write access."""
        access = self.bindings.CUmemAccessDesc()
        access.location = self.location(device)
        access.flags = self.bindings.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        return access

    @property
    def descriptor(self) -> Any:
        """Return the CUmemAllocationHandleType whose handle is a POSIX file descriptor."""
        return self.bindings.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

    @property
    def pinned(self) -> Any:
        """Return the CUmemAllocationType of memory that stays in place: the driver has no other."""
        return self.bindings.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED


def has_bindings() -> bool:
    """Return whether cuda-bindings, which these launches need, is installed."""
    return find_spec("cuda") is not None and find_spec("cuda.bindings") is not None


class EarlyLaunch:
    """A launch of a kernel that may begin before the launch before it has ended (programmatic dependent launch)."""

    def __init__(self) -> None:
        self._driver = Driver()
        bindings = self._driver.bindings
        value, self._attribute = bindings.CUlaunchAttributeValue(), bindings.CUlaunchAttribute()
        value.programmaticStreamSerializationAllowed = 1
        self._attribute.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        self._attribute.value = value

    def __call__(
        self,
        function: int,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        stream: int,
        shared_bytes: int,
    ) -> None:
        bindings = self._driver.bindings
        config = bindings.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = (*block, 1, 1)[:3]
        config.hStream, config.sharedMemBytes = bindings.CUstream(stream), shared_bytes
        config.attrs, config.numAttrs = [self._attribute], 1
        cells = [np.array(arg if isinstance(arg, np.generic | np.ndarray) else np.uint64(arg.data.ptr)) for arg in args]
        pointers = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        self._driver("cuLaunchKernelEx", config, bindings.CUfunction(function), ctypes.addressof(pointers), 0)


@functools.cache
def early_launch() -> EarlyLaunch:
    """Return the one launcher of this process. Raises Skip if cuda-bindings is not installed."""
    return EarlyLaunch()
