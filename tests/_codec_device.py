"""A device and an nvCOMP in host memory: addresses are real, a batch is a loop over zlib.

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
    """A NumPy array with a device array's `data.ptr`."""

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.ctypes.data)


def _addressed(make):
    return lambda *args, **options: np.array(make(*args, **options)).view(Addressed)


ARRAYS = types.SimpleNamespace(
    empty=_addressed(np.empty),
    zeros=_addressed(np.zeros),
    asarray=_addressed(np.asarray),
    arange=_addressed(np.arange),
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
        """A kernel of the codecs' own file, built by g++."""
        return _grid.kernel("compression/codecs.cu", name, **defines)


def _words(address, count):
    return (ctypes.c_size_t * count).from_address(address)


def _codes(address, count):
    return (ctypes.c_int * count).from_address(address)


def _batch(froms, sizes, tos, count):
    return zip(_words(froms, count), _words(sizes, count), _words(tos, count), strict=True)


def _put(found, target, index, written, codes):
    ctypes.memmove(target, found, len(found))
    _words(written, index + 1)[index], _codes(codes, index + 1)[index] = len(found), 0


class _Answers:
    """What each function does."""

    def nvcompGetStatusString(self, status):  # noqa: N802
        return f"words of {status}".encode()

    def nvcompGetProperties(self, found):  # noqa: N802
        found._obj.version = 6000
        return 0

    def CompressGetMaxOutputChunkSize(self, chunk, _, found):  # noqa: N802
        found._obj.value = chunk + 99
        return 0

    def CompressGetTempSize(self, count, chunk, _, found, total, stream):  # noqa: N802
        found._obj.value = 16 * count
        return 0

    DecompressGetTempSize = CompressGetTempSize

    def CompressGetRequiredAlignments(self, _, found):  # noqa: N802
        found._obj.input, found._obj.output, found._obj.temp = 1, 8, 8
        return 0

    DecompressGetRequiredAlignments = CompressGetRequiredAlignments

    def CompressAsync(self, froms, sizes, most, count, scratch, room, tos, written, _, codes, stream):  # noqa: N802
        assert (16 * count, _STREAM) == (room, stream)
        for index, (source, size, target) in enumerate(_batch(froms, sizes, tos, count)):
            assert size <= most
            _put(zlib.compress(ctypes.string_at(source, size), 1), target, index, written, codes)
        return 0

    def DecompressAsync(self, froms, sizes, rooms, written, count, scratch, room, tos, _, codes, stream):  # noqa: N802
        assert (16 * count, _STREAM) == (room, stream)
        for index, (source, size, target) in enumerate(_batch(froms, sizes, tos, count)):
            try:
                found = zlib.decompress(ctypes.string_at(source, size))
            except zlib.error:
                found = None
            if found is None or len(found) > _words(rooms, count)[index]:
                _codes(codes, index + 1)[index] = 12
                continue
            _put(found, target, index, written, codes)
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
