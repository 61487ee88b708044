"""Compress and restore chunks in the memory of a GPU, by one object per codec of nvCOMP or hipCOMP.

A call waits for the device only where a codec says so (`waits`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

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
        self._count = bench.xp.asarray(np.zeros(1, np.uint64))

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
        self.fill(self._count, 0)
        self._run("count_differences", source.nbytes, restored, source, np.uint64(source.nbytes), self._count)
        if int(self._device.to_host(self._count)[0]):
            host.HostBytes().expect_same(self._device.to_host(restored), self._device.to_host(source))


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
    def side_by_side(
        cls, xp: Any, memory: Any, stride: int, sizes: Sequence[int] | None = None, times: int = 1
    ) -> DeviceChunks:
        """Return the chunks of the CuPy array `memory` (uint8) in their places, without a copy, each `times` times.

        Without `sizes` they fill the memory, and the last one may be shorter. `xp` is the cupy module."""
        lengths = np.array(host.lengths(memory.size, stride) if sizes is None else sizes, np.uint64)
        places = np.arange(len(lengths), dtype=np.uint64) * np.uint64(stride) + np.uint64(address(memory))
        return cls(memory, stride, *(xp.asarray(np.tile(values, times)) for values in (lengths, places)))

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

    def first(self, count: int) -> DeviceChunks:
        return DeviceChunks(self.memory, self.stride, self.sizes[:count], self.pointers[:count])

    def downloaded(self, bench: gb.Bench, count: int) -> list[bytes]:
        """Return the bytes of each of the first `count` chunks."""
        rows = bench.device.to_host(self.memory[: count * self.stride]).reshape(count, self.stride)
        sizes = bench.device.to_host(self.sizes[:count]).tolist()
        return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]


class Variant(NamedTuple):
    """A codec as a case names it: an algorithm of nvCOMP with its options for compressing and for restoring (`back`).

    `typed` tells LZ4 the width of the elements, and `plain` hides the type of the elements."""

    algorithm: str
    options: Mapping[str, int] = MappingProxyType({})
    back: Mapping[str, int] = MappingProxyType({})
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
        if variant.back.get("backend") == _HARDWARE:
            formats = lib.nvcomp.engine_formats(int(bench.xp.cuda.runtime.getDevice()))
            support = f"supports only {', '.join(sorted(formats))}" if formats else "has none"
            if algorithm not in formats:
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
        sizes = (count, chunk_bytes, count * chunk_bytes, current_stream(self.bench.xp))
        return {"compress": self.row.compress_temp_bytes(*sizes), "decompress": self.row.decompress_temp_bytes(*sizes)}


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
        self._codec.buffers.fill(self.statuses, NO_STATUS if has_status else 0)
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


def rotate(bench: gb.Bench, array: Any, spare: Any, chunk_bytes: int) -> None:
    """Queue rotating the data of a round trip, in place, to an input with another answer; `spare` is overwritten.

    Chunks of the same addresses then have other bytes, so that no call can return an earlier answer."""
    rest = array.size - host.shift_of(array.size, chunk_bytes)
    for target, source in ((spare[:rest], array[-rest:]), (spare[rest:], array[:-rest]), (array, spare)):
        bench.device.copy(target, source)


class GpuRoundTrip:
    """A round trip on a GPU: a buffer, its chunks compressed, its chunks restored, and all memory that a call needs."""

    def __init__(self, bench: gb.Bench, corpus: Corpus, codec: str, chunk_bytes: int) -> None:
        """Allocate all memory for a buffer of the corpus; raises Skip if anything is unavailable."""
        xp, self.total, self._bench, self._chunk_bytes = bench.xp, corpus.total, bench, chunk_bytes
        self.codec, self._count = DeviceCodec(bench, codec, corpus.dtype), len(host.lengths(corpus.total, chunk_bytes))
        try:
            most_bytes = self.codec.max_output_bytes(chunk_bytes)
            self._scratch_bytes = self.codec.temp_bytes(self._count, chunk_bytes)
        except lib.nvcomp.NvcompError as error:
            if error.is_refusal:
                raise gb.Skip(str(error)) from error
            raise
        scratch_bytes = max(self._scratch_bytes.values())
        bench.need(2 * self.total + self._count * aligned(most_bytes) + scratch_bytes + RESERVE_BYTES)
        self.source = DeviceChunks.side_by_side(xp, corpus.buffer(bench), chunk_bytes)
        self.compressed = DeviceChunks.room(xp, self._count, most_bytes)
        self.restored = DeviceChunks.side_by_side(xp, xp.empty(self.total, xp.uint8), chunk_bytes)
        self._scratch = xp.empty(scratch_bytes, xp.uint8)
        self._compressing = Batch(self.codec, self.source, self.compressed, self._scratch, chunk_bytes)
        self._restoring = Batch(self.codec, self.compressed, self.restored, self._scratch)

    def receive(self, chunks: Sequence[bytes]) -> None:
        """Restore from now on `chunks`, repeated to the size of the buffer, in place of this round trip's own."""
        arrived = DeviceChunks.uploaded(self._bench.xp, chunks, self._count // len(chunks))
        self._restoring = Batch(self.codec, arrived, self.restored, self._scratch)

    def redraw(self) -> None:
        """Put the other input in place, by way of the memory for the restored chunks, which is overwritten next."""
        rotate(self._bench, self.source.memory, self.restored.memory, self._chunk_bytes)

    def poison(self) -> None:
        """Overwrite every output with a wrong value: restored bytes, sizes and statuses."""
        self.codec.buffers.invert(self.source.memory, self.restored.memory)
        self.codec.buffers.fill(self.compressed.memory, _POISON)
        self._compressing.poison()
        self._restoring.poison()

    def compress(self) -> None:
        self._compressing()

    def restore(self) -> None:
        self._restoring()

    def check(self) -> gb.Observation:
        """Check the status, the size and every byte of all chunks, and return the observations of the round trip.

        These are the ratio, the compressed bytes and the scratch memory of both directions."""
        sizes, _ = self._compressing.check(), self._restoring.check()
        self.codec.buffers.expect_same(self.restored.memory, self.source.memory)
        scratch = {f"{way}.scratch": gb.Observed(nbytes, "B", "less") for way, nbytes in self._scratch_bytes.items()}
        return {**host.observed(self.total, self._chunk_bytes, int(sizes.sum())), **scratch}
