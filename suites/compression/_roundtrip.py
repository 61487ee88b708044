"""Time round trips of a buffer through every codec, by the size of a batch, and by the number of host threads."""

from collections.abc import Mapping
from typing import Any

from gpubench.api import suite as gb

from . import _codecs_device, _codecs_host, _codecs_nvcomp, _corpora
from ._axes import CHUNK_BYTES, FEW, MIB, corpora, mebibytes, one_corpus
from ._codecs_common import stage

_CASES = ("roundtrip",)
# the codecs of GPUs and of the host in the quick tier; the host's integers and the user's data have all codecs
_QUICK_FEW = {
    "ids": ("lz4", "zstd", "ans", "cascaded", "bitcomp", "zstd-1", "zstd-3", "zlib-1", "isal-1"),
    "text": ("lz4", "zstd", "zstd-1", "isal-1"),
    "field": ("ans", "bitcomp", "zstd-1", "isal-1"),
}


def _pareto(title: str, series: str) -> gb.View:
    return gb.View("pareto", title, _CASES, "ratio", series, by=("corpus",), log_x=True, log_y=True)


def _filling(title: str, series: str) -> gb.View:
    return gb.View(
        "transfer", title, ("filling",), x="size_bytes", by=("codec",), series=series, log_x=True, log_y=True
    )


topic = gb.Topic(
    views=[
        _pareto("Compression throughput by ratio", "compress.hot"),
        _pareto("Decompression throughput by ratio", "decompress.hot"),
        gb.View(
            "breakeven", "Break-even link bandwidth by codec", _CASES, series="compress.hot", by=("corpus", "codec")
        ),
        gb.View("bars", "Compression throughput by codec", _CASES, series="compress.hot", by=("corpus",)),
        gb.View("bars", "Decompression throughput by codec", _CASES, series="decompress.hot", by=("corpus",)),
        gb.View("bars", "Compression ratio by codec", _CASES, series="ratio", by=("corpus",)),
        _filling("Compression throughput by batch size", "compress.hot"),
        _filling("Decompression throughput by batch size", "decompress.hot"),
        gb.View(
            "curve",
            "Compression throughput by threads",
            ("threads",),
            x="threads",
            by=("codec",),
            series="compress.hot",
        ),
        gb.View(
            "curve",
            "Decompression throughput by threads",
            ("threads",),
            x="threads",
            by=("codec",),
            series="decompress.hot",
        ),
    ],
)


def _codecs(target: gb.Target) -> Any:
    """Return the axis of codecs by tier (a `Points` of names); codecs with options are in the full tier only."""
    if not target.is_host:
        every = _codecs_device.CODECS
        quick = tuple(name for name in every if name != "gzip")  # gzip is Deflate with a header
        return gb.points(smoke=every, quick=quick, full=(*every, *_codecs_device.OPTIONS))
    quick = ("lz4", "zstd-1", "zstd-3", "zlib-1", "isal-1")
    return gb.points(smoke=quick, quick=quick, full=tuple(_codecs_host.CODECS))


def _sizes(target: gb.Target) -> Any:
    """Return the axis of the most bytes that are compressed, with one size per tier."""
    return (4 * MIB,) if target.is_host else gb.points(smoke=(16 * MIB,), quick=(256 * MIB,))


def _is_measured(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return True if a point is measured; there are two exceptions."""
    if target.tier == "quick" and params["corpus"] in _QUICK_FEW:
        return params["codec"] in _QUICK_FEW[params["corpus"]]
    plain = target.is_host or params["codec"] in _codecs_device.CODECS
    return params["chunk_bytes"] == CHUNK_BYTES or (plain and (bool(target.data) or params["corpus"] in FEW))


@topic.case(
    corpus=corpora,
    codec=_codecs,
    size_bytes=_sizes,
    chunk_bytes=gb.points((CHUNK_BYTES,), full=gb.powers_of_two(12, 20, step=2)),
    where=_is_measured,
    headline={"corpus": "ids", "codec": "lz4", "chunk_bytes": CHUNK_BYTES},
)
def roundtrip(bench: gb.Bench, corpus: str, codec: str, size_bytes: int, chunk_bytes: int) -> gb.Task:
    """Compress and restore a buffer in independent chunks: uncompressed bytes per second, and the ratio.

    The corpus is repeated to `size_bytes`; a user's shorter file is taken once. On the host one thread works through
    the chunks; on a GPU one batched call takes them all. Raises Skip if the codec is unavailable."""
    if bench.target.is_host:
        return _by_host(bench, corpus, codec, size_bytes, chunk_bytes)
    return _by_gpu(bench, corpus, codec, size_bytes, chunk_bytes)


@topic.case(
    when=lambda target: gb.on_gpu(target) and gb.beyond_quick(target),
    corpus=lambda target: _corpora.names(target, ("text",)),
    codec=gb.points((), smoke=("lz4",), full=_codecs_device.CODECS),
    chunk_bytes=gb.points((CHUNK_BYTES,), full=(2**14, CHUNK_BYTES, 2**18)),
    size_bytes=gb.points(
        smoke=(2**18, 2**22), quick=gb.powers_of_two(16, 28, step=6), full=gb.powers_of_two(16, 30, step=2)
    ),
    where=lambda _, params: int(params["size_bytes"]) >= int(params["chunk_bytes"]),
)
def filling(bench: gb.Bench, corpus: str, codec: str, chunk_bytes: int, size_bytes: int) -> gb.Task:
    """Compress and restore batches from one chunk to many on a GPU: uncompressed bytes per second.

    A batch has `size_bytes`. A chunk occupies only a few warps, so that only many chunks fill a GPU. The half-bandwidth
    size n½ divided by the bytes of a chunk is the number of chunks that reach half of the full rate."""
    return _by_gpu(bench, corpus, codec, size_bytes, chunk_bytes)


def _threads(_: gb.Target) -> Any:
    """Return the axis of threads by tier (a `Points`): all cores, and in the full tier also the powers of two below."""
    cores = _codecs_host.cores()
    return gb.points(quick=(cores,), full=tuple(sorted({*(2**k for k in range(cores.bit_length())), cores})))


@topic.case(
    when=gb.on_host,
    corpus=one_corpus,
    codec=gb.points(quick=("lz4", "zstd-3"), full=tuple(_codecs_host.CODECS)),
    threads=_threads,
    size_bytes=mebibytes(4, 16, 64),
    chunk_bytes=(CHUNK_BYTES,),
)
def threads(bench: gb.Bench, corpus: str, codec: str, threads: int, size_bytes: int, chunk_bytes: int) -> gb.Task:
    """Compress and restore chunks in several threads of one process: uncompressed bytes per second of all together.

    The corpus is repeated to `size_bytes`. The bindings release Python's global lock while they work."""
    return _by_host(bench, corpus, codec, size_bytes, chunk_bytes, threads)


def _by_host(bench: gb.Bench, corpus: str, codec: str, size_bytes: int, chunk_bytes: int, threads: int = 1) -> gb.Task:
    """Return the task of a round trip on the host, in `threads` threads."""
    source, total = _corpora.source_of(bench, corpus, size_bytes)
    trip = _codecs_host.open_trip(source, total, codec, chunk_bytes, threads)
    stages = {"compress": stage(trip.compress, total), "decompress": stage(trip.restore, total)}
    notes = {"corpus": source.description, "codec": trip.codec.description, "threads": str(threads)}
    return gb.Task(stages, check=trip.check, poison=trip.poison, notes=notes)


def _by_gpu(bench: gb.Bench, corpus: str, codec: str, size_bytes: int, chunk_bytes: int) -> gb.Task:
    """Return the task of a round trip on the GPU, of `size_bytes` or of a shorter user's file."""
    source, total = _corpora.source_of(bench, corpus, size_bytes)
    trip = _codecs_nvcomp.open_trip(bench, source, total, codec, chunk_bytes)
    stages = {
        "compress": stage(trip.compress, total),
        "decompress": stage(trip.restore, total, waits=trip.codec.waits),
    }
    notes = {"corpus": source.description, "codec": trip.codec.description}
    return gb.Task(stages, check=trip.check, poison=trip.poison, notes=notes)
