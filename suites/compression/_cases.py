"""Which messages are sent where: links, corpora, codecs and sizes by tier, and what builds each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpubench.api.suite import Bench, Target, Task, points

from . import _codecs_device, _corpora, _mpi, _ranks, _send, _storage

_MIB = 2**20
_CHUNK_BYTES = 2**16
_CORPUS = "ids"
_FLIGHTS = (1, 2, 4, 8)
BETWEEN = ("process", "peer")


class _Sent(NamedTuple):
    """What a link wants of a message: its MiB, those of a block, blocks in flight; and the codecs of the quick tier."""

    size: int
    block: int
    flight: int
    codecs: tuple[str, ...]


_QUICK = ("lz4", "cascaded")
# messages and blocks so long that handing over takes little of the time; more lanes where they copy and compute
_SENT = {
    "d2h": _Sent(512, 32, 8, _QUICK),
    "h2d": _Sent(1024, 64, 8, _QUICK),
    "peer": _Sent(1024, 64, 4, ("cascaded", "ans")),  # the second is faster than NVLink
    "process": _Sent(1024, 256, 4, ("cascaded",)),  # a GPU takes a moment to change between processes
    "socket": _Sent(512, 32, 4, ("cascaded",)),
}
_HOST_QUICK = ("lz4", "zstd-1")
_SENT_BY_HOST = {
    "copy": _Sent(16, 1, 2, _HOST_QUICK),
    "socket": _Sent(8, 1, 2, ("lz4",)),
    "mpi": _Sent(16, 1, 2, ("lz4",)),
    "process": _Sent(16, 1, 2, ("lz4",)),
}
_PEER_FULL = 4096  # MiB: codecs that are faster than NVLink take a message in a few milliseconds

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
    """Those that links want: one as fast as the host's, one that shrinks more or is faster yet, one for NVLink."""
    quick = tuple(dict.fromkeys(codec for sent in _sent(target).values() for codec in sent.codecs))
    full = ("lz4", "zstd-1", "zstd-3", "zlib-1") if target.is_host else _codecs_device.CODECS
    return points(smoke=("lz4",), quick=quick, full=full)


def stored_codecs(target: Target) -> Any:
    """For files: in the quick tier one that processors and GPUs both have."""
    return points(smoke=("lz4",), quick=("lz4",), full=codecs(target).full)


def _sent(target: Target) -> dict[str, _Sent]:
    """What each link wants, in this tier."""
    if target.is_host:
        return _SENT_BY_HOST
    return _SENT | ({"peer": _SENT["peer"]._replace(size=_PEER_FULL)} if target.tier == "full" else {})


def sizes(target: Target) -> Any:
    """The most of a message: what each link wants."""
    smoke = 1 if target.is_host else 16
    return points(smoke=(smoke * _MIB,), quick=tuple(sorted({sent.size * _MIB for sent in _sent(target).values()})))


def saved_sizes(target: Target) -> Any:
    """The most of a file that is written: on a GPU so much that the wait for its first block is little of the time."""
    return _stored_sizes(*(1, 16, 128) if target.is_host else (16, 256, 1024))


def loaded_sizes(target: Target) -> Any:
    """The most of a file that is read."""
    return _stored_sizes(*(1, 16, 128) if target.is_host else (16, 128, 1024))


def _stored_sizes(smoke: int, quick: int, full: int) -> Any:
    return points(smoke=(smoke * _MIB,), quick=(quick * _MIB,), full=(full * _MIB,))


def blocks(target: Target) -> Any:
    """What travels at a time: on a GPU a batch of hundreds of chunks, on the host what a cache holds."""
    usual = tuple(sorted({sent.block * _MIB for sent in _sent(target).values()}))
    if target.is_host:
        return points(smoke=(2**18,), quick=usual, full=(2**18, *usual, 2**22))
    return points(smoke=(2**22,), quick=usual, full=(2**22, *usual))


def saved_blocks(target: Target) -> Any:
    """The same for files that are written."""
    return points(smoke=blocks(target).smoke, quick=(2**20 if target.is_host else 2**24,))


def loaded_blocks(target: Target) -> Any:
    """The same for files that are read."""
    return points(smoke=blocks(target).smoke, quick=(2**20 if target.is_host else 2**23,))


def flights(target: Target) -> Any:
    """Blocks under way at once, at each end."""
    usual = tuple(sorted({sent.flight for sent in _sent(target).values()}))
    return points(smoke=(2,), quick=usual, full=_FLIGHTS)


def stored_flights(target: Target) -> Any:
    """The same for files: many, since a file system takes them side by side."""
    return points(smoke=(2,), quick=(_stored_flight(target),), full=_FLIGHTS)


def _stored_flight(target: Target) -> int:
    return 2 if target.is_host else 8


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
    if size < block * flight:
        return False
    if target.tier == "smoke":
        return True
    if "link" not in params:
        is_usual = flight == _stored_flight(target)
    elif not _fits_link(target, params):
        return False
    else:
        sent = _sent(target)[str(params["link"])]
        is_usual = (block, flight) == (sent.block * _MIB, sent.flight)
    if target.tier == "full" and not is_usual:
        return params["corpus"] == _CORPUS and params["codec"] in (_HOST_QUICK if target.is_host else _QUICK)
    return is_usual


def _fits_link(target: Target, params: Params) -> bool:
    """Each link has its message, and in the quick tier its codecs."""
    sent = _sent(target)[str(params["link"])]
    return params["size_bytes"] == sent.size * _MIB and (target.tier == "full" or params["codec"] in sent.codecs)


def send(bench: Bench, link: str, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> Task:
    """The task of a message."""
    data = _send.data_of(bench, corpus, size_bytes, block_bytes, _CHUNK_BYTES)
    chosen = _send.Codec(bench, codec, data)
    if link == "mpi":
        return _mpi.send(bench, data, chosen, flight)
    build = _ranks.send if link in BETWEEN else _send.send
    return build(bench, link, data, chosen, flight)


def save(bench: Bench, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> Task:
    """The task of a checkpoint."""
    data = _send.data_of(bench, corpus, size_bytes, block_bytes, _CHUNK_BYTES)
    return _storage.save(bench, data, _send.Codec(bench, codec, data), flight)


def load(bench: Bench, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> Task:
    """The task of loading one."""
    data = _send.data_of(bench, corpus, size_bytes, block_bytes, _CHUNK_BYTES)
    return _storage.load(bench, data, _send.Codec(bench, codec, data), flight)
