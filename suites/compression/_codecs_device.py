"""Compress and restore chunks in the memory of a GPU, by one object per codec of nvCOMP or hipCOMP.

A call that was prepared (`compressing`, `decompressing`) allocates no memory when it queues its work, and waits for the
device only where a codec says so (`waits`). Each batch in flight needs its own scratch memory, statuses and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from . import _codecs_host as host
from ._corpora import Corpus

RESERVE_BYTES = 2**28  # bytes of memory that stay free for the driver
NO_STATUS = 0xFF  # this byte, repeated, is -1, which is not a status of any library
_GRAIN = 256  # bytes: each output starts on a cache line, while the algorithms ask for an alignment of 16 at most
_HARDWARE = 1  # NVCOMP_DECOMPRESS_BACKEND_HARDWARE
_POISON = 0xA5
_THREADS = 256
_BLOCKS = 2048  # fills any GPU; each thread works on several words


def address(array: Any) -> int:
    """Return the address of an array of CuPy or NumPy, or 0 for an empty one of CuPy."""
    if isinstance(array.data, memoryview):
        return int(array.ctypes.data)
    return int(array.data.ptr) if array.size else 0


def current_stream(xp: Any) -> int:
    """Return the address of CuPy's current stream, on which calls are timed; `xp` is the cupy module."""
    return int(xp.cuda.get_current_stream().ptr)


class DeviceBytes:
    """Overwrite and compare arrays of a GPU by kernels of codecs.cu; an array begins at a multiple of 8 bytes.

    CuPy compiles each CuPy operation at first use, a reduction in 5.6 s with a cold cache (seen on an H200)."""

    def __init__(self, bench: gb.Bench) -> None:
        names = ("count_differences", "invert_bytes", "fill_bytes")
        self._device, self._kernels = bench.device, {name: bench.kernel("codecs.cu", name) for name in names}
        self._count = bench.xp.asarray(np.zeros(1, np.uint64))
        self.wait = bench.device.synchronize

    def _run(self, name: str, nbytes: int, *args: Any) -> None:
        if nbytes:
            self._kernels[name]((min(_BLOCKS, -(-nbytes // (8 * _THREADS))),), (_THREADS,), args)

    def fill(self, array: Any, byte: int) -> None:
        """Queue writing `byte` (0 to 255) into every byte of `array`."""
        self._run("fill_bytes", array.nbytes, np.uint64(byte * 0x0101010101010101), np.uint64(array.nbytes), array)

    def invert(self, source: Any, target: Any) -> None:
        """Queue writing the complement of every byte of `source` into `target`, which must be as large."""
        self._run("invert_bytes", source.nbytes, source, np.uint64(source.nbytes), target)

    def expect_same(self, restored: Any, source: Any) -> None:
        """Wait, and raise WrongAnswer, which names the first differing byte, unless two uint8 arrays are equal."""
        gb.expect(restored.size == source.size, f"restored {restored.size} bytes of {source.size}")
        self.fill(self._count, 0)
        self._run("count_differences", source.nbytes, restored, source, np.uint64(source.nbytes), self._count)
        if int(self._device.to_host(self._count)[0]):
            host.expect_same(self._device.to_host(restored), self._device.to_host(source))


@dataclass(frozen=True, slots=True)
class DeviceChunks:
    """Chunks in the memory of a GPU, `stride` bytes apart in the uint8 array `memory`.

    The sizes of an output are known after a call."""

    memory: Any
    stride: int
    sizes: Any
    pointers: Any

    @classmethod
    def side_by_side(cls, xp: Any, memory: Any, chunk_bytes: int, sizes: Sequence[int] | None = None) -> DeviceChunks:
        """Return the chunks of the CuPy array `memory` (uint8) in their places, without a copy.

        The last one may be shorter; `sizes` replaces the sizes. `xp` is the cupy module."""
        lengths = np.array(host.lengths(memory.size, chunk_bytes) if sizes is None else sizes, np.uint64)
        places = np.arange(len(lengths), dtype=np.uint64) * np.uint64(chunk_bytes) + np.uint64(address(memory))
        return cls(memory, chunk_bytes, xp.asarray(lengths), xp.asarray(places))

    @classmethod
    def room(cls, xp: Any, count: int, most_bytes: int) -> DeviceChunks:
        """Allocate room for `count` outputs of at most `most_bytes` each; their sizes are 0 until a call has run."""
        stride = -(-most_bytes // _GRAIN) * _GRAIN
        return cls.side_by_side(xp, xp.empty(count * stride, xp.uint8), stride, [0] * count)

    @classmethod
    def uploaded(cls, xp: Any, chunks: Sequence[bytes], times: int = 1) -> DeviceChunks:
        """Copy `chunks` from the host to the device, and return them `times` times, each time at the same addresses."""
        stride = -(-max(1, *map(len, chunks)) // _GRAIN) * _GRAIN
        memory = xp.asarray(np.frombuffer(b"".join(chunk.ljust(stride, b"\0") for chunk in chunks), np.uint8))
        places = np.arange(len(chunks), dtype=np.uint64) * np.uint64(stride) + np.uint64(address(memory))
        sizes = np.array(list(map(len, chunks)), np.uint64)
        return cls(memory, stride, xp.asarray(np.tile(sizes, times)), xp.asarray(np.tile(places, times)))

    def first(self, count: int) -> DeviceChunks:
        return DeviceChunks(self.memory, self.stride, self.sizes[:count], self.pointers[:count])

    def at_device(self) -> lib.nvcomp.Chunks:
        """Return the addresses of the pointers and of the sizes, as the C interface needs them."""
        return lib.nvcomp.Chunks(address(self.pointers), address(self.sizes), len(self.sizes))


@dataclass(frozen=True, slots=True)
class Variant:
    """A codec as a case names it: an algorithm of nvCOMP with its options for compressing and for restoring (`back`).

    `typed` tells LZ4 the width of the elements, and `plain` hides the type of the elements."""

    algorithm: str
    options: Mapping[str, int] = field(default_factory=dict)
    back: Mapping[str, int] = field(default_factory=dict)
    description: str = "default options"
    typed: bool = False
    plain: bool = False


_ON_BYTES = "on bytes, whatever the element type"
_OPTIONS = {
    "lz4-typed": Variant("lz4", description="matches of whole elements", typed=True),
    "lz4-shuffle": Variant("lz4", {"bitshuffle": 1}, {"bitshuffle": 1}, "bits shuffled by elements", typed=True),
    **{  # level 0 is entropy coding only
        f"{name}-{level}": Variant(name, {"level": level}, description=f"level {level}")
        for name in ("deflate", "gdeflate", "gzip")
        for level in (0, 2, 4, 5)
    },
    "ans-bytes": Variant("ans", description=_ON_BYTES, plain=True),
    "ans-fast": Variant("ans", {"histogram_reduction": 4}, description="a histogram of every 16th symbol"),
    "cascaded-1": Variant("cascaded", {"level": 1}, description="level 1"),
    "cascaded-7": Variant("cascaded", {"level": 7}, description="level 7"),
    "cascaded-bytes": Variant("cascaded", description=_ON_BYTES, plain=True),
    "bitcomp-sparse": Variant("bitcomp", {"algorithm": 1}, description="sparse algorithm"),
    "bitcomp-bytes": Variant("bitcomp", description=_ON_BYTES, plain=True),
    **{
        f"{name}-engine": Variant(name, back={"backend": _HARDWARE}, description="decompressed by the hardware engine")
        for name, row in lib.nvcomp.ALGORITHMS.items()
        if row.engine and name != "gzip"  # gzip is Deflate with a header
    },
}
CODECS = tuple(lib.nvcomp.ALGORITHMS)
OPTIONS = tuple(_OPTIONS)
VARIANTS: Mapping[str, Variant] = {**{name: Variant(name) for name in CODECS}, **_OPTIONS}
_WIDTHS = {"bfloat16": 16, "float8_e4m3": 8}


class DeviceCodec:
    """One codec of nvCOMP or hipCOMP on elements of the type `dtype`; every call may raise nvcomp.NvcompError.

    `row` has the calls of the library. `waits` says that restoring waits for its stream before it queues its work."""

    def __init__(self, library: lib.nvcomp.NvcompLibrary, name: str, dtype: str) -> None:
        variant = VARIANTS[name]
        # LZ4 accepts unsigned integers of the width of the elements
        width = f"uint{_WIDTHS.get(dtype) or ''.join(filter(str.isdigit, dtype))}"
        typed = {"data_type": lib.nvcomp.TYPES[width]} if variant.typed else {}
        options, back = {**variant.options, **typed}, {**variant.back, **typed}
        self.library = library
        self.row = lib.nvcomp.Codec(library, variant.algorithm, "uint8" if variant.plain else dtype, options, back)
        kind = width if variant.typed else self.row.data_type
        product = "nvCOMP" if library.is_nvcomp else "hipCOMP"
        self.description = f"{product} {library.version}, batched, {variant.description}, elements {kind}"
        self.waits = self.row.decompress_waits

    def temp_bytes(self, count: int, chunk_bytes: int, stream: int = 0) -> tuple[int, int]:
        """Return the bytes of scratch memory for compressing and for restoring `count` chunks on a stream."""
        sizes = (count, chunk_bytes, count * chunk_bytes, stream)
        return self.row.compress_temp_bytes(*sizes), self.row.decompress_temp_bytes(*sizes)

    def compressing(
        self, source: DeviceChunks, target: DeviceChunks, chunk_bytes: int, scratch: Any, statuses: Any, stream: int
    ) -> Callable[[], None]:
        """Return a function that queues compressing `source`, whose chunks have at most `chunk_bytes`, into `target`.

        `stream` is the address of a stream. hipCOMP leaves `statuses` unchanged."""
        memory = lib.nvcomp.Scratch(address(scratch), scratch.size)
        return self.row.compress(source.at_device(), chunk_bytes, memory, target.at_device(), address(statuses), stream)

    def decompressing(
        self, source: DeviceChunks, target: DeviceChunks, written: Any, scratch: Any, statuses: Any, stream: int
    ) -> Callable[[], None]:
        """Return a function that queues restoring `source` into `target`, whose sizes are the room for each chunk."""
        memory, at = lib.nvcomp.Scratch(address(scratch), scratch.size), (address(written), address(statuses))
        return self.row.decompress(source.at_device(), target.at_device(), at[0], memory, at[1], stream)

    def expect_success(self, operation: str, statuses: Any) -> None:
        """Raise WrongAnswer with the library's message unless every status is 0.

        `statuses` is a NumPy array of dtype int32; `operation` is `compressed` or `restored`."""
        failed = statuses[statuses != 0]
        if failed.size:
            status = int(failed[0])
            reason = f"{self.library.status_text(status)} (status {status})"
            gb.expect(False, f"{failed.size} chunks were not {operation}; the first: {reason}")


def open_codec(bench: gb.Bench, name: str, dtype: str = "uint8") -> DeviceCodec:
    """Return the codec `name`, a key of VARIANTS, of this GPU's library, for elements of the type `dtype`.

    Raises Skip, with the way to install it, if the library is unavailable, does not have the algorithm, or needs a
    hardware engine that this GPU does not have."""
    variant, loaders = VARIANTS[name], {"cuda": lib.nvcomp.load, "hip": lib.nvcomp.load_hip}
    if bench.traits.kernels not in loaders:
        raise gb.Skip("GPU codecs need nvCOMP (NVIDIA) or hipCOMP (AMD); this GPU has neither")
    try:
        library = loaders[bench.traits.kernels]()
    except gb.Unavailable as error:
        raise gb.Skip(str(error)) from error
    if variant.algorithm not in library.algorithms:
        raise gb.Skip(f"hipCOMP does not support {variant.algorithm}; it supports {', '.join(library.algorithms)}")
    if variant.back.get("backend") == _HARDWARE:
        formats = lib.nvcomp.engine_formats(int(bench.xp.cuda.runtime.getDevice()))
        if variant.algorithm not in formats:
            support = f"supports only {', '.join(sorted(formats))}" if formats else "has none"
            raise gb.Skip(f"needs a hardware decompression engine for {variant.algorithm}; this device {support}")
    return DeviceCodec(library, name, dtype)


def uploaded(bench: gb.Bench, corpus: Corpus, total: int) -> Any:
    """Return a CuPy array of `total` bytes (uint8) that repeats the corpus, which is copied to the device once."""
    source, tile = bench.xp.empty(total, bench.xp.uint8), bench.xp.asarray(corpus.data[:total])
    for start in range(0, total, max(tile.size, 1)):
        part = min(tile.size, total - start)
        bench.device.copy(source[start : start + part], tile[:part])
    return source


class GpuRoundTrip:
    """A round trip on a GPU: a buffer, its chunks compressed, its chunks restored, and all memory that a call needs.

    After construction nothing is allocated. Calls queue work on the current stream; only `check` waits."""

    def __init__(self, bench: gb.Bench, corpus: Corpus, total: int, codec: str, chunk_bytes: int) -> None:
        """Allocate all memory for `total` bytes, which repeat the corpus; raises Skip if anything is unavailable."""
        xp, self.total, self.chunk_bytes, self._host = bench.xp, total, chunk_bytes, bench.device.to_host
        self.codec, self.count = open_codec(bench, codec, corpus.dtype), len(host.lengths(total, chunk_bytes))
        try:
            most_bytes = self.codec.row.max_output_bytes(chunk_bytes)
            self._scratch_bytes = self.codec.temp_bytes(self.count, chunk_bytes, current_stream(xp))
        except lib.nvcomp.NvcompError as error:
            if error.is_refusal:
                raise gb.Skip(str(error)) from error
            raise
        scratch = max(self._scratch_bytes)
        stride = -(-most_bytes // _GRAIN) * _GRAIN
        bench.need(2 * total + self.count * stride + scratch + RESERVE_BYTES)
        self._bytes = DeviceBytes(bench)
        self.source = DeviceChunks.side_by_side(xp, uploaded(bench, corpus, total), chunk_bytes)
        self.compressed = DeviceChunks.room(xp, self.count, most_bytes)
        self.restored = DeviceChunks.side_by_side(xp, xp.empty(total, xp.uint8), chunk_bytes)
        self.written = xp.zeros(self.count, xp.uint64)
        self._statuses = {name: xp.zeros(self.count, xp.int32) for name in ("compressed", "restored")}
        self._scratch = xp.empty(scratch, xp.uint8)
        self._calls: dict[tuple[str, int], Callable[[], None]] = {}
        self._xp = xp

    def poison(self) -> None:
        """Overwrite every output with a wrong value: restored bytes, sizes and statuses.

        Sizes become 0, so that restoring chunks that were never compressed reads nothing."""
        self._bytes.invert(self.source.memory, self.restored.memory)
        self._bytes.fill(self.compressed.memory, _POISON)
        self._bytes.fill(self.compressed.sizes, 0)
        self._bytes.fill(self.written, 0)
        self._bytes.fill(self._statuses["compressed"], NO_STATUS if self.codec.library.is_nvcomp else 0)
        self._bytes.fill(self._statuses["restored"], NO_STATUS)

    def compress(self) -> None:
        key = ("compress", current_stream(self._xp))
        if key not in self._calls:
            args = (self.source, self.compressed, self.chunk_bytes, self._scratch, self._statuses["compressed"])
            self._calls[key] = self.codec.compressing(*args, key[1])
        self._calls[key]()

    def restore(self) -> None:
        key = ("restore", current_stream(self._xp))
        if key not in self._calls:
            self._calls[key] = self.restoring(self.compressed, key[1])
        self._calls[key]()

    def restoring(self, chunks: DeviceChunks, stream: int) -> Callable[[], None]:
        """Return a function that queues restoring `chunks`, which hold the compressed data, on a stream."""
        statuses = self._statuses["restored"]
        return self.codec.decompressing(chunks, self.restored, self.written, self._scratch, statuses, stream)

    def check(self) -> gb.Observation:
        """Check the status, the size and every byte of all chunks, and return the observations of the round trip.

        These are the ratio, the compressed bytes and the scratch memory of both directions."""
        self.codec.expect_success("compressed", self._host(self._statuses["compressed"]))
        sizes = self._host(self.compressed.sizes)
        fits = bool((sizes > 0).all()) and bool((sizes <= self.compressed.stride).all())
        gb.expect(fits, "a compressed chunk has no bytes, or more than nvCOMP's maximum")
        self.codec.expect_success("restored", self._host(self._statuses["restored"]))
        right = bool((self._host(self.written) == self._host(self.source.sizes)).all())
        gb.expect(right, "a restored chunk has a wrong length")
        self._bytes.expect_same(self.restored.memory, self.source.memory)
        observation = host.observed(self.total, self.chunk_bytes, int(sizes.sum()))
        for name, nbytes in zip(("compress", "decompress"), self._scratch_bytes, strict=True):
            observation[f"{name}.scratch"] = gb.Observed(nbytes, "B", "less")
        return observation
