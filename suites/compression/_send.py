"""Send messages over the links of this machine, compressed and raw."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpubench.api import suite as gb

from . import _mpi, _ranks
from ._axes import DEPTHS, MIB, Params, fills_pipeline, is_wanted, message_codecs, message_corpora
from ._links import HostCopy, Link, Loopback, PinnedMemory
from ._message import codec_of, message_of
from ._transfer import Coders, Content, Timed, host_payers, task_of

topic = gb.Topic()

_BETWEEN_PROCESSES = ("process", "peer")


class _Sent(NamedTuple):
    """The message for a link: MiB of the message and of a block, blocks in flight, and the codecs of the quick tier."""

    size: int
    block: int
    depth: int
    codecs: tuple[str, ...]


# Messages and blocks are long enough that handing over takes little of the time. More blocks are in flight if the GPU
# both copies and computes.
_ON_GPU = {
    "d2h": _Sent(512, 32, 8, ("cascaded",)),
    "h2d": _Sent(1024, 64, 8, ("cascaded",)),
    "peer": _Sent(1024, 64, 4, ("ans",)),  # a codec that is faster than NVLink
    "process": _Sent(1024, 256, 4, ()),  # too slow for the quick tier, because a GPU takes a moment to switch processes
    "socket": _Sent(512, 32, 4, ()),
}
_ON_HOST = {
    "copy": _Sent(16, 1, 2, ("lz4", "zstd-1")),
    "socket": _Sent(8, 1, 2, ()),
    "mpi": _Sent(16, 1, 2, ("lz4",)),
    "process": _Sent(16, 1, 2, ("lz4",)),
}
_PEER_FULL_MIB = 4096  # codecs that are faster than NVLink take a shorter message within a few milliseconds


def _sent(target: gb.Target) -> dict[str, _Sent]:
    """Return the message for each link in the tier of `target`, keyed by link."""
    if target.is_host:
        return _ON_HOST
    return _ON_GPU | ({"peer": _ON_GPU["peer"]._replace(size=_PEER_FULL_MIB)} if target.tier == "full" else {})


def _links(target: gb.Target) -> tuple[str, ...]:
    within = ("copy", "socket", "mpi") if target.is_host else ("d2h", "h2d", "socket", "peer")
    return (*within, "process")


def _codecs(target: gb.Target) -> Any:
    quick = tuple(dict.fromkeys(codec for sent in _sent(target).values() for codec in sent.codecs))
    return gb.points(smoke=("lz4",), quick=quick, full=message_codecs(target))


def _sizes(target: gb.Target) -> Any:
    smoke = 1 if target.is_host else 16
    return gb.points(smoke=(smoke * MIB,), quick=_rising(sent.size * MIB for sent in _sent(target).values()))


def _blocks(target: gb.Target) -> Any:
    """Return the axis of block sizes in bytes that the links of this device use, by tier (a `Points`)."""
    usual = _rising(sent.block * MIB for sent in _sent(target).values())
    if target.is_host:
        return gb.points(smoke=(2**18,), quick=usual, full=(2**18, *usual, 2**22))
    return gb.points(smoke=(2**22,), quick=usual, full=(2**22, *usual))


def _depths(target: gb.Target) -> Any:
    """Return the axis of blocks in flight in each half of the pipeline, by tier (a `Points`)."""
    return gb.points(smoke=(2,), quick=_rising(sent.depth for sent in _sent(target).values()), full=DEPTHS)


def _rising(values: Any) -> tuple[int, ...]:
    return tuple(sorted(set(values)))


def _ranks_of(params: Params) -> int:
    return 2 if params["link"] in _BETWEEN_PROCESSES else 1


def _devices_of(params: Params) -> int:
    return 2 if params["link"] == "peer" else 1


def _suits_link(target: gb.Target, params: Params) -> bool:
    """Return True if the point `params` is measured on its link."""
    if (params["link"] == "mpi" and target.tier != "full") or not fills_pipeline(params):
        return False
    sent = _sent(target)[str(params["link"])]
    if target.tier != "smoke" and params["size_bytes"] != sent.size * MIB:
        return False
    if target.tier == "quick" and params["codec"] not in sent.codecs:
        return False
    return is_wanted(target, params, (params["block_bytes"], params["flight"]) == (sent.block * MIB, sent.depth))


@topic.case(
    ranks=_ranks_of,
    devices=_devices_of,
    where=_suits_link,
    link=_links,
    corpus=message_corpora,
    codec=_codecs,
    size_bytes=_sizes,
    block_bytes=_blocks,
    flight=_depths,
)
def send(
    bench: gb.Bench, link: str, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int
) -> gb.Task:
    """Send a message over a link, compressed and raw: uncompressed bytes per second.

    The stage `overlapped` keeps `flight` blocks of `block_bytes` in flight, `staged` one at a time, and `raw` sends the
    uncompressed bytes. `compress` and `decompress` are the two halves alone. A half that works before or after the
    timed transfer is not measured. Raises Skip if the codec or the link is unavailable."""
    message = message_of(bench, corpus, size_bytes, block_bytes)
    chosen = codec_of(bench, codec, message)
    if link == "mpi":
        return _mpi.task(bench, message, chosen, flight)
    if link in _BETWEEN_PROCESSES:
        return _ranks.task(bench, link, message, chosen, flight)
    return within_process(bench, link, Coders(bench, message, chosen, flight))


def within_process(bench: gb.Bench, link: str, coders: Coders) -> gb.Task:
    """Return the task of a message over a link whose two ends are in this process: `copy`, `d2h`, `h2d` or `socket`.

    Over `d2h` only the sender is timed, and over `h2d` only the receiver."""
    timed: Timed = {"d2h": "sender", "h2d": "receiver"}.get(link, "both")  # type: ignore[assignment]
    payers = host_payers(coders.depth) if link == "socket" and not bench.traits.is_gpu else ""
    return task_of(coders, coders.over(_links_of(bench, link, coders), timed), _DESCRIPTIONS[link], payers)


def _links_of(bench: gb.Bench, link: str, coders: Coders) -> Mapping[Content, Link]:
    """Return a new link of the kind `link` for compressed and one for raw blocks, keyed by `coded` and `raw`."""
    if link == "copy":
        return {"coded": HostCopy(coders.depth), "raw": HostCopy(coders.depth)}
    if link == "socket":
        return coders.over_host({"coded": Loopback(coders.depth), "raw": Loopback(coders.depth)})
    return {content: PinnedMemory(bench, places) for content, places in coders.places.items()}


_DESCRIPTIONS = {
    "d2h": "pinned host memory, written by the GPU's copy engines",
    "h2d": "pinned host memory, read by the GPU's copy engines",
    "socket": "TCP over the loopback interface, both ends in one process",
    "copy": "one copy in host memory",
}
