"""Compress and restore independent chunks: on the host by the Python bindings of codecs, on a GPU by nvCOMP or hipCOMP.

Every binding lets other threads run while it works. A codec of the host never restores more bytes than the given size,
whatever its input contains. A call on a GPU waits for the device only where a codec says so (`waits`)."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

RESERVE_BYTES = 2**28  # bytes of memory that stay free for the driver
_SHARES = 4  # slices per thread: small ones balance threads of different speed
_RAW, _ZLIB, _GZIP = -15, 15, 31  # zlib's window bits: a bare Deflate stream; with zlib's or gzip's header and checksum
_NO_STATUS = 0xFF  # this byte, repeated, is -1, which is not a status of any library
_GRAIN = 256  # bytes: each output starts on a cache line, while the algorithms ask for an alignment of 16 at most
_HARDWARE = 1  # NVCOMP_DECOMPRESS_BACKEND_HARDWARE
_THREADS = 256
_BLOCKS = 2048  # fills any GPU; each thread works on several words

Chunk = bytes | bytearray | memoryview


def lengths(total: int, chunk_bytes: int) -> list[int]:
    """Return the number of bytes of each chunk of `total` bytes: `chunk_bytes`, and for the last one the rest."""
    return [min(chunk_bytes, total - start) for start in range(0, total, chunk_bytes)]


def chunks_of(source: Any, chunk_bytes: int) -> list[memoryview]:
    """Return the chunks of a NumPy array of dtype uint8, without a copy."""
    view = memoryview(source)
    return [view[start : start + chunk_bytes] for start in range(0, len(view), chunk_bytes)]


class HostBytes:
    """Overwrites and compares arrays of the host, as DeviceBytes does on a GPU."""

    def invert(self, source: Any, target: Any) -> None:
        """Write the complement of every byte of `source` into `target`: uint8, of the same size."""
        np.invert(source, out=target)

    def expect_same(self, restored: Any, source: Any) -> None:
        """Raise WrongAnswer, which names the first differing byte, unless two uint8 arrays are equal."""
        gb.expect(restored.size == source.size, f"restored {restored.size} bytes of {source.size}")
        differing = restored != source
        if differing.any():
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
    waits, bench, buffers = False, None, HostBytes()  # as a DeviceCodec has them: no call waits for a device

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


# The host's codecs by their bindings.


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


def split(numbers: Any) -> tuple[Any, Any]:
    """Return the exponents of bfloat16 numbers (uint16) and their signs and fractions, a byte each."""
    return (numbers >> 7).astype(np.uint8), (numbers >> 8 & 0x80 | numbers & 0x7F).astype(np.uint8)


def _split(inner: HostCodec) -> HostCodec:
    """Return a codec of bfloat16 numbers: `inner` compresses the exponents of a chunk, the other bits stay."""

    def squeeze() -> Callable[[Chunk], bytes]:
        press = inner.squeeze()

        def one(chunk: Chunk) -> bytes:
            exponents, rest = split(np.frombuffer(chunk, "<u2", len(chunk) // 2))
            pressed = press(memoryview(exponents))
            last = bytes(chunk[2 * exponents.size :])  # of a chunk with an odd number of bytes
            return b"".join((len(pressed).to_bytes(4, "little"), pressed, rest.tobytes(), last))

        return one

    def restore(chunk: Chunk, size: int) -> bytes:
        count, middle = size // 2, 4 + int.from_bytes(chunk[:4], "little")
        if len(chunk) != middle + count + size % 2:
            raise ValueError("the planes do not have the lengths that the chunk states")
        exponents = np.frombuffer(inner.restore(chunk[4:middle], count), np.uint8).astype(np.uint16)
        rest = np.frombuffer(chunk, np.uint8, count, middle).astype(np.uint16)
        if exponents.size != count:
            raise ValueError("the exponents have a wrong length")
        numbers = (rest & 0x80) << 8 | exponents << 7 | rest & 0x7F
        return bytes(numbers.astype("<u2")) + bytes(chunk[middle + count :])

    description = f"bfloat16 with the exponents apart, which alone are compressed: {inner.description}"
    return HostCodec(squeeze, restore, (*inner.errors, ValueError), description)


def imported(name: str, extra: str = "host") -> Any:
    """Return the module `name`; raises Skip, with the extra of gpubench that installs it, if it is unavailable."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise gb.Skip(f"needs {name} ({error}): {gb.installation.with_extra(extra)}") from error


ON_HOST: Mapping[str, Callable[[], HostCodec]] = {
    "lz4": _lz4,
    **{f"zstd-{level}": functools.partial(_zstd, level) for level in (1, 3)},
    **{f"zlib-{level}": functools.partial(_zlib, level) for level in (1, 6)},
    **{f"isal-{level}": functools.partial(_isal, level) for level in (1, 3)},
    "zstd-9": functools.partial(_zstd, 9),
    "lz4-hc": functools.partial(_lz4, "high_compression", "high compression"),
    "split-zstd-1": lambda: _split(_zstd(1)),
}
# What a GPU's formats are written and read with on the host.
FORMATS: Mapping[str, Callable[[], HostCodec]] = {
    "lz4": _lz4,
    "zstd": ON_HOST["zstd-3"],
    **{kind: functools.partial(_zlib, 6, kind) for kind in ("deflate", "gzip")},
}


# A GPU.


def address(array: Any) -> int:
    """Return the address of an array of CuPy or NumPy, or 0 for an empty one of CuPy."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr if array.size else 0)


def current_stream(xp: Any) -> int:
    """Return the address of CuPy's current stream, on which calls are timed; `xp` is the cupy module."""
    return int(xp.cuda.get_current_stream().ptr)


class DeviceBytes:
    """Overwrite and compare arrays of a GPU by kernels of codecs.cu; none is empty, and all are aligned to 8 bytes.

    CuPy compiles each CuPy operation at first use, a reduction in 5.6 s with a cold cache (seen on an H200)."""

    def __init__(self, bench: gb.Bench) -> None:
        names = ("count_differences", "invert_bytes", "fill_bytes")
        self._device, self._kernels = bench.device, {name: bench.kernel("codecs.cu", name) for name in names}
        self._found = bench.xp.asarray(np.zeros(2, np.uint64))

    def _run(self, name: str, nbytes: int, *args: Any) -> None:
        self._kernels[name]((min(_BLOCKS, -(-nbytes // (8 * _THREADS))),), (_THREADS,), args)

    def fill(self, array: Any, byte: int) -> None:
        """Queue writing `byte` (0 to 255) into every byte of `array`."""
        self._run("fill_bytes", array.nbytes, np.uint64(byte * 0x0101010101010101), np.uint64(array.nbytes), array)

    def invert(self, source: Any, target: Any) -> None:
        """Write the complement of every byte of `source` into `target`, which must be as large, and wait for that."""
        self._run("invert_bytes", source.nbytes, source, np.uint64(source.nbytes), target)
        self._device.synchronize()

    def expect_same(self, restored: Any, source: Any) -> None:
        """Wait, and raise WrongAnswer, which names the first differing byte, unless two uint8 arrays are equal."""
        gb.expect(restored.size == source.size, f"restored {restored.size} bytes of {source.size}")
        self.fill(self._found, 0)
        self._run("count_differences", source.nbytes, restored, source, np.uint64(source.nbytes), self._found)
        count, rest = self._device.to_host(self._found).tolist()
        first = source.size - rest
        gb.expect(not count, f"{count} of {source.size} bytes differ after the round trip, the first at {first}")


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to a multiple of 256, so that data behind them start on a cache line."""
    return -(-nbytes // _GRAIN) * _GRAIN


@dataclass(frozen=True, slots=True)
class DeviceChunks:
    """Chunks in the memory of a GPU, `stride` bytes apart in the uint8 array `memory`.

    The sizes of an output are known after a call."""

    memory: Any
    stride: int
    sizes: Any
    pointers: Any

    @classmethod
    def side_by_side(cls, xp: Any, memory: Any, stride: int, sizes: Any = None, times: int = 1) -> DeviceChunks:
        """Return the chunks of the CuPy array `memory` (uint8) in their places, without a copy, each `times` times.

        Without `sizes`, a sequence, they fill the memory, and the last may be shorter. `xp` is the cupy module."""
        all_sizes = np.array(lengths(memory.size, stride) if sizes is None else sizes, np.uint64)
        places = np.arange(len(all_sizes), dtype=np.uint64) * np.uint64(stride) + np.uint64(address(memory))
        return cls(memory, stride, *(xp.asarray(np.tile(values, times)) for values in (all_sizes, places)))

    @classmethod
    def room(cls, xp: Any, count: int, most_bytes: int) -> DeviceChunks:
        """Allocate room for `count` outputs of at most `most_bytes` each; their sizes are 0 until a call has run."""
        stride = aligned(most_bytes)
        return cls.side_by_side(xp, xp.empty(count * stride, xp.uint8), stride, [0] * count)

    @classmethod
    def uploaded(cls, xp: Any, chunks: Sequence[bytes], times: int = 1) -> DeviceChunks:
        """Copy `chunks` from the host to the device, and return them `times` times, each time at the same addresses."""
        stride = aligned(max(1, *map(len, chunks)))
        memory = xp.asarray(np.frombuffer(b"".join(chunk.ljust(stride, b"\0") for chunk in chunks), np.uint8))
        return cls.side_by_side(xp, memory, stride, list(map(len, chunks)), times)

    def downloaded(self, bench: gb.Bench, count: int) -> list[bytes]:
        """Return the bytes of each of the first `count` chunks."""
        rows = bench.device.to_host(self.memory[: count * self.stride]).reshape(count, self.stride)
        sizes = bench.device.to_host(self.sizes[:count]).tolist()
        return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]


class Variant(NamedTuple):
    """A codec as a case names it: an algorithm of nvCOMP with its options for compressing and for restoring (`back`).

    `typed` tells LZ4 the width of the elements, and `plain` hides the type of the elements."""

    algorithm: str
    options: Mapping[str, int] = {}
    back: Mapping[str, int] = {}
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
ON_GPU, OPTIONS = tuple(lib.nvcomp.ALGORITHMS), tuple(_OPTIONS)
VARIANTS: Mapping[str, Variant] = {**{name: Variant(name) for name in ON_GPU}, **_OPTIONS}
_WIDTHS = {"bfloat16": 16, "float8_e4m3": 8}


def _library_of(bench: gb.Bench) -> lib.nvcomp.NvcompLibrary:
    """Return nvCOMP or hipCOMP; raises Skip, with the way to install it, if it is unavailable."""
    loaders = {"cuda": lib.nvcomp.load, "hip": lib.nvcomp.load_hip}
    if bench.traits.kernels not in loaders:
        raise gb.Skip("GPU codecs need nvCOMP (NVIDIA) or hipCOMP (AMD); this GPU has neither")
    try:
        return loaders[bench.traits.kernels]()
    except gb.Unavailable as error:
        raise gb.Skip(str(error)) from error


class DeviceCodec:
    """One codec of nvCOMP or hipCOMP on elements of the type `dtype`; every call may raise nvcomp.NvcompError.

    `row` has the calls of the library. `waits` says that restoring waits for its stream before it queues its work."""

    def __init__(self, bench: gb.Bench, name: str, dtype: str = "uint8") -> None:
        """Open the codec `name`, a key of VARIANTS, of this GPU's library; raises Skip if it is unavailable."""
        variant, self.library, self.bench, self.buffers = VARIANTS[name], _library_of(bench), bench, DeviceBytes(bench)
        algorithm, algorithms = variant.algorithm, self.library.algorithms
        if algorithm not in algorithms:
            raise gb.Skip(f"hipCOMP does not support {algorithm}; it supports {', '.join(algorithms)}")
        is_engine = variant.back.get("backend") == _HARDWARE
        formats = lib.nvcomp.engine_formats(int(bench.xp.cuda.runtime.getDevice())) if is_engine else {algorithm}
        if algorithm not in formats:
            support = f"supports only {', '.join(sorted(formats))}" if formats else "has none"
            raise gb.Skip(f"needs a hardware decompression engine for {algorithm}; this device {support}")
        # LZ4 accepts unsigned integers of the width of the elements
        width = f"uint{_WIDTHS.get(dtype) or ''.join(filter(str.isdigit, dtype))}"
        typed = {"data_type": lib.nvcomp.TYPES[width]} if variant.typed else {}
        options, back = {**variant.options, **typed}, {**variant.back, **typed}
        self.row = lib.nvcomp.Codec(self.library, algorithm, "uint8" if variant.plain else dtype, options, back)
        product, elements = "nvCOMP" if self.library.is_nvcomp else "hipCOMP", width if typed else self.row.data_type
        self.description = f"{product} {self.library.version}, batched, {variant.description}, elements {elements}"
        self.waits, self.max_output_bytes = self.row.decompress_waits, self.row.max_output_bytes

    def temp_bytes(self, count: int, chunk_bytes: int) -> dict[str, int]:
        """Return the bytes of scratch memory by direction, for `count` chunks on the current stream."""
        return self.row.temp_bytes(count, chunk_bytes, count * chunk_bytes, current_stream(self.bench.xp))


class Batch:
    """A call of a codec on a batch of chunks; it queues its work on the current stream, and is prepared once for each.

    The call allocates nothing. Batches in flight at the same time need their own scratch memory and outputs."""

    def __init__(
        self, codec: DeviceCodec, source: DeviceChunks, target: DeviceChunks, scratch: Any, chunk_bytes: int = 0
    ) -> None:
        """Compress chunks of at most `chunk_bytes`, or with 0 restore them: the sizes of `target` are then the room."""
        xp, self._codec, self._arrays, self._chunk_bytes = codec.bench.xp, codec, (source, target, scratch), chunk_bytes
        # on the device, for each chunk: the bytes written, and a status
        self.written = target.sizes if chunk_bytes else xp.zeros(len(target.sizes), xp.uint64)
        self.statuses = xp.zeros(len(target.sizes), xp.int32)
        self._calls: dict[int, Callable[[], None]] = {}

    def __call__(self) -> None:
        stream = current_stream(self._codec.bench.xp)
        (self._calls.get(stream) or self._calls.setdefault(stream, self._prepare(stream)))()

    def _prepare(self, stream: int) -> Callable[[], None]:
        *ends, scratch = self._arrays
        source, target = (lib.nvcomp.Chunks(address(end.pointers), address(end.sizes), len(end.sizes)) for end in ends)
        memory, statuses = lib.nvcomp.Scratch(address(scratch), scratch.size), address(self.statuses)
        if self._chunk_bytes:
            return self._codec.row.compress(source, self._chunk_bytes, memory, target, statuses, stream)
        return self._codec.row.decompress(source, target, address(self.written), memory, statuses, stream)

    def poison(self) -> None:
        """Queue overwriting what the library writes beside the chunks; hipCOMP has no statuses of compressing.

        Sizes become 0, so that restoring chunks that were never compressed reads nothing."""
        has_status = self._codec.library.is_nvcomp or not self._chunk_bytes
        self._codec.buffers.fill(self.statuses, _NO_STATUS if has_status else 0)
        self._codec.buffers.fill(self.written, 0)

    def check(self) -> Any:
        """Return the bytes written for each chunk; raises WrongAnswer if a chunk failed, or has a wrong length."""
        codes, sizes, room = map(self._codec.bench.device.to_host, (self.statuses, self.written, self._arrays[1].sizes))
        failed, operation = codes[codes != 0], "compressed" if self._chunk_bytes else "restored"
        if failed.size:
            reason = f"{self._codec.library.status_text(int(failed[0]))} (status {failed[0]})"
            gb.expect(False, f"{failed.size} chunks were not {operation}; the first: {reason}")
        right = (sizes > 0) & (sizes <= self._arrays[1].stride) if self._chunk_bytes else sizes == room
        gb.expect(bool(right.all()), f"a {operation} chunk has a wrong length")
        return sizes


def open_codec(bench: gb.Bench, name: str, dtype: str = "uint8") -> Any:
    """Return the HostCodec or the DeviceCodec `name` for the device of `bench`; raises Skip if it is unavailable."""
    return DeviceCodec(bench, name, dtype) if bench.traits.is_gpu else ON_HOST[name]()
