"""Round trips of a buffer on a GPU: one batched call takes all chunks, each way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpubench.api.libraries import nvcomp
from gpubench.api.suite import Bench, Observation, Skip, expect

from ._codecs_bytes import DeviceBytes
from ._codecs_common import lengths, observed
from ._codecs_device import OUTPUT_GRAIN, DeviceChunks, DeviceCodec, current_stream, open_codec
from ._corpora import Corpus

_NO_STATUS = 0xFF  # this byte, repeated, is -1, which is not a status of nvCOMP
_POISON = 0xA5
_RESERVE = 2**28  # bytes that stay free for the driver


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes in bytes of a buffer and its chunks for one codec; both directions share the scratch memory."""

    total: int
    chunk: int
    count: int
    stride: int
    compress_scratch: int
    restore_scratch: int

    @classmethod
    def of(cls, codec: DeviceCodec, total: int, chunk: int, stream: int) -> Layout:
        """Return the layout that the library asks for; raises NvcompError if it refuses."""
        count = len(lengths(total, chunk))
        stride = -(-codec.max_compressed_bytes(chunk) // OUTPUT_GRAIN) * OUTPUT_GRAIN
        compress_temp = codec.compress_temp_bytes(count, chunk, stream)
        restore_temp = codec.decompress_temp_bytes(count, chunk, stream)
        return cls(total, chunk, count, stride, compress_temp, restore_temp)

    @property
    def scratch(self) -> int:
        """The larger scratch size of the two directions."""
        return max(self.compress_scratch, self.restore_scratch)

    @property
    def device_bytes(self) -> int:
        """The device memory that the source, the restored and the compressed chunks and the scratch take together."""
        return 2 * self.total + self.count * self.stride + self.scratch


class GpuRoundTrip:
    """A buffer on the device (`source`, uint8), its chunks compressed and restored, and all memory that a call needs.

    After construction nothing is allocated, and only `check` waits for the device.
    """

    def __init__(self, bench: Bench, codec: DeviceCodec, source: Any, layout: Layout) -> None:
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
        """Poison every output: afterwards no restored byte, size or status is right.

        Sizes become 0, so that restoring what was never compressed reads nothing.
        """
        self._bytes.invert(self.source.memory, self.restored.memory)
        self._bytes.fill(self.compressed.memory, _POISON)
        self._bytes.fill(self.compressed.sizes, 0)
        self._bytes.fill(self.written, 0)
        self._bytes.fill(self.compress_statuses, _NO_STATUS if self.codec.library.is_nvcomp else 0)
        self._bytes.fill(self.restore_statuses, _NO_STATUS)

    def compress(self, stream: int | None = None) -> None:
        """Queue compressing every chunk, on the stream that is timed or on another."""
        self._calls(current_stream(self._xp) if stream is None else stream)[0]()

    def restore(self, stream: int | None = None) -> None:
        """Queue restoring every chunk, by the sizes that compressing left on the device."""
        self._calls(current_stream(self._xp) if stream is None else stream)[1]()

    def _calls(self, stream: int) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return the two calls of a stream, which are prepared once; waiting for the device is timed too."""
        if stream not in self._prepared:
            compress_statuses, restore_statuses = self.compress_statuses, self.restore_statuses
            compress_args = (self.source, self.compressed, self.layout.chunk, self.scratch, compress_statuses, stream)
            restore_args = (self.compressed, self.restored, self.written, self.scratch, restore_statuses, stream)
            self._prepared[stream] = self.codec.compressing(*compress_args), self.codec.decompressing(*restore_args)
        return self._prepared[stream]

    def check(self) -> Observation:
        """Check statuses, sizes and every byte, and return the ratio; raises WrongAnswer if one is wrong."""
        self.codec.expect_success("compressed", self._host(self.compress_statuses))
        sizes = self._host(self.compressed.sizes)
        fits = bool((sizes > 0).all()) and bool((sizes <= self.layout.stride).all())
        expect(fits, "a compressed chunk has no bytes, or more than nvCOMP's maximum")
        self.codec.expect_success("restored", self._host(self.restore_statuses))
        right = bool((self._host(self.written) == self._host(self.source.sizes)).all())
        expect(right, "a restored chunk has a wrong length")
        self._bytes.expect_same(self.restored.memory, self.source.memory)
        scratch = {"compress": self.layout.compress_scratch, "decompress": self.layout.restore_scratch}
        return observed(self.layout.total, self.layout.chunk, int(sizes.sum()), scratch)


def open_trip(bench: Bench, corpus: Corpus, total: int, codec: str, chunk_bytes: int) -> GpuRoundTrip:
    """Return a round trip with its buffers; raises Skip without the library, its support or enough memory."""
    chosen = open_codec(bench, codec, corpus.dtype)
    try:
        layout = Layout.of(chosen, total, chunk_bytes, current_stream(bench.xp))
    except nvcomp.NvcompError as error:
        if error.is_refusal:
            raise Skip(str(error)) from error
        raise
    bench.need(layout.device_bytes + _RESERVE)
    return GpuRoundTrip(bench, chosen, uploaded(bench, corpus, total), layout)


def uploaded(bench: Bench, corpus: Corpus, total: int) -> Any:
    """Return the source on the device: its tile is copied there once and repeated there."""
    source = bench.xp.empty(total, bench.xp.uint8)
    tile = bench.xp.asarray(corpus.data[:total])
    for start in range(0, total, max(tile.size, 1)):
        part = min(tile.size, total - start)
        bench.device.copy(source[start : start + part], tile[:part])
    return source
