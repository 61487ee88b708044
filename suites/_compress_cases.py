"""Which messages are sent where: links, corpora, codecs and sizes by tier, and what builds each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpubench.api import Bench, Target, Task, points

from . import _codecs_device, _compress_mpi, _compress_ranks, _compress_send, _compress_storage, _corpora

_MIB = 2**20
_CHUNK_BYTES = 2**16
_CORPUS = "ids"
_FLIGHTS = (1, 2, 4, 8)
BETWEEN = ("process", "peer")
_FEW = (*BETWEEN, "socket")  # over which the quick tier sends one codec's blocks
# of each link of a GPU the MiB of a message and of a block, so much that handing blocks over takes little of the time,
# and the blocks in flight: in lanes that copy as well as compute, more
_SENT = {
    "d2h": (512, 32, 8),
    "h2d": (1024, 64, 8),
    "peer": (1024, 64, 4),
    "process": (1024, 256, 4),  # a GPU works for one process at a time, and takes a moment to change
    "socket": (512, 32, 4),
}
_SENT_BY_HOST = {"copy": (16, 1, 2), "socket": (8, 1, 2), "mpi": (16, 1, 2), "process": (16, 1, 2)}
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
    """One that is as fast as a link and one that shrinks more or is faster yet."""
    if target.is_host:
        return points(smoke=("lz4",), quick=("lz4", "zstd-1"), full=("lz4", "zstd-1", "zstd-3", "zlib-1"))
    return points(smoke=("lz4",), quick=("lz4", "cascaded"), full=_codecs_device.CODECS)


def stored_codecs(target: Target) -> Any:
    """For files: in the quick tier one that processors and GPUs both have."""
    return points(smoke=("lz4",), quick=("lz4",), full=codecs(target).full)


def _sent(target: Target) -> dict[str, tuple[int, int, int]]:
    """Of each link the bytes of a message and of a block, and how many are in flight."""
    links = _SENT_BY_HOST if target.is_host else _SENT
    found = {link: (size * _MIB, block * _MIB, flight) for link, (size, block, flight) in links.items()}
    if target.tier == "full" and "peer" in found:
        found["peer"] = (_PEER_FULL * _MIB, *found["peer"][1:])
    return found


def sizes(target: Target) -> Any:
    """The most of a message: what each link wants."""
    smoke = 1 if target.is_host else 16
    return points(smoke=(smoke * _MIB,), quick=tuple(sorted({size for size, *_ in _sent(target).values()})))


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
    usual = tuple(sorted({block for _, block, _ in _sent(target).values()}))
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
    usual = tuple(sorted({flight for *_, flight in _sent(target).values()}))
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
    link = str(params.get("link", ""))
    if target.tier == "smoke":
        return True
    if link and not _fits_link(target, params):
        return False
    is_usual = (block, flight) == _sent(target)[link][1:] if link else flight == _stored_flight(target)
    if target.tier == "full" and not is_usual:
        return params["corpus"] == _CORPUS and params["codec"] in codecs(target).quick
    return is_usual


def _fits_link(target: Target, params: Params) -> bool:
    """Each link has its message; over a socket and between processes `quick` has one codec."""
    link = str(params["link"])
    few = codecs(target).quick
    is_one = params["codec"] == few[0 if target.is_host else -1]
    is_sized = params["size_bytes"] == _sent(target)[link][0]
    return is_sized and (target.tier == "full" or link not in _FEW or is_one)


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
