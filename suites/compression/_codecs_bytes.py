"""Overwrite, compare and count the bytes of arrays: on a GPU by kernels of codecs.cu, on the host by NumPy.

CuPy compiles each CuPy operation at first use, a reduction in 5.6 s with a cold cache (seen on an H200), so the checks
of codecs use only these three operations and copies."""

from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._codecs_common import expect_same

_THREADS = 256
_BLOCKS = 2048  # fills any GPU; each thread works on several words


class DeviceBytes:
    """Operations on contiguous arrays of a GPU by their bytes; an array must begin at a multiple of 8 bytes.

    Calls queue work on the current stream and return at once, unless they say that they wait."""

    def __init__(self, bench: gb.Bench) -> None:
        """Compile the kernels for the bench's device."""
        self._device = bench.device
        self._kernels = {
            name: bench.kernel("codecs.cu", name) for name in ("count_differences", "invert_bytes", "fill_bytes")
        }
        self._found = bench.xp.asarray(np.zeros(1, np.uint64))

    def _run(self, name: str, nbytes: int, *args: Any) -> None:
        """Queue the kernel `name` on an array of `nbytes` bytes; `args` are the arguments of the kernel."""
        if nbytes:
            blocks = min(_BLOCKS, -(-nbytes // (8 * _THREADS)))
            self._kernels[name]((blocks,), (_THREADS,), args)

    def fill(self, array: Any, byte: int) -> None:
        """Queue writing `byte` (0 to 255) into every byte of `array`."""
        word = np.uint64(byte * 0x0101010101010101)
        self._run("fill_bytes", array.nbytes, word, np.uint64(array.nbytes), array)

    def invert(self, source: Any, target: Any) -> None:
        """Queue writing the complement of every byte of `source` into `target`, which must be as large."""
        self._run("invert_bytes", source.nbytes, source, np.uint64(source.nbytes), target)

    def differences(self, a: Any, b: Any) -> int:
        """Return the number of bytes in which the arrays `a` and `b`, of equal size, differ; waits for the device."""
        self.fill(self._found, 0)
        self._run("count_differences", a.nbytes, a, b, np.uint64(a.nbytes), self._found)
        return int(self._device.to_host(self._found)[0])

    def expect_same(self, restored: Any, source: Any) -> None:
        """Wait for the device, and raise WrongAnswer unless two uint8 arrays are equal.

        It names the first differing byte."""
        gb.expect(restored.size == source.size, f"restored {restored.size} bytes of {source.size}")
        if self.differences(restored, source):
            expect_same(self._device.to_host(restored), self._device.to_host(source))

    def wait(self) -> None:
        """Wait until all work that was queued on the device is done."""
        self._device.synchronize()


class HostBytes:
    """The operations of `DeviceBytes` on uint8 arrays of the host, done when a call returns."""

    def invert(self, source: Any, target: Any) -> None:
        """Write the complement of every byte of `source` into `target`, which must be as large."""
        np.invert(source, out=target)

    def expect_same(self, restored: Any, source: Any) -> None:
        """Raise WrongAnswer, which names the first differing byte, unless two uint8 arrays are equal."""
        expect_same(restored, source)

    def wait(self) -> None:
        """Do nothing: on the host every call has done its work when it returns."""


def bytes_of(bench: gb.Bench) -> HostBytes | DeviceBytes:
    """Return the object that overwrites and compares arrays of the bench's device."""
    return DeviceBytes(bench) if bench.traits.is_gpu else HostBytes()
