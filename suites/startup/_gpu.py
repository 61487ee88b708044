"""Take the steps of a process that computes on a GPU through CuPy, from its import to weights in the GPU's memory."""

import importlib
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._host_start import HostStart, expect_product, expect_weights, read_into

_SOURCE = 'extern "C" __global__ void first(unsigned* out) { out[threadIdx.x] = 3 * threadIdx.x + 1; }'
_THREADS = 256
_TO_DEVICE = 1  # cudaMemcpyKind; HIP's has the same value


class GpuStart(HostStart):
    """The steps of a process that computes on a GPU, a method each.

    Each waits for the GPU before it ends, so that its time covers only its own work."""

    def cupy(self) -> None:
        """Import CuPy; raises Unavailable if it cannot be imported."""
        try:
            self.xp = importlib.import_module("cupy")
        except ImportError as error:
            raise gb.Unavailable(f"CuPy is not usable here ({error})", gb.installation.for_gpu()) from error
        self.runtime = self.xp.cuda.runtime

    def init(self) -> None:
        """Let the driver start and find the GPUs: cuInit."""
        self.runtime.getDeviceCount()

    def context(self) -> None:
        """Make the context of the GPU, and a stream."""
        self._make_context(self.order.pci)
        self.stream = self.xp.cuda.Stream(non_blocking=True)
        self.stream.use()

    def _make_context(self, pci: str) -> None:
        self.runtime.setDevice(self.runtime.deviceGetByPCIBusId(pci))
        self.runtime.free(0)

    def others(self) -> None:
        """Make the contexts of the GPUs in `order.others`, one after another."""
        for pci in self.order.others:
            self._make_context(pci)

    def compile(self) -> None:
        """Compile a small kernel for the GPU by NVRTC (hipRTC), and keep the binary."""
        compiler: Any = importlib.import_module("cupy_backends.cuda.libs.nvrtc")
        program = compiler.createProgram(_SOURCE, "first.cu", (), ())
        if self.runtime.is_hip:
            compiler.compileProgram(program, ())
            self.binary = compiler.getPTX(program)
        else:
            compiler.compileProgram(program, (f"--gpu-architecture={self.order.arch}",))
            self.binary = compiler.getCUBIN(program)
        compiler.destroyProgram(program)

    def module(self) -> None:
        """Load the compiled kernel into the GPU."""
        self.loaded_module = self.xp.cuda.function.Module()
        self.loaded_module.load(self.binary)
        self.function = self.loaded_module.get_function("first")

    def kernel(self) -> None:
        """Launch the first kernel and wait for it."""
        self.numbers = self.xp.empty(_THREADS, np.uint32)
        self._launch()
        self.stream.synchronize()

    def _launch(self) -> None:
        self.function((1,), (_THREADS,), (self.numbers,))

    def blas(self) -> None:
        """Make the handle of cuBLAS (rocBLAS)."""
        self.xp.cuda.get_cublas_handle()

    def product(self) -> None:
        """Copy two float32 matrices to the GPU, and multiply them for the first time."""
        left, right = (self.xp.asarray(matrix) for matrix in (self.left, self.right))
        self.result = self.xp.matmul(left, right)
        self.stream.synchronize()

    def graph(self) -> None:
        """Capture a graph of two launches of the kernel, launch the graph and wait for it."""
        self.runtime.memsetAsync(self.numbers.data.ptr, 0, self.numbers.nbytes, self.stream.ptr)
        self.stream.begin_capture()
        self._launch()
        self._launch()
        graph = self.stream.end_capture()
        graph.launch(self.stream)
        self.stream.synchronize()

    def weights(self) -> None:
        """Read the file of weights into page-locked memory and copy it to the GPU."""
        nbytes = self.order.size_bytes
        room = np.frombuffer(self.xp.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)
        read_into(self.order.path, room)
        self.loaded = self.xp.empty(nbytes, np.uint8)
        self.runtime.memcpyAsync(self.loaded.data.ptr, room.ctypes.data, nbytes, _TO_DEVICE, self.stream.ptr)
        self.stream.synchronize()

    def nccl(self) -> None:
        """Load NCCL (RCCL); raises Unavailable if it is not installed."""
        self.library = importlib.import_module("cupy.cuda.nccl")
        if not self.library.available:
            raise gb.Unavailable("NCCL is not installed", gb.installation.for_gpu())

    def communicator(self) -> None:
        """Make a communicator of this GPU alone."""
        self.alone = self.library.NcclCommunicator(1, self.library.get_unique_id(), 0)

    def collective(self) -> None:
        """Make an all-reduce over this GPU alone, whose result equals its input."""
        self.sent = self.xp.asarray(np.arange(_THREADS, dtype=np.float32))
        self.received = self.xp.empty_like(self.sent)
        places = self.sent.data.ptr, self.received.data.ptr
        kind, total = self.library.NCCL_FLOAT32, self.library.NCCL_SUM
        self.alone.allReduce(*places, _THREADS, kind, total, self.stream.ptr)
        self.stream.synchronize()

    def check(self) -> None:
        """Raise WrongAnswer if a result of the steps `kernel`, `product`, `weights` or `collective` is wrong.

        Only the steps of the order are checked."""
        steps = self.order.steps
        if "kernel" in steps:
            numbers = self.xp.asnumpy(self.numbers)
            gb.expect(bool((numbers == 3 * np.arange(_THREADS) + 1).all()), "the first kernel wrote wrong numbers")
        if "product" in steps:
            expect_product(self.xp.asnumpy(self.result), self.left, self.right)
        if "weights" in steps:
            expect_weights(self.xp.asnumpy(self.loaded), self.order.crc)
        if "collective" in steps:
            received = self.xp.asnumpy(self.received)
            gb.expect(bool((received == np.arange(_THREADS)).all()), "the first all-reduce gave wrong numbers")
