"""Call nvCOMP's batched C functions by ctypes: one table for every algorithm of nvCOMP 6, and of hipCOMP.

The table was read from the headers of nvCOMP 6.0.0 and of hipCOMP, a fork of nvCOMP 2.2 (snapshot of 2024-10-08), whose
rows have never run on a device. Arrays of a batch are addresses on the device; calls are queued on a stream."""

import ctypes
import functools
import importlib.util
from collections.abc import Callable, Mapping
from ctypes import (
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpubench.base import installation
from gpubench.base.errors import GpubenchError, Unavailable

MAJOR = 6  # signatures and option structs differ between major versions
_SONAME = f"libnvcomp.so.{MAJOR}"
_HOW = installation.for_gpu()
_HIP_SONAME = "libhipcomp.so"
_HIP_HOW = "build ROCm's hipCOMP-core and put its libhipcomp.so on the library path"
_ENGINE_ALGORITHMS = 136  # CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK (cuda.h 13.0)
_ENGINE_BITS = {"deflate": 1, "snappy": 2, "lz4": 4}  # CUmemDecompressAlgorithm
_REFUSALS = frozenset({11, 18, 21})  # not supported, chunk too large, batch too large
# nvcompType_t by NumPy's name.
TYPES = {
    "int8": 0,
    "uint8": 1,
    "int16": 2,
    "uint16": 3,
    "int32": 4,
    "uint32": 5,
    "int64": 6,
    "uint64": 7,
    "float8_e4m3": 9,
    "float16": 10,
    "float32": 11,
    "float64": 12,
}
ANY_TYPE = 0xFF  # the type of a decompressor that reads it from its input


class Properties(ctypes.Structure):
    """The versions of the library and of the CUDA runtime it was built with, as numbers."""

    _fields_ = (("version", c_uint32), ("cudart_version", c_uint32))


def _options(name: str, *fields: tuple[str, Any], nbytes: int = 64) -> type[ctypes.Structure]:
    """Return a struct of options with `fields`, names and C types; unused bytes fill it up to `nbytes`."""
    bare: Any = type(name, (ctypes.Structure,), {"_fields_": fields})
    used = max((getattr(bare, field).offset + getattr(bare, field).size for field, _ in fields), default=0)
    return type(name, (ctypes.Structure,), {"_fields_": (*fields, ("reserved", c_char * (nbytes - used)))})


Plain = _options("Plain")
BackendChoice = _options("BackendChoice", ("backend", c_int))  # 0: the library chooses
SortedBackend = _options("SortedBackend", ("backend", c_int), ("sort", c_int))  # also for a hardware engine
CompressionLevel = _options("CompressionLevel", ("level", c_int))  # from 0 (entropy coding only) to 5 (highest ratio)
# LZ4's type sets the granularity of its matches; to decompress it matters only after a bit shuffle.
Lz4Compress = _options("Lz4Compress", ("data_type", c_int), ("bitshuffle", c_int))
Lz4Decompress = _options(
    "Lz4Decompress", ("backend", c_int), ("sort", c_int), ("data_type", c_int), ("bitshuffle", c_int)
)
GzipDecompress = _options("GzipDecompress", ("backend", c_int), ("algorithm", c_int), ("sort", c_int))
AnsCompress = _options(
    "AnsCompress",
    ("kind", c_int),
    ("data_type", c_int),
    ("sub_chunks", c_uint8),
    ("states", c_uint8),
    ("histogram_reduction", c_uint8),
)
AnsDecompress = _options(
    "AnsDecompress",
    ("backend", c_int),
    ("data_type", c_int),
    ("sub_chunks", c_uint8),
    ("states", c_uint8),
    ("skip_validate", c_uint8),
)
# Cascaded: delta, run lengths and frame of reference before bit packing; mode 0 decompresses any mode.
CascadedCompress = _options(
    "CascadedCompress",
    ("data_type", c_int),
    ("mode", c_int),
    ("terminal_codecs", c_uint64),
    ("coarse_encodings", c_uint64),
    ("fine_encodings", c_uint64),
    ("level", c_uint8),
)
CascadedDecompress = _options(
    "CascadedDecompress",
    ("backend", c_int),
    ("padding", c_int),
    ("data_type", c_int),
    ("mode", c_int),
    ("terminal_codecs", c_uint64),
    ("coarse_encodings", c_uint64),
)
BitcompCompress = _options(  # mode 0 is lossless
    "BitcompCompress", ("algorithm", c_int), ("data_type", c_int), ("delta", c_double), ("mode", c_int)
)
HipLz4 = _options("HipLz4", ("data_type", c_int), nbytes=4)
HipSnappy = _options("HipSnappy", nbytes=4)
HipCascaded = _options(  # run lengths, deltas and bit packing of pieces of `chunk` bytes
    "HipCascaded",
    ("chunk", c_size_t),
    ("data_type", c_int),
    ("run_lengths", c_int),
    ("deltas", c_int),
    ("bit_packing", c_int),
    nbytes=24,
)

_INTEGERS = {name: name for name in TYPES if "int" in name}
_HALVES_AS_INTEGERS = {"float16": "uint16", "bfloat16": "uint16"}
_FLOATS_AS_INTEGERS = {**_HALVES_AS_INTEGERS, "float32": "uint32", "float64": "uint64", "float8_e4m3": "uint8"}


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One row of the table: the name in the C functions, the option structs, and what differs from defaults."""

    prefix: str
    compress: type[ctypes.Structure]
    decompress: type[ctypes.Structure] | None
    types: Mapping[str, str] = field(default_factory=dict)
    compress_options: Mapping[str, int] = field(default_factory=dict)
    decompress_options: Mapping[str, int] = field(default_factory=dict)
    decompress_waits: bool = False
    engine: bool = False


ALGORITHMS: Mapping[str, Algorithm] = {
    "lz4": Algorithm("LZ4", Lz4Compress, Lz4Decompress, engine=True),
    "snappy": Algorithm("Snappy", Plain, SortedBackend, engine=True),
    "zstd": Algorithm("Zstd", Plain, BackendChoice),
    "deflate": Algorithm("Deflate", CompressionLevel, SortedBackend, compress_options={"level": 1}, engine=True),
    "gdeflate": Algorithm("Gdeflate", CompressionLevel, BackendChoice, compress_options={"level": 1}),
    "gzip": Algorithm("Gzip", CompressionLevel, GzipDecompress, compress_options={"level": 1}, engine=True),
    "ans": Algorithm(
        "ANS",
        AnsCompress,
        AnsDecompress,
        # "applicable to all half-precision data formats" (ans.h)
        types={"float16": "float16", "bfloat16": "float16", "float32": "float32", "float8_e4m3": "float8_e4m3"},
        decompress_options={"data_type": ANY_TYPE},
    ),
    "cascaded": Algorithm(
        "Cascaded",
        CascadedCompress,
        CascadedDecompress,
        types={**_INTEGERS, **_FLOATS_AS_INTEGERS},
        compress_options={"mode": 1, "terminal_codecs": 1, "fine_encodings": 7, "level": 3},
        decompress_options={"data_type": ANY_TYPE},
    ),
    "bitcomp": Algorithm(
        "Bitcomp",
        BitcompCompress,
        BackendChoice,
        types={**_INTEGERS, "float16": "float16", "bfloat16": "uint16", "float32": "float32", "float64": "float64"},
        decompress_waits=True,
    ),
}

HIP_ALGORITHMS: Mapping[str, Algorithm] = {
    "lz4": Algorithm("LZ4", HipLz4, None),
    "snappy": Algorithm("Snappy", HipSnappy, None),
    "cascaded": Algorithm(
        "Cascaded",
        HipCascaded,
        None,
        types={**_INTEGERS, **_FLOATS_AS_INTEGERS},
        compress_options={"chunk": 4096, "run_lengths": 2, "deltas": 1, "bit_packing": 1},
    ),
}

Arguments = tuple[tuple[str, Any], ...]


def signatures(algorithm: Algorithm, since_4: bool = True) -> dict[str, Arguments]:
    """Return the arguments, names and C types, of every batched function by the end of its name (`CompressAsync`)."""
    size, address, sizes = c_size_t, c_void_p, POINTER(c_size_t)
    batch: Arguments = (("pointers", address), ("sizes", address))
    scratch: Arguments = (("scratch", address), ("scratch_bytes", size))
    compress_options: Arguments = (("options", algorithm.compress),)
    decompress_options: Arguments = (("options", algorithm.decompress),) if algorithm.decompress else ()
    stream: Arguments = (("stream", address),)
    status: Arguments = (("statuses", address),)
    total: Arguments = (("total_bytes", size), *stream) if since_4 else ()
    chunks: Arguments = (("count", size), ("chunk_bytes", size))
    result: Arguments = (("result", sizes),)
    output: Arguments = (("target_pointers", address),)
    return {
        "CompressGetMaxOutputChunkSize": (("chunk_bytes", size), *compress_options, *result),
        "CompressGetTempSize": (*chunks, *compress_options, *result, *total),
        "CompressAsync": (
            *batch,
            ("chunk_bytes", size),
            ("count", size),
            *scratch,
            *output,
            ("target_sizes", address),
            *compress_options,
            *(status if since_4 else ()),
            *stream,
        ),
        "DecompressGetTempSize": (*chunks, *decompress_options, *result, *total),
        "DecompressAsync": (
            *batch,
            ("target_sizes", address),
            ("written", address),
            ("count", size),
            *scratch,
            *output,
            *decompress_options,
            *status,
            *stream,
        ),
        "GetDecompressSizeAsync": (*batch, ("target_sizes", address), ("count", size), *stream),
    }


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
    """A batch of `count` chunks: addresses of two arrays on the device, their addresses and their sizes (64-bit)."""

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
        """Return the library's version (`6.0.0`); for hipCOMP `2.2`, the version of nvCOMP from which it was forked."""
        if not self.is_nvcomp:
            return "2.2"
        properties = Properties()
        self.require("nvcompGetProperties", self.handle.nvcompGetProperties(ctypes.byref(properties)))
        major, rest = divmod(properties.version, 1000)
        return f"{major}.{rest // 100}.{rest % 100}"


class Codec:
    """One algorithm on elements of one type (a NumPy name); every method may raise NvcompError.

    `data_type` is the type that the library is given. `options` and `back` replace defaults of the table, in the
    option structs of compressing and of decompressing."""

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

    def max_output_bytes(self, chunk_bytes: int) -> int:
        """Return the most bytes that a chunk of at most `chunk_bytes` bytes can become: the size of each output."""
        return self._size("CompressGetMaxOutputChunkSize", chunk_bytes=chunk_bytes)

    def temp_bytes(self, count: int, chunk_bytes: int, total_bytes: int, stream: int = 0) -> dict[str, int]:
        """Return the scratch bytes to `compress` and to `decompress` `count` chunks of at most `chunk_bytes`.

        All chunks together have `total_bytes`."""
        sizes = {"count": count, "chunk_bytes": chunk_bytes, "total_bytes": total_bytes, "stream": stream}
        return {way: self._size(f"{way.capitalize()}GetTempSize", **sizes) for way in ("compress", "decompress")}

    def compress(
        self, source: Chunks, chunk_bytes: int, scratch: Scratch, target: Chunks, statuses: int, stream: int
    ) -> Callable[[], None]:
        """Return a function that queues compressing the chunks of `source` into `target`, which a call overwrites.

        `chunk_bytes` is the most bytes of a chunk. `statuses` is the address of one 32-bit status per chunk on the
        device, which hipCOMP leaves unchanged."""
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
        """Return a function that queues restoring `source` into `target`, whose sizes are capacities.

        `restored_sizes` and `statuses` are addresses of arrays on the device that receive the bytes written (64 bits)
        and the status (32 bits) of each chunk."""
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


@functools.cache
def load() -> NvcompLibrary:
    """Return nvCOMP from the Python wheel, or else from the system. Raises Unavailable if neither has it."""
    reasons = []
    for path in (*_wheel_files(), _SONAME):
        try:
            return NvcompLibrary(ctypes.CDLL(str(path)))
        except OSError as error:
            reasons.append(str(error))
    raise Unavailable(f"nvCOMP {MAJOR} is not usable here ({reasons[0]})", _HOW)


@functools.cache
def load_hip() -> NvcompLibrary:
    """Return hipCOMP, which the user has to build. Raises Unavailable if it cannot be loaded."""
    try:
        return NvcompLibrary(ctypes.CDLL(_HIP_SONAME), "hipcomp")
    except OSError as error:
        raise Unavailable(f"hipCOMP is not usable here ({error})", _HIP_HOW) from error


def engine_formats(ordinal: int) -> frozenset[str]:
    """Return the formats that the hardware engine of a CUDA device decompresses: `deflate`, `snappy` or `lz4`."""
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
