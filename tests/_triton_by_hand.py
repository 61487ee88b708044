"""A softmax by bare Triton on CuPy's arrays, as a user without gpubench would write it; run as a program.

`python _triton_by_hand.py` prints the seconds of the first call, which compiles, less those of the second.
"""

import sys
import time

import cupy
import triton
import triton.language as tl

SIDE = 4096


@triton.jit
def softmax(x, out, cols, block):
    """Write the softmax of one row of `cols` elements; `block` is a power of two, at least `cols`."""
    row = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, block)
    inside = col < cols
    value = tl.load(x + row + col, mask=inside, other=-1.0e30).to(tl.float32)
    power = tl.exp(value - tl.max(value, 0))
    tl.store(out + row + col, power / tl.sum(power, 0), mask=inside)


class TorchlessPointer:
    """An array as Triton takes one without torch."""

    def __init__(self, array):
        self.dtype, self.data_ptr = "float16", int(array.data.ptr).__int__


def main():
    """Print by how many seconds the first call, which compiles, takes longer than the second."""
    sys.modules["torch"] = None  # Triton 3.6 would import torch at its first launch and does not need it
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.use()
    x = cupy.random.default_rng(1).standard_normal((SIDE, SIDE), dtype=cupy.float32).astype("float16")
    out = cupy.empty_like(x)
    stream.synchronize()
    begun = time.monotonic()
    import triton.backends.nvidia.driver as nvidia

    class TorchlessDriver(nvidia.CudaDriver):
        """The driver of Triton without torch, on our stream."""

        def __init__(self):
            self.utils, self.launcher_cls = nvidia.CudaUtils(), nvidia.CudaLauncher

        def get_current_device(self):
            return 0

        def get_current_stream(self, _):
            return stream.ptr

        def get_device_capability(self, _):
            text = cupy.cuda.Device(0).compute_capability
            return int(text[:-1]), int(text[-1])

    triton.runtime.driver.set_active(TorchlessDriver())
    ends = []
    for _ in range(2):
        softmax[(SIDE,)](TorchlessPointer(x), TorchlessPointer(out), SIDE, block=SIDE, num_warps=8)
        stream.synchronize()
        ends.append(time.monotonic())
    assert abs(float(out.sum(dtype="float64")) / SIDE - 1) < 1e-3
    sys.stdout.write(f"{2 * ends[0] - begun - ends[1]}\n")


if __name__ == "__main__":
    main()
