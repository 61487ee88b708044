"""The two ends of a message: a block is encoded into what travels, and what arrived is decoded in its place.

What travels is a table of offsets and sizes, 64 bits each, and the chunks behind it (compress.cu); raw bytes travel
as they are, from where they lie to where they are wanted, with no copy at either end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from gpubench.api.suite import Bench, Kernel, WrongAnswer, expect

from ._codecs_bytes import DeviceBytes
from ._codecs_common import expect_same, lengths
from ._codecs_device import DeviceChunks, DeviceCodec, current_stream
from ._codecs_host import HostCodec
from ._lanes import LINE_BYTES, Cut, Lanes

_THREADS = 256  # as PLACES in compress.cu
_WORD = 8
_UNDONE = 0xFF  # in each byte: -1, no status of any library's


_Queued = tuple[Callable[[], None], list[tuple[Kernel, int, tuple[Any, ...]]]]


class Encoder(Protocol):
    """One end: makes of a block what travels."""

    def begin(self, lane: int, index: int) -> None:
        """Queue what can be done ahead."""

    def encode(self, lane: int, index: int) -> Any:
        """The block as it travels, after `begin`: uint8 on the device, the lane's until its next block."""


class Decoder(Protocol):
    """The other end: puts what arrived in its place."""

    def room(self, lane: int, index: int) -> Any:
        """Where the block has to arrive: uint8 on the device, as long as it can be."""

    def decode(self, lane: int, index: int, packed: Any) -> None:
        """Restore the block; raises WrongAnswer at once or from `check` where it cannot be."""

    def poison(self) -> None:
        """Spoil the whole message."""

    def check(self) -> None:
        """Every block of the message is right, bit for bit; raises WrongAnswer."""


class PlainEncoder:
    """Raw bytes."""

    def __init__(self, cut: Cut, source: Any) -> None:
        self._blocks = [source[cut.span(index)] for index in range(cut.count)]

    def begin(self, lane: int, index: int) -> None:
        pass

    def encode(self, lane: int, index: int) -> Any:
        del lane
        return self._blocks[index]


class PlainDecoder:
    """Raw bytes: they arrive where they are wanted."""

    def __init__(self, by: HostBytes | DeviceBytes, cut: Cut, source: Any, target: Any) -> None:
        self._source, self._target = source, target
        self._bytes = by
        self._blocks = [target[cut.span(index)] for index in range(cut.count)]

    def room(self, lane: int, index: int) -> Any:
        del lane
        return self._blocks[index]

    def decode(self, lane: int, index: int, packed: Any) -> None:
        pass

    def poison(self) -> None:
        self._bytes.invert(self._source, self._target)

    def check(self) -> None:
        self._bytes.expect_same(self._target, self._source)


class HostBytes:
    """What checks do to bytes of the host: as DeviceBytes to those of a GPU."""

    def invert(self, source: Any, target: Any) -> None:
        """The complement of every byte."""
        np.invert(source, out=target)

    def expect_same(self, found: Any, expected: Any) -> None:
        """Raise WrongAnswer unless both are equal."""
        expect_same(found, expected)


def bytes_of(bench: Bench) -> HostBytes | DeviceBytes:
    """What spoils and compares on the bench's device."""
    return DeviceBytes(bench) if bench.traits.is_gpu else HostBytes()


class HostEncoder:
    """A codec of the host: each lane is a thread that compresses chunk after chunk."""

    def __init__(self, codec: HostCodec, cut: Cut, source: Any, lanes: Lanes, packed: Sequence[Any] = ()) -> None:
        self._cut, self._source = cut, source
        self._squeeze = [codec.squeeze() for _ in range(lanes.most)]
        most = cut.most_packed(codec.max_compressed_bytes(cut.chunk))
        self._packed = list(packed) or [np.empty(most, np.uint8) for _ in range(lanes.most)]

    def begin(self, lane: int, index: int) -> None:
        pass

    def encode(self, lane: int, index: int) -> Any:
        block, squeeze = memoryview(self._source[self._cut.span(index)]), self._squeeze[lane]
        starts = range(0, len(block), self._cut.chunk)
        return packed_into(self._packed[lane], [squeeze(block[start : start + self._cut.chunk]) for start in starts])


def packed_into(target: Any, chunks: Sequence[bytes]) -> Any:
    """The chunks as they travel, in `target`; what of it they take."""
    sizes = np.array([len(chunk) for chunk in chunks], np.uint64)
    lines = -(-sizes.astype(np.int64) // LINE_BYTES) * LINE_BYTES
    offsets = 2 * _WORD * len(chunks) + np.cumsum(lines) - lines
    table = target[: 2 * _WORD * len(chunks)].view(np.uint64)
    table[: len(chunks)], table[len(chunks) :] = offsets, sizes
    view = memoryview(target)
    for offset, chunk in zip(offsets.tolist(), chunks, strict=True):
        view[offset : offset + len(chunk)] = chunk
    return target[: int(offsets[-1] + lines[-1])]


class HostDecoder:
    """The same codec back."""

    def __init__(self, codec: HostCodec, cut: Cut, source: Any, target: Any, lanes: Lanes) -> None:
        self._codec, self._cut, self._source, self._target = codec, cut, source, target
        most = cut.most_packed(codec.max_compressed_bytes(cut.chunk))
        self._rooms = [np.empty(most, np.uint8) for _ in range(lanes.most)]

    def room(self, lane: int, index: int) -> Any:
        del index
        return self._rooms[lane]

    def decode(self, lane: int, index: int, packed: Any) -> None:
        del lane
        sizes = self._cut.chunks(index)
        target, arrived = memoryview(self._target[self._cut.span(index)]), memoryview(packed)
        place = 0
        for (offset, size), length in zip(_table(packed, len(sizes)), sizes, strict=True):
            target[place : place + length] = self._codec.one(arrived[offset : offset + size], length)
            place += length

    def poison(self) -> None:
        np.invert(self._source, out=self._target)

    def check(self) -> None:
        expect_same(self._target, self._source)


def _table(packed: Any, count: int) -> list[tuple[int, int]]:
    """Offset and size of each chunk; raises WrongAnswer where one lies outside of what arrived."""
    if packed.size < 2 * _WORD * count:
        raise WrongAnswer(f"a block of {packed.size} bytes arrived, too short for a table of {count} chunks")
    offsets, sizes = packed[: 2 * _WORD * count].view(np.uint64).reshape(2, count)
    room = np.uint64(packed.size)
    inside = (offsets <= room) & (sizes <= room - np.minimum(offsets, room))
    expect(bool(inside.all()), "the table of a block that arrived points outside of it")
    return list(zip(offsets.tolist(), sizes.tolist(), strict=True))


class GpuEncoder:
    """A GPU's codec: a batch of chunks a lane, gathered behind their table by a kernel."""

    def __init__(
        self, bench: Bench, codec: DeviceCodec, cut: Cut, source: Any, lanes: Lanes, packed: Sequence[Any] = ()
    ) -> None:
        xp, most, stream = bench.xp, cut.most_chunks, current_stream(bench.xp)
        self._xp, self._codec, self._cut, self._lanes = xp, codec, cut, lanes
        self._to_host = bench.device.to_host
        room = codec.max_compressed_bytes(cut.chunk)
        temp = codec.compress_temp_bytes(most, cut.chunk, stream)
        self._blocks = _blocks(xp, cut, source)
        self._rooms = [DeviceChunks.room(xp, most, room) for _ in range(lanes.most)]
        self._scratch = [xp.empty(temp, xp.uint8) for _ in range(lanes.most)]
        self._packed = list(packed) or [xp.empty(cut.most_packed(room), xp.uint8) for _ in range(lanes.most)]
        self._statuses = _Rows(xp, "int32", cut)
        self._begun: dict[tuple[int, int], _Queued] = {}
        self._totals = bench.device.pinned(_WORD * lanes.most).view(np.uint64)
        first = self._totals.ctypes.data  # with unified addressing the device's address too
        self._to_total = [np.uint64(first + _WORD * lane) for lane in range(lanes.most)]
        self._place, self._pack = (bench.kernel("compress.cu", name) for name in ("place", "pack"))

    def begin(self, lane: int, index: int) -> None:
        if (lane, index) not in self._begun:
            self._begun[lane, index] = self._prepared(lane, index)
        compress, launches = self._begun[lane, index]
        compress()
        for kernel, blocks, args in launches:
            kernel((blocks,), (_THREADS,), args)

    def _prepared(self, lane: int, index: int) -> _Queued:
        """What begins a block in that lane, its arguments made once: they take longer than a fast codec."""
        block, packed = self._blocks[index], self._packed[lane]
        room = self._rooms[lane].first(block.count)
        count, stream = np.uint32(block.count), current_stream(self._xp)
        statuses = self._statuses.of(index)
        compress = self._codec.compressing(block, room, self._cut.chunk, self._scratch[lane], statuses, stream)
        placing = (room.sizes, count, packed, self._to_total[lane])
        packing = (room.memory, np.uint64(room.stride), count, packed)
        return compress, [(self._place, 1, placing), (self._pack, block.count, packing)]

    def encode(self, lane: int, index: int) -> Any:
        del index
        self._lanes.wait(lane)
        return self._packed[lane][: int(self._totals[lane])]

    def check(self) -> None:
        """Every chunk was compressed; raises WrongAnswer."""
        self._codec.expect_success("compressed", self._to_host(self._statuses.array))


class GpuDecoder:
    """The same codec back, from the table that arrived."""

    def __init__(self, bench: Bench, codec: DeviceCodec, cut: Cut, source: Any, target: Any, lanes: Lanes) -> None:
        xp, most, stream = bench.xp, cut.most_chunks, current_stream(bench.xp)
        self._xp, self._codec, self._source, self._target = xp, codec, source, target
        self._to_host, self._bytes = bench.device.to_host, DeviceBytes(bench)
        room = cut.most_packed(codec.max_compressed_bytes(cut.chunk))
        temp = codec.decompress_temp_bytes(most, cut.chunk, stream)
        self._blocks = _blocks(xp, cut, target)
        self._rooms = [xp.empty(room, xp.uint8) for _ in range(lanes.most)]
        self._scratch = [xp.empty(temp, xp.uint8) for _ in range(lanes.most)]
        self._tables = [(xp.zeros(most, xp.uint64), xp.zeros(most, xp.uint64)) for _ in range(lanes.most)]
        self._lengths = np.array(lengths(cut.total, cut.chunk), np.uint64)
        self._written = _Rows(xp, "uint64", cut)
        self._statuses = _Rows(xp, "int32", cut)
        self._begun: dict[tuple[int, int], tuple[Callable[[], None], tuple[int, tuple[Any, ...]]]] = {}
        self._unpack = bench.kernel("compress.cu", "unpack")

    def room(self, lane: int, index: int) -> Any:
        del index
        return self._rooms[lane]

    def decode(self, lane: int, index: int, packed: Any) -> None:
        if (lane, index) not in self._begun:
            self._begun[lane, index] = self._prepared(lane, index)
        decompress, (blocks, (count, sizes, pointers)) = self._begun[lane, index]
        self._unpack((blocks,), (_THREADS,), (packed, np.uint64(packed.size), count, sizes, pointers))
        decompress()

    def _prepared(self, lane: int, index: int) -> tuple[Callable[[], None], tuple[int, tuple[Any, ...]]]:
        """What restores a block in that lane, wherever it arrived: a table on the device says where its chunks are."""
        block, stream = self._blocks[index], current_stream(self._xp)
        sizes, pointers = (row[: block.count] for row in self._tables[lane])
        arrived = DeviceChunks(self._rooms[lane], 0, sizes, pointers)
        written, statuses = self._written.of(index), self._statuses.of(index)
        call = self._codec.decompressing(arrived, block, written, self._scratch[lane], statuses, stream)
        return call, (-(-block.count // _THREADS), (np.uint32(block.count), sizes, pointers))

    def poison(self) -> None:
        self._bytes.invert(self._source, self._target)
        self._bytes.fill(self._written.array, 0)
        self._bytes.fill(self._statuses.array, _UNDONE)

    def check(self) -> None:
        self._codec.expect_success("restored", self._to_host(self._statuses.array))
        right = bool((self._to_host(self._written.array) == self._lengths).all())
        expect(right, "a restored chunk has a wrong length")
        self._bytes.expect_same(self._target, self._source)


class _Rows:
    """A value for each chunk of a message, on the device: a block's lie side by side."""

    def __init__(self, xp: Any, dtype: str, cut: Cut) -> None:
        counts = [len(cut.chunks(index)) for index in range(cut.count)]
        self.array = xp.zeros(sum(counts), dtype)
        ends = np.cumsum(counts).tolist()
        self._rows = [self.array[end - count : end] for end, count in zip(ends, counts, strict=True)]

    def of(self, index: int) -> Any:
        """Those of a block."""
        return self._rows[index]


def _blocks(xp: Any, cut: Cut, array: Any) -> list[DeviceChunks]:
    return [DeviceChunks.side_by_side(xp, array[cut.span(index)], cut.chunk) for index in range(cut.count)]
