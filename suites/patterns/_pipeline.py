"""Measure transfer and computation that overlap in a pipeline: by depth, chunk size, copy engine and copy kernel.

A message has 32 chunks. Up to `depth` chunks are in flight: a chunk is copied into a free slot, and computed on when
it is there. On a GPU the whole message is queued behind the gate, so that no launch is waited for.

The computation is a digest: a linear congruential generator is applied to every word of a chunk, and the digest is the
exclusive or of all words. A word is combined with its place first, so that words in another order give another
digest."""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import Params, core_of, devices_of, on_core
from .._checks import affine_power, expect_equal
from .._copies import Call
from .._link import ONE_WAY
from .._stream import need_numba

FACTOR, TERM = 1664525, 1013904223  # Knuth & Lewis: Numerical Recipes in C, 2nd edition, §7.1
_MODULUS = 2**32
_LOOKS = 2**31  # polls of the other thread's counter before a wait gives up, after some seconds
_COUNTER_WORDS = 32  # room for two counters on separate cache lines
_NANO = 1e-9
_THREADS = 256
_FLIGHT = 4  # loads in flight per thread of the copy kernel, as in copies.cu
_COMPUTE_BLOCKS = 4  # blocks on each compute unit: 1024 threads, which leave room for the blocks of a copy kernel
_VECTOR_BYTES, _WORD_BYTES = 16, 4
_TO_DEVICE, _BETWEEN_DEVICES = 1, 3  # cudaMemcpyKind; HIP's have the same values
_MILLI = 1e-3
CHUNKS = 32  # chunks of a message: the overlap can then reach 97 %
# Distinct chunks in the source of a GPU's message: more than any depth, so a stale chunk differs from the right one.
_DISTINCT = 9
_DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8)
_HOST_CHUNK = 2**18
_CHUNK_OF = {"h2d": 2**22, "peer": 2**24}  # chunk sizes on a GPU: a copy takes 40 µs or more, far longer than a launch
_COMPUTE = {"half": 0.5, "equal": 1.0, "double": 2.0}  # the time of the computation over the time of the transfer
_AMOUNTS = gb.points(("equal",), full=tuple(_COMPUTE))
_TRIALS, _REPEATS = 8, 3  # most steps of the calibration, and measurements in each step
_GROWTH = 16  # the rounds of a computation grow by at most this factor in one step of the calibration
_EXACT = 0.03  # the calibration ends if the computation is within this share of the wanted time
_PERCENT = 100

topic = gb.Topic(
    views=[
        gb.View("curve", "Pipeline throughput by depth", ("pipeline",), "depth", by=("path", "by", "chunk_bytes")),
        gb.View(
            "curve",
            "Overlap efficiency: share of the shorter part that a pipeline hides",
            ("pipeline",),
            "depth",
            by=("path", "by", "chunk_bytes", "compute"),
            series="overlap",
        ),
        gb.View("choice", "Depth of a pipeline", ("pipeline",), "chunk_bytes", by=("depth",)),
        gb.View(
            "bars", "Compute slowdown beside a transfer", ("pipeline",), by=("path", "by"), series="compute_slowdown"
        ),
    ],
)


@dataclass(frozen=True, slots=True)
class OverlapTimes:
    """Seconds of a computation alone, of a transfer alone, and of both together in a pipeline.

    The last two fields are the seconds in which the computation and the transfer were busy while both ran together."""

    compute_s: float
    transfer_s: float
    together_s: float
    compute_busy_s: float
    transfer_busy_s: float

    @property
    def efficiency(self) -> float:
        """The hidden share of the shorter part, (compute + transfer − together) / min(compute, transfer), in 0 … 1."""
        hidden_s = self.compute_s + self.transfer_s - self.together_s
        return min(max(hidden_s / min(self.compute_s, self.transfer_s), 0.0), 1.0)

    @property
    def compute_slowdown(self) -> float:
        """The busy seconds of the computation beside the transfer over its seconds alone."""
        return self.compute_busy_s / self.compute_s

    @property
    def transfer_slowdown(self) -> float:
        """The busy seconds of the transfer beside the computation over its seconds alone."""
        return self.transfer_busy_s / self.transfer_s


def bound(chunks: int) -> float:
    """Return the highest overlap efficiency: nothing is beside the transfer of the first of `chunks` chunks."""
    return 1 - 1 / chunks


def next_rounds(tried: Sequence[tuple[int, float]], wanted_s: float) -> int:
    """Return the rounds of a computation that take `wanted_s`, by the line through the first and last point of `tried`.

    A point has rounds and their seconds. With one point, or a line that does not rise, they are proportional."""
    (first_rounds, first_s), (rounds, last_s) = tried[0], tried[-1]
    rise_s, run = last_s - first_s, rounds - first_rounds
    does_rise = run and rise_s / run > 0
    wanted = rounds + (wanted_s - last_s) * run / rise_s if does_rise else rounds * wanted_s / last_s
    return max(1, min(round(wanted), _GROWTH * rounds))


def expected_digests(chunk_words: Any, rounds: int) -> Any:
    """Return the digest (uint32) of each row of `chunk_words` (uint32), which is a chunk."""
    factor, term = (np.uint32(number) for number in affine_power(FACTOR, TERM, rounds, _MODULUS))
    places = np.arange(chunk_words.shape[1], dtype=np.uint32)
    return np.array([np.bitwise_xor.reduce((chunk ^ places) * factor + term) for chunk in chunk_words], np.uint32)


class ThreadPipeline:
    """A pipeline of two threads, each on its own core: a message of chunks in memory, slots, and a digest per chunk."""

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
        """Return the seconds of all digests and of all copies; digests alternate with the copies that they read."""
        _, compute_s, transfer_s = self.together(1)
        return compute_s, transfer_s

    def together(self, depth: int) -> tuple[float, float, float]:
        """Return the seconds of the pipeline with `depth` slots, and the busy seconds of computation and transfer."""
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
    """A pipeline on a GPU, from page-locked memory (`path` is `h2d`) or a peer's: slots, and digests of threads."""

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


def _paths(target: gb.Target) -> tuple[str, ...]:
    """Return the axis `path`: `memory` on the host; on a GPU `h2d`, and `peer` if the GPU has a peer."""
    if target.is_host:
        return ("memory",)
    return ("h2d", "peer") if target.device.peers else ("h2d",)


def _engines(target: gb.Target) -> tuple[str, ...]:
    return ("memcpy",) if target.is_host else ("engine", "kernel")


def _chunk_sizes(target: gb.Target) -> Any:
    if target.is_host:
        return gb.points((_HOST_CHUNK,), smoke=(2**16,), full=gb.powers_of_two(16, 22, 2))
    quick = tuple(_CHUNK_OF[path] for path in _paths(target))
    return gb.points(quick, smoke=(2**16,), full=gb.powers_of_two(18, 24, 2))


def _is_pipeline(target: gb.Target, params: Params) -> bool:
    """Return whether to measure a point: in `smoke` every one, else if its chunk size suits the path."""
    if target.tier == "smoke":
        return True
    is_one_depth_over_last_path = "depth" in params and params["path"] == _paths(target)[-1]
    if target.tier == "quick" and params["by"] == "kernel" and not is_one_depth_over_last_path:
        return False
    suits = params["chunk_bytes"] == (_HOST_CHUNK if target.is_host else _CHUNK_OF[str(params["path"])])
    return suits or (target.tier == "full" and params["compute"] == "equal")


@topic.case(
    devices=devices_of,
    where=_is_pipeline,
    path=_paths,
    by=_engines,
    chunk_bytes=_chunk_sizes,
    compute=_AMOUNTS,
    depth=lambda target: gb.points((2,) if target.is_host else (4,), smoke=(2,), full=_DEPTHS),
)
def pipeline(bench: gb.Bench, path: str, by: str, chunk_bytes: int, compute: str, depth: int) -> gb.Task:
    """Copy a message of 32 chunks and compute on them in a pipeline: payload of the whole.

    The overlap efficiency and the mutual slowdowns of copies and computation are reported beside it."""
    return PipelinedMessage(bench, path, by, chunk_bytes, compute, depth).task()


class PipelinedMessage:
    """A message of 32 chunks of `chunk_bytes`, its pipeline, and the calibrated rounds of computation."""

    def __init__(self, bench: gb.Bench, path: str, by: str, chunk_bytes: int, compute: str, depth: int) -> None:
        nbytes = CHUNKS * chunk_bytes
        distinct = _DISTINCT if bench.traits.is_gpu else CHUNKS
        bench.need((2 * distinct + depth) * chunk_bytes)
        self._depth = depth
        self._work = gb.Work(payload=nbytes, items=CHUNKS)
        drawn = bench.rng.integers(2**64, size=(distinct, chunk_bytes // 8), dtype=np.uint64)
        self._words = drawn.view(np.uint32)
        self._pipeline: ThreadPipeline | StreamPipeline = (
            StreamPipeline(bench, self._words, CHUNKS, depth, path, by)
            if bench.traits.is_gpu
            else ThreadPipeline(bench, self._words, depth)
        )
        self._calibrate(_COMPUTE[compute])
        self._expected = np.resize(expected_digests(self._words, self._pipeline.rounds), CHUNKS)
        self.times = OverlapTimes(*[math.nan] * 5)
        self._notes = {
            "devices": " ← ".join(device.id for device in bench.devices[: 2 if path == "peer" else 1]),
            "message": f"{CHUNKS} chunks of {gb.units.size(chunk_bytes)}, {ONE_WAY}",
            "rounds": str(self._pipeline.rounds),
            "most overlap": f"{bound(CHUNKS):.1%}: nothing is beside the first transfer and the last computation",
            **self._pipeline.notes,
        }

    def _calibrate(self, share: float) -> None:
        """Choose the rounds of computation such that it takes `share` times as long as the transfer, within 3 %."""
        line, tried = self._pipeline, list[tuple[int, float]]()
        for _ in range(_TRIALS):
            compute_s, transfer_s = (min(times) for times in zip(*(line.alone() for _ in range(_REPEATS)), strict=True))
            tried.append((line.rounds, compute_s))
            if abs(compute_s / (share * transfer_s) - 1) <= _EXACT:
                return
            line.rounds = next_rounds(tried, share * transfer_s)

    def sample(self) -> float:
        """Time the transfer alone, the computation alone and then the pipeline; return the seconds of the pipeline."""
        self.times = OverlapTimes(*self._pipeline.alone(), *self._pipeline.together(self._depth))
        return self.times.together_s

    def observed(self) -> gb.Observation:
        """Return the overlap efficiency in % and the slowdowns, busy time over time alone, of the last sample."""
        times = self.times
        return {
            "overlap": gb.Observed(_PERCENT * times.efficiency, "%", "more"),
            "compute_slowdown": gb.Observed(times.compute_slowdown),
            "transfer_slowdown": gb.Observed(times.transfer_slowdown),
            "compute_over_transfer": gb.Observed(times.compute_s / times.transfer_s),
        }

    def check(self) -> None:
        """Raise WrongAnswer if a chunk was computed on before it arrived or after it was overwritten."""
        expect_equal(self._pipeline.chunk_digests(), self._expected, "digests of chunks")

    def task(self) -> gb.Task:
        """Return a task with one stage, the pipeline."""
        line = self._pipeline
        stage = gb.Stage(
            self.sample,
            self._work,
            "payload",
            clock="self",
            probe=self.observed,
            effort=gb.POINT,
            outputs=line.outputs,
        )
        return gb.Task.of(stage, check=self.check, close=line.close, notes=self._notes)
