"""Run a pipeline of chunks on a GPU: one stream copies chunks into slots while another stream computes on them.

The source is page-locked host memory, or the memory of a peer. A copy engine copies, or a kernel does. The whole
message is queued behind the gate, so that no launch is waited for."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._copies import Call
from ._digest import FACTOR, TERM

_THREADS = 256
_FLIGHT = 4  # loads in flight per thread of the copy kernel, as in copies.cu
_COMPUTE_BLOCKS = 4  # blocks on each compute unit: 1024 threads, which leave room for the blocks of a copy kernel
_VECTOR_BYTES, _WORD_BYTES = 16, 4
_TO_DEVICE, _BETWEEN_DEVICES = 1, 3  # cudaMemcpyKind; HIP's have the same values
_MILLI = 1e-3


class _Spans:
    """Events before and after the work on each chunk in one stream."""

    def __init__(self, cuda: Any, chunks: int) -> None:
        self._cuda = cuda
        self.begun = [cuda.Event() for _ in range(chunks)]
        self.ended = [cuda.Event() for _ in range(chunks)]

    def busy_s(self) -> float:
        """Return the sum over all chunks of the seconds between their two events; the device must have finished."""
        pairs = zip(self.begun, self.ended, strict=True)
        return sum(float(self._cuda.get_elapsed_time(begun, ended)) for begun, ended in pairs) * _MILLI


class StreamPipeline:
    """A pipeline on a GPU: a message of `chunks` chunks, `most_depth` slots, and a digest per thread and chunk.

    `path` is `h2d` if the source is page-locked host memory, `peer` if it is a peer's memory."""

    def __init__(self, bench: gb.Bench, chunk_words: Any, chunks: int, most_depth: int, path: str, by: str) -> None:
        self._device, self._cuda = bench.device, bench.xp.cuda
        self._own, self._copying = self._cuda.get_current_stream(), self._cuda.Stream(non_blocking=True)
        self._chunks = chunks
        self._distinct, self._count = (int(number) for number in chunk_words.shape)
        self._chunk_bytes = self._count * _WORD_BYTES
        self._blocks = min(max(1, bench.target.device.units) * _COMPUTE_BLOCKS, -(-self._count // _THREADS))
        self._slots = bench.xp.zeros((most_depth, self._count), np.uint32)
        self._slots_base = int(self._slots.data.ptr)
        self._digests = bench.xp.zeros((self._chunks, self._blocks * _THREADS), np.uint32)
        self.outputs = (self._digests, self._slots)
        self._digest = bench.kernel("pipeline.cu", "digest")
        self._source, self._base = _source(bench, chunk_words, path)
        self._copies = self._kernel_copies(bench) if by == "kernel" else self._engine_copies(path)
        self._transfers, self._computations = (_Spans(self._cuda, self._chunks) for _ in range(2))
        self._begin = self._cuda.Event()
        self.rounds = 1
        self.notes = {"transfer": f"{path}, by a {'kernel' if by == 'kernel' else 'copy engine'}", "compute": "kernel"}
        # Loads the kernels, because a kernel cannot be loaded behind a gate.
        self._queue(most_depth, copies=True, computes=True)
        bench.device.synchronize()

    def _engine_copies(self, path: str) -> Callable[[int, int], None]:
        """Return a function that queues the copy of a chunk into a slot by a copy engine, given the numbers of both."""
        copy, nbytes = self._cuda.runtime.memcpyAsync, self._chunk_bytes
        kind, stream = (_TO_DEVICE if path == "h2d" else _BETWEEN_DEVICES), self._copying.ptr
        return lambda chunk, slot: copy(self._slot_at(slot), self._chunk_at(chunk), nbytes, kind, stream)

    def _kernel_copies(self, bench: gb.Bench) -> Callable[[int, int], None]:
        """Return a function that queues the copy of a chunk into a slot by a kernel, given the numbers of both."""
        kernel, vectors = bench.kernel("copies.cu", "copy"), self._chunk_bytes // _VECTOR_BYTES
        grid = (max(1, -(-vectors // (_THREADS * _FLIGHT))),)

        def copy(chunk: int, slot: int) -> None:
            ends = np.uint64(self._chunk_at(chunk)), np.uint64(self._slot_at(slot))
            self._copying.use()
            kernel(grid, (_THREADS,), (*ends, np.uint64(vectors), np.uint64(0)))
            self._own.use()

        return copy

    def _chunk_at(self, chunk: int) -> int:
        return self._base + chunk % self._distinct * self._chunk_bytes

    def _slot_at(self, slot: int) -> int:
        return self._slots_base + slot * self._chunk_bytes

    def _queue(self, depth: int, *, copies: bool, computes: bool) -> None:
        """Queue the copies of the whole message in one stream, its computations in another stream, or both."""
        own, copying = self._own, self._copying
        self._begin.record(own)
        copying.wait_event(self._begin)
        for chunk in range(self._chunks):
            if copies:
                if computes and chunk >= depth:
                    copying.wait_event(self._computations.ended[chunk - depth])
                self._transfers.begun[chunk].record(copying)
                self._copies(chunk, chunk % depth)
                self._transfers.ended[chunk].record(copying)
            if computes:
                if copies:
                    own.wait_event(self._transfers.ended[chunk])
                self._computations.begun[chunk].record(own)
                self._compute(chunk, chunk % depth)
                self._computations.ended[chunk].record(own)
        own.wait_event(self._transfers.ended[-1])

    def _compute(self, chunk: int, slot: int) -> None:
        """Queue the digest of chunk number `chunk`, which lies in slot number `slot`."""
        numbers = [np.uint32(number) for number in (self._count, FACTOR, TERM, self.rounds)]
        digests = np.uint64(int(self._digests.data.ptr) + chunk * self._blocks * _THREADS * _WORD_BYTES)
        self._digest((self._blocks,), (_THREADS,), (np.uint64(self._slot_at(slot)), *numbers, digests))

    def _timed(self, call: Call) -> float:
        return float(self._device.time(call, 1, "hot").device[0])

    def alone(self) -> tuple[float, float]:
        """Return the seconds of all digests without copies, and the seconds of all copies without computation."""
        depth = len(self._slots)
        compute_s = self._timed(lambda: self._queue(depth, copies=False, computes=True))
        return compute_s, self._timed(lambda: self._queue(depth, copies=True, computes=False))

    def together(self, depth: int) -> tuple[float, float, float]:
        """Return the seconds of the pipeline with `depth` slots, and the busy seconds of computation and transfer."""
        seconds = self._timed(lambda: self._queue(depth, copies=True, computes=True))
        return seconds, self._computations.busy_s(), self._transfers.busy_s()

    def chunk_digests(self) -> Any:
        """Return the digest of each chunk: uint32, shape (chunks,), a NumPy array."""
        return np.bitwise_xor.reduce(self._device.to_host(self._digests), axis=1)

    def close(self) -> None:
        """Wait until neither stream uses the memory, so that it can be freed."""
        self._copying.synchronize()


def _source(bench: gb.Bench, chunk_words: Any, path: str) -> tuple[Any, int]:
    """Return the source of the message, filled with `chunk_words`, and its address as an integer."""
    if path == "h2d":
        pinned = bench.device.pinned(chunk_words.nbytes)
        pinned.view(np.uint32).reshape(chunk_words.shape)[:] = chunk_words
        return pinned, int(pinned.ctypes.data)
    far = bench.device.peer_memory(bench.devices[1], chunk_words.nbytes)
    near = bench.xp.empty(chunk_words.nbytes, np.uint8)
    bench.device.copy(near, chunk_words)
    bench.device.copy(far, near)
    bench.device.synchronize()
    return far, int(far.data.ptr)
