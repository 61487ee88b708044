"""Write patterns to memory, read them back and compare them, with every bit both 0 and 1."""

from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._identical import difference_error, effort

_NUMBERS = {"random": 0, "address": 1, "checkerboard": 2, "walking": 3, "inversions": 0}  # in soak.cu
_ALL = 0xFFFFFFFFFFFFFFFF
_VECTOR_BYTES = 16
_THREADS, _BLOCKS_PER_UNIT = 512, 16
_RECORDS = 16  # wrong words that a kernel records, as in soak.cu
_CHUNK_WORDS = 2**18  # words that the host compares at once, so that they stay in a cache
_GIB = 2**30

topic = gb.Topic(
    views=[gb.View("bars", "Soak: memory pattern throughput", ("memory",), by=("pattern",), series="self")],
)


def _sizes(target: gb.Target) -> Any:
    """Return the axis of sizes in bytes; on a GPU `full` has three quarters of its memory, in whole GiB."""
    if target.is_host:
        return gb.points((2**25,), (2**22,), (2**29,))
    return gb.points((2**28,), (2**26,), (max(target.device.memory_bytes * 3 // 4 // _GIB, 1) * _GIB,))


@topic.case(version=2, pattern=gb.points(("random",), full=tuple(_NUMBERS)), size_bytes=_sizes)
def memory(bench: gb.Bench, pattern: str, size_bytes: int) -> gb.Task:
    """Bandwidth of writing a pattern to memory and reading it back, then its inverse: 4 × `size_bytes` moved.

    Every word is compared. `pattern` is random words, the address of each word, a checkerboard, one bit that walks
    through the words (by a place in each call), or moving inversions: each word is compared and replaced by its inverse
    at once, upwards and then downwards, which moves 6 × `size_bytes`."""
    return MemoryPattern(bench, pattern, size_bytes).task()


def words(pattern: str, first: int, count: int, seed: int) -> Any:
    """Return `count` words of a pattern from word `first` on (both even), as in soak.cu: NumPy, uint64, (count,)."""
    index = np.arange(first, first + count, dtype=np.uint64)
    if _NUMBERS[pattern] == _NUMBERS["address"]:
        return index * np.uint64(8)
    if _NUMBERS[pattern] == _NUMBERS["walking"]:
        return np.uint64(1) << ((index + np.uint64(seed)) & np.uint64(63))
    if _NUMBERS[pattern] == _NUMBERS["checkerboard"]:
        return np.full(count, 0x5555555555555555, np.uint64)
    vectors = index[::2] >> np.uint64(1)
    x = vectors.astype(np.uint32) ^ (vectors >> np.uint64(32)).astype(np.uint32) * np.uint32(0x9E3779B9)
    x ^= np.uint32(seed)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    x ^= x >> np.uint32(16)
    lanes = np.empty((len(x), 4), np.uint32)
    for lane, (bits, key) in enumerate(((0, 0), (8, 0xFFFFFFFF), (17, 0x9E3779B9), (25, 0xC2B2AE35))):
        lanes[:, lane] = (x << np.uint32(bits) | x >> np.uint32((32 - bits) % 32)) ^ np.uint32(key)
    return lanes.view(np.uint64).reshape(-1)


class WrongWords:
    """The counter and the records of wrong words that the kernels of soak.cu fill: `array` is uint64."""

    def __init__(self, bench: gb.Bench) -> None:
        self._bench = bench
        self.array = bench.xp.zeros(1 + 3 * _RECORDS, np.uint64)

    def add_on_host(self, start: int, chunk: Any, expected: Any) -> None:
        """Count and record the wrong words of `chunk`, whose first word has the index `start`, as a kernel does."""
        places, before = np.flatnonzero(chunk != expected), int(self.array[0])
        for number, place in enumerate(places[: max(_RECORDS - before, 0)], before):
            self.array[1 + 3 * number : 4 + 3 * number] = start + place, chunk[place], expected[place]
        self.array[0] += np.uint64(len(places))

    def expect_none(self, kernel: str, array: Any) -> None:
        """Raise WrongAnswer if a word of `array` was wrong since the last call; `kernel` names the work.

        Of the recorded words the one with the lowest address is named."""
        counted = self._bench.device.to_host(self.array)
        count = int(counted[0])
        if not count:
            return
        self.array.fill(0)
        records = counted[1 : 1 + 3 * min(count, _RECORDS)].reshape(-1, 3)
        index, seen, expected = (int(number) for number in records[records[:, 0].argmin()])
        array = array.view(np.uint64)
        error = difference_error(self._bench, kernel, array, index, expected, seen, count)
        raise gb.WrongAnswer(f"{error}; right when read again" if int(array[index]) == expected else str(error))


class MemoryPattern:
    """Memory of `size_bytes` bytes to which a pattern is written; `memory` is uint64."""

    def __init__(self, bench: gb.Bench, pattern: str, size_bytes: int) -> None:
        bench.need(size_bytes + 2**24)
        self._bench, self._pattern = bench, pattern
        self.kernel = f"memory pattern {pattern}"
        self.seed = 0 if _NUMBERS[pattern] else int(bench.rng.integers(2**32))
        self.memory = bench.xp.empty(size_bytes // _VECTOR_BYTES * 2, np.uint64)
        self.wrong = WrongWords(bench)
        self._seconds: dict[str, float] = {}
        names = ("write", "verify", "exchange") if bench.traits.is_gpu else ()
        self._kernels = {name: bench.kernel("soak.cu", f"{name}_pattern") for name in names}

    def task(self) -> gb.Task:
        """Return the task; each call of its stage writes and compares all of the memory at least twice."""
        work = gb.Work(moved=(6 if self._pattern == "inversions" else 4) * self.memory.nbytes)
        how = effort(self._bench)
        stage = gb.Stage(self._call, work, "moved", clock="self", effort=how, checked=True, probe=self._rates)
        return gb.Task.of(stage, check=lambda: None, notes={"kernel": self.kernel})

    def _call(self) -> float:
        """Write and compare the pattern and its inverse; return the seconds of all steps together."""
        if self._pattern == "walking":
            self.seed = (self.seed + 1) % 64
        self._seconds = {}
        steps = [("write", 0), ("verify", 0), ("write", _ALL), ("verify", _ALL)]
        if self._pattern == "inversions":
            steps = [("write", 0), ("exchange", 0), ("exchange", _ALL), ("verify", 0)]
        for name, flip in steps:
            timing = self._bench.device.time(partial(self.run, name, flip), 1, gated=False)
            self._seconds[name] = self._seconds.get(name, 0.0) + timing.device[0]
            self._bench.device.synchronize()
            self.wrong.expect_none(self.kernel, self.memory)
        return sum(self._seconds.values())

    def _rates(self) -> gb.Observation:
        """Return the bytes per second that the last call wrote and verified."""
        nbytes = (1 if self._pattern == "inversions" else 2) * self.memory.nbytes
        return {name: gb.Observed(nbytes / self._seconds[name], "B/s", "more") for name in ("write", "verify")}

    def run(self, name: str, flip: int) -> None:
        """Queue a step: `write`, `verify`, or `exchange`, which does both and writes the inverse.

        `flip`, 0 or all ones, is combined with each word by exclusive or; with all ones an exchange goes downwards."""
        if not self._kernels:
            self._run_on_host(name, np.uint64(flip))
            return
        count = self.memory.size // 2
        numbers = np.uint32(_NUMBERS[self._pattern]), np.uint32(self.seed), np.uint32(flip & 0xFFFFFFFF)
        args = {"write": (), "verify": (self.wrong.array,), "exchange": (np.uint32(flip != 0), self.wrong.array)}[name]
        self._kernels[name](grid_of(self._bench), (_THREADS,), (self.memory, np.uint64(count), *numbers, *args))

    def _run_on_host(self, name: str, flip: np.uint64) -> None:
        starts = range(0, self.memory.size, _CHUNK_WORDS)
        for start in reversed(starts) if name == "exchange" and flip else starts:
            chunk = self.memory[start : start + _CHUNK_WORDS]
            expected = words(self._pattern, start, chunk.size, self.seed) ^ flip
            if name != "write":
                self.wrong.add_on_host(start, chunk, expected)
            if name != "verify":
                chunk[:] = ~expected if name == "exchange" else expected


def grid_of(bench: gb.Bench) -> tuple[int]:
    """Return the grid of a kernel of soak.cu whose blocks go round the memory on all compute units."""
    return (_BLOCKS_PER_UNIT * max(bench.device.device.units, 1),)
