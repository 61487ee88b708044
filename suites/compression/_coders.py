"""Encode and decode blocks: raw, by a codec of the host, or by a codec of a GPU, whose chunks a kernel packs.

A block is cut into chunks, which a codec compresses independently. A packed block is a table of the offsets and the
sizes of its chunks, and the chunks in whole lines behind it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._codecs_device import NO_STATUS, DeviceBytes, DeviceChunks, DeviceCodec, current_stream, open_codec
from ._codecs_host import CODECS, HostCodec, chunks_of, lengths
from ._pipeline import Coder, Cut, InFlight, Message, Slots

_LINE_BYTES = 16  # as LINE in compress.cu
_WORD_BYTES = 8
_ENTRY_BYTES = 2 * _WORD_BYTES  # an entry of the table: the offset and the size of a chunk
_THREADS = 256  # as PLACES in compress.cu

_Launch = tuple[gb.Kernel, int, tuple[Any, ...]]  # a kernel, its grid and its arguments


def max_packed_bytes(cut: Cut, max_compressed_bytes: int) -> int:
    """Return the most bytes of a packed block if a compressed chunk has at most `max_compressed_bytes`."""
    lines = -(-max_compressed_bytes // _LINE_BYTES)
    return cut.max_chunks * (_ENTRY_BYTES + lines * _LINE_BYTES) + _LINE_BYTES


def pack(room: Any, chunks: Sequence[bytes]) -> Any:
    """Write the compressed `chunks` into `room` as a packed block, and return the part of `room` that the block takes.

    `room` is a NumPy array of dtype uint8, long enough for `max_packed_bytes`."""
    sizes = np.array([len(chunk) for chunk in chunks], np.uint64)
    lines = -(-sizes.astype(np.int64) // _LINE_BYTES) * _LINE_BYTES
    offsets = _ENTRY_BYTES * len(chunks) + np.cumsum(lines) - lines
    table = room[: _ENTRY_BYTES * len(chunks)].view(np.uint64)
    table[: len(chunks)], table[len(chunks) :] = offsets, sizes
    view = memoryview(room)
    for offset, chunk in zip(offsets.tolist(), chunks, strict=True):
        view[offset : offset + len(chunk)] = chunk
    return room[: int(offsets[-1] + lines[-1])]


def read_table(packed: Any, count: int) -> list[tuple[int, int]]:
    """Return the offset and the size in bytes of each of the `count` chunks in a packed block (NumPy, uint8).

    Raises WrongAnswer if a chunk lies outside of the block."""
    if packed.size < _ENTRY_BYTES * count:
        raise gb.WrongAnswer(f"a block of {packed.size} bytes arrived, too short for a table of {count} chunks")
    offsets, sizes = packed[: _ENTRY_BYTES * count].view(np.uint64).reshape(2, count)
    room = np.uint64(packed.size)
    inside = (offsets <= room) & (sizes <= room - np.minimum(offsets, room))
    gb.expect(bool(inside.all()), "the table of a block that arrived points outside of it")
    return list(zip(offsets.tolist(), sizes.tolist(), strict=True))


class RawBlocks(Coder):
    """Sends raw bytes from their place in `array`, the source, or receives them in their place, the target."""

    def __init__(self, cut: Cut, slots: Slots, array: Any) -> None:
        super().__init__(cut, slots)
        self._blocks = [array[cut.span(index)] for index in range(cut.count)]

    def encode(self, block: InFlight) -> Any:
        return self._blocks[block.index]

    def room(self, block: InFlight) -> Any:
        return self._blocks[block.index]

    def decode(self, block: InFlight, packed: Any) -> None:
        """Do nothing: the block is in its place."""


class HostBlocks(Coder):
    """Compresses the blocks of `array` by a codec of the host, or restores them into it, in the calling thread."""

    def __init__(self, codec: HostCodec, cut: Cut, slots: Slots, array: Any, rooms: Sequence[Any] = ()) -> None:
        super().__init__(cut, slots)
        self._codec, self._array = codec, array
        self._compressors = [codec.squeeze() for _ in range(slots.depth)]
        nbytes = max_packed_bytes(cut, codec.max_compressed_bytes(cut.chunk))
        self._rooms = list(rooms) or [np.empty(nbytes, np.uint8) for _ in range(slots.depth)]

    def encode(self, block: InFlight) -> Any:
        chunks = chunks_of(self._array[self.cut.span(block.index)], self.cut.chunk)
        return pack(self._rooms[block.slot], list(map(self._compressors[block.slot], chunks)))

    def room(self, block: InFlight) -> Any:
        return self._rooms[block.slot]

    def decode(self, block: InFlight, packed: Any) -> None:
        sizes, arrived = self.cut.chunks(block.index), memoryview(packed)
        targets = chunks_of(self._array[self.cut.span(block.index)], self.cut.chunk)
        for target, (offset, size) in zip(targets, read_table(packed, len(sizes)), strict=True):
            target[:] = self._codec.decompress_one(arrived[offset : offset + size], len(target))


class _GpuBlocks(Coder):
    """The memory that both directions need on a GPU: the blocks of `array`, and room and scratch memory by slot.

    Calls and arguments are prepared once for each slot and block, because that takes longer than a fast codec does."""

    def __init__(
        self, bench: gb.Bench, codec: DeviceCodec, cut: Cut, slots: Slots, array: Any, way: int, rooms: Sequence[Any]
    ) -> None:
        super().__init__(cut, slots)
        xp, count = bench.xp, cut.max_chunks
        self._xp, self._codec, self._to_host = xp, codec, bench.device.to_host
        self._most_bytes = codec.row.max_output_bytes(cut.chunk)
        scratch_bytes = codec.temp_bytes(count, cut.chunk, current_stream(xp))[way]
        spans = [cut.span(index) for index in range(cut.count)]
        self._blocks = [DeviceChunks.side_by_side(xp, array[span], cut.chunk) for span in spans]
        self._scratch = [xp.empty(scratch_bytes, xp.uint8) for _ in range(slots.depth)]
        packed_bytes = max_packed_bytes(cut, self._most_bytes)
        self._rooms = list(rooms) or [xp.empty(packed_bytes, xp.uint8) for _ in range(slots.depth)]
        self._lengths = np.array(lengths(cut.total, cut.chunk), np.uint64)
        self._statuses = xp.zeros(self._lengths.size, xp.int32)
        self._prepared: dict[InFlight, tuple[Callable[[], None], list[_Launch]]] = {}

    def _of(self, array: Any, index: int) -> Any:
        """Return the values of the chunks in block `index`, a part of an array with one value for each chunk."""
        first = index * -(-self.cut.block // self.cut.chunk)
        return array[first : first + len(self._blocks[index].sizes)]


class GpuEncoder(_GpuBlocks):
    """Compresses blocks by a codec of a GPU, each on the stream of its slot."""

    def __init__(
        self, bench: gb.Bench, codec: DeviceCodec, cut: Cut, slots: Slots, source: Any, rooms: Sequence[Any] = ()
    ) -> None:
        super().__init__(bench, codec, cut, slots, source, 0, rooms)
        self._compressed = [DeviceChunks.room(bench.xp, cut.max_chunks, self._most_bytes) for _ in range(slots.depth)]
        self._packed_sizes = bench.device.pinned(_WORD_BYTES * slots.depth).view(np.uint64)
        first = self._packed_sizes.ctypes.data  # with unified addressing this is the device's address too
        self._size_pointers = [np.uint64(first + _WORD_BYTES * slot) for slot in range(slots.depth)]
        self._place, self._pack = (bench.kernel("compress.cu", name) for name in ("place", "pack"))

    def queue(self, block: InFlight) -> None:
        """Queue compressing and packing a block on the current stream, which must be its slot's stream."""
        if block not in self._prepared:
            self._prepared[block] = self._prepare(block)
        compress, launches = self._prepared[block]
        compress()
        for kernel, grid, args in launches:
            kernel((grid,), (_THREADS,), args)

    def _prepare(self, block: InFlight) -> tuple[Callable[[], None], list[_Launch]]:
        chunks, room, count = self._blocks[block.index], self._rooms[block.slot], len(self._blocks[block.index].sizes)
        compressed, statuses = self._compressed[block.slot].first(count), self._of(self._statuses, block.index)
        scratch, stream = self._scratch[block.slot], current_stream(self._xp)
        compress = self._codec.compressing(chunks, compressed, self.cut.chunk, scratch, statuses, stream)
        place = (compressed.sizes, np.uint32(count), room, self._size_pointers[block.slot])
        pack_args = (compressed.memory, np.uint64(compressed.stride), np.uint32(count), room)
        return compress, [(self._place, 1, place), (self._pack, count, pack_args)]

    def encode(self, block: InFlight) -> Any:
        self.slots.wait(block.slot)
        return self._rooms[block.slot][: int(self._packed_sizes[block.slot])]

    def check(self) -> None:
        self._codec.expect_success("compressed", self._to_host(self._statuses))


class GpuDecoder(_GpuBlocks):
    """Restores blocks by a codec of a GPU; a kernel reads on the device where the chunks of a packed block lie."""

    def __init__(self, bench: gb.Bench, codec: DeviceCodec, cut: Cut, slots: Slots, target: Any) -> None:
        super().__init__(bench, codec, cut, slots, target, 1, ())
        xp, self.waits, self._bytes = bench.xp, codec.waits, DeviceBytes(bench)
        tables = (
            (xp.zeros(cut.max_chunks, xp.uint64), xp.zeros(cut.max_chunks, xp.uint64)) for _ in range(slots.depth)
        )
        self._tables = list(tables)
        self._written = xp.zeros(self._lengths.size, xp.uint64)
        self._unpack = bench.kernel("compress.cu", "unpack")

    def room(self, block: InFlight) -> Any:
        return self._rooms[block.slot]

    def decode(self, block: InFlight, packed: Any) -> None:
        """Queue restoring the packed block in its place on the current stream, which must be its slot's stream."""
        if block not in self._prepared:
            self._prepared[block] = self._prepare(block)
        decompress, ((unpack, grid, table),) = self._prepared[block]
        unpack((grid,), (_THREADS,), (packed, np.uint64(packed.size), *table))
        decompress()

    def _prepare(self, block: InFlight) -> tuple[Callable[[], None], list[_Launch]]:
        chunks, count = self._blocks[block.index], len(self._blocks[block.index].sizes)
        sizes, pointers = (column[:count] for column in self._tables[block.slot])
        arrived = DeviceChunks(self._rooms[block.slot], 0, sizes, pointers)
        written, statuses = (self._of(array, block.index) for array in (self._written, self._statuses))
        scratch, stream = self._scratch[block.slot], current_stream(self._xp)
        decompress = self._codec.decompressing(arrived, chunks, written, scratch, statuses, stream)
        return decompress, [(self._unpack, -(-count // _THREADS), (np.uint32(count), sizes, pointers))]

    def reset(self) -> None:
        self._bytes.fill(self._written, 0)
        self._bytes.fill(self._statuses, NO_STATUS)

    def check(self) -> None:
        self._codec.expect_success("restored", self._to_host(self._statuses))
        right = bool((self._to_host(self._written) == self._lengths).all())
        gb.expect(right, "a restored chunk has a wrong length")


class MessageCodec:
    """The codec `name` for a message: of nvCOMP or hipCOMP on a GPU, else of the host; raises Skip if unavailable.

    `encoder(slots, source, rooms)` and `decoder(slots, target)` return the coders of the message."""

    def __init__(self, bench: gb.Bench, name: str, message: Message) -> None:
        self.name, cut = name, message.cut
        self.encoder: Callable[..., Coder]
        self.decoder: Callable[..., Coder]
        if bench.traits.is_gpu:
            device = open_codec(bench, name, message.dtype)
            self.encoder, self.decoder = (partial(kind, bench, device, cut) for kind in (GpuEncoder, GpuDecoder))
            self.description, most_bytes = device.description, device.row.max_output_bytes(cut.chunk)
        else:
            host = CODECS[name]()
            self.encoder = self.decoder = partial(HostBlocks, host, cut)
            self.description, most_bytes = host.description, host.max_compressed_bytes(cut.chunk)
        self.max_packed_bytes = max_packed_bytes(cut, most_bytes)
