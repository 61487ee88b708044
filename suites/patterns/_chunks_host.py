"""A pipeline of chunks on the host: one thread copies chunks into slots, another one computes on them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gpubench.api.suite import Bench

from .._stream import need_numba
from ._digest import FACTOR, TERM

_PATIENCE_S = 5.0  # for the other thread to finish a chunk


class StalledPipelineError(RuntimeError):
    """The other thread finished no chunk in time."""


class ThreadPipeline:
    """Chunks of a message in ordinary memory, slots of one chunk each, and a digest for each chunk.

    Copies and digests release Python's lock, so that both threads run at the same time. `words` has shape
    (chunks, words of a chunk).
    """

    def __init__(self, bench: Bench, words: Any, most_depth: int) -> None:
        need_numba(bench)
        from ._host_digest import digest

        self._compiled_digest = digest
        self._words = words
        self._slots = np.zeros((most_depth, words.shape[1]), np.uint32)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="pipeline")
        self.digests = np.zeros(len(words), np.uint32)
        self.rounds = 1
        self.notes = {"transfer": "memcpy by one thread", "compute": "integer arithmetic by another thread"}
        self.compute_alone()  # compiles

    def transfer_alone(self) -> float:
        """Return the seconds of all copies, by the thread that copies in the pipeline too."""
        return self._threads.submit(self._copy_all, None, None).result()

    def compute_alone(self) -> float:
        """Return the seconds of all digests, of chunks that are in the slots already."""
        return sum(self._compute(chunk, chunk % len(self._slots)) for chunk in range(len(self._words)))

    def together(self, depth: int) -> tuple[float, float, float]:
        """Return the seconds of the pipeline, and the busy seconds of the computation and of the transfer."""
        free, filled = threading.Semaphore(depth), threading.Semaphore(0)
        start = time.perf_counter()
        copying = self._threads.submit(self._copy_all, free, filled, depth)
        compute_busy_s = 0.0
        for chunk in range(len(self._words)):
            _pass(filled)
            compute_busy_s += self._compute(chunk, chunk % depth)
            free.release()
        seconds = time.perf_counter() - start
        return seconds, compute_busy_s, copying.result()

    def _copy_all(self, free: threading.Semaphore | None, filled: threading.Semaphore | None, depth: int = 0) -> float:
        """Copy every chunk into its slot, as soon as that is free; return the seconds of the copies."""
        busy_s = 0.0
        for chunk, words in enumerate(self._words):
            if free:
                _pass(free)
            start = time.perf_counter()
            np.copyto(self._slots[chunk % (depth or len(self._slots))], words)
            busy_s += time.perf_counter() - start
            if filled:
                filled.release()
        return busy_s

    def _compute(self, chunk: int, slot: int) -> float:
        start = time.perf_counter()
        digest = self._compiled_digest(self._slots[slot], np.uint32(FACTOR), np.uint32(TERM), self.rounds)
        self.digests[chunk] = digest
        return time.perf_counter() - start

    def poison(self) -> None:
        """Overwrite the digests and the slots."""
        self.digests.fill(0)
        self._slots.fill(0)

    def found(self) -> Any:
        """Return the digest of each chunk."""
        return self.digests

    def close(self) -> None:
        """Let the thread go."""
        self._threads.shutdown()


def _pass(semaphore: threading.Semaphore) -> None:
    if not semaphore.acquire(timeout=_PATIENCE_S):
        raise StalledPipelineError(f"the other thread of the pipeline finished no chunk within {_PATIENCE_S} s")
