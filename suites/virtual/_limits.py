"""Measure the memory and the compute units that a program really gets: requested, reported and allocatable."""

import os
import re
import time
from collections.abc import Callable

import numpy as np

from gpubench.api import suite as gb

from .._between import fill_pattern, wrong_words
from ._churn import allocate_or_none
from ._space import PAGE_BYTES, array_at

_LARGEST_BYTES = 2**30
_SEED = 3
_MARKS = 4096  # more than any GPU has compute units
_BLOCKS_EACH = 8  # blocks per compute unit, so that every unit runs some of them in any order
_THREADS = 256
_STEPS = 2**14  # steps of a chain: a block lasts tens of microseconds, long enough that every unit receives one
# HAMi's environment variables, which ask a virtualiser for a part of the first GPU.
_MEMORY_ASKED = ("CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_MEMORY_LIMIT")
_UNITS_ASKED = ("CUDA_DEVICE_SM_LIMIT_0", "CUDA_DEVICE_SM_LIMIT")
_SUFFIXES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_AMOUNT = re.compile(r"(\d+)\s*([bkmg]?)", re.IGNORECASE)

topic = gb.Topic(
    views=[
        gb.View("bars", "Time to allocate all memory, and of a kernel on all compute units", ("limits",), by=("of",))
    ],
)


def asked_amount(names: tuple[str, ...]) -> int | None:
    """Return the amount in the first environment variable of `names` that holds one, or None if there is none.

    An amount is a whole number with an optional suffix b, k, m or g, for powers of 1024: `3000m` gives 3000 · 2^20."""
    for name in names:
        amount = _AMOUNT.fullmatch(os.environ.get(name, "").strip())
        if amount:
            return int(amount[1]) * _SUFFIXES[amount[2].lower()]
    return None


def take_all(take: Callable[[int], int]) -> list[tuple[int, int]]:
    """Take blocks until memory is full, from 1 GiB down to 2 MiB; return the address and the bytes of each."""
    blocks: list[tuple[int, int]] = []
    size = _LARGEST_BYTES
    while size >= PAGE_BYTES:
        address = allocate_or_none(take, size)
        if address is None:
            size //= 2
        else:
            blocks.append((address, size))
    return blocks


class WholeMemory:
    """Takes all the memory that the device gives, writes it, compares it, and gives it back."""

    def __init__(self, bench: gb.Bench) -> None:
        self._bench = bench
        self._runtime = bench.xp.cuda.runtime
        self._bytes = 0
        ready = bench.xp.zeros(PAGE_BYTES, bench.xp.uint8)  # loads the kernels while there is memory for them
        fill_pattern(self._bench, ready, _SEED)
        gb.expect(
            wrong_words(self._bench, ready, _SEED) == 0, "a kernel read other words than the previous kernel wrote"
        )

    def seconds(self, use: Callable[[list[tuple[int, int]]], None] = lambda _: None) -> float:
        """Take all memory, let `use` have the address and bytes of each block, and return the seconds of taking."""
        start = time.perf_counter()
        blocks = take_all(self._runtime.malloc)
        elapsed = time.perf_counter() - start
        try:
            self._bytes = sum(size for _, size in blocks)
            use(blocks)
            self._bench.device.synchronize()
        finally:
            for address, _ in blocks:
                self._runtime.free(address)
        return elapsed

    def _compare(self, blocks: list[tuple[int, int]]) -> None:
        """Write a pattern to each block, then compare all blocks; raises WrongAnswer if a word differs."""
        arrays = [array_at(self._bench, *block) for block in blocks]
        for number, array in enumerate(arrays):
            fill_pattern(self._bench, array, _SEED + number)
        wrong = sum(wrong_words(self._bench, array, _SEED + number) for number, array in enumerate(arrays))
        gb.expect(wrong == 0, f"{wrong} words of the memory differ from what was written")

    def check(self) -> gb.Observation:
        """Take all memory again, compare every word, and return what was asked, reported and allocatable, in bytes."""
        free_bytes, total_bytes = (int(value) for value in self._runtime.memGetInfo())
        self.seconds(self._compare)
        requested = asked_amount(_MEMORY_ASKED)
        return {
            **({"asked": gb.Observed(requested, "B", "more")} if requested else {}),
            "reported": gb.Observed(total_bytes, "B", "more"),
            "reported free": gb.Observed(free_bytes, "B", "more"),
            "allocatable": gb.Observed(self._bytes, "B", "more"),
        }


def _memory(bench: gb.Bench) -> gb.Task:
    memory = WholeMemory(bench)
    stage = gb.Stage(memory.seconds, gb.Work(items=1), "item", clock="self", effort=gb.Effort.exactly(1))
    return gb.Task.of(stage, check=memory.check)


def _units(bench: gb.Bench) -> gb.Task:
    """Return the task of a kernel with 8 blocks per compute unit; its check counts the units on which blocks ran."""
    units = max(bench.target.device.units, 1)
    blocks = _BLOCKS_EACH * units
    marks = bench.xp.zeros(_MARKS, bench.xp.uint32)
    ends = bench.xp.zeros(blocks * _THREADS, bench.xp.uint32)
    kernel, args = bench.kernel("sharing.cu", "mark_unit"), (marks, np.uint32(_STEPS), ends)

    def check() -> gb.Observation:
        """Return `units reached`, `share of units` and, if a virtualiser was asked for a share, `asked`."""
        marked = int(np.count_nonzero(bench.device.to_host(marks)))
        gb.expect(marked > 0, "no block of the kernel has run")
        requested = asked_amount(_UNITS_ASKED)
        return {
            "units reached": gb.Observed(marked, "units", "more"),
            "share of units": gb.Observed(marked / units, "", "more"),
            **({"asked": gb.Observed(requested / 100, "", "more")} if requested else {}),
        }

    stage = gb.Stage(lambda: kernel((blocks,), (_THREADS,), args), gb.Work(items=1), "item", effort=gb.POINT)
    return gb.Task.of(stage, check=check, poison=lambda: marks.fill(0))


@topic.case(of=gb.points(("units",), full=("units", "memory")), when=gb.on_gpu)
def limits(bench: gb.Bench, of: str) -> gb.Task:
    """How many compute units, or how much memory, a program really gets: seconds, and the amounts.

    `units` launches a kernel with more blocks than compute units and counts the units on which blocks ran. `memory`
    (full tier) is the time to take all memory that the device gives, which is written and compared. It reports the
    bytes requested from a virtualiser (HAMi's variables), reported by the driver, and allocatable."""
    return _memory(bench) if of == "memory" else _units(bench)
