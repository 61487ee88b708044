"""Run Triton's kernels on the stream of the suite, by its own compiler and launcher, with CuPy's arrays, without torch.

Triton asks a driver for the device and the stream that it launches on, and its own driver asks torch for them. The
driver here answers with the device and the stream that gpubench times."""

import contextlib
import importlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

_INSTALL = gb.installation.with_extra("compilers")

_MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


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


class BuiltKernel:
    """A kernel in Triton or Gluon, compiled for this GPU, that CuPy launches on the suite's stream.

    `types` are the types of its arguments in order (`*fp16`, `i32`), and `constants` the values of the others. In Gluon
    a kernel is decorated and its threads have `registers` on average. `boxes` are the boxes of its tensor maps."""

    def __init__(
        self,
        bench: gb.Bench,
        kernel: Any,
        types: Mapping[str, str],
        constants: Mapping[str, int],
        warps: int,
        stages: int,
        registers: int = 0,
    ) -> None:
        if bench.traits.vendor != "nvidia":
            raise gb.Skip(f"our Triton kernel has not been tried on {bench.traits.vendor} GPUs")
        triton, xp = imported(), bench.xp
        options = {"num_warps": warps, "num_stages": stages, "maxnreg": registers or None}
        if not registers:
            sys.modules[kernel.__module__].__dict__["tl"] = triton.language
            described, kernel = triton.compiler.ASTSource, triton.jit(kernel)
        else:
            described = importlib.import_module("triton.experimental.gluon._runtime").GluonASTSource
        aligned = {(place,): [["tt.divisibility", 16]] for place, of in enumerate(types.values()) if of[0] == "*"}
        signature = {**types, **dict.fromkeys(constants, "constexpr")}
        source = described(kernel, signature, dict(constants), aligned)
        number = gb.Architecture.parse(bench.traits.arch).capability
        target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", number, 32)
        compiled = triton.compile(source, target=target, options=options)
        self._threads, self._shared_bytes = 32 * compiled.metadata.num_warps, compiled.metadata.shared
        self.version = triton.__version__
        self.boxes = [tuple(of["block_size"]) for of in compiled.metadata.tensordesc_meta]
        if self._shared_bytes > bench.traits.max_shared_bytes:
            raise gb.Skip(f"the kernel needs {self._shared_bytes} bytes of shared memory in a block")
        module = xp.cuda.function.Module()
        module.load(compiled.asm["cubin"])
        self._function = module.get_function(compiled.metadata.name)
        xp.cuda.driver.funcSetAttribute(self._function.ptr, _MOST_SHARED, self._shared_bytes)

    def call(self, grid: tuple[int, ...], *args: Any) -> Callable[[], None]:
        """Return the launch with these arguments: device arrays and NumPy scalars."""
        # Scratch memory that some kernels ask for, and the memory of Triton's profiler.
        cells = (*args, np.uint64(0), np.uint64(0))
        return partial(self._function, grid, (self._threads,), cells, shared_mem=self._shared_bytes)


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
