"""Keep account of the free and taken blocks in one growing range, best fit first, without touching a device."""

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
        """Return how many bytes the arena must grow by before a block of `nbytes` fits; 0 if it fits already."""
        size = _aligned(nbytes)
        if self._by_size and self._by_size[-1][0] >= size:
            return 0
        last = self._ends.get(self.nbytes)
        return size - (self._by_offset[last] if last is not None else 0)

    def grow(self, nbytes: int) -> None:
        """Add `nbytes` free bytes behind the last ones."""
        start, self.nbytes = self.nbytes, self.nbytes + nbytes
        self._free(start, nbytes)

    def take(self, nbytes: int) -> int:
        """Return the offset of a new block of `nbytes`, rounded up to 512, in the smallest free place that fits.

        `missing_bytes(nbytes)` must be 0."""
        size = _aligned(nbytes)
        place, offset = self._by_size[bisect.bisect_left(self._by_size, (size, 0))]
        self._remove(offset)
        if place > size:
            self._add(offset + size, place - size)
        self._taken[offset] = size
        return offset

    def give(self, offset: int) -> None:
        """Give back the block at `offset`, a result of `take`.

        The freed place merges with free places that touch it."""
        self._free(offset, self._taken.pop(offset))

    def _free(self, offset: int, size: int) -> None:
        """Add a free place of `size` bytes at `offset`, merged with the free places that touch it."""
        before, after = self._ends.get(offset), offset + size
        if after in self._by_offset:
            size += self._remove(after)
        if before is not None:
            size += self._remove(before)
            offset = before
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        """Record a free place of `size` bytes at `offset`, without merging."""
        bisect.insort(self._by_size, (size, offset))
        self._by_offset[offset] = size
        self._ends[offset + size] = offset

    def _remove(self, offset: int) -> int:
        """Remove the free place that begins at `offset`, and return its size in bytes."""
        size = self._by_offset.pop(offset)
        del self._ends[offset + size]
        del self._by_size[bisect.bisect_left(self._by_size, (size, offset))]
        return size


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
