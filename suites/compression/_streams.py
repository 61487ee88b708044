"""Time codecs in streams: latency at a fixed arrival rate, and weights whose exponents are compressed apart."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import in_turn
from . import _codecs, _corpora
from ._roundtrip import CHUNK_BYTES, GpuRoundTrip, HostRoundTrip, mebibytes, rotate

_SAMPLE_S = 0.05  # seconds in which the blocks of a sample are worked on
_LEAST_BLOCKS, _MOST_BLOCKS = 32, 4096  # of a sample
_ATTEMPTS = 5
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
            f"{name} p99": gb.Observed(float(np.percentile(self.latencies, 99)), "s", "less"),
            f"{name} highest": gb.Observed(block_bytes / self.service_s, "B/s", "more"),
        }


@topic.case(
    when=lambda target: target.is_host or target.tier != "quick",  # a queue long enough to judge takes seconds
    corpus=_corpora.axis(("text",), full=("text", "bf16-weights")),
    codec=lambda target: (
        gb.points(("lz4", "zstd-1"), ("lz4",), ("lz4", "zstd-1", "zstd-3", "zlib-1", "split-zstd-1"))
        if target.is_host
        else gb.points(("lz4", "ans"), ("lz4",), ("lz4", "zstd", "ans", "cascaded", "bitcomp"))
    ),
    block_bytes=lambda target: (2**16,) if target.is_host else mebibytes(1, 16, 16),
    load=gb.points((0.8,), (0.5,), (0.5, 0.8, 0.95)),
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


class PackedWeights:
    """A matrix of bfloat16 weights in a form of 12 bits each, which a kernel of a product restores on the way.

    Of 16 neighbouring exponents, the most frequent ones, four bits say which; `listed` are the weights outside."""

    def __init__(self, weights: Any, tiles: int) -> None:
        """Pack `weights` (NumPy, uint16, shape (rows, cols)), which stand `tiles` times below each other."""
        self.rows, self.cols, self.tiles = weights.shape[0] * tiles, weights.shape[1], tiles
        exponents, rest = _codecs.split(weights)
        within = np.convolve(np.bincount(exponents.ravel(), minlength=256), np.ones(16, int))[15:]
        self.base = int(within.argmax())
        listed = (exponents < self.base) | (exponents >= self.base + 16)
        codes = np.where(listed, 0, exponents - self.base).astype(np.uint8)
        self.rest = np.where(listed, 0, rest).astype(np.uint8)
        self.codes = codes[:, ::2] | codes[:, 1::2] << 4
        counts = np.tile(listed.sum(1), tiles)
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)
        self.columns = np.tile(np.nonzero(listed)[1], tiles).astype(np.uint32)
        self.bits = np.tile(weights[listed], tiles).astype(np.uint32)

    @property
    def nbytes(self) -> int:
        """The bytes of the packed matrix with its lists."""
        lists = self.starts, self.columns, self.bits
        return int(self.rows * self.cols * 3 // 2 + sum(part.nbytes for part in lists))


def _products(
    bench: gb.Bench, packed: PackedWeights, weights: Any, x: Any, room: Any, results: Mapping[str, Any]
) -> dict[str, Callable[[], None]]:
    """Return the calls of `fused`: they read packed or plain `weights` and `x`, and write `room` and `results`."""
    names = ("packed_product", "plain_product", "unpack_weights", "patch_weights")
    of_packed, of_plain, restore, patch = (bench.kernel("codecs.cu", name) for name in names)
    rest, codes = (
        _corpora.Corpus(part.reshape(-1), "uint8", "", part.size * packed.tiles).buffer(bench)
        for part in (packed.rest, packed.codes)
    )
    lists = tuple(
        bench.xp.asarray(np.append(part, np.uint32(0))) for part in (packed.starts, packed.columns, packed.bits)
    )
    shape, base = (np.uint32(packed.rows), np.uint32(packed.cols)), np.uint32(packed.base)
    groups = np.uint64(packed.rows * packed.cols // 16)
    grid = (-(-packed.rows // (4 * _THREADS // bench.traits.warp)),)

    def unpack() -> None:
        restore((_GRID,), (_THREADS,), (rest, codes, base, groups, room))
        patch((-(-packed.rows // _THREADS),), (_THREADS,), (*lists, *shape, room))

    def fused() -> None:
        of_packed(grid, (_THREADS,), (rest, codes, base, *lists, x, *shape, results["fused"]))

    def plain(source: Any, name: str) -> None:
        of_plain(grid, (_THREADS,), (source, x, *shape, results[name]))

    apart = in_turn(unpack, partial(plain, room, "apart"))
    return {"fused": fused, "plain": partial(plain, weights, "plain"), "apart": apart, "unpack": unpack}


@topic.case(
    when=gb.on_gpu,
    rows=gb.points((16384,), (1024,)),
    cols=gb.points((8192,), (1024,)),
)
def fused(bench: gb.Bench, rows: int, cols: int) -> gb.Task:
    """Product of a packed matrix of bfloat16 weights and a vector: bytes of the unpacked weights per second.

    `fused` restores the weights in registers, `plain` reads them unpacked, `apart` restores them to memory and then
    reads them, and `unpack` only restores them. All are kernels of the same structure; restored weights are compared
    bit for bit, and sums with double precision."""
    bench.need(6 * rows * cols + _codecs.RESERVE_BYTES)
    xp, device = bench.xp, bench.device
    whole = _corpora.corpus_of(bench, "bf16-weights", 2 * rows * cols)
    tile_rows = min(rows, whole.data.size // 2 // cols)
    tile = whole.data[: 2 * tile_rows * cols].view(np.uint16).reshape(tile_rows, cols)
    packed = PackedWeights(tile, rows // tile_rows)
    vector = bench.rng.standard_normal(cols).astype(np.float32)
    x, room = xp.asarray(vector), xp.empty(2 * rows * cols, xp.uint8)
    results = {name: xp.zeros(rows, np.float32) for name in ("fused", "plain", "apart")}
    weights = replace(whole, data=tile.reshape(-1).view(np.uint8)).buffer(bench)
    calls = _products(bench, packed, weights, x, room, results)

    def redraw() -> None:
        vector[:] = -vector[::-1]
        x[:] = xp.asarray(vector)

    def check() -> gb.Observation:
        """Compare all restored weights, and every row's sum in each way with double precision."""
        _codecs.DeviceBytes(bench).expect_same(room, weights)
        numbers = (tile.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        expected, scale = numbers @ vector, np.abs(numbers) @ np.abs(vector)
        for name, result in results.items():
            errors = np.abs(device.to_host(result).reshape(-1, tile_rows) - expected)
            gb.expect(
                bool((errors <= 1e-5 * scale).all()), f"{name}: a sum is further from the exact one than rounding"
            )
        return {"ratio": gb.Observed(2 * rows * cols / packed.nbytes, "", "more")}

    work = gb.Work(payload=2 * rows * cols)
    stages = {
        name: gb.Stage(
            call,
            work,
            "payload",
            effort=gb.POINT,
            outputs=(room,) if name == "unpack" else (results[name],),
            inputs=redraw,
        )
        for name, call in calls.items()
    }
    return gb.Task(stages, check, notes={"listed weights": str(len(packed.bits)), "corpus": whole.description})
