"""Codecs of the host: independent chunks, each by its Python binding, in one thread or many.

    codec = open_codec("zstd-3")                       # raises Skip, with the way to install it
    packed = codec.compress(chunks, threads=4)         # bytes-like objects to bytes objects, in order
    back = codec.decompress(packed, sizes, threads=4)  # raises CodecError for an invalid chunk

Every binding lets other threads run while it works. A codec never restores more bytes than the given size, whatever
its input contains.
"""

from __future__ import annotations

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

from gpubench.api.suite import Observation, Skip, WrongAnswer, expect

from ._codecs_common import expect_same, lengths, observed
from ._corpora import Corpus

_HOW = "pip install 'gpubench-suite[host]'"
_SHARES = 4  # slices per thread: small ones balance threads of different speed
_RAW, _GZIP = -15, 31  # zlib's window bits: a bare Deflate stream; one with gzip's header and checksum

Chunk = bytes | bytearray | memoryview
T = TypeVar("T")


class CodecError(WrongAnswer):
    """The input of a decompression is not a stream of this codec, or the output has the wrong length."""


@dataclass(frozen=True, slots=True)
class HostCodec:
    """A codec: `squeeze()` returns a compressor for one thread; `restore` decompresses a chunk to a known length.

    Codecs of one `format` can read each other's output. `compressed_bytes` is the maximum size of a compressed chunk.
    """

    name: str
    format: str
    squeeze: Callable[[], Callable[[Chunk], bytes]]
    restore: Callable[[Chunk, int], bytes]
    errors: tuple[type[Exception], ...]
    description: str

    def max_compressed_bytes(self, chunk_bytes: int) -> int:
        """Return an upper bound for every codec here (LZ4's is the loosest: n + n/255 + 16)."""
        return chunk_bytes + chunk_bytes // 128 + 512

    def compress(self, chunks: Sequence[Chunk], threads: int = 1) -> list[bytes]:
        """Return each chunk compressed by itself, in order."""
        return _spread(lambda part: list(map(self.squeeze(), part)), chunks, threads)

    def decompress(self, chunks: Sequence[Chunk], sizes: Sequence[int], threads: int = 1) -> list[bytes]:
        """Return each restored chunk, of exactly `sizes` bytes; raises CodecError with the codec's message."""
        return _spread(
            lambda part: [self.one(chunk, size) for chunk, size in part], list(zip(chunks, sizes, strict=True)), threads
        )

    def one(self, chunk: Chunk, size: int) -> bytes:
        """Return one restored chunk, of exactly `size` bytes; raises CodecError if the codec refuses it."""
        try:
            restored = self.restore(chunk, size)
        except self.errors as error:
            raise CodecError(f"a chunk could not be decompressed: {error}") from error
        expect_length(restored, size)
        return restored


def expect_length(restored: bytes, size: int) -> None:
    """Raise CodecError unless the restored bytes have the expected length."""
    if len(restored) != size:
        raise CodecError(
            f"a chunk could not be decompressed: it has a wrong length, {len(restored)} bytes or more of {size}"
        )


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


def _spread(work: Callable[[Sequence[Any]], list[T]], items: Sequence[Any], threads: int) -> list[T]:
    """Return the results of `work` over contiguous slices of the items, in order."""
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
    """Return a restored Deflate stream of at most `size` + 1 bytes; the extra byte shows that it is too long."""
    stream = start()
    restored: bytes = stream.decompress(chunk, size + 1)
    if not stream.eof or stream.unused_data:
        raise error("the stream does not end where its chunk ends")
    return restored


def _zlib(level: int, window: int = 15, kind: str = "zlib") -> HostCodec:
    """Return the codec of Python's zlib; `window` is zlib's wbits, which selects the format that `kind` names."""

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
    """Return the codec of ISA-L, which writes zlib's format; raises Skip without the package isal."""
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
    """Return the codec of Zstandard; raises Skip without Python 3.14 or the package backports.zstd."""
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
    """Return the codec of raw LZ4 blocks; `mode` is lz4.block's. Raises Skip without the package lz4."""
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
    """Return the imported module; raises Skip, with the way to install it, if it is unavailable."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Skip(f"needs {name} ({error}): {_HOW}") from error


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
    """Return a codec by its name in cases; raises Skip, with the way to install it, if its library is unavailable."""
    return CODECS[name]()


def open_format(name: str) -> HostCodec:
    """Return the host's codec of a format; raises Skip, with the way to install it, if its library is unavailable."""
    return FORMATS[name]()


class HostRoundTrip:
    """A buffer (`source`, uint8), its chunks compressed and its chunks restored, by `threads` threads.

    A call returns the objects of the binding: one bytes object per chunk, not copied into one buffer.
    """

    def __init__(self, codec: HostCodec, source: Any, chunk_bytes: int, threads: int = 1) -> None:
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
        """Drop both outputs."""
        self.compressed = [b""] * len(self.chunks)
        self.restored = [b""] * len(self.chunks)

    def compress(self) -> None:
        """Compress every chunk."""
        self.compressed = self.codec.compress(self.chunks, self.threads)

    def restore(self) -> None:
        """Restore every chunk; raises CodecError if the codec refuses one."""
        self.restored = self.codec.decompress(self.compressed, self.sizes, self.threads)

    def check(self) -> Observation:
        """Compare the length of each chunk and all bytes; raises WrongAnswer if they differ."""
        wrong = [index for index, chunk in enumerate(self.restored) if len(chunk) != self.sizes[index]]
        expect(not wrong, f"{len(wrong)} chunks have a wrong length after the round trip, the first is {wrong[:1]}")
        expect_same(np.frombuffer(b"".join(self.restored), np.uint8), self.source)
        return observed(self.source.size, self._chunk_bytes, sum(map(len, self.compressed)))


def open_trip(corpus: Corpus, total: int, codec: str, chunk_bytes: int, threads: int = 1) -> HostRoundTrip:
    """Return a round trip with its buffers; raises Skip if the codec's library is unavailable."""
    source = np.empty(total, np.uint8)
    corpus.fill(source)
    return HostRoundTrip(open_codec(codec), source, chunk_bytes, threads)
