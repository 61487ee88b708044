"""Read the blocks of a file by several threads into memory of the host or the device."""

import mmap
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

from gpubench.api import suite as gb

from ._sources import Source

_ALIGNED_BYTES = 4096  # the logical block of a disk has 512 or 4096 bytes, and O_DIRECT needs whole ones (open(2))


class Reader(Protocol):
    """A way to read a source, with the `notes` and `labels` of its task."""

    notes: Mapping[str, str]
    labels: tuple[str, ...]

    def poison(self) -> None:
        """Overwrite the destination so that every byte is wrong."""

    def read(self) -> int:
        """Read the source into its destination; return the number of bytes that could be read."""

    def compare(self) -> None:
        """Raise WrongAnswer if a byte differs from the source; the message names the first one."""

    def observed(self) -> gb.Observation:
        """Return further figures of the library that reads."""

    def close(self) -> None: ...


class Destination:
    """Memory that receives a source, on the host or the GPU, and the bytes that it must hold after a read.

    `array` is uint8; on the host it begins and ends at whole blocks of 4096 bytes."""

    def __init__(self, bench: gb.Bench, source: Source) -> None:
        self._source = source
        xp = bench.xp
        self.array = aligned(bench, source.size) if not bench.traits.is_gpu else xp.empty(source.size, xp.uint8)
        self._xp, self._expected = xp, xp.asarray(source.expected)
        bench.device.synchronize()

    def poison(self) -> None:
        """Write the inverse of the expected bytes."""
        self._xp.invert(self._expected, out=self.array[: self._source.size])

    def compare(self) -> None:
        """Raise WrongAnswer if a byte differs from the source.

        The message has the number of wrong bytes and the first of them."""
        wrong = self.array[: self._source.size] != self._expected
        count = int(wrong.sum())
        if count:
            first = int(wrong.argmax())
            expected, seen = int(self._expected[first]), int(self.array[first])
            difference = f"{count} of {self._source.size} bytes differ from what was read before"
            where = f"the first at {first}: expected {expected:#04x}, seen {seen:#04x}"
            why = "the file changes while it is read, or the read is wrong"
            raise gb.WrongAnswer(f"{self._source.name}: {difference}, {where}; {why}")


def aligned(bench: gb.Bench, nbytes: int) -> Any:
    """Return host memory of at least `nbytes`, uint8, that begins and ends at multiples of 4096 bytes.

    If the device is a GPU, the memory is page-locked."""
    whole = -(-nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
    if not bench.traits.is_gpu:
        return np.frombuffer(mmap.mmap(-1, whole), np.uint8)
    memory = bench.device.pinned(whole + _ALIGNED_BYTES)
    start = -memory.ctypes.data % _ALIGNED_BYTES
    return memory[start : start + whole]


def spans(size: int, block_bytes: int) -> list[tuple[int, int]]:
    """Return (first byte, end) of each block of a file of `size` bytes, in order; the last block may be shorter."""
    return [(start, min(start + block_bytes, size)) for start in range(0, size, block_bytes)]


class ReaderThreads:
    """`depth` threads, each of which reads every `depth`-th block, so that `depth` requests are in flight."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._pool = ThreadPoolExecutor(depth, "read")
        started = [
            self._pool.submit(time.sleep, 0.001) for _ in range(depth)
        ]  # all threads start before a read is timed
        for future in started:
            future.result()

    def start(self, read_blocks: Any, count: int) -> list[Future[int]]:
        """Call `read_blocks(indices)` in each thread.

        Thread i gets every `depth`-th of `count` blocks, from block i on. `indices` is a range."""
        return [self._pool.submit(read_blocks, range(first, count, self._depth)) for first in range(self._depth)]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


class SystemReader:
    """A reader of `source` in blocks of `block_bytes` by preadv(2), `depth` blocks at a time.

    It reads through the page cache, or past it if `is_direct`."""

    labels: tuple[str, ...] = ()

    def __init__(self, bench: gb.Bench, source: Source, block_bytes: int, depth: int, *, is_direct: bool) -> None:
        self._bench, self._source = bench, source
        self._file = _opened(source, is_direct)
        self._to = Destination(bench, source)
        self._is_gpu = bench.traits.is_gpu
        self._host = aligned(bench, source.size) if self._is_gpu else self._to.array
        self._spans = spans(source.size, block_bytes)
        ends = [min(start + block_bytes, self._host.size) for start, _ in self._spans]
        self._rooms = [[memoryview(self._host[start:end])] for (start, _), end in zip(self._spans, ends, strict=True)]
        self._arrived: SimpleQueue[int] = SimpleQueue()
        self._threads = ReaderThreads(depth)
        through = "page-locked memory and a copy for each block" if self._is_gpu else "the memory that it is read into"
        self.notes: Mapping[str, str] = {"through": through}

    def poison(self) -> None:
        """Overwrite the destination so that every byte is wrong, and on a GPU also the page-locked memory."""
        self._to.poison()
        if self._is_gpu:
            np.invert(self._source.expected, out=self._host[: self._source.size])
        self._bench.device.synchronize()

    def read(self) -> int:
        """Read every block, copy it to the GPU if there is one, and return the number of bytes that could be read.

        Raises OSError if a read fails. After a short read the thread that made it leaves out its other blocks."""
        futures = self._threads.start(self._read_blocks, len(self._spans))
        if self._is_gpu:
            for _ in self._spans:
                index = self._arrived.get()
                if index < 0:  # a thread has ended early; its result says why
                    break
                start, end = self._spans[index]
                self._bench.device.copy(self._to.array[start:end], self._host[start:end])
            self._bench.device.synchronize()
        return sum(future.result() for future in futures)

    def _read_blocks(self, blocks: Sequence[int]) -> int:
        """Read the blocks of these indices up to the first short one, and return the number of bytes read."""
        total, arrived = 0, 0
        try:
            for index in blocks:
                start, end = self._spans[index]
                count = os.preadv(self._file, self._rooms[index], start)
                total += count
                if count != end - start:
                    break
                arrived += 1
                if self._is_gpu:
                    self._arrived.put(index)
        finally:
            if self._is_gpu and arrived < len(blocks):
                self._arrived.put(-1)
        return total

    def compare(self) -> None:
        self._to.compare()

    def observed(self) -> gb.Observation:
        return {}

    def close(self) -> None:
        self._threads.close()
        os.close(self._file)


def _opened(source: Source, is_direct: bool) -> int:
    """Return a new descriptor of the source, with O_DIRECT if `is_direct`."""
    try:
        return source.reopened(os.O_DIRECT if is_direct else 0)
    except OSError as error:
        raise gb.Skip(f"the file system of {source.name} does not support O_DIRECT: {error.strerror}") from error
