"""Measure each step of virtual memory: reserve, create, map, access and unmap, by size and by pieces."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from gpubench.api import suite as gb

from .._between import fill_pattern, wrong_words
from ._space import PAGE_BYTES, GpuSpace, MappedRange, array_at, wait_until_cleared

PIECES = {"2MiB": 2**21, "64MiB": 2**26, "whole": 0}
_SEED = 23
_MOST_PIECES = 2048
_SLACK_BYTES = 2**24  # free memory that the driver and CuPy may take meanwhile
_SHARE_OF_MEMORY = 4  # the largest size is a quarter of the memory

topic = gb.Topic(
    views=[
        gb.View("transfer", "Time to reserve addresses by size", ("reserve",), "size_bytes"),
        gb.View("transfer", "Time to create physical memory by size", ("create",), "size_bytes"),
        gb.View("transfer", "Time to map physical memory by size and piece", ("map",), "size_bytes", by=("piece",)),
        gb.View("transfer", "Time to allow access by size", ("access",), "size_bytes", by=("peers",)),
        gb.View("transfer", "Time to unmap by size and piece", ("unmap",), "size_bytes", by=("piece",)),
    ],
)


def _sizes(target: gb.Target) -> Any:
    most = (target.device.memory_bytes or 2**33) // _SHARE_OF_MEMORY
    every = tuple(size for size in (2**21, 2**24, 2**26, 2**28, 2**30, 2**32, 2**34) if size <= most)
    return gb.points((min(2**30, every[-1]),), smoke=(2**21,), full=every)


def _one_size(target: gb.Target) -> Any:
    """Return the points of the axis `size_bytes`: one size, and in `full` all sizes."""
    return gb.points((2**28,), smoke=(2**21,), full=_sizes(target).full)


def _peers(target: gb.Target) -> Any:
    count = len(target.device.peers)
    return gb.points((0,), full=tuple(sorted({0, min(1, count), count})))


def _has_pieces(_target: gb.Target, params: Mapping[str, str | int | float]) -> bool:
    """Return whether to measure a point: there is one piece, or 2 to 2048 pieces."""
    piece_bytes, size_bytes = PIECES[str(params["piece"])], int(params["size_bytes"])
    return not piece_bytes or piece_bytes < size_bytes <= _MOST_PIECES * piece_bytes


def piece_bytes_of(piece: str, size_bytes: int) -> int:
    """Return the bytes of a piece, PIECES[piece], but at most the whole, `size_bytes`."""
    return min(PIECES[piece] or size_bytes, size_bytes)


class StepCosts:
    """Times each step of virtual memory on a new range, in pieces of `PIECES[piece]` bytes, with access by `peers`."""

    def __init__(self, bench: gb.Bench, size_bytes: int, piece: str = "whole", peers: int = 0) -> None:
        bench.need(size_bytes + PAGE_BYTES)
        self._bench, self._space = bench, GpuSpace(bench)
        bench.words(0, 0)  # loads the kernels now, because later there may be no free memory
        self._size_bytes, self._piece_bytes, self._peers = size_bytes, piece_bytes_of(piece, size_bytes), peers

    def seconds(self, step: str, use: Callable[[MappedRange], None] = lambda _: None) -> float:
        """Take all steps on a new range, `use` before the last; return the seconds of `step` over all pieces."""
        wait_until_cleared(self._size_bytes)
        seconds: dict[str, float] = {}
        start = time.perf_counter()
        mapped = MappedRange(self._space, self._size_bytes)
        seconds["reserve"] = time.perf_counter() - start
        try:
            steps: tuple[tuple[str, Callable[[], None]], ...] = (
                ("create", lambda: mapped.create(self._size_bytes, self._piece_bytes)),
                ("map", mapped.map),
                ("access", lambda: mapped.access(self._peers)),
                ("use", lambda: use(mapped)),
                ("unmap", mapped.unmap),
            )
            for name, call in steps:
                start = time.perf_counter()
                call()
                seconds[name] = time.perf_counter() - start
        finally:
            mapped.close()
        return seconds[step]

    def check(self) -> None:
        """Write and compare every word; raises WrongAnswer too if half of the memory is not given back."""
        self.seconds("use", self._expect_memory)
        free_bytes = self._bench.device.free_bytes()  # measured after the driver has taken its own memory
        self.seconds("unmap")
        missing = free_bytes - self._bench.device.free_bytes()
        most = max(self._size_bytes // 2, _SLACK_BYTES)
        gb.expect(missing < most, f"{missing} bytes are missing after the memory was given back")

    def _expect_memory(self, mapped: MappedRange) -> None:
        array = array_at(self._bench, mapped.address, mapped.nbytes)
        fill_pattern(self._bench, array, _SEED)
        wrong = wrong_words(self._bench, array, _SEED)
        self._bench.device.synchronize()
        gb.expect(array.size == self._size_bytes, f"{array.size} of {self._size_bytes} bytes are mapped")
        gb.expect(wrong == 0, f"{wrong} of {array.size // 8} words differ from what was written to the mapped memory")

    def task(self, step: str) -> gb.Task:
        stage = gb.Stage(lambda: self.seconds(step), gb.Work(items=1), "item", clock="self", effort=gb.POINT)
        return gb.Task.of(stage, check=self.check, notes={"pieces": str(-(-self._size_bytes // self._piece_bytes))})


@topic.case(when=gb.on_gpu, size_bytes=_one_size)
def reserve(bench: gb.Bench, size_bytes: int) -> gb.Task:
    """Seconds to reserve a range of addresses."""
    return StepCosts(bench, size_bytes).task("reserve")


@topic.case(when=gb.on_gpu, size_bytes=_sizes)
def create(bench: gb.Bench, size_bytes: int) -> gb.Task:
    """Seconds to create physical memory of that size in one piece."""
    return StepCosts(bench, size_bytes).task("create")


@topic.case(when=gb.on_gpu, size_bytes=_one_size, piece=gb.points(("whole",), full=tuple(PIECES)), where=_has_pieces)
def map_(bench: gb.Bench, size_bytes: int, piece: str) -> gb.Task:
    """Seconds to map physical memory of that size, all pieces together."""
    return StepCosts(bench, size_bytes, piece).task("map")


@topic.case(when=gb.on_gpu, size_bytes=_one_size, peers=_peers)
def access(bench: gb.Bench, size_bytes: int, peers: int) -> gb.Task:
    """Seconds of one call that lets the device and a number of its peers read and write mapped memory."""
    return StepCosts(bench, size_bytes, peers=peers).task("access")


@topic.case(when=gb.on_gpu, size_bytes=_one_size, piece=gb.points(("whole",), full=tuple(PIECES)), where=_has_pieces)
def unmap(bench: gb.Bench, size_bytes: int, piece: str) -> gb.Task:
    """Seconds to unmap memory that was mapped in pieces, all pieces together."""
    return StepCosts(bench, size_bytes, piece).task("unmap")
