"""Time codecs in streams: latency at a fixed arrival rate, and weights whose exponents are compressed apart."""

from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import in_turn
from . import _codecs, _corpora
from ._roundtrip import CHUNK_BYTES, GpuRoundTrip, HostRoundTrip, mebibytes, rotate

_SAMPLE_S = 0.1  # seconds in which the blocks of a sample are worked on
_LEAST_BLOCKS, _MOST_BLOCKS = 64, 4096  # of a sample
_ATTEMPTS = 3
_GROWTH = 1 / 16  # in service times per block: a queue that grows by more does not settle
_THREADS, _GRID = 256, 2048

topic = gb.Topic()


class Arrivals:
    """Blocks that arrive at equal intervals, which one server works on in the order of their arrival.

    A block that arrives while the server works waits, so `latencies` (seconds) count from its arrival."""

    def __init__(self, serve: Any, load: float) -> None:
        """`load` is the arrival rate over the rate at which `serve` works on blocks without a pause."""
        self._serve, self._load = serve, load
        self.latencies: list[float] = []
        self.service_s = 0.0

    def _served(self, count: int, interval_s: float) -> list[float]:
        """Return the seconds from the arrival of each of `count` blocks until it is done."""
        latencies, start = [], perf_counter()
        for index in range(count):
            due = start + index * interval_s
            while perf_counter() < due:
                pass
            self._serve()
            latencies.append(perf_counter() - due)
        return latencies

    def __call__(self) -> float:
        """Return the median latency of blocks that arrive; raises Untrustworthy if the queue grows in each attempt."""
        growth = 0.0
        for _ in range(_ATTEMPTS):  # another program may take the processor between the two parts of an attempt
            first_s = self._served(1, 0)[0]
            count = int(min(max(_SAMPLE_S / first_s, _LEAST_BLOCKS), _MOST_BLOCKS))
            self.service_s = self._served(count, 0)[-1] / count
            latencies = self._served(count, self.service_s / self._load)
            # even the shortest wait at the end is then longer than at the beginning
            growth = (min(latencies[-count // 4 :]) - min(latencies[: count // 4])) / self.service_s
            if growth <= _GROWTH * count:
                self.latencies += latencies
                return float(np.median(latencies))
        reason = f"each block of its last quarter waits {growth:.0f} service times longer than the first ones"
        raise gb.Untrustworthy("growing-queue", f"the queue grows at a load of {self._load:g}: {reason}")

    def observed(self, name: str, block_bytes: int) -> dict[str, gb.Observed]:
        """Return the 99th percentile of the latency so far, and the highest rate without a growing queue."""
        return {
            f"{name}.p99": gb.Observed(float(np.percentile(self.latencies, 99)), "s", "less"),
            f"{name}.highest": gb.Observed(block_bytes / self.service_s, "B/s", "more"),
        }


@topic.case(
    corpus=_corpora.axis(("text",), full=("text", "bf16-weights")),
    codec=lambda target: (
        gb.points(("lz4", "zstd-1"), ("lz4",), ("lz4", "zstd-1", "zstd-3", "zlib-1", "split-zstd-1"))
        if target.is_host
        else gb.points(("lz4", "ans"), ("lz4",), ("lz4", "zstd", "ans", "cascaded", "bitcomp"))
    ),
    block_bytes=lambda target: (2**16,) if target.is_host else mebibytes(1, 16, 16),
    load=gb.points((0.8,), full=(0.5, 0.8, 0.95)),
)
def arrivals(bench: gb.Bench, corpus: str, codec: str, block_bytes: int, load: float) -> gb.Task:
    """Seconds from the arrival of a block until it is compressed, or restored, at `load` of the highest rate.

    Blocks arrive at equal intervals; the figure is the median, `p99` the 99th percentile. `highest` is the rate of
    blocks one after another: at a higher one the queue grows, and the case is invalid. On a GPU the latency includes
    the launch and the wait for the device."""
    source = _corpora.corpus_of(bench, corpus, block_bytes)
    opened = _codecs.open_codec(bench, codec, source.dtype)
    trip: Any = (
        GpuRoundTrip(opened, source, CHUNK_BYTES)
        if opened.bench
        else HostRoundTrip(opened, source.buffer(bench), CHUNK_BYTES)
    )
    ways = {
        name: Arrivals(in_turn(call, bench.device.synchronize), load)
        for name, call in (("compress", trip.compress), ("decompress", trip.restore))
    }

    def check() -> gb.Observation:
        seen = dict(trip.check())
        for name, way in ways.items():
            seen |= way.observed(name, trip.total)
        return seen

    effort = gb.Effort.exactly(5)
    stages = {
        name: gb.Stage(way, gb.Work(payload=trip.total), clock="self", effort=effort, inputs=trip.redraw)
        for name, way in ways.items()
    }
    notes = {"corpus": source.description, "codec": opened.description}
    return gb.Task(stages, check, trip.poison, notes=notes)


class SplitWeights:
    """Weights in bfloat16 on a GPU, whose exponents a codec compresses, and whose other bits stay as they are.

    `trip` is the round trip of the exponents, a byte each."""

    def __init__(self, bench: gb.Bench, codec: str, corpus: _corpora.Corpus) -> None:
        xp, self.total = bench.xp, corpus.total // 16 * 16
        exponents = replace(corpus, data=corpus.data[: self.total // 2], total=self.total // 2, dtype="uint8")
        self.trip = GpuRoundTrip(_codecs.DeviceCodec(bench, codec), exponents, CHUNK_BYTES)
        self.codec, self._bench = self.trip.codec, bench
        self.weights = replace(corpus, total=self.total).buffer(bench)
        self._rest, self.restored = xp.empty(self.total // 2, xp.uint8), xp.empty(self.total, xp.uint8)
        self._spare = xp.empty(self.total, xp.uint8)
        self._split, self._merge = (bench.kernel("codecs.cu", name) for name in ("split_weights", "merge_weights"))

    def _run(self, kernel: Any, *arrays: Any) -> None:
        vectors = self.total // 16
        kernel((min(_GRID, -(-vectors // _THREADS)),), (_THREADS,), (*arrays, np.uint64(vectors)))

    def compress(self) -> None:
        self._run(self._split, self.weights, self.trip.source.memory, self._rest)
        self.trip.compress()

    def restore(self) -> None:
        self.trip.restore()
        self._run(self._merge, self.trip.restored.memory, self._rest, self.restored)

    def redraw(self) -> None:
        rotate(self._bench.device.copy, self.weights, self._spare, CHUNK_BYTES)

    def poison(self) -> None:
        self.trip.poison()
        self.codec.buffers.invert(self.weights, self.restored)
        self.codec.buffers.fill(self._rest, 0xA5)

    def check(self) -> gb.Observation:
        """Compare every bit of the weights, and return the ratios of the weights and of their exponents."""
        of_exponents = self.trip.check()
        self.codec.buffers.expect_same(self.restored, self.weights)
        stored = float(of_exponents["compressed"].value) + self.total // 2  # type: ignore[union-attr]
        return {
            "ratio": gb.Observed(self.total / stored, "", "more"),
            "exponents.ratio": of_exponents["ratio"],
            "compressed": gb.Observed(stored, "B", "less"),
        }


@topic.case(
    when=gb.on_gpu,
    corpus=_corpora.axis(("bf16-weights",)),
    codec=gb.points(("ans",), ("lz4",), ("ans", "zstd", "bitcomp", "lz4")),
    size_bytes=mebibytes(16, 256, 256),
)
def split(bench: gb.Bench, corpus: str, codec: str, size_bytes: int) -> gb.Task:
    """Compress and restore bfloat16 weights with their exponents apart: uncompressed bytes per second, and the ratio.

    A kernel writes exponents and other bits (sign and fraction, which hardly compress) to two planes, and
    `codec` compresses the exponents. `roundtrip` has the same codec on whole weights, and the host's `split-zstd-1`."""
    source = _corpora.corpus_of(bench, corpus, size_bytes)
    bench.need(6 * source.total + _codecs.RESERVE_BYTES)
    weights = SplitWeights(bench, codec, source)
    work = gb.Work(payload=weights.total)
    stages = {
        name: gb.Stage(call, work, "payload", effort=gb.POINT, max_calls=4, inputs=weights.redraw)
        for name, call in (("compress", weights.compress), ("decompress", weights.restore))
    }
    notes = {"corpus": source.description, "codec": f"exponents by {weights.codec.description}"}
    return gb.Task(stages, weights.check, weights.poison, notes=notes)
