"""Encode and decode blocks on a GPU: one batch of chunks per slot, which a kernel (compress.cu) packs behind its table.

Calls and arguments are prepared once for each slot and block, because preparing takes longer than a fast codec does."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._blocks import Cut
from ._codecs_bytes import DeviceBytes
from ._codecs_common import lengths
from ._codecs_device import DeviceChunks, DeviceCodec, current_stream
from ._coders import BlockDecoder, BlockEncoder
from ._pipeline import InFlight, Slots

_THREADS = 256  # as PLACES in compress.cu
_WORD_BYTES = 8
_NO_STATUS = 0xFF  # this byte, repeated, is -1, which is not a status of any library

_Launch = tuple[gb.Kernel, int, tuple[Any, ...]]  # a kernel, its grid and its arguments


class GpuEncoder(BlockEncoder):
    """Compresses blocks by a codec of a GPU, each on the stream of its slot."""

    def __init__(
        self, bench: gb.Bench, codec: DeviceCodec, cut: Cut, slots: Slots, source: Any, rooms: Sequence[Any] = ()
    ) -> None:
        """Allocate the memory of all slots, and compile the kernels that pack a block."""
        xp, count, stream = bench.xp, cut.max_chunks, current_stream(bench.xp)
        self._xp, self._codec, self._cut, self._slots = xp, codec, cut, slots
        self._to_host = bench.device.to_host
        chunk_room = codec.max_compressed_bytes(cut.chunk)
        scratch_bytes = codec.compress_temp_bytes(count, cut.chunk, stream)
        self._blocks = _blocks(xp, cut, source)
        self._compressed = [DeviceChunks.room(xp, count, chunk_room) for _ in range(slots.depth)]
        self._scratch = [xp.empty(scratch_bytes, xp.uint8) for _ in range(slots.depth)]
        packed_bytes = cut.max_packed_bytes(chunk_room)
        self._rooms = list(rooms) or [xp.empty(packed_bytes, xp.uint8) for _ in range(slots.depth)]
        self._statuses = _PerChunk(xp, "int32", cut)
        self._prepared: dict[InFlight, tuple[Callable[[], None], list[_Launch]]] = {}
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
        """Return the function that queues compressing a block, and the launches of two kernels that pack it."""
        chunks, room = self._blocks[block.index], self._rooms[block.slot]
        compressed = self._compressed[block.slot].first(chunks.count)
        count, stream = np.uint32(chunks.count), current_stream(self._xp)
        statuses = self._statuses.of(block.index)
        compress = self._codec.compressing(
            chunks, compressed, self._cut.chunk, self._scratch[block.slot], statuses, stream
        )
        place_args = (compressed.sizes, count, room, self._size_pointers[block.slot])
        pack_args = (compressed.memory, np.uint64(compressed.stride), count, room)
        return compress, [(self._place, 1, place_args), (self._pack, chunks.count, pack_args)]

    def encode(self, block: InFlight) -> Any:
        self._slots.wait(block.slot)
        return self._rooms[block.slot][: int(self._packed_sizes[block.slot])]

    def check(self) -> None:
        self._codec.expect_success("compressed", self._to_host(self._statuses.array))


class GpuDecoder(BlockDecoder):
    """Restores blocks by a codec of a GPU; a kernel reads on the device where the chunks of a packed block lie."""

    def __init__(self, bench: gb.Bench, codec: DeviceCodec, cut: Cut, slots: Slots, target: Any) -> None:
        """Allocate the memory of all slots, and compile the kernel that reads tables."""
        xp, count, stream = bench.xp, cut.max_chunks, current_stream(bench.xp)
        self._xp, self._codec = xp, codec
        self._to_host, self._bytes = bench.device.to_host, DeviceBytes(bench)
        packed_bytes = cut.max_packed_bytes(codec.max_compressed_bytes(cut.chunk))
        scratch_bytes = codec.decompress_temp_bytes(count, cut.chunk, stream)
        self._blocks = _blocks(xp, cut, target)
        self._rooms = [xp.empty(packed_bytes, xp.uint8) for _ in range(slots.depth)]
        self._scratch = [xp.empty(scratch_bytes, xp.uint8) for _ in range(slots.depth)]
        self._tables = [(xp.zeros(count, xp.uint64), xp.zeros(count, xp.uint64)) for _ in range(slots.depth)]
        self._lengths = np.array(lengths(cut.total, cut.chunk), np.uint64)
        self._written = _PerChunk(xp, "uint64", cut)
        self._statuses = _PerChunk(xp, "int32", cut)
        self._prepared: dict[InFlight, tuple[Callable[[], None], int, tuple[Any, ...]]] = {}
        self._unpack = bench.kernel("compress.cu", "unpack")

    def room(self, block: InFlight) -> Any:
        return self._rooms[block.slot]

    def decode(self, block: InFlight, packed: Any) -> None:
        """Queue restoring the packed block in its place on the current stream, which must be its slot's stream."""
        if block not in self._prepared:
            self._prepared[block] = self._prepare(block)
        decompress, grid, table = self._prepared[block]
        self._unpack((grid,), (_THREADS,), (packed, np.uint64(packed.size), *table))
        decompress()

    def _prepare(self, block: InFlight) -> tuple[Callable[[], None], int, tuple[Any, ...]]:
        """Return the function that queues restoring a block, and two values for the kernel that reads its table."""
        chunks, stream = self._blocks[block.index], current_stream(self._xp)
        sizes, pointers = (column[: chunks.count] for column in self._tables[block.slot])
        arrived = DeviceChunks(self._rooms[block.slot], 0, sizes, pointers)
        written, statuses = self._written.of(block.index), self._statuses.of(block.index)
        decompress = self._codec.decompressing(arrived, chunks, written, self._scratch[block.slot], statuses, stream)
        return decompress, -(-chunks.count // _THREADS), (np.uint32(chunks.count), sizes, pointers)

    def reset(self) -> None:
        self._bytes.fill(self._written.array, 0)
        self._bytes.fill(self._statuses.array, _NO_STATUS)

    def check(self) -> None:
        self._codec.expect_success("restored", self._to_host(self._statuses.array))
        right = bool((self._to_host(self._written.array) == self._lengths).all())
        gb.expect(right, "a restored chunk has a wrong length")


class _PerChunk:
    """An array on a GPU with one value for each chunk of a message, in the order of the chunks."""

    def __init__(self, xp: Any, dtype: str, cut: Cut) -> None:
        """Allocate the array, filled with zeros, for the chunks of `cut`; `xp` is the cupy module."""
        counts = [len(cut.chunks(index)) for index in range(cut.count)]
        self.array = xp.zeros(sum(counts), dtype)
        ends = np.cumsum(counts).tolist()
        self._blocks = [self.array[end - count : end] for end, count in zip(ends, counts, strict=True)]

    def of(self, index: int) -> Any:
        """Return the values of the chunks in block `index`, a part of the array."""
        return self._blocks[index]


def _blocks(xp: Any, cut: Cut, array: Any) -> list[DeviceChunks]:
    return [DeviceChunks.side_by_side(xp, array[cut.span(index)], cut.chunk) for index in range(cut.count)]
