"""Wrap a kernel that CuPy compiled: its launch, its symbols, and the resources that the compiler gave it."""

from collections.abc import Sequence
from typing import Any

from gpubench.base.errors import Skip
from gpubench.plugins.backend import KernelResources

from . import _rocm
from ._early import early_launch


class CupyKernel:
    """A compiled kernel, which requests more than the default of dynamic shared memory when a launch needs it.

    `has_early` says whether the device supports early launches."""

    def __init__(self, cupy: Any, module: Any, name: str, has_early: bool = False) -> None:
        """Wrap the function `name` of `module`, CuPy's RawModule; `cupy` is the module."""
        self._cupy, self._has_early = cupy, has_early
        self._module = module
        self._function = module.get_function(name)
        self._most = (
            int(self._function.max_dynamic_shared_size_bytes) if not cupy.cuda.runtime.is_hip else _lds_bytes(cupy)
        )

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_bytes: int = 0
    ) -> None:
        """Launch the kernel on the current stream; `args` are CuPy arrays and NumPy scalars."""
        self._allow(shared_bytes)
        self._function(grid, block, tuple(args), shared_mem=shared_bytes)

    def early(self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any]) -> None:
        """Launch the kernel so that it may start before the previous launch ends.

        On a device that does not support this, it is launched like any other kernel."""
        if self._has_early:
            stream = int(self._cupy.cuda.get_current_stream().ptr)
            early_launch()(int(self._function.kernel.ptr), grid, block, args, stream)
        else:
            self(grid, block, args)

    def _allow(self, shared_bytes: int) -> None:
        """Request `shared_bytes` bytes of dynamic shared memory per block for this and later launches."""
        if shared_bytes > self._most:
            if self._cupy.cuda.runtime.is_hip:
                raise Skip(f"CuPy on ROCm limits a block to {self._most} bytes of shared memory")
            self._function.max_dynamic_shared_size_bytes = self._most = shared_bytes

    def resources(self, threads: int, shared_bytes: int = 0) -> KernelResources | None:
        """Return registers, shared and local memory of the kernel, and the blocks that fit on a compute unit.

        The result is None on ROCm."""
        if self._cupy.cuda.runtime.is_hip:  # these calls were never tried on ROCm
            return None
        function, driver = self._function, self._cupy.cuda.driver
        self._allow(shared_bytes)
        blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(function.kernel.ptr, threads, shared_bytes)
        return KernelResources(
            int(function.num_regs), int(function.shared_size_bytes), int(function.local_size_bytes), int(blocks)
        )

    def symbol(self, name: str, nbytes: int) -> Any:
        """Return a `__constant__` or `__device__` array of the kernel's source by its name: uint8, shape (nbytes,)."""
        return self._cupy.ndarray((nbytes,), self._cupy.uint8, self._module.get_global(name))


def _lds_bytes(cupy: Any) -> int:
    return _rocm.max_shared_bytes(cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice()))
