"""Which messages are sent where: links, corpora, codecs and sizes by tier, and what builds each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpubench.api import Bench, Target, Task, points

from . import _codecs_device, _codecs_host, _compress_ranks, _compress_send, _compress_storage, _corpora, _corpora_made

_MIB = 2**20
_CHUNK_BYTES = 2**16
BETWEEN = ("process", "peer")

Params = Mapping[str, str | int | float]


def links(target: Target) -> tuple[str, ...]:
    """The links of this machine that a message goes over."""
    within = ("copy", "socket") if target.is_host else ("d2h", "h2d", "socket", "peer")
    return (*within, "process")


def corpora(target: Target) -> Any:
    """The user's data, or some that shrink well and some that hardly do."""
    return points(
        smoke=_corpora.names(target, ("ids",)),
        quick=_corpora.names(target, ("ids",)),
        full=_corpora.names(target, tuple(_corpora_made.RECIPES)),
    )


def codecs(target: Target) -> Any:
    """Fast ones in `quick`."""
    if target.is_host:
        return points(smoke=("lz4",), quick=("lz4", "zstd-1"), full=tuple(_codecs_host.CODECS))
    return points(smoke=("lz4",), quick=("lz4", "cascaded", "ans"), full=_codecs_device.CODECS)


def sizes(target: Target) -> Any:
    """The most of a message."""
    smoke, other = (1, 16) if target.is_host else (16, 256)
    return points(smoke=(smoke * _MIB,), quick=(other * _MIB,))


def blocks(target: Target) -> Any:
    """What travels at a time: on a GPU a batch of hundreds of chunks, on the host what a cache holds."""
    if target.is_host:
        return points(smoke=(2**18,), quick=(2**20,), full=(2**18, 2**20, 2**22))
    return points(smoke=(2**22,), quick=(2**24,), full=(2**22, 2**24, 2**26))


def flights(target: Target) -> Any:
    """Blocks under way at once, at each end."""
    return points(smoke=(2,), quick=(2 if target.is_host else 4,), full=(1, 2, 4, 8))


def ranks(params: Params) -> int:
    """Two processes where the link is between them."""
    return 2 if params["link"] in BETWEEN else 1


def devices(params: Params) -> int:
    """Two devices over the link between peers."""
    return 2 if params["link"] == "peer" else 1


def is_worth_it(target: Target, params: Params) -> bool:
    """Blocks that are fewer than lanes leave lanes idle."""
    del target
    return int(params["size_bytes"]) >= int(params["block_bytes"]) * int(params["flight"])


def send(bench: Bench, link: str, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> Task:
    """The task of a message."""
    data = _compress_send.data_of(bench, corpus, size_bytes, block_bytes, _CHUNK_BYTES)
    build = _compress_ranks.send if link in BETWEEN else _compress_send.send
    return build(bench, link, data, _compress_send.Codec(bench, codec, data), flight)


def save(bench: Bench, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> Task:
    """The task of a checkpoint."""
    data = _compress_send.data_of(bench, corpus, size_bytes, block_bytes, _CHUNK_BYTES)
    return _compress_storage.save(bench, data, _compress_send.Codec(bench, codec, data), flight)


def load(bench: Bench, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> Task:
    """The task of loading one."""
    data = _compress_send.data_of(bench, corpus, size_bytes, block_bytes, _CHUNK_BYTES)
    return _compress_storage.load(bench, data, _compress_send.Codec(bench, codec, data), flight)
