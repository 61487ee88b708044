"""Exchange blocks of memory among ranks by a schedule: each rank has room for the block of every rank."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpubench.api import suite as gb

from .._between import POISON, RankMemory, expect_pattern, fill_pattern, need_shared_gpu
from ._cores import on_own_core
from ._schedules import Schedule, of_rank

_PROGRESS, _BEGAN, _ENDED = "progress", "began", "ended"
_PATIENCE_S = 5.0
_OTHER_SEED = 2**63

RankSteps = Sequence[tuple[tuple[Callable[[], None], ...], frozenset[int]]]
"""For each step the copies that a rank makes, and the ranks from which it receives."""


class BlockExchange:
    """The memory of one rank, with room for a block of each rank, and the mapped memory of the other ranks.

    A block has at most `most_bytes`. Every rank of the case must create its object at the same time."""

    def __init__(self, bench: gb.Bench, most_bytes: int) -> None:
        need_shared_gpu(bench)
        bench.need((bench.world + 1) * most_bytes)
        self._bench, self._most_bytes, self._seed = bench, most_bytes, bench.seed
        self._board = bench.board(_PROGRESS, _BEGAN, _ENDED, limit_s=_PATIENCE_S)
        self._memory = RankMemory(bench, bench.world * most_bytes, self._fill)
        self._progress = 0
        bench.barrier()

    def _block(self, array: Any, block: int, size_bytes: int) -> Any:
        first = block * self._most_bytes
        return array[first : first + size_bytes]

    @property
    def own(self) -> Any:
        """The block of this rank, in its own memory: uint8."""
        return self._block(self._memory.local, self._bench.rank, self._most_bytes)

    def _fill(self, array: Any) -> None:
        """Overwrite `array`, this rank's memory (uint8), and write this rank's pattern into its own block."""
        array.fill(POISON)
        own = self._block(array, self._bench.rank, self._most_bytes)
        fill_pattern(self._bench, own, self._seed + self._bench.rank)

    def redraw(self) -> None:
        """Put the other pattern of two into the block of this rank; every rank must call it."""
        self._seed ^= _OTHER_SEED
        self._fill(self._memory.local)

    def steps(self, schedule: Schedule, size_bytes: int) -> RankSteps:
        """Return this rank's part of `schedule`, which moves the first `size_bytes` of each block.

        For each step it has the copies that this rank makes, as calls, and the ranks from which it receives."""
        return [
            (tuple(self._send(delivery.target, delivery.block, size_bytes) for delivery in sends), sources)
            for sends, sources in of_rank(schedule, self._bench.rank)
        ]

    def _send(self, target: int, block: int, size_bytes: int) -> Callable[[], None]:
        """Return a call that copies the first `size_bytes` of block number `block` into the memory of rank `target`."""
        near, far = (self._block(self._memory.arrays[rank], block, size_bytes) for rank in (self._bench.rank, target))
        return lambda: self._bench.device.copy(far, near)

    def perform(self, steps: RankSteps) -> None:
        """Make this rank's copies of each step, and wait for the ranks from which it receives; every rank must call it.

        `steps` is what the method `steps` returned."""
        for sends, sources in steps:
            for send in sends:
                send()
            if sends:
                self._bench.device.synchronize()
            self._progress += 1
            self._board.post(_PROGRESS, self._progress)
            self._board.wait_for(_PROGRESS, self._progress, sources)

    def completions(self, call: Callable[[], object]) -> list[float]:
        """Return, in rank order, the seconds from the first rank's start of `call` until each rank's end of `call`.

        Every rank must call it, and all get the same list."""
        with on_own_core(self._bench):
            self._meet()
            began = time.monotonic_ns()
            call()
            ended = time.monotonic_ns()
            self._board.post(_BEGAN, began)
            self._board.post(_ENDED, ended)
            self._meet()
            first = min(self._board.row(_BEGAN))
            completions = [(end - first) * 1e-9 for end in self._board.row(_ENDED)]
            self._meet()  # no rank writes new times before all ranks have read these
        return completions

    def _meet(self) -> None:
        self._progress += 1
        self._board.post(_PROGRESS, self._progress)
        self._board.wait_for(_PROGRESS, self._progress, self._board.members)

    def poison(self, blocks: Iterable[int]) -> None:
        """Overwrite blocks in this rank's memory; a block has the number of the rank that owns it.

        Every rank must call it, and waits for the others."""
        for block in blocks:
            self._block(self._memory.local, block, self._most_bytes).fill(POISON)
        self._bench.device.synchronize()
        self._bench.barrier()

    def check(self, blocks: Iterable[int], size_bytes: int) -> None:
        """Raise WrongAnswer if the first `size_bytes` of a block in this rank's memory differ from the owner's block.

        `blocks` are the blocks to compare; a block has the number of the rank that owns it."""
        self._bench.barrier()
        for block in blocks:
            received = self._block(self._memory.local, block, size_bytes)
            origin = f"of rank {block}, received by rank {self._bench.rank},"
            expect_pattern(self._bench, received, self._seed + block, origin)
        self._bench.barrier()

    def close(self) -> None:
        """Unmap the memory of the other ranks; no steps may be kept."""
        self._memory.close()
        self._board.close()

    def release(self) -> None:
        """Free the memory of this rank."""
        self._memory.release()
