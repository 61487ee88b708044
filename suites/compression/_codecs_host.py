"""Compress and restore independent chunks on the host, in one thread or many, by the Python bindings of codecs.

Every binding lets other threads run while it works. A codec never restores more bytes than the given size, whatever its
input contains."""

import functools
import importlib
import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from gpubench.api import suite as gb

LENGTH_BYTES = 8  # a 64-bit compressed length, which a reader needs for each chunk
_SHARES = 4  # slices per thread: small ones balance threads of different speed
_RAW, _ZLIB, _GZIP = -15, 15, 31  # zlib's window bits: a bare Deflate stream; with zlib's or gzip's header and checksum

Chunk = bytes | bytearray | memoryview


class HostBytes:
    """Overwrites and compares arrays of the host, as DeviceBytes does on a GPU."""

    def invert(self, source: Any, target: Any) -> None:
        """Write the complement of every byte of `source` into `target`: uint8, of the same size."""
        np.invert(source, out=target)

    def expect_same(self, restored: Any, source: Any) -> None:
        """Raise WrongAnswer, which names the first differing byte, unless two uint8 arrays are equal."""
        gb.expect(restored.size == source.size, f"restored {restored.size} bytes of {source.size}")
        differing = restored != source
        if bool(differing.any()):
            first, count = int(differing.argmax()), int(differing.sum())
            gb.expect(False, f"{count} of {source.size} bytes differ after the round trip, the first at {first}")


@dataclass(frozen=True, slots=True)
class HostCodec:
    """A codec of the host.

    `squeeze()` returns a function that compresses a chunk, for use in one thread."""

    squeeze: Callable[[], Callable[[Chunk], bytes]]
    restore: Callable[[Chunk, int], bytes]
    errors: tuple[type[Exception], ...]
    description: str
    waits: ClassVar[bool] = False  # no call waits for a device
    buffers: ClassVar[HostBytes] = HostBytes()
    bench: ClassVar[None] = None

    def max_output_bytes(self, chunk_bytes: int) -> int:
        """Return the most bytes that any codec of this module needs for a compressed chunk of `chunk_bytes`.

        LZ4 has the loosest bound: n + n/255 + 16."""
        return chunk_bytes + chunk_bytes // 128 + 512

    def compress(self, chunks: Sequence[Chunk], threads: int = 1) -> list[bytes]:
        """Return each chunk compressed by itself, in the order of `chunks`."""
        return _map_in_threads(lambda part: list(map(self.squeeze(), part)), chunks, threads)

    def decompress(self, chunks: Sequence[Chunk], sizes: Sequence[int], threads: int = 1) -> list[bytes]:
        """Return each chunk restored, in the order of `chunks`; `sizes` are the lengths in bytes that they must have.

        Raises WrongAnswer with the codec's message if a chunk is not valid or has another length."""
        pairs = list(zip(chunks, sizes, strict=True))
        return _map_in_threads(lambda part: [self.decompress_one(*pair) for pair in part], pairs, threads)

    def decompress_one(self, chunk: Chunk, size: int) -> bytes:
        """Return one chunk restored, of exactly `size` bytes.

        Raises WrongAnswer if it is not valid or has another length."""
        try:
            restored = self.restore(chunk, size)
        except self.errors as error:
            raise gb.WrongAnswer(f"a chunk could not be decompressed: {error}") from error
        if len(restored) != size:
            problem = f"it has a wrong length, {len(restored)} bytes or more of {size}"
            raise gb.WrongAnswer(f"a chunk could not be decompressed: {problem}")
        return restored


_pool = functools.cache(ThreadPoolExecutor)


def _map_in_threads(work: Callable[[Sequence[Any]], list[bytes]], items: Sequence[Any], threads: int) -> list[bytes]:
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


def _inflate(start: Callable[[], Any], error: type[Exception]) -> Callable[[Chunk, int], bytes]:
    """Return a function that restores at most one byte more than the size, which shows that a stream is too long."""

    def restore(chunk: Chunk, size: int) -> bytes:
        stream = start()
        restored: bytes = stream.decompress(chunk, size + 1)
        if not stream.eof or stream.unused_data:
            raise error("the stream does not end where its chunk ends")
        return restored

    return restore


def _zlib(level: int, kind: str = "zlib", library: Any = zlib) -> HostCodec:
    window, header = {
        "zlib": (_ZLIB, "6 bytes of header and checksum per chunk"),
        "deflate": (_RAW, "bare Deflate, no header, no checksum"),
        "gzip": (_GZIP, "18 bytes of header and checksum per chunk"),
    }[kind]
    return HostCodec(
        lambda: lambda chunk: library.compress(chunk, level, window),
        _inflate(lambda: library.decompressobj(window), library.error),
        (library.error,),
        f"zlib {zlib.ZLIB_RUNTIME_VERSION}, level {level}: {header}",
    )


def _isal(level: int) -> HostCodec:
    codec, version = _zlib(level, library=imported("isal.isal_zlib")), imported("isal").__version__
    description = f"ISA-L by isal {version}, level {level}: zlib's format, 6 bytes of header and checksum per chunk"
    return replace(codec, description=description)


def _zstd(level: int) -> HostCodec:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    zstd = imported(name)

    def squeeze() -> Callable[[Chunk], bytes]:
        compressor = zstd.ZstdCompressor(level)
        return lambda chunk: bytes(compressor.compress(chunk, zstd.ZstdCompressor.FLUSH_FRAME))

    restore = _inflate(zstd.ZstdDecompressor, zstd.ZstdError)
    description = f"Zstandard {zstd.zstd_version} through {name}, level {level}: one frame per chunk, no checksum"
    return HostCodec(squeeze, restore, (zstd.ZstdError, EOFError), description)


def _lz4(mode: str = "default", speed: str = "default speed") -> HostCodec:
    block, version = imported("lz4.block"), imported("lz4").library_version_string()
    return HostCodec(
        lambda: lambda chunk: bytes(block.compress(chunk, store_size=False, mode=mode)),
        lambda chunk, size: bytes(block.decompress(chunk, uncompressed_size=size)),
        (block.LZ4BlockError, ValueError),
        f"LZ4 {version}, raw blocks (lz4.block), {speed}, no checksum",
    )


def imported(name: str, extra: str = "host") -> Any:
    """Return the module `name`; raises Skip, with the extra of gpubench that installs it, if it is unavailable."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise gb.Skip(f"needs {name} ({error}): pip install 'gpubench-suite[{extra}]'") from error


CODECS: Mapping[str, Callable[[], HostCodec]] = {
    "lz4": _lz4,
    **{f"zstd-{level}": functools.partial(_zstd, level) for level in (1, 3)},
    **{f"zlib-{level}": functools.partial(_zlib, level) for level in (1, 6)},
    **{f"isal-{level}": functools.partial(_isal, level) for level in (1, 3)},
    "zstd-9": functools.partial(_zstd, 9),
    "lz4-hc": functools.partial(_lz4, "high_compression", "high compression"),
}
# What a GPU's formats are written and read with on the host.
FORMATS: Mapping[str, Callable[[], HostCodec]] = {
    "lz4": _lz4,
    "zstd": CODECS["zstd-3"],
    **{kind: functools.partial(_zlib, 6, kind) for kind in ("deflate", "gzip")},
}


# Round trips.


def lengths(total: int, chunk_bytes: int) -> list[int]:
    """Return the number of bytes of each chunk of `total` bytes: `chunk_bytes`, and for the last one the rest."""
    full_chunks, last_bytes = divmod(total, chunk_bytes)
    return [chunk_bytes] * full_chunks + [last_bytes] * (last_bytes > 0)


def chunks_of(source: Any, chunk_bytes: int) -> list[memoryview]:
    """Return the chunks of a NumPy array of dtype uint8, without a copy."""
    view = memoryview(source)
    return [view[start : start + chunk_bytes] for start in range(0, len(view), chunk_bytes)]


def observed(total: int, chunk_bytes: int, compressed: int) -> dict[str, gb.Observed]:
    """Return the observations of a round trip: the ratio, and the compressed bytes with their lengths."""
    stored = compressed + LENGTH_BYTES * len(lengths(total, chunk_bytes))
    return {"ratio": gb.Observed(total / stored, "", "more"), "compressed": gb.Observed(stored, "B", "less")}


def shift_of(total: int, chunk_bytes: int) -> int:
    """Return by how many bytes the data of a round trip are rotated for its other input, whose answer differs.

    They are the bytes of a chunk, or half of a shorter buffer: both inputs have the same chunks, or nearly."""
    return min(chunk_bytes, total // 2)


class HostRoundTrip:
    """A round trip on the host: a buffer, its chunks compressed, and its chunks restored, by `threads` threads.

    An output has one bytes object per chunk, as the binding returns it, and is not copied into one buffer. `arrived`
    are the chunks to restore if they are not this round trip's own."""

    def __init__(self, codec: HostCodec, source: Any, chunk_bytes: int, threads: int = 1) -> None:
        self.codec, self.source, self.threads, self._chunk_bytes = codec, source, threads, chunk_bytes
        self.total, self.sizes = source.size, lengths(source.size, chunk_bytes)
        self._chunks, self._other = chunks_of(source, chunk_bytes), np.roll(source, -shift_of(self.total, chunk_bytes))
        self.arrived: list[bytes] | None = None
        self.poison()

    def redraw(self) -> None:
        """Put the same chunks in another order into the buffer; a second call restores the first one."""
        self.source, self._other = self._other, self.source
        self._chunks = chunks_of(self.source, self._chunk_bytes)

    def poison(self) -> None:
        self.compressed: list[bytes] = [b""] * len(self.sizes)
        self.restored: list[bytes] = [b""] * len(self.sizes)

    def compress(self) -> None:
        self.compressed = self.codec.compress(self._chunks, self.threads)

    def restore(self) -> None:
        """Restore every compressed chunk; raises WrongAnswer if one is not valid or has a wrong length."""
        self.restored = self.codec.decompress(self.arrived or self.compressed, self.sizes, self.threads)

    def check(self) -> gb.Observation:
        """Compare every restored byte with the buffer, and return its ratio and its compressed bytes."""
        self.codec.buffers.expect_same(np.frombuffer(b"".join(self.restored), np.uint8), self.source)
        return observed(self.total, self._chunk_bytes, sum(map(len, self.compressed)))
