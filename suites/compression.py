"""Lossless codecs: how much smaller, and how fast each way. Round trips are compared bit for bit.

Both directions are quoted in *uncompressed* bytes per second, data on the device before and after.
Chunks are independent; the ratio counts their headers and 8 bytes of length each.
"""

from __future__ import annotations

from typing import Any

from gpubench.api import Bench, Suite, Target, Task, View, points

from . import _codecs_device, _codecs_host, _codecs_nvcomp, _corpora, _corpora_made

_MIB = 2**20
_CASES = ("roundtrip",)


def _pareto(title: str, series: str) -> View:
    return View("pareto", title, _CASES, "ratio", series, by=("corpus",), log_x=True, log_y=True)


suite = Suite(
    "lossless codecs: ratio, and throughput both ways in uncompressed bytes (nvCOMP on GPUs)",
    views=[
        _pareto("Ratio against compression", "compress.hot"),
        _pareto("Ratio against decompression", "decompress.hot"),
        View("breakeven", "Where compressing pays", _CASES, series="compress.hot", by=("corpus", "codec")),
        View("bars", "Compression", _CASES, series="compress.hot", by=("corpus",)),
        View("bars", "Decompression", _CASES, series="decompress.hot", by=("corpus",)),
        View("bars", "Ratio", _CASES, series="ratio", by=("corpus",)),
    ],
)


def _corpus(target: Target) -> Any:
    """The user's files (`--data`) and nothing else, or the made corpora."""
    return points(
        smoke=_corpora.names(target, ("ids",)),
        quick=_corpora.names(target, ("ids", "text", "field")),
        full=_corpora.names(target, tuple(_corpora_made.RECIPES)),
    )


def _codec(target: Target) -> Any:
    if not target.is_host:
        return _codecs_device.CODECS
    quick = tuple(name for name in _codecs_host.CODECS if name != "zlib-6")  # 30 MB/s: seconds a sample
    return points(smoke=quick, quick=quick, full=tuple(_codecs_host.CODECS))


def _size(target: Target) -> Any:
    """The most that is compressed: a user's shorter file is taken whole."""
    smoke, other = (4, 16) if target.is_host else (16, 256)
    return points(smoke=(smoke * _MIB,), quick=(other * _MIB,))


@suite.case(
    corpus=_corpus,
    codec=_codec,
    size_bytes=_size,
    chunk_bytes=points((2**16,), full=(2**16, 2**20)),
    headline={"corpus": "ids", "codec": "lz4", "chunk_bytes": 2**16},
)
def roundtrip(bench: Bench, corpus: str, codec: str, size_bytes: int, chunk_bytes: int) -> Task:
    """Compress and restore a buffer in independent chunks.

    On the host one thread works through the chunks; on a GPU one batched call takes them all.
    """
    source, total = _corpora.source_of(bench, corpus, size_bytes)
    if bench.target.is_host:
        return _codecs_host.roundtrip(source, total, codec, chunk_bytes)
    return _codecs_nvcomp.roundtrip(bench, source, total, codec, chunk_bytes)
