"""Compress and restore independent chunks on the host, in one thread or many, by the Python bindings of codecs.

    codec = open_codec("zstd-3")                       # raises Skip, with the way to install it
    packed = codec.compress(chunks, threads=4)         # bytes-like objects to bytes objects, in order
    back = codec.decompress(packed, sizes, threads=4)  # raises CodecError for an invalid chunk

Every binding lets other threads run while it works. A codec never restores more bytes than the given size, whatever its
input contains."""

import functools
import importlib
import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gpubench.api import suite as gb

from ._codecs_common import expect_same, lengths, observed
from ._corpora import Corpus

_HOW = "pip install 'gpubench-suite[host]'"
_SHARES = 4  # slices per thread: small ones balance threads of different speed
_RAW, _GZIP = -15, 31  # zlib's window bits: a bare Deflate stream; one with gzip's header and checksum

Chunk = bytes | bytearray | memoryview
T = TypeVar("T")


class CodecError(gb.WrongAnswer):
    """The input of a decompression is not a stream of this codec, or the output has the wrong length."""


@dataclass(frozen=True, slots=True)
class HostCodec:
    """A codec of the host.

    `squeeze()` returns a function that compresses a chunk, for use in one thread."""

    name: str
    format: str
    squeeze: Callable[[], Callable[[Chunk], bytes]]
    restore: Callable[[Chunk, int], bytes]
    errors: tuple[type[Exception], ...]
    description: str

    def max_compressed_bytes(self, chunk_bytes: int) -> int:
        """Return the most bytes that any codec of this module needs for a compressed chunk of `chunk_bytes`.

        LZ4 has the loosest bound: n + n/255 + 16."""
        return chunk_bytes + chunk_bytes // 128 + 512

    def compress(self, chunks: Sequence[Chunk], threads: int = 1) -> list[bytes]:
        """Return each chunk compressed by itself, in the order of `chunks`."""
        return _map_in_threads(lambda part: list(map(self.squeeze(), part)), chunks, threads)

    def decompress(self, chunks: Sequence[Chunk], sizes: Sequence[int], threads: int = 1) -> list[bytes]:
        """Return each chunk restored, in the order of `chunks`; `sizes` are the lengths in bytes that they must have.

        Raises CodecError with the codec's message if a chunk is not valid or has another length."""
        return _map_in_threads(
            lambda part: [self.decompress_one(chunk, size) for chunk, size in part],
            list(zip(chunks, sizes, strict=True)),
            threads,
        )

    def decompress_one(self, chunk: Chunk, size: int) -> bytes:
        """Return one chunk restored, of exactly `size` bytes.

        Raises CodecError if it is not valid or has another length."""
        try:
            restored = self.restore(chunk, size)
        except self.errors as error:
            raise CodecError(f"a chunk could not be decompressed: {error}") from error
        expect_length(restored, size)
        return restored


def expect_length(restored: bytes, size: int) -> None:
    """Raise CodecError unless `restored` has `size` bytes."""
    if len(restored) != size:
        raise CodecError(
            f"a chunk could not be decompressed: it has a wrong length, {len(restored)} bytes or more of {size}"
        )


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


def _map_in_threads(work: Callable[[Sequence[Any]], list[T]], items: Sequence[Any], threads: int) -> list[T]:
    """Return the joined results of `work` for slices of `items`, in the order of the items."""
    if threads == 1:
        return work(items)
    size = max(1, -(-len(items) // (_SHARES * threads)))
    slices = [items[start : start + size] for start in range(0, len(items), size)]
    return [result for part in _pool(threads).map(work, slices) for result in part]


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


# Each codec by its binding.


def _inflate(start: Callable[[], Any], chunk: Chunk, size: int, error: type[Exception]) -> bytes:
    """Return at most `size` + 1 restored bytes of a stream; the extra byte shows that the stream is too long."""
    stream = start()
    restored: bytes = stream.decompress(chunk, size + 1)
    if not stream.eof or stream.unused_data:
        raise error("the stream does not end where its chunk ends")
    return restored


def _zlib(level: int, window: int = 15, kind: str = "zlib") -> HostCodec:
    """Return the codec of Python's zlib at a compression level; `window` is zlib's wbits."""

    def restore(chunk: Chunk, size: int) -> bytes:
        return _inflate(lambda: zlib.decompressobj(window), chunk, size, zlib.error)

    return HostCodec(
        f"{kind}-{level}",
        kind,
        lambda: lambda chunk: zlib.compress(chunk, level, window),
        restore,
        (zlib.error,),
        f"zlib {zlib.ZLIB_RUNTIME_VERSION}, level {level}: {_HEADERS[kind]}",
    )


_HEADERS = {
    "zlib": "6 bytes of header and checksum per chunk",
    "deflate": "bare Deflate, no header, no checksum",
    "gzip": "18 bytes of header and checksum per chunk",
}


def _isal(level: int) -> HostCodec:
    """Return the codec of ISA-L at a compression level, which writes zlib's format."""
    isal = _imported("isal.isal_zlib")
    package = _imported("isal")

    def restore(chunk: Chunk, size: int) -> bytes:
        return _inflate(isal.decompressobj, chunk, size, isal.error)

    return HostCodec(
        f"isal-{level}",
        "zlib",
        lambda: lambda chunk: isal.compress(chunk, level),
        restore,
        (isal.error,),
        f"ISA-L by isal {package.__version__}, level {level}: zlib's format, 6 bytes of header and checksum per chunk",
    )


def _zstd(level: int) -> HostCodec:
    """Return the codec of Zstandard at a compression level."""
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    zstd = _imported(name)

    def squeeze() -> Callable[[Chunk], bytes]:
        compressor = zstd.ZstdCompressor(level)
        return lambda chunk: bytes(compressor.compress(chunk, zstd.ZstdCompressor.FLUSH_FRAME))

    def restore(chunk: Chunk, size: int) -> bytes:
        return _inflate(zstd.ZstdDecompressor, chunk, size, zstd.ZstdError)

    return HostCodec(
        f"zstd-{level}",
        "zstd",
        squeeze,
        restore,
        (zstd.ZstdError, EOFError),
        f"Zstandard {zstd.zstd_version} through {name}, level {level}: one frame per chunk, no checksum",
    )


def _lz4(mode: str = "default") -> HostCodec:
    """Return the codec of raw LZ4 blocks; `mode` is a key of `_LZ4_MODES`. Raises Skip without the package lz4."""
    block = _imported("lz4.block")
    lz4 = _imported("lz4")
    return HostCodec(
        "lz4" if mode == "default" else "lz4-hc",
        "lz4",
        lambda: lambda chunk: bytes(block.compress(chunk, store_size=False, mode=mode)),
        lambda chunk, size: bytes(block.decompress(chunk, uncompressed_size=size)),
        (block.LZ4BlockError, ValueError),
        f"LZ4 {lz4.library_version_string()}, raw blocks (lz4.block), {_LZ4_MODES[mode]}, no checksum",
    )


_LZ4_MODES = {"default": "default speed", "high_compression": "high compression"}


def _imported(name: str) -> Any:
    """Return the module `name`; raises Skip, with the way to install it, if it is unavailable."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise gb.Skip(f"needs {name} ({error}): {_HOW}") from error


CODECS: Mapping[str, Callable[[], HostCodec]] = {
    "lz4": _lz4,
    "zstd-1": lambda: _zstd(1),
    "zstd-3": lambda: _zstd(3),
    "zlib-1": lambda: _zlib(1),
    "zlib-6": lambda: _zlib(6),
    "isal-1": lambda: _isal(1),
    "isal-3": lambda: _isal(3),
    "zstd-9": lambda: _zstd(9),
    "lz4-hc": lambda: _lz4("high_compression"),
}
# What a GPU's formats are written and read with on the host.
FORMATS: Mapping[str, Callable[[], HostCodec]] = {
    "lz4": _lz4,
    "zstd": lambda: _zstd(3),
    "deflate": lambda: _zlib(6, _RAW, "deflate"),
    "gzip": lambda: _zlib(6, _GZIP, "gzip"),
}


def open_codec(name: str) -> HostCodec:
    """Return the codec `name`, a key of CODECS.

    Raises Skip, with the way to install it, if its library is unavailable."""
    return CODECS[name]()


def open_format(name: str) -> HostCodec:
    """Return the host's codec of the format `name`, a key of FORMATS.

    Raises Skip, with the way to install it, if its library is unavailable."""
    return FORMATS[name]()


class HostRoundTrip:
    """A round trip on the host: a buffer, its chunks compressed, and its chunks restored, by `threads` threads.

    An output has one bytes object per chunk, as the binding returns it, and is not copied into one buffer."""

    def __init__(self, codec: HostCodec, source: Any, chunk_bytes: int, threads: int = 1) -> None:
        """Divide `source`, a NumPy array of dtype uint8, into chunks of `chunk_bytes`, and drop both outputs."""
        self.codec = codec
        self.source = source
        self.threads = threads
        self._chunk_bytes = chunk_bytes
        self.sizes = lengths(source.size, chunk_bytes)
        view = memoryview(source)
        self.chunks = [view[start : start + chunk_bytes] for start in range(0, source.size, chunk_bytes)]
        self.compressed: list[bytes] = []
        self.restored: list[bytes] = []
        self.poison()

    @property
    def total(self) -> int:
        """The bytes of the buffer."""
        return int(self.source.size)

    def poison(self) -> None:
        """Replace every chunk of both outputs by an empty one."""
        self.compressed = [b""] * len(self.chunks)
        self.restored = [b""] * len(self.chunks)

    def compress(self) -> None:
        """Compress every chunk of the buffer."""
        self.compressed = self.codec.compress(self.chunks, self.threads)

    def restore(self) -> None:
        """Restore every compressed chunk; raises CodecError if one is not valid or has a wrong length."""
        self.restored = self.codec.decompress(self.compressed, self.sizes, self.threads)

    def check(self) -> gb.Observation:
        """Compare every restored chunk with the buffer, and return its ratio and its compressed bytes.

        Raises WrongAnswer if a length or a byte differs."""
        wrong = [index for index, chunk in enumerate(self.restored) if len(chunk) != self.sizes[index]]
        gb.expect(not wrong, f"{len(wrong)} chunks have a wrong length after the round trip, the first is {wrong[:1]}")
        expect_same(np.frombuffer(b"".join(self.restored), np.uint8), self.source)
        return observed(self.source.size, self._chunk_bytes, sum(map(len, self.compressed)))


def open_trip(corpus: Corpus, total: int, codec: str, chunk_bytes: int, threads: int = 1) -> HostRoundTrip:
    """Return a round trip of `total` bytes, which repeat the corpus, through the codec `codec`, a key of CODECS.

    Raises Skip if the codec's library is unavailable."""
    source = np.empty(total, np.uint8)
    corpus.fill(source)
    return HostRoundTrip(open_codec(codec), source, chunk_bytes, threads)
