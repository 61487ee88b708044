"""Encoders and decoders: an encoder turns a block into a packed block, a decoder restores the block in its place.

Raw bytes travel as they are, from where they lie to where they are wanted, without a copy by either coder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._blocks import Cut, pack, read_table
from ._codecs_host import HostCodec
from ._pipeline import InFlight


class BlockEncoder:
    """Turns each block into a packed block. Raw encoders return the block itself."""

    def queue(self, block: InFlight) -> None:
        """Queue the work that can be done before `encode`."""

    def encode(self, block: InFlight) -> Any:
        """Return the packed block: uint8 on the device, valid until the slot's next block is queued."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise WrongAnswer if a block could not be encoded; `encode` may only have queued the work."""


class BlockDecoder:
    """Restores each block that arrived to its place in the target."""

    def room(self, block: InFlight) -> Any:
        """Return the array in which the block arrives: uint8 on the device, as long as the longest packed block."""
        raise NotImplementedError

    def decode(self, block: InFlight, packed: Any) -> None:
        """Restore a block, or queue that; raises WrongAnswer, at once or from `check`, if that fails."""
        raise NotImplementedError

    def reset(self) -> None:
        """Invalidate the output of the last message."""

    def check(self) -> None:
        """Raise WrongAnswer if a block could not be restored; `decode` may only have queued the work."""


class RawEncoder(BlockEncoder):
    """Sends raw bytes from their place in the source, without a copy."""

    def __init__(self, cut: Cut, source: Any) -> None:
        self._blocks = [source[cut.span(index)] for index in range(cut.count)]

    def encode(self, block: InFlight) -> Any:
        return self._blocks[block.index]


class RawDecoder(BlockDecoder):
    """Receives raw bytes in their place in the target, without a copy."""

    def __init__(self, cut: Cut, target: Any) -> None:
        self._blocks = [target[cut.span(index)] for index in range(cut.count)]

    def room(self, block: InFlight) -> Any:
        return self._blocks[block.index]

    def decode(self, block: InFlight, packed: Any) -> None:
        """Do nothing: the block is in its place."""


class HostEncoder(BlockEncoder):
    """A codec of the host: the slot's thread compresses chunk after chunk.

    `rooms` are the arrays, one per slot, that packed blocks are written to; without them it makes its own.
    """

    def __init__(self, codec: HostCodec, cut: Cut, depth: int, source: Any, rooms: Sequence[Any] = ()) -> None:
        self._cut, self._source = cut, source
        self._compressors = [codec.squeeze() for _ in range(depth)]
        self._rooms = list(rooms) or _rooms(codec, cut, depth)

    def encode(self, block: InFlight) -> Any:
        """Compress every chunk of the block and return the packed block."""
        data, compress = memoryview(self._source[self._cut.span(block.index)]), self._compressors[block.slot]
        starts = range(0, len(data), self._cut.chunk)
        return pack(self._rooms[block.slot], [compress(data[start : start + self._cut.chunk]) for start in starts])


class HostDecoder(BlockDecoder):
    """The decompressor of a codec of the host."""

    def __init__(self, codec: HostCodec, cut: Cut, depth: int, target: Any) -> None:
        self._codec, self._cut, self._target = codec, cut, target
        self._rooms = _rooms(codec, cut, depth)

    def room(self, block: InFlight) -> Any:
        return self._rooms[block.slot]

    def decode(self, block: InFlight, packed: Any) -> None:
        """Restore every chunk of the packed block in its place; raises WrongAnswer if the table is not plausible."""
        sizes = self._cut.chunks(block.index)
        target, arrived = memoryview(self._target[self._cut.span(block.index)]), memoryview(packed)
        place = 0
        for (offset, size), length in zip(read_table(packed, len(sizes)), sizes, strict=True):
            target[place : place + length] = self._codec.one(arrived[offset : offset + size], length)
            place += length


def _rooms(codec: HostCodec, cut: Cut, depth: int) -> list[Any]:
    """Return room for a packed block in each slot."""
    nbytes = cut.max_packed_bytes(codec.max_compressed_bytes(cut.chunk))
    return [np.empty(nbytes, np.uint8) for _ in range(depth)]
