"""Write patterns to memory, read them back and compare them, with every bit both 0 and 1."""

from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._identical import difference_error, effort

_PATTERNS = ("random", "address", "checkerboard")
_CHECKERBOARD = 0x5555555555555555
_ALL = 0xFFFFFFFFFFFFFFFF
_WORD_BYTES = 8
_CHUNK_WORDS = {True: 2**24, False: 2**18}  # True: on a GPU, False: on the host, where a chunk fits into a cache
_GIB = 2**30

topic = gb.Topic(
    views=[gb.View("bars", "Soak: memory pattern throughput", ("memory",), by=("pattern",), series="self")],
)


def _sizes(target: gb.Target) -> Any:
    """Return the axis of sizes in bytes; on a GPU `full` has three quarters of its memory, in whole GiB."""
    if target.is_host:
        return gb.points((2**25,), (2**22,), (2**29,))
    return gb.points((2**28,), (2**26,), (max(target.device.memory_bytes * 3 // 4 // _GIB, 1) * _GIB,))


@topic.case(pattern=gb.points(_PATTERNS[:1], full=_PATTERNS), size_bytes=_sizes)
def memory(bench: gb.Bench, pattern: str, size_bytes: int) -> gb.Task:
    """Bandwidth of writing a pattern to memory and reading it back, then its inverse: 4 × `size_bytes` moved.

    Every word is compared. `pattern` is random words, the address of each word, or a checkerboard of bits."""
    return MemoryPattern(bench, pattern, size_bytes).task()


class MemoryPattern:
    """Memory of `size_bytes` to which a pattern is written in chunks; `memory` is uint64.

    A chunk holds the words of the pattern, each combined by exclusive or with a key of the chunk."""

    def __init__(self, bench: gb.Bench, pattern: str, size_bytes: int) -> None:
        word_count = size_bytes // _WORD_BYTES
        chunk = min(_CHUNK_WORDS[bench.traits.is_gpu], word_count)
        bench.need(size_bytes + 3 * chunk * _WORD_BYTES)
        self._bench, self._xp = bench, bench.xp
        self._kernel = f"memory pattern {pattern}"
        self._is_address = pattern == "address"
        self.memory = bench.xp.empty(word_count, np.uint64)
        self._pattern = bench.xp.asarray(_words(pattern, chunk, bench.rng))
        self._scratch = bench.xp.empty(chunk, np.uint64)
        self._starts = range(0, word_count, chunk)
        self._wrong = bench.xp.zeros(len(self._starts), np.int64)

    def task(self) -> gb.Task:
        """Return the task; each call of its stage writes and compares all of the memory twice."""
        work = gb.Work(moved=4 * self.memory.nbytes)
        stage = gb.Stage(self._call, work, "moved", clock="self", effort=effort(self._bench), checked=True)
        return gb.Task.of(stage, check=lambda: None, notes={"kernel": self._kernel})

    def _call(self) -> float:
        """Write and count the pattern and then its inverse; return the seconds of both together."""
        seconds = 0.0
        for flip in (0, _ALL):
            write_and_count = partial(self._write_and_count, flip)
            seconds += self._bench.device.time(write_and_count, 1, gated=False).device[0]
            self._bench.device.synchronize()
            self._expect_right(flip)
        return seconds

    def _write_and_count(self, flip: int) -> None:
        self.write(flip)
        self.count_wrong(flip)

    def write(self, flip: int) -> None:
        """Queue the writing of the pattern to all chunks; `flip` is combined with each word by exclusive or."""
        for index in range(len(self._starts)):
            room = self._chunk(index)
            self._xp.bitwise_xor(self._pattern[: room.size], self._key(index, flip), out=room)

    def count_wrong(self, flip: int) -> None:
        """Queue the counting of the wrong words of each chunk, whose words were written with `flip`.

        The counts stay in the memory of the device."""
        for index in range(len(self._starts)):
            differs = self._difference(index) != self._key(index, flip)
            self._wrong[index] = self._xp.count_nonzero(differs)

    def _expect_right(self, flip: int) -> None:
        """Raise WrongAnswer if the last `count_wrong` with `flip` counted a wrong word."""
        wrong = self._bench.device.to_host(self._wrong)
        if wrong.any():
            raise self._finding(int(np.flatnonzero(wrong)[0]), flip, int(wrong.sum()))

    def _difference(self, index: int) -> Any:
        room = self._chunk(index)
        return self._xp.bitwise_xor(room, self._pattern[: room.size], out=self._scratch[: room.size])

    def _chunk(self, index: int) -> Any:
        start = self._starts[index]
        return self.memory[start : start + self._pattern.size]

    def _key(self, index: int, flip: int) -> np.uint64:
        """Return the word with which the words of chunk `index` are combined by exclusive or."""
        return np.uint64(flip ^ (self._starts[index] * _WORD_BYTES if self._is_address else 0))

    def _finding(self, index: int, flip: int, count: int) -> gb.WrongAnswer:
        """Return the WrongAnswer for `count` wrong words, of which chunk `index` has the first."""
        key = self._key(index, flip)
        differs = self._difference(index) != key
        if not bool(differs.any()):
            device = self._bench.device.device
            where = f"the first among {self._pattern.size} words from element {self._starts[index]} on"
            problem = f"{count} of {self.memory.size} values are wrong, {where}: right when read again"
            return gb.WrongAnswer(f"{device.id} ({device.name}), {self._kernel}: {problem}")
        first = int(differs.argmax())
        at = self._starts[index] + first
        expected = int(self._pattern[first]) ^ int(key)
        return difference_error(self._bench, self._kernel, self.memory, at, expected, int(self.memory[at]), count)


def _words(pattern: str, count: int, rng: np.random.Generator) -> Any:
    """Return `count` words of `pattern` as a NumPy array of uint64."""
    if pattern == "random":
        return rng.integers(0, _ALL, count, np.uint64, endpoint=True)
    if pattern == "address":
        return np.arange(count, dtype=np.uint64) * np.uint64(_WORD_BYTES)
    return np.full(count, _CHECKERBOARD, np.uint64)
