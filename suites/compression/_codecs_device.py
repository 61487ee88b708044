"""Compress and restore chunks in the memory of a GPU, by one object per codec of nvCOMP or hipCOMP.

    codec = open_codec(bench, "zstd", "uint8")                 # Skip where it is unavailable
    source = DeviceChunks.side_by_side(xp, array, chunk_bytes)
    packed = DeviceChunks.room(xp, source.count, codec.max_compressed_bytes(chunk_bytes))
    scratch = xp.empty(codec.temp_bytes(source.count, chunk_bytes), xp.uint8)
    statuses = xp.zeros(source.count, xp.int32)                # 0: done
    codec.compress(source, packed, chunk_bytes, scratch, statuses, stream)
    codec.decompress(packed, back, written, scratch, statuses, stream)
    call = codec.compressing(…)                                # the same, prepared once and called often

A call that was prepared allocates no memory when it queues its work, and waits for the device only where a codec says
so (`waits`). Each batch in flight needs its own scratch, statuses and outputs; one codec may serve any number of
streams at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from ._codecs_common import lengths

OUTPUT_GRAIN = 256  # bytes: each output starts on a cache line, while the algorithms ask for an alignment of 16 at most
_HARDWARE = 1  # NVCOMP_DECOMPRESS_BACKEND_HARDWARE


@dataclass(frozen=True, slots=True)
class DeviceChunks:
    """Chunks in the memory of a GPU, `stride` bytes apart in the uint8 array `memory`.

    The sizes of an output are known after a call."""

    memory: Any
    stride: int
    sizes: Any
    pointers: Any

    @classmethod
    def side_by_side(cls, xp: Any, memory: Any, chunk_bytes: int) -> DeviceChunks:
        """Return the chunks of the CuPy array `memory` (uint8) in their places, without a copy.

        The last one may be shorter. `xp` is the cupy module."""
        sizes = xp.asarray(np.array(lengths(memory.size, chunk_bytes), np.uint64))
        return cls(memory, chunk_bytes, sizes, _pointers(xp, memory, chunk_bytes, len(sizes)))

    @classmethod
    def room(cls, xp: Any, count: int, most_bytes: int) -> DeviceChunks:
        """Allocate room for `count` outputs of at most `most_bytes` each; their sizes are 0 until a call has run.

        `xp` is the cupy module."""
        stride = -(-most_bytes // OUTPUT_GRAIN) * OUTPUT_GRAIN
        memory = xp.empty(count * stride, xp.uint8)
        return cls(memory, stride, xp.zeros(count, xp.uint64), _pointers(xp, memory, stride, count))

    @classmethod
    def uploaded(cls, xp: Any, chunks: Sequence[bytes], times: int = 1) -> DeviceChunks:
        """Copy `chunks` from the host to the device, and return them `times` times, each time at the same addresses.

        `xp` is the cupy module."""
        stride = -(-max(1, *map(len, chunks)) // OUTPUT_GRAIN) * OUTPUT_GRAIN
        rows = np.zeros((len(chunks), stride), np.uint8)
        for row, chunk in zip(rows, chunks, strict=True):
            row[: len(chunk)] = np.frombuffer(chunk, np.uint8)
        memory = xp.asarray(rows.reshape(-1))
        sizes = np.tile(np.array([len(chunk) for chunk in chunks], np.uint64), times)
        places = np.tile(np.arange(len(chunks), dtype=np.uint64) * np.uint64(stride), times)
        return cls(memory, stride, xp.asarray(sizes), xp.asarray(places + np.uint64(address(memory))))

    @property
    def count(self) -> int:
        """The number of chunks."""
        return len(self.sizes)

    def first(self, count: int) -> DeviceChunks:
        """Return the first `count` chunks, in the same memory."""
        return DeviceChunks(self.memory, self.stride, self.sizes[:count], self.pointers[:count])

    def at_device(self) -> lib.nvcomp.Chunks:
        """Return the addresses of the pointers and of the sizes, as the C interface needs them."""
        return lib.nvcomp.Chunks(address(self.pointers), address(self.sizes), self.count)


def _pointers(xp: Any, memory: Any, stride: int, count: int) -> Any:
    return xp.asarray(np.arange(count, dtype=np.uint64) * np.uint64(stride) + np.uint64(address(memory)))


def address(array: Any) -> int:
    """Return the address of a CuPy array, or 0 for an empty one."""
    return int(array.data.ptr) if array.size else 0


def current_stream(xp: Any) -> int:
    """Return the address of CuPy's current stream, on which calls are timed; `xp` is the cupy module."""
    return int(xp.cuda.get_current_stream().ptr)


@dataclass(frozen=True, slots=True)
class Variant:
    """A codec as a case names it: an algorithm of nvCOMP with its options for compressing and for restoring (`back`).

    `description` states the options in notes. `typed` tells LZ4 the width of the elements."""

    algorithm: str
    options: Mapping[str, int] = field(default_factory=dict)
    back: Mapping[str, int] = field(default_factory=dict)
    description: str = "default options"
    typed: bool = False
    plain: bool = False

    @property
    def needs_engine(self) -> bool:
        """Whether only the GPU's hardware decompression engine can restore the chunks."""
        return self.back.get("backend") == _HARDWARE


def _levels(algorithm: str) -> dict[str, Variant]:
    """Return the variants of an algorithm at levels 0 (entropy coding only), 2, 4 and 5, keyed by name."""
    return {
        f"{algorithm}-{level}": Variant(algorithm, {"level": level}, description=f"level {level}")
        for level in (0, 2, 4, 5)
    }


_ENGINE = {
    f"{name}-engine": Variant(name, back={"backend": _HARDWARE}, description="decompressed by the hardware engine")
    for name, row in lib.nvcomp.ALGORITHMS.items()
    if row.engine and name != "gzip"  # gzip is Deflate with a header
}
_OPTIONS = {
    "lz4-typed": Variant("lz4", description="matches of whole elements", typed=True),
    "lz4-shuffle": Variant("lz4", {"bitshuffle": 1}, {"bitshuffle": 1}, "bits shuffled by elements", typed=True),
    **_levels("deflate"),
    **_levels("gdeflate"),
    **_levels("gzip"),
    "ans-bytes": Variant("ans", description="on bytes, whatever the element type", plain=True),
    "ans-fast": Variant("ans", {"histogram_reduction": 4}, description="a histogram of every 16th symbol"),
    "cascaded-1": Variant("cascaded", {"level": 1}, description="level 1"),
    "cascaded-7": Variant("cascaded", {"level": 7}, description="level 7"),
    "cascaded-bytes": Variant("cascaded", description="on bytes, whatever the element type", plain=True),
    "bitcomp-sparse": Variant("bitcomp", {"algorithm": 1}, description="sparse algorithm"),
    "bitcomp-bytes": Variant("bitcomp", description="on bytes, whatever the element type", plain=True),
}
VARIANTS: Mapping[str, Variant] = {**{name: Variant(name) for name in lib.nvcomp.ALGORITHMS}, **_OPTIONS, **_ENGINE}
CODECS = tuple(lib.nvcomp.ALGORITHMS)
OPTIONS = (*_OPTIONS, *_ENGINE)
_SHUFFLED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}  # LZ4 accepts integers of these sizes in bytes
_WIDTHS = {"bfloat16": 2, "float8_e4m3": 1}


class DeviceCodec:
    """One codec of nvCOMP or hipCOMP on elements of the type `dtype`; every call may raise nvcomp.NvcompError.

    `name` is a key of VARIANTS."""

    def __init__(self, library: lib.nvcomp.NvcompLibrary, name: str, dtype: str) -> None:
        """Open the codec `name`, a key of VARIANTS; `dtype` is the name of the element type (`float32`, `bfloat16`)."""
        variant = VARIANTS[name]
        element_type = "uint8" if variant.plain else dtype
        type_option = {"data_type": lib.nvcomp.TYPES[_of_width(dtype)]} if variant.typed else {}
        self.name = name
        self.library = library
        self.row = lib.nvcomp.Codec(
            library,
            variant.algorithm,
            element_type,
            {**variant.options, **type_option},
            {**variant.back, **type_option},
        )
        kind = _of_width(dtype) if variant.typed else self.row.data_type
        product = "nvCOMP" if library.is_nvcomp else "hipCOMP"
        self.description = f"{product} {library.version}, batched, {variant.description}, elements {kind}"
        self.waits = self.row.decompress_waits  # decompression waits for its stream before it queues its work

    def max_compressed_bytes(self, chunk_bytes: int) -> int:
        """Return the most bytes that a compressed chunk takes if it has at most `chunk_bytes` before."""
        return self.row.max_output_bytes(chunk_bytes)

    def compress_temp_bytes(self, count: int, chunk_bytes: int, stream: int = 0) -> int:
        """Return the bytes of scratch memory for compressing `count` chunks of at most `chunk_bytes` on a stream."""
        return self.row.compress_temp_bytes(count, chunk_bytes, count * chunk_bytes, stream)

    def decompress_temp_bytes(self, count: int, chunk_bytes: int, stream: int = 0) -> int:
        """Return the bytes of scratch memory for restoring `count` chunks of at most `chunk_bytes` on a stream."""
        return self.row.decompress_temp_bytes(count, chunk_bytes, count * chunk_bytes, stream)

    def temp_bytes(self, count: int, chunk_bytes: int, stream: int = 0) -> int:
        """Return the bytes of scratch memory that serve both directions, one after the other."""
        compress_bytes = self.compress_temp_bytes(count, chunk_bytes, stream)
        return max(compress_bytes, self.decompress_temp_bytes(count, chunk_bytes, stream))

    def compressing(
        self, source: DeviceChunks, target: DeviceChunks, chunk_bytes: int, scratch: Any, statuses: Any, stream: int
    ) -> Callable[[], None]:
        """Return a function that queues compressing `source`, whose chunks have at most `chunk_bytes`, into `target`.

        `stream` is the address of a stream. hipCOMP leaves `statuses` unchanged."""
        at, codes = _scratch(scratch), address(statuses)
        return self.row.compress(source.at_device(), chunk_bytes, at, target.at_device(), codes, stream)

    def compress(
        self, source: DeviceChunks, target: DeviceChunks, chunk_bytes: int, scratch: Any, statuses: Any, stream: int
    ) -> None:
        """Queue compressing once, with the arguments of `compressing`."""
        self.compressing(source, target, chunk_bytes, scratch, statuses, stream)()

    def decompressing(
        self, source: DeviceChunks, target: DeviceChunks, written: Any, scratch: Any, statuses: Any, stream: int
    ) -> Callable[[], None]:
        """Return a function that queues restoring `source` into `target`, whose sizes are the room for each chunk.

        `scratch` (uint8) has at least `decompress_temp_bytes`."""
        at, codes = _scratch(scratch), address(statuses)
        return self.row.decompress(source.at_device(), target.at_device(), address(written), at, codes, stream)

    def decompress(
        self, source: DeviceChunks, target: DeviceChunks, written: Any, scratch: Any, statuses: Any, stream: int
    ) -> None:
        """Queue restoring once, with the arguments of `decompressing`."""
        self.decompressing(source, target, written, scratch, statuses, stream)()

    def expect_success(self, operation: str, statuses: Any) -> None:
        """Raise WrongAnswer with the library's message unless every status is 0.

        `statuses` is a NumPy array of dtype int32, and `operation` (`compressed`, `restored`) is a word of the
        message."""
        failed = statuses[statuses != 0]
        if failed.size:
            status = int(failed[0])
            reason = f"{self.library.status_text(status)} (status {status})"
            gb.expect(False, f"{failed.size} chunks were not {operation}; the first: {reason}")


def _scratch(memory: Any) -> lib.nvcomp.Scratch:
    return lib.nvcomp.Scratch(address(memory), memory.size)


def _of_width(dtype: str) -> str:
    width = _WIDTHS.get(dtype) or int("".join(filter(str.isdigit, dtype))) // 8
    return _SHUFFLED[width]


def open_codec(bench: gb.Bench, name: str, dtype: str = "uint8") -> DeviceCodec:
    """Return the codec `name`, a key of VARIANTS, of this GPU's library, for elements of the type `dtype`.

    Raises Skip, with the way to install it, if the library is unavailable, does not have the algorithm, or needs a
    hardware engine that this GPU does not have."""
    variant = VARIANTS[name]
    try:
        library = _library(bench)
    except gb.Unavailable as error:
        raise gb.Skip(str(error)) from error
    if variant.algorithm not in library.algorithms:
        raise gb.Skip(f"hipCOMP does not support {variant.algorithm}; it supports {', '.join(library.algorithms)}")
    if variant.needs_engine:
        _require_engine(bench, variant.algorithm)
    return DeviceCodec(library, name, dtype)


def _library(bench: gb.Bench) -> lib.nvcomp.NvcompLibrary:
    """Return nvCOMP for a GPU of NVIDIA and hipCOMP for one of AMD."""
    if bench.traits.kernels == "cuda":
        return lib.nvcomp.load()
    if bench.traits.kernels == "hip":
        return lib.nvcomp.load_hip()
    raise gb.Skip("GPU codecs need nvCOMP (NVIDIA) or hipCOMP (AMD); this GPU has neither")


def _require_engine(bench: gb.Bench, algorithm: str) -> None:
    """Raise Skip unless this GPU's hardware decompression engine supports the algorithm."""
    formats = lib.nvcomp.engine_formats(int(bench.xp.cuda.runtime.getDevice()))
    if algorithm not in formats:
        support = f"supports only {', '.join(sorted(formats))}" if formats else "has none"
        raise gb.Skip(f"needs a hardware decompression engine for {algorithm}; this device {support}")
