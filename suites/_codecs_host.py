"""Codecs of the host: chunk by chunk in one thread, each by its Python binding."""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api import Observation, Skip, Task, WrongAnswer, expect

from ._codecs_common import expect_same, lengths, observed, stage
from ._corpora import Corpus

_HOW = "pip install 'gpubench-suite[host]'"


@dataclass(frozen=True, slots=True)
class _Codec:
    """Compress a chunk; restore one of a known length; what restoring raises; what it is."""

    compress: Callable[[memoryview], bytes]
    restore: Callable[[bytes, int], bytes]
    error: type[Exception]
    description: str


def _zlib(level: int) -> _Codec:
    return _Codec(
        lambda chunk: zlib.compress(chunk, level),
        lambda chunk, length: zlib.decompress(chunk, bufsize=length),
        zlib.error,
        f"zlib {zlib.ZLIB_RUNTIME_VERSION}, level {level}: 6 bytes of header and checksum a chunk",
    )


def _zstd(level: int) -> _Codec:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    zstd = _imported(name)
    compressor = zstd.ZstdCompressor(level)
    return _Codec(
        lambda chunk: compressor.compress(chunk, zstd.ZstdCompressor.FLUSH_FRAME),
        lambda chunk, _: zstd.decompress(chunk),
        zstd.ZstdError,
        f"Zstandard {zstd.zstd_version} through {name}, level {level}: a frame a chunk, no checksum",
    )


def _lz4() -> _Codec:
    block = _imported("lz4.block")
    lz4 = _imported("lz4")
    return _Codec(
        lambda chunk: block.compress(chunk, store_size=False),
        lambda chunk, length: block.decompress(chunk, uncompressed_size=length),
        block.LZ4BlockError,
        f"LZ4 {lz4.library_version_string()}, raw blocks (lz4.block), default speed, no checksum",
    )


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Skip(f"needs {name} ({error}): {_HOW}") from error


CODECS: Mapping[str, Callable[[], _Codec]] = {
    "lz4": _lz4,
    "zstd-1": lambda: _zstd(1),
    "zstd-3": lambda: _zstd(3),
    "zlib-1": lambda: _zlib(1),
    "zlib-6": lambda: _zlib(6),
}


class RoundTrip:
    """A buffer, its chunks compressed and its chunks restored.

    What a call gives is what the binding gives: a bytes object a chunk, not copied together.
    """

    def __init__(self, codec: _Codec, source: Any, chunk_bytes: int) -> None:
        self._codec = codec
        self._source = source
        self._chunk_bytes = chunk_bytes
        self._lengths = lengths(source.size, chunk_bytes)
        view = memoryview(source)
        self._chunks = [view[start : start + chunk_bytes] for start in range(0, source.size, chunk_bytes)]
        self.compressed: list[bytes] = []
        self.restored: list[bytes] = []
        self.poison()

    def poison(self) -> None:
        """Forget both outputs."""
        self.compressed = [b""] * len(self._chunks)
        self.restored = [b""] * len(self._chunks)

    def compress(self) -> None:
        """Compress every chunk, in order."""
        compress, target = self._codec.compress, self.compressed
        for index, chunk in enumerate(self._chunks):
            target[index] = compress(chunk)

    def restore(self) -> None:
        """Restore every chunk, in order; WrongAnswer with the codec's words where it refuses one."""
        restore, target = self._codec.restore, self.restored
        try:
            for index, (chunk, length) in enumerate(zip(self.compressed, self._lengths, strict=True)):
                target[index] = restore(chunk, length)
        except self._codec.error as error:
            raise WrongAnswer(f"a chunk could not be restored: {error}") from error

    def check(self) -> Observation:
        """Every chunk has its length and the whole buffer its bytes."""
        wrong = [index for index, chunk in enumerate(self.restored) if len(chunk) != self._lengths[index]]
        expect(not wrong, f"{len(wrong)} chunks have a wrong length after the round trip, the first is {wrong[:1]}")
        expect_same(np.frombuffer(b"".join(self.restored), np.uint8), self._source)
        return observed(self._source.size, self._chunk_bytes, sum(map(len, self.compressed)))


def roundtrip(corpus: Corpus, total: int, codec: str, chunk_bytes: int) -> Task:
    """The task of one codec on the host; Skip where its library is not installed."""
    source = np.empty(total, np.uint8)
    corpus.fill(source)
    chosen = CODECS[codec]()
    trip = RoundTrip(chosen, source, chunk_bytes)
    return Task(
        {"compress": stage(trip.compress, total), "decompress": stage(trip.restore, total)},
        check=trip.check,
        poison=trip.poison,
        notes={"corpus": corpus.description, "codec": chosen.description, "threads": "1"},
    )
