"""Split the SMs of a GPU once into groups that share no SM, and create green contexts with a stream over them."""

import time
from typing import Any

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


class GreenContext:
    """A green context over one group of SMs, and a stream in it; `created_s` is the time to create both in seconds.

    `device` is a CUdevice and `group` a CUdevResource of cuda-bindings; `units` is the number of SMs."""

    def __init__(self, driver: lib.Driver, device: Any, group: Any) -> None:
        self._driver = driver
        flag = driver.bindings.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        begin = time.perf_counter()
        description = driver("cuDevResourceGenerateDesc", [group], 1)
        self._context = driver("cuGreenCtxCreate", description, device, int(flag))
        self._stream = driver("cuGreenCtxStreamCreate", self._context, _NON_BLOCKING, 0)
        self.created_s = time.perf_counter() - begin
        self.units = int(group.sm.smCount)

    def stream(self, bench: gb.Bench) -> Any:
        """Return the context's stream as a `cupy.cuda.ExternalStream`."""
        return bench.xp.cuda.ExternalStream(int(self._stream))

    def close(self) -> None:
        """Destroy the stream and the context; all queued work must have ended."""
        self._driver("cuStreamDestroy", self._stream)
        self._driver("cuGreenCtxDestroy", self._context)


class SmPool:
    """The SMs of the current GPU.

    `granularity` is the number of SMs in the smallest group (8 on Hopper), `units` in all."""

    def __init__(self, bench: gb.Bench) -> None:
        if bench.traits.vendor != "nvidia":
            raise gb.Skip("CuPy on ROCm does not bind HIP's green contexts (hipGreenCtxCreate); HIP itself has them")
        self._driver = lib.Driver()
        kind = self._driver.bindings.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        self._device = self._driver("cuCtxGetDevice")
        self._whole = self._driver("cuDeviceGetDevResource", self._device, kind)
        self.units = int(self._whole.sm.smCount)
        self.granularity = int(self._split(1, 1)[0].sm.smCount)

    def groups(self, units: int, count: int) -> list[Any]:
        """Return `count` groups of exactly `units` SMs from one split, as cuda-bindings' CUdevResource objects.

        Raises Skip if `units` is no multiple of `granularity`, or the driver gives other groups."""
        if units % self.granularity:
            raise gb.Skip(f"groups of this GPU are multiples of {self.granularity} SMs; {units} is no such multiple")
        groups = self._split(count, units)
        sizes = [int(group.sm.smCount) for group in groups]
        if sizes != [units] * count:
            raise gb.Skip(f"the driver gives groups of {sizes} SMs, not {count} of {units}")
        return groups

    def halves(self) -> list[Any]:
        """Return two groups, each with half of the SMs, rounded down to a multiple of `granularity`."""
        return self.groups(self.units // 2 // self.granularity * self.granularity, 2)

    def context(self, group: Any) -> GreenContext:
        """Return a new green context over a group."""
        return GreenContext(self._driver, self._device, group)

    def _split(self, count: int, units: int) -> list[Any]:
        groups, granted, _ = self._driver("cuDevSmResourceSplitByCount", count, self._whole, 0, units)
        return list(groups[: int(granted)])
