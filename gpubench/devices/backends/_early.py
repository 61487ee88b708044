"""Launch a kernel so that it may begin before the previous launch has ended (CUDA's programmatic dependent launch)."""

import ctypes
import functools
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from gpubench.devices.native.driver import Driver


def has_bindings() -> bool:
    """Return whether cuda-bindings, which these launches need, is installed."""
    return find_spec("cuda") is not None and find_spec("cuda.bindings") is not None


class EarlyLaunch:
    """The launch of a kernel by `cuLaunchKernelEx` with programmatic stream serialisation."""

    def __init__(self) -> None:
        """Load the driver's calls and make the launch attribute. Raises Skip if cuda-bindings is not installed."""
        self._driver = Driver()
        bindings = self._driver.bindings
        value, self._attribute = bindings.CUlaunchAttributeValue(), bindings.CUlaunchAttribute()
        value.programmaticStreamSerializationAllowed = 1
        self._attribute.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        self._attribute.value = value

    def __call__(
        self, function: int, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], stream: int
    ) -> None:
        """Launch a kernel that may start before the previous launch ends."""
        bindings = self._driver.bindings
        config = bindings.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = (*block, 1, 1)[:3]
        config.hStream = bindings.CUstream(stream)
        config.attrs, config.numAttrs = [self._attribute], 1
        cells = [np.array(arg if isinstance(arg, np.generic) else np.uint64(arg.data.ptr)) for arg in args]
        pointers = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        self._driver("cuLaunchKernelEx", config, bindings.CUfunction(function), ctypes.addressof(pointers), 0)


@functools.cache
def early_launch() -> EarlyLaunch:
    """Return the one launcher of this process. Raises Skip if cuda-bindings is not installed."""
    return EarlyLaunch()
