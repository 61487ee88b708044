"""Run Triton's kernels on the stream of the suite, by its own compiler and launcher, with CuPy's arrays, without torch.

Triton asks a driver for the device and the stream that it launches on, and its own driver asks torch for them. The
driver here answers with the device and the stream that gpubench times."""

import contextlib
import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

from gpubench.api import suite as gb

_INSTALL = gb.installation.with_extra("compilers")


class TritonArray:
    """A CuPy array as an argument of a Triton kernel; `dtype` names the type of its elements, such as float16."""

    __slots__ = ("array", "data_ptr", "dtype")

    def __init__(self, array: Any, dtype: str) -> None:
        self.array, self.dtype = array, dtype
        self.data_ptr = int(array.data.ptr).__int__  # a method of C, because each launch asks twice for each array


def imported() -> Any:
    """Return the module triton, with triton.language loaded; raises Unavailable if it is not installed."""
    try:
        triton = importlib.import_module("triton")
        importlib.import_module("triton.language")
    except ImportError as error:
        raise gb.Unavailable("Triton is not installed", _INSTALL) from error
    return triton


def on_stream(bench: gb.Bench) -> Any:
    """Return the module triton, set so that kernels compile for this GPU and launch on the stream that is timed.

    Raises Skip on other vendors' GPUs, and Unavailable without Triton or the C compiler that builds its launchers."""
    if bench.traits.vendor != "nvidia":
        raise gb.Skip(f"gpubench has not tried its Triton kernels on {bench.traits.vendor} GPUs")
    triton = imported()
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        raise gb.Unavailable("Triton finds no C compiler to build its launchers with", "install gcc, or name one in CC")
    nvidia = importlib.import_module("triton.backends.nvidia.driver")
    ordinal, stream = int(bench.xp.cuda.Device().id), bench.device.stream
    capability = divmod(bench.traits.architecture.capability, 10)

    class StreamDriver(nvidia.CudaDriver):  # type: ignore[misc, name-defined]  # Triton has no types
        """Triton's CUDA driver, which answers with the device and the stream that gpubench times."""

        def __init__(self) -> None:  # the class above would import torch
            self.utils, self.launcher_cls = nvidia.CudaUtils(), nvidia.CudaLauncher

        def get_current_device(self) -> int:
            return ordinal

        def get_current_stream(self, _device: int) -> int:
            return stream

        def get_device_capability(self, _device: int) -> tuple[int, int]:
            return capability

    triton.runtime.driver.set_active(StreamDriver())
    return triton


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Hide torch inside the `with` block; a torch that is already imported stays visible.

    Triton's first launch would import torch, which takes 3 s, to recognise its tensors; ours are CuPy's."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # Python's own way to say that an import fails
    try:
        yield
    finally:
        del sys.modules["torch"]
