"""nvCOMP's batched C API by ctypes: one table for every algorithm of nvCOMP 6.

A batch is one call over many chunks. Its arrays (addresses of chunks, their sizes as 64-bit
integers, 32-bit statuses) lie on the device and are passed as plain integer addresses. Calls are
queued on a stream and do not wait for it, with one exception (`Codec.decompress_waits`). The pure
size functions answer with no GPU.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from ctypes import POINTER, c_char_p, c_int, c_size_t
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubench.errors import GpubenchError, Missing
from gpubench.native._nvcomp_table import ALGORITHMS, TYPES, Alignments, Properties, signatures

__all__ = ["ALGORITHMS", "MAJOR", "Alignments", "Chunks", "Codec", "Library", "NvcompError", "Scratch", "load"]

MAJOR = 6  # signatures and option structs differ between major versions
_SONAME = f"libnvcomp.so.{MAJOR}"
_HOW = "pip install 'gpubench-suite[cuda13]' (or [cuda12])"

_REFUSALS = frozenset({11, 18, 21})  # not supported, chunk too large, batch too large


class NvcompError(GpubenchError):
    """nvCOMP refused a call; `status` is its nvcompStatus_t, the text its own words."""

    def __init__(self, what: str, status: int, words: str) -> None:
        super().__init__(f"{what}: {words} (status {status})")
        self.status = status

    @property
    def is_refusal(self) -> bool:
        """Whether the library does not support what was asked, as against a failure."""
        return self.status in _REFUSALS


@dataclass(frozen=True, slots=True)
class Chunks:
    """A batch on the device: addresses of the arrays of chunk addresses and of chunk sizes in bytes."""

    pointers: int
    sizes: int
    count: int


@dataclass(frozen=True, slots=True)
class Scratch:
    """Temporary device memory of a call."""

    address: int = 0
    nbytes: int = 0


class Library:
    """The loaded library."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        self.handle = handle
        handle.nvcompGetStatusString.argtypes = (c_int,)
        handle.nvcompGetStatusString.restype = c_char_p
        handle.nvcompGetProperties.argtypes = (POINTER(Properties),)
        handle.nvcompGetProperties.restype = c_int

    def words(self, status: int) -> str:
        """The library's own words for a status."""
        text: bytes | None = self.handle.nvcompGetStatusString(status)
        return text.decode(errors="replace") if text else "unknown status"

    def require(self, what: str, status: int) -> None:
        """Raise NvcompError unless the status is success."""
        if status:
            raise NvcompError(what, status, self.words(status))

    @property
    def version(self) -> str:
        """The library's version: 6.0.0."""
        found = Properties()
        self.require("nvcompGetProperties", self.handle.nvcompGetProperties(ctypes.byref(found)))
        major, rest = divmod(found.version, 1000)
        return f"{major}.{rest // 100}.{rest % 100}"


class Codec:
    """One algorithm on elements of one type (a NumPy name); every method may raise NvcompError."""

    def __init__(self, library: Library, name: str, dtype: str = "uint8") -> None:
        self._library = library
        self._algorithm = algorithm = ALGORITHMS[name]
        self.data_type = algorithm.types.get(dtype, "uint8")
        told = {"data_type": TYPES[self.data_type]} if algorithm.types else {}
        self._compress = algorithm.compress(**algorithm.compress_options, **told)
        self._decompress = algorithm.decompress(**algorithm.decompress_options)
        self._functions = {
            end: self._declared(end, arguments)
            for end, arguments in signatures(algorithm.compress, algorithm.decompress).items()
        }

    def _declared(self, end: str, arguments: tuple[Any, ...]) -> Any:
        function = getattr(self._library.handle, f"nvcompBatched{self._algorithm.prefix}{end}")
        function.argtypes = arguments
        function.restype = c_int
        return function

    @property
    def decompress_waits(self) -> bool:
        """Whether decompressing waits for the stream before it queues its work."""
        return self._algorithm.decompress_waits

    def _call(self, end: str, *arguments: Any) -> None:
        status = self._functions[end](*arguments)
        if status:
            self._library.require(f"nvcompBatched{self._algorithm.prefix}{end}", status)

    def _size(self, end: str, *before: Any, after: tuple[Any, ...] = ()) -> int:
        found = c_size_t()
        self._call(end, *before, ctypes.byref(found), *after)
        return found.value

    def compress_alignments(self) -> Alignments:
        """What compressing requires of its buffers."""
        found = Alignments()
        self._call("CompressGetRequiredAlignments", self._compress, ctypes.byref(found))
        return found

    def decompress_alignments(self) -> Alignments:
        """What decompressing requires of its buffers."""
        found = Alignments()
        self._call("DecompressGetRequiredAlignments", self._decompress, ctypes.byref(found))
        return found

    def max_output_bytes(self, chunk_bytes: int) -> int:
        """The most bytes that a chunk of at most `chunk_bytes` becomes: what each output must hold."""
        return self._size("CompressGetMaxOutputChunkSize", chunk_bytes, self._compress)

    def compress_temp_bytes(self, count: int, chunk_bytes: int, total_bytes: int, stream: int = 0) -> int:
        """Scratch bytes for compressing `count` chunks of at most `chunk_bytes`, `total_bytes` in all."""
        return self._size("CompressGetTempSize", count, chunk_bytes, self._compress, after=(total_bytes, stream))

    def decompress_temp_bytes(self, count: int, chunk_bytes: int, total_bytes: int, stream: int = 0) -> int:
        """Scratch bytes for restoring `count` chunks of at most `chunk_bytes`, `total_bytes` in all."""
        return self._size("DecompressGetTempSize", count, chunk_bytes, self._decompress, after=(total_bytes, stream))

    def compress(
        self, source: Chunks, chunk_bytes: int, scratch: Scratch, target: Chunks, statuses: int, stream: int
    ) -> None:
        """Queue compressing `source`, chunks of at most `chunk_bytes`; fills target's chunks and sizes."""
        self._call(
            "CompressAsync",
            source.pointers,
            source.sizes,
            chunk_bytes,
            source.count,
            scratch.address,
            scratch.nbytes,
            target.pointers,
            target.sizes,
            self._compress,
            statuses,
            stream,
        )

    def decompress(
        self, source: Chunks, target: Chunks, restored_sizes: int, scratch: Scratch, statuses: int, stream: int
    ) -> None:
        """Queue restoring `source` into `target`, whose sizes are what its chunks can hold.

        `restored_sizes` is the address of an array that is filled with the bytes written.
        """
        self._call(
            "DecompressAsync",
            source.pointers,
            source.sizes,
            target.sizes,
            restored_sizes,
            source.count,
            scratch.address,
            scratch.nbytes,
            target.pointers,
            self._decompress,
            statuses,
            stream,
        )

    def restored_sizes(self, source: Chunks, sizes: int, stream: int) -> None:
        """Queue reading from compressed chunks how many bytes each becomes, into the array at `sizes`."""
        self._call("GetDecompressSizeAsync", source.pointers, source.sizes, sizes, source.count, stream)


@functools.cache
def load() -> Library:
    """The library of the wheel, else the system's; raises Missing with how to get it."""
    reasons = []
    for path in (*_wheel_files(), _SONAME):
        try:
            return Library(ctypes.CDLL(str(path)))
        except OSError as error:
            reasons.append(str(error))
    raise Missing(f"nvCOMP {MAJOR} is not usable here ({reasons[0]})", _HOW)


def _wheel_files() -> list[Path]:
    """The library in the distribution nvidia-libnvcomp-cu13 or -cu12: both have the same module."""
    try:
        spec = importlib.util.find_spec("nvidia.libnvcomp")
    except ModuleNotFoundError:
        return []
    folders = spec.submodule_search_locations if spec else None
    return sorted(path for folder in folders or () for path in Path(folder).glob(f"*/{_SONAME}"))
