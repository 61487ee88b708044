"""Compress and restore a buffer on a GPU, where one batched call takes all chunks in either direction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from ._codecs_bytes import DeviceBytes
from ._codecs_common import lengths, observed
from ._codecs_device import OUTPUT_GRAIN, DeviceChunks, DeviceCodec, current_stream, open_codec
from ._corpora import Corpus

_NO_STATUS = 0xFF  # this byte, repeated, is -1, which is not a status of nvCOMP
_POISON = 0xA5
_RESERVE = 2**28  # bytes that stay free for the driver


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes in bytes of a buffer and its chunks for one codec.

    `total` bytes are divided into `count` chunks of `chunk` bytes; `stride` bytes hold a compressed chunk."""

    total: int
    chunk: int
    count: int
    stride: int
    compress_scratch: int
    restore_scratch: int

    @classmethod
    def of(cls, codec: DeviceCodec, total: int, chunk: int, stream: int) -> Layout:
        """Return the layout of `total` bytes in chunks of `chunk` bytes; raises NvcompError if the library refuses it.

        `stream` is the address of a stream."""
        count = len(lengths(total, chunk))
        stride = -(-codec.max_compressed_bytes(chunk) // OUTPUT_GRAIN) * OUTPUT_GRAIN
        compress_temp = codec.compress_temp_bytes(count, chunk, stream)
        restore_temp = codec.decompress_temp_bytes(count, chunk, stream)
        return cls(total, chunk, count, stride, compress_temp, restore_temp)

    @property
    def scratch(self) -> int:
        """The bytes of scratch memory that serve both directions, one after the other."""
        return max(self.compress_scratch, self.restore_scratch)

    @property
    def device_bytes(self) -> int:
        """The bytes of device memory that all buffers of a round trip take together."""
        return 2 * self.total + self.count * self.stride + self.scratch


class GpuRoundTrip:
    """A round trip on a GPU: a buffer, its chunks compressed, its chunks restored, and all memory that a call needs.

    After construction nothing is allocated. Calls queue work and return at once, but `check` waits for the device."""

    def __init__(self, bench: gb.Bench, codec: DeviceCodec, source: Any, layout: Layout) -> None:
        """Allocate all memory; `source` is a CuPy array of dtype uint8 with `layout.total` bytes."""
        self._xp = xp = bench.xp
        self._host = bench.device.to_host
        self._bytes = DeviceBytes(bench)
        self.codec = codec
        self.layout = layout
        self.source = DeviceChunks.side_by_side(xp, source, layout.chunk)
        self.compressed = DeviceChunks.room(xp, layout.count, layout.stride)
        self.restored = DeviceChunks.side_by_side(xp, xp.empty(layout.total, xp.uint8), layout.chunk)
        self.written = xp.zeros(layout.count, xp.uint64)
        self.compress_statuses = xp.zeros(layout.count, xp.int32)
        self.restore_statuses = xp.zeros(layout.count, xp.int32)
        self.scratch = xp.empty(layout.scratch, xp.uint8)
        self._prepared: dict[int, tuple[Callable[[], None], Callable[[], None]]] = {}

    @property
    def total(self) -> int:
        """The bytes of the buffer."""
        return self.layout.total

    def poison(self) -> None:
        """Overwrite every output with a wrong value: restored bytes, sizes and statuses.

        Sizes become 0, so that restoring chunks that were never compressed reads nothing."""
        self._bytes.invert(self.source.memory, self.restored.memory)
        self._bytes.fill(self.compressed.memory, _POISON)
        self._bytes.fill(self.compressed.sizes, 0)
        self._bytes.fill(self.written, 0)
        self._bytes.fill(self.compress_statuses, _NO_STATUS if self.codec.library.is_nvcomp else 0)
        self._bytes.fill(self.restore_statuses, _NO_STATUS)

    def compress(self, stream: int | None = None) -> None:
        """Queue compressing every chunk on the stream at the address `stream`; None means the current one."""
        self._calls(current_stream(self._xp) if stream is None else stream)[0]()

    def restore(self, stream: int | None = None) -> None:
        """Queue restoring every compressed chunk on the stream at the address `stream`; None means the current one."""
        self._calls(current_stream(self._xp) if stream is None else stream)[1]()

    def _calls(self, stream: int) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return the functions that queue compressing and restoring on a stream."""
        if stream not in self._prepared:
            compress_statuses, restore_statuses = self.compress_statuses, self.restore_statuses
            compress_args = (self.source, self.compressed, self.layout.chunk, self.scratch, compress_statuses, stream)
            restore_args = (self.compressed, self.restored, self.written, self.scratch, restore_statuses, stream)
            self._prepared[stream] = self.codec.compressing(*compress_args), self.codec.decompressing(*restore_args)
        return self._prepared[stream]

    def check(self) -> gb.Observation:
        """Check the status, the size and every byte of all chunks, and return the observations of the round trip.

        These are the ratio, the compressed bytes and the scratch memory of both directions."""
        self.codec.expect_success("compressed", self._host(self.compress_statuses))
        sizes = self._host(self.compressed.sizes)
        fits = bool((sizes > 0).all()) and bool((sizes <= self.layout.stride).all())
        gb.expect(fits, "a compressed chunk has no bytes, or more than nvCOMP's maximum")
        self.codec.expect_success("restored", self._host(self.restore_statuses))
        right = bool((self._host(self.written) == self._host(self.source.sizes)).all())
        gb.expect(right, "a restored chunk has a wrong length")
        self._bytes.expect_same(self.restored.memory, self.source.memory)
        scratch = {"compress": self.layout.compress_scratch, "decompress": self.layout.restore_scratch}
        return observed(self.layout.total, self.layout.chunk, int(sizes.sum()), scratch)


def open_trip(bench: gb.Bench, corpus: Corpus, total: int, codec: str, chunk_bytes: int) -> GpuRoundTrip:
    """Return a round trip of `total` bytes, which repeat the corpus, through the codec `codec`, a key of VARIANTS.

    Raises Skip if the library is unavailable, does not support the codec or the sizes, or if the memory does not
    suffice."""
    chosen = open_codec(bench, codec, corpus.dtype)
    try:
        layout = Layout.of(chosen, total, chunk_bytes, current_stream(bench.xp))
    except lib.nvcomp.NvcompError as error:
        if error.is_refusal:
            raise gb.Skip(str(error)) from error
        raise
    bench.need(layout.device_bytes + _RESERVE)
    return GpuRoundTrip(bench, chosen, uploaded(bench, corpus, total), layout)


def uploaded(bench: gb.Bench, corpus: Corpus, total: int) -> Any:
    """Return a CuPy array of `total` bytes (uint8) that repeats the corpus, which is copied to the device once."""
    source = bench.xp.empty(total, bench.xp.uint8)
    tile = bench.xp.asarray(corpus.data[:total])
    for start in range(0, total, max(tile.size, 1)):
        part = min(tile.size, total - start)
        bench.device.copy(source[start : start + part], tile[:part])
    return source
