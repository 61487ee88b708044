"""Divide a message into blocks and chunks, and define the layout of a compressed block while it travels.

A block is the unit that travels. It is cut into chunks, which a codec compresses independently."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._codecs_common import lengths

_LINE_BYTES = 16  # as LINE in compress.cu
_WORD_BYTES = 8
_ENTRY_BYTES = 2 * _WORD_BYTES  # an entry of the table: the offset and the size of a chunk


@dataclass(frozen=True, slots=True)
class Cut:
    """The division of a message of `total` bytes into blocks of `block` bytes, and of a block into chunks of `chunk`.

    The last block of the message and the last chunk of a block may be shorter."""

    total: int
    block: int
    chunk: int

    @property
    def count(self) -> int:
        """The number of blocks; 0 for an empty message."""
        return len(lengths(self.total, self.block))

    def span(self, index: int) -> slice:
        """Return the slice of the message that block `index` holds."""
        start = index * self.block
        return slice(start, min(start + self.block, self.total))

    def chunks(self, index: int) -> list[int]:
        """Return the length in bytes of each chunk of block `index`."""
        span = self.span(index)
        return lengths(span.stop - span.start, self.chunk)

    @property
    def max_chunks(self) -> int:
        """The number of chunks of a whole block."""
        return -(-min(self.block, self.total) // self.chunk)

    def max_packed_bytes(self, max_compressed_bytes: int) -> int:
        """Return the most bytes of a packed block if a compressed chunk has at most `max_compressed_bytes`."""
        return self.max_chunks * (_ENTRY_BYTES + _whole_lines(max_compressed_bytes)) + _LINE_BYTES


def _whole_lines(nbytes: int) -> int:
    return -(-nbytes // _LINE_BYTES) * _LINE_BYTES


def pack(room: Any, chunks: Sequence[bytes]) -> Any:
    """Write the compressed `chunks` into `room` as a packed block, and return the part of `room` that the block takes.

    `room` is a NumPy array of dtype uint8 and shape (bytes,), long enough for `Cut.max_packed_bytes`."""
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
    """Return the offset and the size in bytes of each of the `count` chunks in a packed block.

    `packed` is a NumPy array of dtype uint8."""
    if packed.size < _ENTRY_BYTES * count:
        raise gb.WrongAnswer(f"a block of {packed.size} bytes arrived, too short for a table of {count} chunks")
    offsets, sizes = packed[: _ENTRY_BYTES * count].view(np.uint64).reshape(2, count)
    room = np.uint64(packed.size)
    inside = (offsets <= room) & (sizes <= room - np.minimum(offsets, room))
    gb.expect(bool(inside.all()), "the table of a block that arrived points outside of it")
    return list(zip(offsets.tolist(), sizes.tolist(), strict=True))
