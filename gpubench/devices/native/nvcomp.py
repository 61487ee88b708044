"""Call nvCOMP's batched C functions by ctypes: one table for every algorithm of nvCOMP 6, and of hipCOMP.

A batch is one call over many chunks. Its arrays (addresses of chunks, their sizes as 64-bit integers, 32-bit statuses)
are on the device and are passed as plain integer addresses. Calls are queued on a stream and do not wait for it, with
one exception (`Codec.decompress_waits`). The functions that return sizes need no GPU."""

import ctypes
import functools
import importlib.util
from collections.abc import Callable, Mapping
from ctypes import POINTER, c_char_p, c_int, c_size_t
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubench.base.errors import GpubenchError, Unavailable
from gpubench.devices.native._nvcomp_table import (
    ALGORITHMS,
    HIP_ALGORITHMS,
    TYPES,
    Algorithm,
    Alignments,
    Properties,
    signatures,
)

__all__ = [
    "ALGORITHMS",
    "HIP_ALGORITHMS",
    "MAJOR",
    "TYPES",
    "Alignments",
    "Chunks",
    "Codec",
    "NvcompError",
    "NvcompLibrary",
    "Scratch",
    "engine_formats",
    "load",
    "load_hip",
]

MAJOR = 6  # signatures and option structs differ between major versions
_SONAME = f"libnvcomp.so.{MAJOR}"
_HOW = "pip install 'gpubench-suite[cuda13]' (or [cuda12])"
_HIP_SONAME = "libhipcomp.so"
_HIP_HOW = "build ROCm's hipCOMP-core and put its libhipcomp.so on the library path"
_HIP_ALIGNMENT = 8  # bytes of the widest element; hipCOMP has no query for the alignment
_ENGINE_ALGORITHMS = 136  # CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK (cuda.h 13.0)
_ENGINE_BITS = {"deflate": 1, "snappy": 2, "lz4": 4}  # CUmemDecompressAlgorithm

_REFUSALS = frozenset({11, 18, 21})  # not supported, chunk too large, batch too large


class NvcompError(GpubenchError):
    """nvCOMP refused a call; `status` is its nvcompStatus_t, and the text is the library's own."""

    def __init__(self, function: str, status: int, status_text: str) -> None:
        super().__init__(f"{function}: {status_text} (status {status})")
        self.status = status

    @property
    def is_refusal(self) -> bool:
        """Return whether the library does not support the request; False for a failure."""
        return self.status in _REFUSALS


@dataclass(frozen=True, slots=True)
class Chunks:
    """A batch of `count` chunks on the device.

    `pointers` and `sizes` are the addresses of two arrays on the device: the chunks' addresses, and their sizes in
    bytes, both as 64-bit integers."""

    pointers: int
    sizes: int
    count: int


@dataclass(frozen=True, slots=True)
class Scratch:
    """Temporary device memory of a call: its address and its size in bytes."""

    address: int = 0
    nbytes: int = 0


class NvcompLibrary:
    """The loaded library: nvCOMP, or hipCOMP under other names; `product` is the prefix of its functions."""

    def __init__(self, handle: ctypes.CDLL, product: str = "nvcomp") -> None:
        """Wrap the loaded library `handle`, and declare the functions that all algorithms share."""
        self.handle = handle
        self.product = product
        if self.is_nvcomp:
            handle.nvcompGetStatusString.argtypes = (c_int,)
            handle.nvcompGetStatusString.restype = c_char_p
            handle.nvcompGetProperties.argtypes = (POINTER(Properties),)
            handle.nvcompGetProperties.restype = c_int

    @property
    def is_nvcomp(self) -> bool:
        """Return whether the library has the functions of nvCOMP 4 and newer."""
        return self.product == "nvcomp"

    @property
    def algorithms(self) -> Mapping[str, Algorithm]:
        """Return the algorithms of this library by name."""
        return ALGORITHMS if self.is_nvcomp else HIP_ALGORITHMS

    def status_text(self, status: int) -> str:
        """Return the library's own text for a status; hipCOMP has no such texts."""
        text: bytes | None = self.handle.nvcompGetStatusString(status) if self.is_nvcomp else None
        return text.decode(errors="replace") if text else "unknown status"

    def require(self, function: str, status: int) -> None:
        """Raise NvcompError unless the status is success."""
        if status:
            raise NvcompError(function, status, self.status_text(status))

    @property
    def version(self) -> str:
        """Return the library's version (`6.0.0`); for hipCOMP `2.2`, the version of nvCOMP from which it was forked.

        Raises NvcompError if the library does not answer."""
        if not self.is_nvcomp:
            return "2.2"
        properties = Properties()
        self.require("nvcompGetProperties", self.handle.nvcompGetProperties(ctypes.byref(properties)))
        major, rest = divmod(properties.version, 1000)
        return f"{major}.{rest // 100}.{rest % 100}"


class Codec:
    """One algorithm on elements of one type (a NumPy name); every method may raise NvcompError.

    `data_type` is the type that the library is given. `options` and `back` are fields of the option structs of
    compressing and of decompressing, which replace the defaults of the table. Raises KeyError if the library has no
    such algorithm."""

    def __init__(
        self,
        library: NvcompLibrary,
        name: str,
        dtype: str = "uint8",
        options: Mapping[str, int] | None = None,
        back: Mapping[str, int] | None = None,
    ) -> None:
        """Look up the C functions of the algorithm `name`, and make its option structs for elements of type `dtype`."""
        self._library = library
        self._algorithm = algorithm = library.algorithms[name]
        self.data_type = algorithm.types.get(dtype, "uint8")
        type_option = {"data_type": TYPES[self.data_type]} if algorithm.types else {}
        self._compress = algorithm.compress(**{**algorithm.compress_options, **type_option, **(options or {})})
        restore = algorithm.decompress
        self._decompress = restore(**{**algorithm.decompress_options, **(back or {})}) if restore else None
        self._functions = {
            suffix: (self._typed_function(suffix, [kind for _, kind in arguments]), [name for name, _ in arguments])
            for suffix, arguments in signatures(algorithm, library.is_nvcomp).items()
        }

    def _function_name(self, suffix: str) -> str:
        return f"{self._library.product}Batched{self._algorithm.prefix}{suffix}"

    def _typed_function(self, suffix: str, kinds: list[Any]) -> Any:
        """Return the C function (ctypes) of this codec whose name ends in `suffix`."""
        function = getattr(self._library.handle, self._function_name(suffix))
        function.argtypes = kinds
        function.restype = c_int
        return function

    @property
    def decompress_waits(self) -> bool:
        """Return whether decompressing waits for the stream before it queues its work."""
        return self._algorithm.decompress_waits

    def _bound_call(self, suffix: str, **call_arguments: Any) -> Callable[[], None]:
        """Return a function without arguments that calls the C function once and raises NvcompError if it fails."""
        function, names = self._functions[suffix]
        call_arguments["options"] = self._decompress if suffix.startswith("Decompress") else self._compress
        arguments = [call_arguments[name] for name in names]

        def call() -> None:
            status = function(*arguments)
            if status:
                self._library.require(self._function_name(suffix), status)

        return call

    def _call(self, suffix: str, **call_arguments: Any) -> None:
        self._bound_call(suffix, **call_arguments)()

    def _size(self, suffix: str, **call_arguments: Any) -> int:
        """Return the size in bytes that the library's query whose name ends in `suffix` gives."""
        size = c_size_t()
        self._call(suffix, result=ctypes.byref(size), **call_arguments)
        return size.value

    def _alignments(self, suffix: str) -> Alignments:
        """Return the alignments in bytes that the library's query whose name ends in `suffix` gives."""
        if suffix not in self._functions:
            return Alignments(_HIP_ALIGNMENT, _HIP_ALIGNMENT, _HIP_ALIGNMENT)
        alignments = Alignments()
        self._call(suffix, result=ctypes.byref(alignments))
        return alignments

    def compress_alignments(self) -> Alignments:
        """Return the alignments that compressing requires of its buffers, in bytes."""
        return self._alignments("CompressGetRequiredAlignments")

    def decompress_alignments(self) -> Alignments:
        """Return the alignments that decompressing requires of its buffers, in bytes."""
        return self._alignments("DecompressGetRequiredAlignments")

    def max_output_bytes(self, chunk_bytes: int) -> int:
        """Return the most bytes that a chunk of at most `chunk_bytes` bytes can become: the size of each output."""
        return self._size("CompressGetMaxOutputChunkSize", chunk_bytes=chunk_bytes)

    def compress_temp_bytes(self, count: int, chunk_bytes: int, total_bytes: int, stream: int = 0) -> int:
        """Return the scratch bytes for compressing `count` chunks of at most `chunk_bytes`, `total_bytes` in all."""
        return self._temp_bytes("CompressGetTempSize", count, chunk_bytes, total_bytes, stream)

    def decompress_temp_bytes(self, count: int, chunk_bytes: int, total_bytes: int, stream: int = 0) -> int:
        """Return the scratch bytes for restoring `count` chunks of at most `chunk_bytes`, `total_bytes` in all."""
        return self._temp_bytes("DecompressGetTempSize", count, chunk_bytes, total_bytes, stream)

    def _temp_bytes(self, suffix: str, count: int, chunk_bytes: int, total_bytes: int, stream: int) -> int:
        return self._size(suffix, count=count, chunk_bytes=chunk_bytes, total_bytes=total_bytes, stream=stream)

    def compress(
        self, source: Chunks, chunk_bytes: int, scratch: Scratch, target: Chunks, statuses: int, stream: int
    ) -> Callable[[], None]:
        """Return a function without arguments that queues compressing the chunks of `source` into `target` on a stream.

        Each call overwrites the chunks and the sizes of `target`, and raises NvcompError if the library refuses it.
        `chunk_bytes` is the most bytes of a chunk of `source`. `stream` is the address of a stream, and `statuses` the
        address of an array on the device with one 32-bit status per chunk, which hipCOMP leaves unchanged."""
        return self._bound_call(
            "CompressAsync",
            pointers=source.pointers,
            sizes=source.sizes,
            chunk_bytes=chunk_bytes,
            count=source.count,
            scratch=scratch.address,
            scratch_bytes=scratch.nbytes,
            target_pointers=target.pointers,
            target_sizes=target.sizes,
            statuses=statuses,
            stream=stream,
        )

    def decompress(
        self, source: Chunks, target: Chunks, restored_sizes: int, scratch: Scratch, statuses: int, stream: int
    ) -> Callable[[], None]:
        """Return a function without arguments that queues restoring `source` into `target` on a stream.

        The sizes of `target` are the capacities of its chunks. `restored_sizes` and `statuses` are the addresses of
        arrays on the device that receive, for each chunk, the number of bytes written (64 bits) and the status (32
        bits); `stream` is the address of a stream. A call raises NvcompError if the library refuses it."""
        return self._bound_call(
            "DecompressAsync",
            pointers=source.pointers,
            sizes=source.sizes,
            target_sizes=target.sizes,
            written=restored_sizes,
            count=source.count,
            scratch=scratch.address,
            scratch_bytes=scratch.nbytes,
            target_pointers=target.pointers,
            statuses=statuses,
            stream=stream,
        )

    def restored_sizes(self, source: Chunks, sizes: int, stream: int) -> None:
        """Queue a call that writes the restored size of each compressed chunk of `source` to an array.

        `sizes` is the address of the array, which is on the device and holds 64-bit integers; `stream` is the address
        of a stream. Raises NvcompError if the library refuses the call."""
        self._call(
            "GetDecompressSizeAsync",
            pointers=source.pointers,
            sizes=source.sizes,
            target_sizes=sizes,
            count=source.count,
            stream=stream,
        )


@functools.cache
def load() -> NvcompLibrary:
    """Return nvCOMP from the Python wheel, or else from the system, loaded once.

    Raises Unavailable if neither has it."""
    reasons = []
    for path in (*_wheel_files(), _SONAME):
        try:
            return NvcompLibrary(ctypes.CDLL(str(path)))
        except OSError as error:
            reasons.append(str(error))
    raise Unavailable(f"nvCOMP {MAJOR} is not usable here ({reasons[0]})", _HOW)


@functools.cache
def load_hip() -> NvcompLibrary:
    """Return hipCOMP, which the user has to build, loaded once. Raises Unavailable if it cannot be loaded.

    It has never run on a device."""
    try:
        return NvcompLibrary(ctypes.CDLL(_HIP_SONAME), "hipcomp")
    except OSError as error:
        raise Unavailable(f"hipCOMP is not usable here ({error})", _HIP_HOW) from error


def engine_formats(ordinal: int) -> frozenset[str]:
    """Return the formats that the hardware decompression engine of a CUDA device reads: `deflate`, `snappy` or `lz4`.

    `ordinal` is the driver's index of the device. The result is empty if the device has no engine. Raises OSError if
    there is no libcuda."""
    driver, mask = ctypes.CDLL("libcuda.so.1"), c_int()
    if driver.cuDeviceGetAttribute(ctypes.byref(mask), _ENGINE_ALGORITHMS, ordinal):
        return frozenset()
    return frozenset(name for name, bit in _ENGINE_BITS.items() if mask.value & bit)


def _wheel_files() -> list[Path]:
    """Return the paths of nvCOMP's library in the distribution nvidia-libnvcomp-cu13 or -cu12."""
    try:
        spec = importlib.util.find_spec("nvidia.libnvcomp")
    except ModuleNotFoundError:
        return []
    folders = spec.submodule_search_locations if spec else None
    return sorted(path for folder in folders or () for path in Path(folder).glob(f"*/{_SONAME}"))
