"""Define encoders, which turn a block into a packed block, and decoders, which restore the block in its place.

Raw blocks are sent from their place in the source and received in their place in the target; neither coder copies
them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._blocks import Cut, pack, read_table
from ._codecs_host import HostCodec
from ._pipeline import InFlight


class BlockEncoder:
    """Turns each block of a message into a packed block; a raw encoder returns the block itself."""

    def queue(self, block: InFlight) -> None:
        """Queue the work on a block that can be done before `encode`."""

    def encode(self, block: InFlight) -> Any:
        """Return the packed block: uint8 on the device, valid until the next block of the slot is queued."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise WrongAnswer if a block could not be encoded; `encode` may only have queued the work."""


class BlockDecoder:
    """Restores each block that has arrived to its place in the target."""

    def room(self, block: InFlight) -> Any:
        """Return the array in which a block arrives: uint8 on the device, as long as the longest packed block."""
        raise NotImplementedError

    def decode(self, block: InFlight, packed: Any) -> None:
        """Restore a block from `packed`, or queue that; raises WrongAnswer, at once or from `check`, if that fails."""
        raise NotImplementedError

    def reset(self) -> None:
        """Overwrite the statuses and intermediate output of the last message with wrong values."""

    def check(self) -> None:
        """Raise WrongAnswer if a block could not be restored; `decode` may only have queued the work."""


class RawEncoder(BlockEncoder):
    """Sends raw bytes from their place in the source, without a copy."""

    def __init__(self, cut: Cut, source: Any) -> None:
        """Divide `source`, a uint8 array on the device, into blocks."""
        self._blocks = [source[cut.span(index)] for index in range(cut.count)]

    def encode(self, block: InFlight) -> Any:
        return self._blocks[block.index]


class RawDecoder(BlockDecoder):
    """Receives raw bytes in their place in the target, without a copy."""

    def __init__(self, cut: Cut, target: Any) -> None:
        """Divide `target`, a uint8 array on the device, into blocks."""
        self._blocks = [target[cut.span(index)] for index in range(cut.count)]

    def room(self, block: InFlight) -> Any:
        return self._blocks[block.index]

    def decode(self, block: InFlight, packed: Any) -> None:
        """Do nothing: the block is in its place."""


class HostEncoder(BlockEncoder):
    """Compresses blocks by a codec of the host, chunk after chunk, in the thread of the block's slot."""

    def __init__(self, codec: HostCodec, cut: Cut, depth: int, source: Any, rooms: Sequence[Any] = ()) -> None:
        """Make a compressor for each of `depth` slots; `source` is a NumPy array of dtype uint8."""
        self._cut, self._source = cut, source
        self._compressors = [codec.squeeze() for _ in range(depth)]
        self._rooms = list(rooms) or _rooms(codec, cut, depth)

    def encode(self, block: InFlight) -> Any:
        """Compress every chunk of the block, and return the packed block in the room of its slot."""
        data, compress = memoryview(self._source[self._cut.span(block.index)]), self._compressors[block.slot]
        starts = range(0, len(data), self._cut.chunk)
        return pack(self._rooms[block.slot], [compress(data[start : start + self._cut.chunk]) for start in starts])


class HostDecoder(BlockDecoder):
    """Restores blocks by a codec of the host, in the thread that calls it."""

    def __init__(self, codec: HostCodec, cut: Cut, depth: int, target: Any) -> None:
        """Allocate room for a packed block in each of `depth` slots; `target` is a NumPy array of dtype uint8."""
        self._codec, self._cut, self._target = codec, cut, target
        self._rooms = _rooms(codec, cut, depth)

    def room(self, block: InFlight) -> Any:
        return self._rooms[block.slot]

    def decode(self, block: InFlight, packed: Any) -> None:
        """Restore every chunk of the packed block in its place.

        Raises WrongAnswer if a chunk lies outside of the block, is not valid, or has a wrong length."""
        sizes = self._cut.chunks(block.index)
        target, arrived = memoryview(self._target[self._cut.span(block.index)]), memoryview(packed)
        place = 0
        for (offset, size), length in zip(read_table(packed, len(sizes)), sizes, strict=True):
            target[place : place + length] = self._codec.decompress_one(arrived[offset : offset + size], length)
            place += length


def _rooms(codec: HostCodec, cut: Cut, depth: int) -> list[Any]:
    """Return an array (uint8) for each of `depth` slots that holds the longest packed block."""
    nbytes = cut.max_packed_bytes(codec.max_compressed_bytes(cut.chunk))
    return [np.empty(nbytes, np.uint8) for _ in range(depth)]
