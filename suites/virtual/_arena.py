"""Blocks in one growing range: which addresses are free, best fit first. It touches no device."""

from __future__ import annotations

import bisect

_ALIGNMENT = 512  # the least alignment of cudaMalloc's addresses and of PyTorch's blocks


class OffsetArena:
    """Offsets below `nbytes` from which blocks are taken and given back; the caller grows the arena if none fits."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._by_size: list[tuple[int, int]] = []  # free places: (size, offset), sorted
        self._by_offset: dict[int, int] = {}  # free places: offset → size
        self._ends: dict[int, int] = {}  # the end of a free place → its offset
        self._taken: dict[int, int] = {}  # taken blocks: offset → size

    def missing_bytes(self, nbytes: int) -> int:
        """Return how many bytes the arena must grow by before a block of that size fits; 0 where it fits."""
        size = _aligned(nbytes)
        if self._by_size and self._by_size[-1][0] >= size:
            return 0
        last = self._ends.get(self.nbytes)
        return size - (self._by_offset[last] if last is not None else 0)

    def grow(self, nbytes: int) -> None:
        """Add free bytes behind the last."""
        start, self.nbytes = self.nbytes, self.nbytes + nbytes
        self._free(start, nbytes)

    def take(self, nbytes: int) -> int:
        """Return the offset of a new block, in the smallest free place that fits; `missing` must be 0."""
        size = _aligned(nbytes)
        place, offset = self._by_size[bisect.bisect_left(self._by_size, (size, 0))]
        self._remove(offset)
        if place > size:
            self._add(offset + size, place - size)
        self._taken[offset] = size
        return offset

    def give(self, offset: int) -> None:
        """Give a block back, merged with the free places beside it."""
        self._free(offset, self._taken.pop(offset))

    def _free(self, offset: int, size: int) -> None:
        """Add a free place, merged with the free places beside it."""
        before, after = self._ends.get(offset), offset + size
        if after in self._by_offset:
            size += self._remove(after)
        if before is not None:
            size += self._remove(before)
            offset = before
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        """Add a free place."""
        bisect.insort(self._by_size, (size, offset))
        self._by_offset[offset] = size
        self._ends[offset + size] = offset

    def _remove(self, offset: int) -> int:
        """Remove the free place at this offset; return its size."""
        size = self._by_offset.pop(offset)
        del self._ends[offset + size]
        del self._by_size[bisect.bisect_left(self._by_size, (size, offset))]
        return size


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
