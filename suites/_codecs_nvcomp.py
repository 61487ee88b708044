"""Codecs of NVIDIA GPUs: nvCOMP's batched calls on chunks that lie on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpubench.api import Bench, Missing, Observation, Skip, Task, expect, nvcomp, units

from ._codecs_common import expect_same, lengths, observed, stage
from ._corpora import Corpus

CODECS = tuple(nvcomp.ALGORITHMS)
_OUTPUT_GRAIN = 256  # bytes: outputs start on lines of their own; every algorithm asks for 16 at most
_NO_STATUS = -1  # no status of nvCOMP's
_POISON = 0xA5
_RESERVE = 2**28  # bytes left free for the driver


@dataclass(frozen=True, slots=True)
class Layout:
    """How a buffer is laid out for one codec, in bytes; `scratch` serves both directions in turn."""

    total: int
    chunk: int
    count: int
    stride: int
    scratch: int

    @classmethod
    def of(cls, codec: nvcomp.Codec, total: int, chunk: int, stream: int) -> Layout:
        """Ask the library; raises NvcompError where it refuses."""
        count = len(lengths(total, chunk))
        grain = max(codec.compress_alignments().output, codec.decompress_alignments().input, _OUTPUT_GRAIN)
        stride = -(-codec.max_output_bytes(chunk) // grain) * grain
        there = codec.compress_temp_bytes(count, chunk, total, stream)
        back = codec.decompress_temp_bytes(count, chunk, total, stream)
        return cls(total, chunk, count, stride, max(there, back))

    @property
    def device_bytes(self) -> int:
        """What it takes on the device: source, restored, the comparison's, compressed, scratch."""
        return 3 * self.total + self.count * self.stride + self.scratch


class RoundTrip:
    """A buffer on the device, its chunks compressed and restored, and everything a call needs.

    Compressed chunks stand `layout.stride` bytes apart, source and restored ones side by side.
    After construction nothing is allocated and nothing waits for the device, save in `check`.
    """

    def __init__(self, xp: Any, codec: nvcomp.Codec, source: Any, layout: Layout) -> None:
        self._xp = xp
        self._codec = codec
        self._layout = layout
        count = layout.count
        self.source = source
        self.compressed = xp.empty(count * layout.stride, xp.uint8)
        self.restored = xp.empty(layout.total, xp.uint8)
        self._sizes = xp.asarray(lengths(layout.total, layout.chunk), dtype=xp.uint64)
        self.compressed_sizes = xp.zeros(count, xp.uint64)
        self._restored_sizes = xp.zeros(count, xp.uint64)
        self._compress_statuses = xp.zeros(count, xp.int32)
        self._restore_statuses = xp.zeros(count, xp.int32)
        self._scratch_memory = xp.empty(layout.scratch, xp.uint8)
        self._scratch = nvcomp.Scratch(_address(self._scratch_memory) if layout.scratch else 0, layout.scratch)
        self._pointers: list[Any] = []
        self._from = self._batch(self.source, layout.chunk, self._sizes)
        self._between = self._batch(self.compressed, layout.stride, self.compressed_sizes)
        self._to = self._batch(self.restored, layout.chunk, self._sizes)

    def _batch(self, array: Any, step: int, sizes: Any) -> nvcomp.Chunks:
        """Chunks that stand `step` bytes apart; their addresses are kept on the device."""
        xp, count = self._xp, self._layout.count
        pointers = xp.arange(count, dtype=xp.uint64) * xp.uint64(step) + xp.uint64(_address(array))
        self._pointers.append(pointers)
        return nvcomp.Chunks(_address(pointers), _address(sizes), count)

    @property
    def _stream(self) -> int:
        return _current_stream(self._xp)

    def poison(self) -> None:
        """Spoil every output: no restored byte is right, no size and no status is left.

        Sizes become 0, so that restoring what was never compressed reads nothing.
        """
        self._xp.invert(self.source, out=self.restored)
        self.compressed.fill(_POISON)
        for sizes in (self.compressed_sizes, self._restored_sizes):
            sizes.fill(0)
        for statuses in (self._compress_statuses, self._restore_statuses):
            statuses.fill(_NO_STATUS)

    def compress(self) -> None:
        """Queue compressing every chunk."""
        statuses = _address(self._compress_statuses)
        self._codec.compress(self._from, self._layout.chunk, self._scratch, self._between, statuses, self._stream)

    def restore(self) -> None:
        """Queue restoring every chunk, by the sizes that compressing left on the device."""
        sizes, statuses = _address(self._restored_sizes), _address(self._restore_statuses)
        self._codec.decompress(self._between, self._to, sizes, self._scratch, statuses, self._stream)

    def check(self) -> Observation:
        """Statuses, sizes and every byte are right; what it came to."""
        self._expect_success("compressed", self._compress_statuses)
        sizes = self.compressed_sizes
        fits = bool((sizes > 0).all()) and bool((sizes <= self._layout.stride).all())
        expect(fits, "a compressed chunk has no bytes, or more than nvCOMP's maximum")
        self._expect_success("restored", self._restore_statuses)
        expect(bool((self._restored_sizes == self._sizes).all()), "a restored chunk has a wrong length")
        expect_same(self.restored, self.source)
        return observed(self._layout.total, self._layout.chunk, int(sizes.sum()))

    def _expect_success(self, what: str, statuses: Any) -> None:
        failed = statuses[statuses != 0]
        if failed.size:
            status = int(failed[0])
            words = nvcomp.load().words(status)
            expect(False, f"{failed.size} chunks were not {what}; the first: {words} (status {status})")


def _address(array: Any) -> int:
    return int(array.data.ptr)


def _current_stream(xp: Any) -> int:
    return int(xp.cuda.get_current_stream().ptr)


def roundtrip(bench: Bench, corpus: Corpus, total: int, codec: str, chunk_bytes: int) -> Task:
    """The task of one algorithm; Skip where nvCOMP is missing or refuses, in its own words."""
    if bench.traits.kernels != "cuda":
        raise Skip("GPU codecs are nvCOMP's, which needs an NVIDIA device")
    try:
        chosen = nvcomp.Codec(nvcomp.load(), codec, corpus.dtype)
        layout = Layout.of(chosen, total, chunk_bytes, _current_stream(bench.xp))
    except Missing as error:
        raise Skip(str(error)) from error
    except nvcomp.NvcompError as error:
        if error.is_refusal:
            raise Skip(str(error)) from error
        raise
    if layout.device_bytes + _RESERVE > bench.device.free_bytes():
        raise Skip(f"needs {units.round_size(layout.device_bytes + _RESERVE)} of free device memory")
    return _task(RoundTrip(bench.xp, chosen, _uploaded(bench.xp, corpus, total), layout), chosen, corpus, total)


def _task(trip: RoundTrip, codec: nvcomp.Codec, corpus: Corpus, total: int) -> Task:
    stages = {
        "compress": stage(trip.compress, total),
        "decompress": stage(trip.restore, total, waits=codec.decompress_waits),
    }
    described = f"nvCOMP {nvcomp.load().version}, batched, default options, elements {codec.data_type}"
    notes = {"corpus": corpus.description, "codec": described}
    return Task(stages, check=trip.check, poison=trip.poison, notes=notes)


def _uploaded(xp: Any, corpus: Corpus, total: int) -> Any:
    """The source on the device: the tile is copied there once and repeated there."""
    source = xp.empty(total, xp.uint8)
    Corpus(corpus.name, corpus.dtype, corpus.description, xp.asarray(corpus.data)).fill(source)
    return source
