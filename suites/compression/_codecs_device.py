"""GPU codecs: one object per codec, which queues calls on chunks in device memory.

    codec = open_codec(bench, "zstd", "uint8")                 # Skip where it is unavailable
    source = DeviceChunks.side_by_side(xp, array, chunk_bytes)
    packed = DeviceChunks.room(xp, source.count, codec.max_compressed_bytes(chunk_bytes))
    scratch = xp.empty(codec.temp_bytes(source.count, chunk_bytes), xp.uint8)
    statuses = xp.zeros(source.count, xp.int32)                # 0: done
    codec.compress(source, packed, chunk_bytes, scratch, statuses, stream)
    codec.decompress(packed, back, written, scratch, statuses, stream)
    call = codec.compressing(…)                                # the same, prepared once and called often

Queueing a call neither allocates memory nor waits for the device. Each batch in flight needs its own scratch, statuses
and outputs; one codec may serve any number of streams at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpubench.api.libraries import nvcomp
from gpubench.api.suite import Bench, Skip, Unavailable, expect

from ._codecs_common import lengths

OUTPUT_GRAIN = 256  # bytes: each output starts on a cache line, while the algorithms ask for an alignment of 16 at most
_HARDWARE = 1  # NVCOMP_DECOMPRESS_BACKEND_HARDWARE


@dataclass(frozen=True, slots=True)
class DeviceChunks:
    """Chunks of one buffer on the device, `stride` bytes apart.

    `sizes` (uint64, on the device) are the bytes of each chunk; those of an output are known after a call.
    """

    memory: Any
    stride: int
    sizes: Any
    pointers: Any

    @classmethod
    def side_by_side(cls, xp: Any, memory: Any, chunk_bytes: int) -> DeviceChunks:
        """Return the chunks of a uint8 array in their places, without a copy; the last one may be shorter."""
        sizes = xp.asarray(np.array(lengths(memory.size, chunk_bytes), np.uint64))
        return cls(memory, chunk_bytes, sizes, _pointers(xp, memory, chunk_bytes, len(sizes)))

    @classmethod
    def room(cls, xp: Any, count: int, most_bytes: int) -> DeviceChunks:
        """Return room for `count` outputs of at most `most_bytes` each; their sizes are 0 until a call has run."""
        stride = -(-most_bytes // OUTPUT_GRAIN) * OUTPUT_GRAIN
        memory = xp.empty(count * stride, xp.uint8)
        return cls(memory, stride, xp.zeros(count, xp.uint64), _pointers(xp, memory, stride, count))

    @classmethod
    def uploaded(cls, xp: Any, chunks: Sequence[bytes], times: int = 1) -> DeviceChunks:
        """Copy chunks from the host to the device; each appears `times` times, always in the same memory."""
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

    def at_device(self) -> nvcomp.Chunks:
        """Return the addresses and sizes in the form of the C interface."""
        return nvcomp.Chunks(address(self.pointers), address(self.sizes), self.count)


def _pointers(xp: Any, memory: Any, stride: int, count: int) -> Any:
    return xp.asarray(np.arange(count, dtype=np.uint64) * np.uint64(stride) + np.uint64(address(memory)))


def address(array: Any) -> int:
    """Return the address of a device array, or 0 for an empty one."""
    return int(array.data.ptr) if array.size else 0


def current_stream(xp: Any) -> int:
    """Return the handle of CuPy's current stream, on which calls are timed."""
    return int(xp.cuda.get_current_stream().ptr)


@dataclass(frozen=True, slots=True)
class Variant:
    """A codec as a case names it: an algorithm of nvCOMP with options for compressing and restoring (`back`).

    `description` states the options in notes. `typed` passes LZ4 the width of the elements, and `plain` passes bytes to
    a codec that would otherwise use the element type.
    """

    algorithm: str
    options: Mapping[str, int] = field(default_factory=dict)
    back: Mapping[str, int] = field(default_factory=dict)
    description: str = "default options"
    typed: bool = False
    plain: bool = False

    @property
    def needs_engine(self) -> bool:
        """Whether only the GPU's hardware decompression engine can restore."""
        return self.back.get("backend") == _HARDWARE


def _levels(algorithm: str) -> dict[str, Variant]:
    """Return the variants of levels 0 (entropy coding only), 2, 4 and 5; level 1 is the default, 3 equals 2."""
    return {
        f"{algorithm}-{level}": Variant(algorithm, {"level": level}, description=f"level {level}")
        for level in (0, 2, 4, 5)
    }


_ENGINE = {
    f"{name}-engine": Variant(name, back={"backend": _HARDWARE}, description="decompressed by the hardware engine")
    for name, row in nvcomp.ALGORITHMS.items()
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
VARIANTS: Mapping[str, Variant] = {**{name: Variant(name) for name in nvcomp.ALGORITHMS}, **_OPTIONS, **_ENGINE}
CODECS = tuple(nvcomp.ALGORITHMS)
OPTIONS = (*_OPTIONS, *_ENGINE)
_SHUFFLED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}  # LZ4 accepts integers of these sizes in bytes
_WIDTHS = {"bfloat16": 2, "float8_e4m3": 1}


class DeviceCodec:
    """One codec of nvCOMP or hipCOMP on elements of the type `dtype`. Every call may raise nvcomp.NvcompError.

    `name` is a key of VARIANTS. `description` names the library, its version and the options, for the notes of a case.
    """

    def __init__(self, library: nvcomp.NvcompLibrary, name: str, dtype: str) -> None:
        variant = VARIANTS[name]
        element_type = "uint8" if variant.plain else dtype
        type_option = {"data_type": nvcomp.TYPES[_of_width(dtype)]} if variant.typed else {}
        self.name = name
        self.library = library
        self.row = nvcomp.Codec(
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
        """Return the bytes that the output of a chunk of at most `chunk_bytes` may need."""
        return self.row.max_output_bytes(chunk_bytes)

    def compress_temp_bytes(self, count: int, chunk_bytes: int, stream: int = 0) -> int:
        """Return the bytes of scratch for compressing `count` chunks of at most `chunk_bytes`."""
        return self.row.compress_temp_bytes(count, chunk_bytes, count * chunk_bytes, stream)

    def decompress_temp_bytes(self, count: int, chunk_bytes: int, stream: int = 0) -> int:
        """Return the bytes of scratch for restoring `count` chunks of at most `chunk_bytes`."""
        return self.row.decompress_temp_bytes(count, chunk_bytes, count * chunk_bytes, stream)

    def temp_bytes(self, count: int, chunk_bytes: int, stream: int = 0) -> int:
        """Return the bytes of scratch that serve one direction after the other."""
        compress_bytes = self.compress_temp_bytes(count, chunk_bytes, stream)
        return max(compress_bytes, self.decompress_temp_bytes(count, chunk_bytes, stream))

    def compressing(
        self, source: DeviceChunks, target: DeviceChunks, chunk_bytes: int, scratch: Any, statuses: Any, stream: int
    ) -> Callable[[], None]:
        """Return a call that queues compressing `source`, in chunks of at most `chunk_bytes`, into `target`."""
        at, codes = _scratch(scratch), address(statuses)
        return self.row.compress(source.at_device(), chunk_bytes, at, target.at_device(), codes, stream)

    def compress(
        self, source: DeviceChunks, target: DeviceChunks, chunk_bytes: int, scratch: Any, statuses: Any, stream: int
    ) -> None:
        """Queue compressing once."""
        self.compressing(source, target, chunk_bytes, scratch, statuses, stream)()

    def decompressing(
        self, source: DeviceChunks, target: DeviceChunks, written: Any, scratch: Any, statuses: Any, stream: int
    ) -> Callable[[], None]:
        """Return a call that queues restoring `source` into `target`, whose sizes are the room for each chunk.

        `written` (uint64, on the device) is filled with the bytes of each, `statuses` (int32) with its outcome.
        """
        at, codes = _scratch(scratch), address(statuses)
        return self.row.decompress(source.at_device(), target.at_device(), address(written), at, codes, stream)

    def decompress(
        self, source: DeviceChunks, target: DeviceChunks, written: Any, scratch: Any, statuses: Any, stream: int
    ) -> None:
        """Queue restoring once."""
        self.decompressing(source, target, written, scratch, statuses, stream)()

    def expect_success(self, operation: str, statuses: Any) -> None:
        """Raise WrongAnswer with the library's message unless every status (in host memory) is 0."""
        failed = statuses[statuses != 0]
        if failed.size:
            status = int(failed[0])
            reason = f"{self.library.status_text(status)} (status {status})"
            expect(False, f"{failed.size} chunks were not {operation}; the first: {reason}")


def _scratch(memory: Any) -> nvcomp.Scratch:
    return nvcomp.Scratch(address(memory), memory.size)


def _of_width(dtype: str) -> str:
    width = _WIDTHS.get(dtype) or int("".join(filter(str.isdigit, dtype))) // 8
    return _SHUFFLED[width]


def open_codec(bench: Bench, name: str, dtype: str = "uint8") -> DeviceCodec:
    """Return a codec of this GPU's library by its name in cases.

    Raises Skip, with the way to install it, if it is unavailable.
    """
    variant = VARIANTS[name]
    try:
        library = _library(bench)
    except Unavailable as error:
        raise Skip(str(error)) from error
    if variant.algorithm not in library.algorithms:
        raise Skip(f"hipCOMP does not support {variant.algorithm}; it supports {', '.join(library.algorithms)}")
    if variant.needs_engine:
        _require_engine(bench, variant.algorithm)
    return DeviceCodec(library, name, dtype)


def _library(bench: Bench) -> nvcomp.NvcompLibrary:
    """Return the codec library of the bench's GPU; raises Skip if the GPU has none."""
    if bench.traits.kernels == "cuda":
        return nvcomp.load()
    if bench.traits.kernels == "hip":
        return nvcomp.load_hip()
    raise Skip("GPU codecs need nvCOMP (NVIDIA) or hipCOMP (AMD); this GPU has neither")


def _require_engine(bench: Bench, algorithm: str) -> None:
    formats = nvcomp.engine_formats(int(bench.xp.cuda.runtime.getDevice()))
    if algorithm not in formats:
        support = f"supports only {', '.join(sorted(formats))}" if formats else "has none"
        raise Skip(f"needs a hardware decompression engine for {algorithm}; this device {support}")
