"""A device and an nvCOMP in host memory: addresses are real, and a batch is a loop over zlib.

What it shows is that a suite's batches point where they should; it answers no size of nvCOMP's.
"""

import ctypes
import dataclasses
import types
import zlib

import _grid
import numpy as np

from gpubench.plugins.backend import Traits

_STREAM = 7


class Addressed(np.ndarray):
    """A NumPy array that has `data.ptr` as an array of a device has."""

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.ctypes.data)


def _with_addresses(make):
    return lambda *args, **options: np.array(make(*args, **options)).view(Addressed)


ARRAYS = types.SimpleNamespace(
    empty=_with_addresses(np.empty),
    zeros=_with_addresses(np.zeros),
    asarray=_with_addresses(np.asarray),
    arange=_with_addresses(np.arange),
    uint8=np.uint8,
    uint64=np.uint64,
    int32=np.int32,
    cuda=types.SimpleNamespace(get_current_stream=lambda: types.SimpleNamespace(ptr=_STREAM)),
)


TRAITS = Traits("nvidia", "sm_90", "cuda", ("hot",), "perf_counter", is_gpu=True)


@dataclasses.dataclass
class GpuInHostMemory:
    """An open host device that says it is a CUDA GPU and whose arrays have addresses."""

    xp = ARRAYS
    host: object
    device: object
    traits: Traits = TRAITS
    free: int = 2**40

    def free_bytes(self):
        return self.free

    def __getattr__(self, name):
        return getattr(self.host, name)

    def kernel(self, source, name, defines):
        """Return a kernel of the codecs' .cu file, built by g++."""
        return _grid.kernel("compression/codecs.cu", name, **defines)


def _sizes_at(address, count):
    """Return `count` sizes at an address, as 64-bit words."""
    return (ctypes.c_size_t * count).from_address(address)


def _statuses_at(address, count):
    """Return `count` status codes at an address, as 32-bit integers."""
    return (ctypes.c_int * count).from_address(address)


def _chunks_of(froms, sizes, tos, count):
    """Yield the source address, the size and the target address of each chunk of a batch."""
    return zip(_sizes_at(froms, count), _sizes_at(sizes, count), _sizes_at(tos, count), strict=True)


def _write_chunk(size, target, index, written, codes):
    """Write a chunk's output to its target, its size to `written`, and success to its status code."""
    ctypes.memmove(target, size, len(size))
    _sizes_at(written, index + 1)[index], _statuses_at(codes, index + 1)[index] = len(size), 0


class _Answers:
    """The functions of nvCOMP by the suffixes of their names; 0 is success."""

    def nvcompGetStatusString(self, status):  # noqa: N802
        return f"words of {status}".encode()

    def nvcompGetProperties(self, size):  # noqa: N802
        size._obj.version = 6000
        return 0

    def CompressGetMaxOutputChunkSize(self, chunk, _, size):  # noqa: N802
        size._obj.value = chunk + 99
        return 0

    def CompressGetTempSize(self, count, chunk, _, size, total, stream):  # noqa: N802
        size._obj.value = 16 * count
        return 0

    DecompressGetTempSize = CompressGetTempSize

    def CompressGetRequiredAlignments(self, _, size):  # noqa: N802
        size._obj.input, size._obj.output, size._obj.temp = 1, 8, 8
        return 0

    DecompressGetRequiredAlignments = CompressGetRequiredAlignments

    def CompressAsync(self, froms, sizes, most, count, scratch, room, tos, written, _, codes, stream):  # noqa: N802
        """Compress each chunk of the batch with zlib at once, on the stream that every call must name."""
        assert (16 * count, _STREAM) == (room, stream)
        for index, (source, size, target) in enumerate(_chunks_of(froms, sizes, tos, count)):
            assert size <= most
            _write_chunk(zlib.compress(ctypes.string_at(source, size), 1), target, index, written, codes)
        return 0

    def DecompressAsync(self, froms, sizes, rooms, written, count, scratch, room, tos, _, codes, stream):  # noqa: N802
        """Decompress each chunk of the batch; one that is damaged or too large gets the status 12."""
        assert (16 * count, _STREAM) == (room, stream)
        for index, (source, size, target) in enumerate(_chunks_of(froms, sizes, tos, count)):
            try:
                content = zlib.decompress(ctypes.string_at(source, size))
            except zlib.error:
                content = None
            if content is None or len(content) > _sizes_at(rooms, count)[index]:
                _statuses_at(codes, index + 1)[index] = 12
                continue
            _write_chunk(content, target, index, written, codes)
        return 0

    def GetDecompressSizeAsync(self, *_):  # noqa: N802
        return 11


class Functions:
    """The functions of a libnvcomp whose every algorithm is zlib."""

    def __getattr__(self, name):
        end = next(end for end in vars(_Answers) if name.endswith(end) and not end.startswith("_"))
        function = lambda *arguments: getattr(_Answers(), end)(*arguments)  # noqa: E731 - takes attributes
        setattr(self, name, function)
        return function
