"""Lossless codecs: how much smaller, and how fast each way. Round trips are compared bit for bit.

Both directions are quoted in *uncompressed* bytes per second, data on the device before and after.
Chunks are independent; the ratio counts their headers and 8 bytes of length each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpubench.api.suite import Bench, Suite, Target, Task, View, on_gpu, on_host, points, powers_of_two

from . import (
    _cases,
    _codecs_device,
    _codecs_formats,
    _codecs_host,
    _codecs_nvcomp,
    _codecs_python,
    _codecs_trial,
    _codecs_whole,
    _corpora,
    _corpora_made,
)

_MIB = 2**20
_CHUNK = 2**16  # what nvCOMP's own pages recommend, and the unit of many file formats
_CASES = ("roundtrip",)
_SENT = ("send", "save", "load")
_FEW = ("ids", "text", "field")  # the corpora of the quick tier: integers, text, floating point
_FULL = tuple(_corpora_made.RECIPES)


def _pareto(title: str, series: str) -> View:
    return View("pareto", title, _CASES, "ratio", series, by=("corpus",), log_x=True, log_y=True)


def _filling(title: str, series: str) -> View:
    return View("transfer", title, ("filling",), x="size_bytes", by=("codec",), series=series, log_x=True, log_y=True)


suite = Suite(
    "lossless codecs: ratio, and throughput both ways in uncompressed bytes (nvCOMP on GPUs)",
    views=[
        _pareto("Ratio against compression", "compress.hot"),
        _pareto("Ratio against decompression", "decompress.hot"),
        View("breakeven", "Where compressing pays", _CASES, series="compress.hot", by=("corpus", "codec")),
        View("breakeven", "Over the links of this machine", _SENT, series="overlapped.self", by=("link", "codec")),
        View("bars", "Compression", _CASES, series="compress.hot", by=("corpus",)),
        View("bars", "Decompression", _CASES, series="decompress.hot", by=("corpus",)),
        View("bars", "Ratio", _CASES, series="ratio", by=("corpus",)),
        _filling("Compression by the size of a batch of 64 KiB chunks", "compress.hot"),
        _filling("Decompression by the size of a batch of 64 KiB chunks", "decompress.hot"),
        View("curve", "Compression by threads", ("threads",), x="threads", by=("codec",), series="compress.hot"),
        View("curve", "Decompression by threads", ("threads",), x="threads", by=("codec",), series="decompress.hot"),
        View("bars", "The host reads what the GPU wrote", ("formats",), series="host.decompress.host", by=("corpus",)),
        View("bars", "The GPU reads what the host wrote", ("formats",), series="gpu.decompress.hot", by=("corpus",)),
        View("bars", "Regret of the choice for speed", ("choice",), series="regret.speed"),
        View("bars", "Regret of the choice for ratio", ("choice",), series="regret.ratio"),
        View("bars", "Regret of the choice end to end", ("choice",), series="regret.end-to-end"),
    ],
)


def _corpus(target: Target) -> Any:
    """The user's files (`--data`) and nothing else, or the made corpora."""
    return points(
        smoke=_corpora.names(target, ("ids",)),
        quick=_corpora.names(target, _FEW),
        full=_corpora.names(target, _FULL),
    )


def _one(target: Target) -> Any:
    """One corpus, or in the full tier a few."""
    return points(quick=_corpora.names(target, ("text",)), full=_corpora.names(target, _FEW))


def _codec(target: Target) -> Any:
    if not target.is_host:
        every = _codecs_device.CODECS
        quick = tuple(name for name in every if name != "gzip")  # Deflate with a header
        return points(smoke=every, quick=quick, full=(*every, *_codecs_device.OPTIONS))
    quick = ("lz4", "zstd-1", "zstd-3", "zlib-1", "isal-1")
    return points(smoke=quick, quick=quick, full=tuple(_codecs_host.CODECS))


def _size(target: Target) -> Any:
    """The most that is compressed: a user's shorter file is taken whole."""
    return (4 * _MIB,) if target.is_host else points(smoke=(16 * _MIB,), quick=(256 * _MIB,))


def _sizes(smoke: int, quick: int, full: int) -> Any:
    return points(smoke=(smoke * _MIB,), quick=(quick * _MIB,), full=(full * _MIB,))


def _chunks_matter(target: Target, params: Mapping[str, Any]) -> bool:
    """Chunks of other sizes for the defaults of every codec on a few corpora and on the user's own."""
    plain = target.is_host or params["codec"] in _codecs_device.CODECS
    return params["chunk_bytes"] == _CHUNK or (plain and (bool(target.data) or params["corpus"] in _FEW))


@suite.case(
    corpus=_corpus,
    codec=_codec,
    size_bytes=_size,
    chunk_bytes=points((_CHUNK,), full=powers_of_two(12, 20, step=2)),
    where=_chunks_matter,
    headline={"corpus": "ids", "codec": "lz4", "chunk_bytes": _CHUNK},
)
def roundtrip(bench: Bench, corpus: str, codec: str, size_bytes: int, chunk_bytes: int) -> Task:
    """Compress and restore a buffer in independent chunks.

    On the host one thread works through the chunks; on a GPU one batched call takes them all.
    """
    source, total = _corpora.source_of(bench, corpus, size_bytes)
    if bench.target.is_host:
        return _codecs_host.roundtrip(source, total, codec, chunk_bytes)
    return _codecs_nvcomp.roundtrip(bench, source, total, codec, chunk_bytes)


@suite.case(
    when=on_gpu,
    corpus=lambda target: _corpora.names(target, ("text",)),
    codec=points(smoke=("lz4",), quick=("lz4", "zstd", "ans"), full=_codecs_device.CODECS),
    chunk_bytes=points((_CHUNK,), full=(2**14, _CHUNK, 2**18)),
    size_bytes=points(smoke=(2**18, 2**22), quick=powers_of_two(16, 28, step=3), full=powers_of_two(16, 30, step=2)),
    where=lambda _, params: int(params["size_bytes"]) >= int(params["chunk_bytes"]),
)
def filling(bench: Bench, corpus: str, codec: str, chunk_bytes: int, size_bytes: int) -> Task:
    """Batches from one chunk to many: a chunk is the work of a few warps, and only many of them fill a GPU.

    n½, in bytes, over the bytes of a chunk is how many chunks reach half of the full rate.
    """
    source, total = _corpora.source_of(bench, corpus, size_bytes)
    return _codecs_nvcomp.roundtrip(bench, source, total, codec, chunk_bytes)


@suite.case(
    when=on_gpu,
    corpus=_one,
    codec=points(smoke=("lz4",), quick=("lz4",), full=_codecs_python.CODECS),
    size_bytes=_sizes(16, 256, 256),
    chunk_bytes=(_CHUNK,),
)
def python(bench: Bench, corpus: str, codec: str, size_bytes: int, chunk_bytes: int) -> Task:
    """The same through the Python codec `nvidia.nvcomp`, by the host's clock: what its allocations and waits cost."""
    source, total = _corpora.source_of(bench, corpus, size_bytes)
    return _codecs_python.roundtrip(bench, source, total, codec, chunk_bytes)


def _threads(_: Target) -> Any:
    """Powers of two up to all cores; in the quick tier all of them alone (`roundtrip` has one)."""
    cores = _codecs_host.cores()
    return points(quick=(cores,), full=tuple(sorted({*(2**k for k in range(cores.bit_length())), cores})))


@suite.case(
    when=on_host,
    corpus=_one,
    codec=points(quick=("lz4", "zstd-3"), full=tuple(_codecs_host.CODECS)),
    threads=_threads,
    size_bytes=_sizes(4, 16, 64),
    chunk_bytes=(_CHUNK,),
)
def threads(bench: Bench, corpus: str, codec: str, threads: int, size_bytes: int, chunk_bytes: int) -> Task:
    """Chunks spread over threads of one process; bindings let other threads run while they work."""
    source, total = _corpora.source_of(bench, corpus, size_bytes)
    return _codecs_host.roundtrip(source, total, codec, chunk_bytes, threads)


@suite.case(
    when=on_gpu,
    corpus=_one,
    format=points(smoke=("lz4",), quick=("lz4", "deflate", "zstd"), full=_codecs_formats.FORMATS),
    size_bytes=_sizes(16, 64, 256),
    chunk_bytes=(_CHUNK,),
)
def formats(bench: Bench, corpus: str, format: str, size_bytes: int, chunk_bytes: int) -> Task:  # noqa: A002 - an axis
    """GPU against host on the same bytes in one format: each reads what the other wrote, bit for bit.

    The host has every core, and 4 MiB of the data; what the GPU restores was written by the host.
    """
    source, total = _corpora.source_of(bench, corpus, size_bytes)
    return _codecs_formats.task(bench, source, total, format, chunk_bytes)


@suite.case(
    when=lambda target: bool(target.data) and target.tier == "full",
    corpus=_corpus,
    codec=lambda target: ("zstd-1", "lz4") if target.is_host else ("zstd", "ans"),
    piece_bytes=lambda target: (64 * _MIB,) if target.is_host else (256 * _MIB,),
    chunk_bytes=(_CHUNK,),
)
def whole(bench: Bench, corpus: str, codec: str, piece_bytes: int, chunk_bytes: int) -> Task:
    """All of a file of the user's, piece by piece, whatever its size: the ratio of the whole, every byte compared."""
    return _codecs_whole.task(bench, corpus, codec, piece_bytes, chunk_bytes)


def _choice_size(target: Target) -> Any:
    return (4 * _MIB,) if target.is_host else _sizes(16, 64, 256)


@suite.case(corpus=_corpus, size_bytes=_choice_size, chunk_bytes=(_CHUNK,))
def choice(bench: Bench, corpus: str, size_bytes: int, chunk_bytes: int) -> Task:
    """Choose a codec from a sample, for speed, for ratio and end to end; the regret against trying all on all data.

    The sample is 16 chunks evenly spaced over the data, on a GPU repeated until they fill it.
    """
    source, total = _corpora.source_of(bench, corpus, size_bytes)
    return _codecs_trial.task(bench, source, total, chunk_bytes, min(64 * _MIB, total // 2))


@suite.case(
    ranks=_cases.ranks,
    devices=_cases.devices,
    where=_cases.is_worth_it,
    link=_cases.links,
    corpus=_cases.corpora,
    codec=_cases.codecs,
    size_bytes=_cases.sizes,
    block_bytes=_cases.blocks,
    flight=_cases.flights,
)
def send(bench: Bench, link: str, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> Task:
    """Compress, move, decompress against moving the raw bytes: overlapped, staged, raw, and each end alone."""
    return _cases.send(bench, link, corpus, codec, size_bytes, block_bytes, flight)


_STORED: dict[str, Any] = {
    "where": _cases.is_worth_it,
    "corpus": _cases.corpora,
    "codec": _cases.stored_codecs,
    "size_bytes": _cases.loaded_sizes,
    "block_bytes": _cases.loaded_blocks,
    "flight": _cases.stored_flights,
}


@suite.case(**(_STORED | {"size_bytes": _cases.saved_sizes, "block_bytes": _cases.saved_blocks}))
def save(bench: Bench, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> Task:
    """A checkpoint: arrays into a file until it is durable, compressed against raw."""
    return _cases.save(bench, corpus, codec, size_bytes, block_bytes, flight)


@suite.case(**_STORED)
def load(bench: Bench, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> Task:
    """A file back into arrays, compressed against raw; on a GPU also decoded by the host and copied."""
    return _cases.load(bench, corpus, codec, size_bytes, block_bytes, flight)
