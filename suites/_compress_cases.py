"""Which messages are sent where: links, corpora, codecs and sizes by tier, and what builds each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpubench.api import Bench, Target, Task, points

from . import _codecs_device, _compress_mpi, _compress_ranks, _compress_send, _compress_storage, _corpora

_MIB = 2**20
_CHUNK_BYTES = 2**16
_CORPUS = "ids"
_SLOW = ("socket",)
BETWEEN = ("process", "peer")

Params = Mapping[str, str | int | float]


def links(target: Target) -> tuple[str, ...]:
    """The links of this machine that a message goes over."""
    within = ("copy", "socket", "mpi") if target.is_host else ("d2h", "h2d", "socket", "peer")
    return (*within, "process")


def corpora(target: Target) -> Any:
    """The user's data, or integers; in the full tier of every kind something."""
    few = _corpora.names(target, (_CORPUS,))
    some = (_CORPUS, "logs", "turbulence", "bf16-weights", "fp8-cache", "random")
    return points(few, full=_corpora.names(target, some))


def codecs(target: Target) -> Any:
    """One that is as fast as a link and one that shrinks more or is faster yet."""
    if target.is_host:
        return points(smoke=("lz4",), quick=("lz4", "zstd-1"), full=("lz4", "zstd-1", "zstd-3", "zlib-1"))
    return points(smoke=("lz4",), quick=("lz4", "cascaded"), full=_codecs_device.CODECS)


def stored_codecs(target: Target) -> Any:
    """For files: in the quick tier one that processors and GPUs both have."""
    return points(smoke=("lz4",), quick=("lz4",), full=codecs(target).full)


def sizes(target: Target) -> Any:
    """The most of a message, for slow links and for fast ones."""
    smoke, slow, fast = (1, 8, 16) if target.is_host else (16, 256, 512)
    return points(smoke=(smoke * _MIB,), quick=(slow * _MIB, fast * _MIB))


def stored_sizes(target: Target) -> Any:
    """The most of a file."""
    smoke, other = (1, 16) if target.is_host else (16, 128)
    return points(smoke=(smoke * _MIB,), quick=(other * _MIB,), full=(8 * other * _MIB,))


def blocks(target: Target) -> Any:
    """What travels at a time: on a GPU a batch of hundreds of chunks, on the host what a cache holds."""
    usual = tuple(sorted({_block(target, link) for link in links(target)}))
    if target.is_host:
        return points(smoke=(2**18,), quick=usual, full=(2**18, *usual, 2**22))
    return points(smoke=(2**22,), quick=usual, full=(2**22, *usual, 2**26))


def _block(target: Target, link: str) -> int:
    """The usual block: twice as large where it crosses in less time than it takes to launch what restores it."""
    if target.is_host:
        return 2**20
    return 2**24 if link in _SLOW else 2**25


def stored_blocks(target: Target) -> Any:
    """The same for files: many, since a file system takes them side by side."""
    return points(smoke=blocks(target).smoke, quick=(2**20 if target.is_host else 2**23,))


def flights(target: Target) -> Any:
    """Blocks under way at once, at each end."""
    return points(smoke=(2,), quick=(_flight(target),), full=(1, 2, 4, 8))


def _flight(target: Target) -> int:
    return 2 if target.is_host else 4


def ranks(params: Params) -> int:
    """Two processes where the link is between them."""
    return 2 if params["link"] in BETWEEN else 1


def devices(params: Params) -> int:
    """Two devices over the link between peers."""
    return 2 if params["link"] == "peer" else 1


def is_worth_it(target: Target, params: Params) -> bool:
    """Blocks enough for the lanes and of a size for the link; other blocks and flights with one corpus, two codecs."""
    size, block, flight = (int(params[name]) for name in ("size_bytes", "block_bytes", "flight"))
    if params.get("link") == "mpi" and target.tier != "full":  # optional: most machines have none
        return False
    if size < block * flight or (target.tier != "smoke" and not _fits_link(target, params)):
        return False
    link = str(params.get("link", ""))
    is_usual = flight == _flight(target) and (not link or block == _block(target, link))
    if target.tier == "full" and not is_usual:
        return params["corpus"] == _CORPUS and params["codec"] in codecs(target).quick
    return target.tier == "smoke" or is_usual


def _fits_link(target: Target, params: Params) -> bool:
    """A slow link has the smaller message; over a socket and between processes `quick` has one codec."""
    link = params.get("link")
    if link is None:
        return True
    slow, fast = getattr(sizes(target), target.tier)
    few = codecs(target).quick
    is_one = params["codec"] == few[0 if target.is_host else -1]
    is_sized = params["size_bytes"] == (slow if link in _SLOW else fast)
    return is_sized and (target.tier == "full" or link not in (*BETWEEN, *_SLOW) or is_one)


def send(bench: Bench, link: str, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> Task:
    """The task of a message."""
    data = _compress_send.data_of(bench, corpus, size_bytes, block_bytes, _CHUNK_BYTES)
    chosen = _compress_send.Codec(bench, codec, data)
    if link == "mpi":
        return _compress_mpi.send(bench, data, chosen, flight)
    build = _compress_ranks.send if link in BETWEEN else _compress_send.send
    return build(bench, link, data, chosen, flight)


def save(bench: Bench, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> Task:
    """The task of a checkpoint."""
    data = _compress_send.data_of(bench, corpus, size_bytes, block_bytes, _CHUNK_BYTES)
    return _compress_storage.save(bench, data, _compress_send.Codec(bench, codec, data), flight)


def load(bench: Bench, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> Task:
    """The task of loading one."""
    data = _compress_send.data_of(bench, corpus, size_bytes, block_bytes, _CHUNK_BYTES)
    return _compress_storage.load(bench, data, _compress_send.Codec(bench, codec, data), flight)
