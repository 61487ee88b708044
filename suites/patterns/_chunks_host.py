"""Run a pipeline of chunks on the host: one thread copies chunks into slots while another thread computes on them."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._stream import need_numba
from ._cores import core_of, on_core
from ._digest import FACTOR, TERM

_LOOKS = 2**31  # polls of the other thread's counter before a wait gives up, after some seconds
_COUNTER_WORDS = 32  # room for two counters on separate cache lines
_NANO = 1e-9


class ThreadPipeline:
    """A pipeline of two threads: a message in ordinary memory, `most_depth` slots of one chunk, and a digest per chunk.

    `chunk_words` has shape (chunks, words of a chunk), uint32. Each thread has its own core if there are two."""

    def __init__(self, bench: gb.Bench, chunk_words: Any, most_depth: int) -> None:
        need_numba(bench)
        from . import _host_digest

        self._compiled = _host_digest
        self._words = chunk_words
        self._slots = np.zeros((most_depth, chunk_words.shape[1]), np.uint32)
        self._counters = np.zeros(_COUNTER_WORDS, np.uint64)
        # In nanoseconds: when the first copy began, and when the last computation ended.
        self._moments = np.zeros(2, np.int64)
        cores = sorted(os.sched_getaffinity(0))
        self._compute_core, self._copy_core = core_of(0, cores), core_of(1, cores)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="pipeline")
        self.digests = np.zeros(len(chunk_words), np.uint32)
        self.outputs = (self.digests, self._slots)
        self.rounds = 1
        self.notes = {"transfer": "memcpy by one thread", "compute": "integer arithmetic by another thread"}
        self._copy_all(0, most_depth)  # compiles both kernels, without any chunk
        self._compute_all(0, most_depth)

    def alone(self) -> tuple[float, float]:
        """Return the seconds of the digests of all chunks and the seconds of all copies, not at the same time.

        Copies and digests alternate, so that the digests read what another core has just written, as in a pipeline."""
        _, compute_s, transfer_s = self.together(1)
        return compute_s, transfer_s

    def together(self, depth: int) -> tuple[float, float, float]:
        """Return the seconds of the pipeline with `depth` slots, and the busy seconds of computation and transfer.

        Raises WrongAnswer if one thread waits too long for the other."""
        self._counters.fill(0)
        chunks = len(self._words)
        copying = self._threads.submit(self._copy_all, chunks, depth)
        compute_busy_s = self._compute_all(chunks, depth)
        transfer_busy_s = copying.result()
        return float(np.diff(self._moments)[0]) * _NANO, compute_busy_s, transfer_busy_s

    def _copy_all(self, chunks: int, depth: int) -> float:
        """Copy the first `chunks` chunks, each into one of `depth` slots once that slot is free."""
        flags = np.uint64(self._counters.ctypes.data)
        with on_core(self._copy_core):
            busy = self._compiled.copy_all(self._words[:chunks], self._slots, depth, flags, _LOOKS, self._moments)
        gb.expect(busy >= 0, "the thread that computes freed no slot in time")
        return float(busy) * _NANO

    def _compute_all(self, chunks: int, depth: int) -> float:
        """Compute the digests of the first `chunks` chunks, each once it has arrived in one of `depth` slots."""
        flags = np.uint64(self._counters.ctypes.data)
        numbers = np.uint32(FACTOR), np.uint32(TERM), self.rounds
        with on_core(self._compute_core):
            digests = self.digests[:chunks]
            busy = self._compiled.digest_all(self._slots, digests, depth, flags, _LOOKS, self._moments, numbers)
        gb.expect(busy >= 0, "the thread that copies filled no slot in time")
        return float(busy) * _NANO

    def chunk_digests(self) -> Any:
        """Return the digest of each chunk: uint32, shape (chunks,), a NumPy array that the next run overwrites."""
        return self.digests

    def close(self) -> None:
        """End the thread."""
        self._threads.shutdown()
