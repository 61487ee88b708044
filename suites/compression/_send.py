"""Send messages over the links of this machine, and save and load them in files: compressed and raw."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpubench.api import suite as gb

from .. import _files
from . import _codecs_device as device
from . import _codecs_host as host
from . import _corpora, _links, _pipeline, _ranks
from ._coders import HostBlocks, MessageCodec, RawBlocks
from ._pipeline import Cut, InFlight, Link, Message, Slots, Timed, Transfer
from ._roundtrip import CHUNK_BYTES, MIB, mebibytes

topic = gb.Topic()

Params = Mapping[str, str | int | float]

_GPU_LINKS = ("d2h", "h2d", "socket", "peer", "process")
_BETWEEN_PROCESSES = ("process", "peer")
_DEPTHS = (1, 2, 4, 8)  # pipeline depths
_SENT_CORPORA = ("ids", "logs", "turbulence", "bf16-weights", "fp8-cache", "random")  # one corpus of every kind
_COMPARED = {True: ("lz4", "zstd-1"), False: ("lz4", "cascaded")}  # True: codecs on the host
_MEMORIES = 6  # memory as a multiple of the message: source, target, comparison, stored blocks, buffers
_SPARE_BYTES = 2**16  # reserve per block, because codecs need not produce the same number of bytes twice
_DISK = 3  # disk space as a multiple of the message: raw, compressed in the worst case, and a reserve
_DESCRIPTIONS = {
    "d2h": "pinned host memory, written by the GPU's copy engines",
    "h2d": "pinned host memory, read by the GPU's copy engines",
    "socket": "TCP over the loopback interface, both ends in one process",
    "copy": "one copy in host memory",
}


class _Sent(NamedTuple):
    """The message for a link: MiB of the message and of a block, blocks in flight, and the codecs of the quick tier."""

    size: int
    block: int
    depth: int
    codecs: tuple[str, ...] = ()


# Messages and blocks are long enough that handing over takes little of the time. More blocks are in flight if the GPU
# both copies and computes.
_ON_GPU = {
    "d2h": _Sent(512, 32, 8, ("cascaded",)),
    "h2d": _Sent(1024, 64, 8, ("cascaded",)),
    "peer": _Sent(1024, 64, 4, ("ans",)),  # a codec that is faster than NVLink
    "process": _Sent(1024, 256, 4),  # too slow for the quick tier, because a GPU takes a moment to switch processes
    "socket": _Sent(512, 32, 4),
}
_ON_HOST = {
    "copy": _Sent(16, 1, 2, ("lz4", "zstd-1")),
    "socket": _Sent(8, 1, 2),
    "mpi": _Sent(16, 1, 2),
    "process": _Sent(16, 1, 2, ("lz4",)),
}
_PEER_FULL_MIB = 4096  # codecs that are faster than NVLink take a shorter message within a few milliseconds


def _sent(target: gb.Target) -> dict[str, _Sent]:
    """Return the message for each link in the tier of `target`, keyed by link."""
    if target.is_host:
        return _ON_HOST
    return _ON_GPU | ({"peer": _ON_GPU["peer"]._replace(size=_PEER_FULL_MIB)} if target.tier == "full" else {})


def _values(target: gb.Target, name: str, unit: int = 1) -> tuple[int, ...]:
    """Return the values of a field of the messages of this device, in ascending order."""
    return tuple(sorted({getattr(sent, name) * unit for sent in _sent(target).values()}))


def _corpora_axis(target: gb.Target) -> Any:
    return gb.points(_corpora.names(target, _SENT_CORPORA[:1]), full=_corpora.names(target, _SENT_CORPORA))


def _all_codecs(target: gb.Target) -> tuple[str, ...]:
    return ("lz4", "zstd-1", "zstd-3", "zlib-1") if target.is_host else device.CODECS


def _codecs(target: gb.Target) -> Any:
    quick = tuple(dict.fromkeys(codec for sent in _sent(target).values() for codec in sent.codecs))
    return gb.points(smoke=("lz4",), quick=quick, full=_all_codecs(target))


def _blocks(target: gb.Target) -> Any:
    """Return the axis of block sizes in bytes that the links of this device use, by tier."""
    usual, others = _values(target, "block", MIB), ((2**18,), (2**22,)) if target.is_host else ((2**22,), ())
    return gb.points(smoke=others[0], quick=usual, full=(*others[0], *usual, *others[1]))


def _is_wanted(target: gb.Target, params: Params, is_usual: bool) -> bool:
    """Return True if each slot has a block, and the tier measures the point; full has few of unusual block or depth."""
    if int(params["size_bytes"]) < int(params["block_bytes"]) * int(params["flight"]):
        return False
    is_compared = params["corpus"] == _SENT_CORPORA[0] and params["codec"] in _COMPARED[target.is_host]
    return target.tier == "smoke" or is_usual or (target.tier == "full" and is_compared)


def _suits_link(target: gb.Target, params: Params) -> bool:
    sent = _sent(target)[str(params["link"])]
    if params["link"] == "mpi" and target.tier != "full":
        return False
    if target.tier != "smoke" and params["size_bytes"] != sent.size * MIB:
        return False
    if target.tier == "quick" and params["codec"] not in sent.codecs:
        return False
    return _is_wanted(target, params, (params["block_bytes"], params["flight"]) == (sent.block * MIB, sent.depth))


@topic.case(
    ranks=lambda params: 2 if params["link"] in _BETWEEN_PROCESSES else 1,
    devices=lambda params: 2 if params["link"] == "peer" else 1,
    where=_suits_link,
    link=lambda target: ("copy", "socket", "mpi", "process") if target.is_host else _GPU_LINKS,
    corpus=_corpora_axis,
    codec=_codecs,
    size_bytes=lambda target: gb.points(
        smoke=(MIB if target.is_host else 16 * MIB,), quick=_values(target, "size", MIB)
    ),
    block_bytes=_blocks,
    flight=lambda target: gb.points(smoke=(2,), quick=_values(target, "depth"), full=_DEPTHS),
)
def send(
    bench: gb.Bench, link: str, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int
) -> gb.Task:
    """Send a message over a link, compressed and raw: uncompressed bytes per second.

    The stage `overlapped` keeps `flight` blocks of `block_bytes` in flight, `staged` one at a time, and `raw` sends the
    uncompressed bytes. `compress` and `decompress` are the two halves alone. A half that works before or after the
    timed transfer is not measured. Raises Skip if the codec or the link is unavailable."""
    message = message_of(bench, corpus, size_bytes, block_bytes)
    chosen = MessageCodec(bench, codec, message)
    if link == "mpi":
        return _ranks.mpi_task(bench, message, chosen, flight)
    if link in _BETWEEN_PROCESSES:
        return _ranks.shared_task(bench, link, message, chosen, flight)
    return Coders(bench, message, chosen, flight).over(link)


def message_of(
    bench: gb.Bench, corpus: str, size_bytes: int, block_bytes: int, chunk_bytes: int = CHUNK_BYTES
) -> Message:
    """Return a message of `size_bytes` of a corpus, in memory of the bench's device, cut into blocks and chunks.

    A user's shorter file has fewer bytes."""
    source, total = _corpora.source_of(bench, corpus, size_bytes)
    bench.need(_MEMORIES * total + device.RESERVE_BYTES)
    is_gpu, cut = bench.traits.is_gpu, Cut(total, block_bytes, chunk_bytes)
    data = device.uploaded(bench, source, total) if is_gpu else source.repeated(total)
    comparison = device.DeviceBytes(bench) if is_gpu else None
    return Message(data, bench.xp.empty(total, bench.xp.uint8), cut, comparison, source.dtype, source.description)


class Coders:
    """The encoder and the decoder of a message in this process, and a copy of every packed block (`blocks`)."""

    def __init__(self, bench: gb.Bench, message: Message, codec: MessageCodec, depth: int) -> None:
        self._bench, self.message, self.codec, self.depth = bench, message, codec, depth
        self._slots = Slots(depth, bench), Slots(depth, bench)
        self.encoder = codec.encoder(self._slots[0], message.source)
        self.decoder = codec.decoder(self._slots[1], message.target)
        self.blocks = _pipeline.packed_blocks(self.encoder)

    def transfers(self, links: Callable[[bool], Link], timed: Timed, is_staged: bool = False) -> list[Transfer]:
        """Return the transfers of compressed and of raw blocks; `links` returns a new link for compressed or for raw.

        If `is_staged`, the blocks of a GPU pass through page-locked buffers."""
        message, bench = self.message, self._bench
        nbytes = max(self.codec.max_packed_bytes, message.cut.block)
        staging = _pipeline.Staging(bench, self.depth, nbytes) if is_staged and bench.traits.is_gpu else None
        arrays = zip(self._slots, (message.source, message.target), strict=True)
        raw = tuple(RawBlocks(message.cut, slots, array) for slots, array in arrays)
        return [
            Transfer(message, links(is_coded), encoder, decoder, timed, blocks=self.blocks, staging=staging)
            for is_coded, (encoder, decoder) in ((True, (self.encoder, self.decoder)), (False, raw))
        ]

    def places(self, is_coded: bool) -> list[int]:
        spans = map(self.message.cut.span, range(self.message.cut.count))
        coded = [block.size + block.size // 4 + _SPARE_BYTES for block in self.blocks]
        return coded if is_coded else [span.stop - span.start for span in spans]

    def over(self, link: str) -> gb.Task:
        """Return the task of a message over a link within this process: `copy`, `d2h`, `h2d` or `socket`.

        Over `d2h` only the sender is timed, and over `h2d` only the receiver."""
        bench, timed = self._bench, {"d2h": "sender", "h2d": "receiver"}.get(link, "both")
        kinds: dict[str, Callable[[bool], Link]] = {
            "copy": lambda _: _links.HostCopy(bench),
            "socket": lambda _: _links.Loopback(),
        }
        links = kinds.get(link, lambda is_coded: _links.PinnedMemory(bench, self.places(is_coded)))
        transfers = self.transfers(links, timed, link == "socket")  # type: ignore[arg-type]
        payers = _ranks.host_payers(self.depth) if link == "socket" and not bench.traits.is_gpu else ""
        return self.task(transfers, timed, _DESCRIPTIONS[link], payers)  # type: ignore[arg-type]

    def task(self, transfers: list[Transfer], timed: Timed, link: str, payers: str = "") -> gb.Task:
        """Return the task of a message within this process; `link` is the description of the link for the notes.

        `payers` is the note `ends`, which says which sides are charged; if empty, it follows from `timed`."""

        def close() -> None:
            for transfer in transfers:
                transfer.close()

        ends = payers or {"sender": "write", "receiver": "read", "both": "shared"}[timed]
        total, sent_bytes = self.message.cut.total, sum(int(block.size) for block in self.blocks)
        stages = _pipeline.stages_of(_pipeline.calls_of(*transfers), total, timed)
        notes = {"codec": self.codec.description, "link": link, "corpus": self.message.description, "ends": ends}
        return gb.Task(stages, partial(_pipeline.ratio_of, total, sent_bytes), close=close, notes=notes)


# Files.


def _usual_depth(target: gb.Target) -> int:
    return 2 if target.is_host else 8


def _file_case(size_mib: int, block_bytes: int) -> Callable[[Any], Any]:
    """Return the decorator of a case with files; the arguments are the size and the block of a GPU's quick tier."""
    return topic.case(
        when=gb.beyond_quick,
        where=lambda target, params: _is_wanted(target, params, params["flight"] == _usual_depth(target)),
        corpus=_corpora_axis,
        codec=lambda target: gb.points((), smoke=("lz4",), full=_all_codecs(target)),
        size_bytes=lambda target: mebibytes(1, 16, 128) if target.is_host else mebibytes(16, size_mib, 1024),
        block_bytes=lambda target: gb.points(
            smoke=(2**18 if target.is_host else 2**22,), quick=(2**20 if target.is_host else block_bytes,)
        ),
        flight=lambda target: gb.points(smoke=(2,), quick=(_usual_depth(target),), full=_DEPTHS),
    )


@_file_case(256, 2**24)
def save(bench: gb.Bench, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> gb.Task:
    """Save arrays in a file until fsync(2) has returned, compressed and raw: uncompressed bytes per second.

    The corpus is repeated to `size_bytes`, in blocks of `block_bytes`, of which `flight` are in flight. The file has no
    name and is gone with the process. Raises Skip if the codec is unavailable, or if no file can be written."""
    message = message_of(bench, corpus, size_bytes, block_bytes)
    return saving(Coders(bench, message, MessageCodec(bench, codec, message), flight))


def saving(coders: Coders) -> gb.Task:
    """Return the task of writing a message to a file; raises Skip if no file can be written or space is short."""
    where = _files.folder_for_files()
    descriptors = [_links.open_file(_DISK * coders.message.cut.total, where) for _ in range(2)]
    transfers = coders.transfers(lambda _: _links.FileLink(descriptors.pop(), where), "sender", is_staged=True)
    return coders.task(transfers, "sender", f"a file on {_files.file_system(where) or _UNKNOWN}, fsync included")


_UNKNOWN = "an unknown file system"


@_file_case(128, 2**23)
def load(bench: gb.Bench, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> gb.Task:
    """Load arrays from a file past the page cache, compressed and raw: uncompressed bytes per second.

    Blocks of `block_bytes` are taken, of which `flight` are in flight. On a GPU the stage `host_codec` decodes the same
    data on the host and copies them to the device. Raises Skip if the codec or the file is unavailable."""
    message = message_of(bench, corpus, size_bytes, block_bytes)
    return loading(bench, Coders(bench, message, MessageCodec(bench, codec, message), flight))


def loading(bench: gb.Bench, coders: Coders) -> gb.Task:
    """Return the task of reading a message back from a file; raises Skip if no file can be written or space is short.

    On a GPU it has the stage `host_codec` if the host has a codec of the same format."""
    where, total = _files.folder_for_files(), coders.message.cut.total
    files = [_links.ReadBack(_links.open_file(_DISK * total, where), where) for _ in range(2)]
    transfers = coders.transfers(lambda is_coded: files[not is_coded], "receiver", is_staged=True)
    link = f"a file on {_files.file_system(where) or _UNKNOWN}, read without the page cache"
    task = replace(coders.task(transfers, "receiver", link), labels=("page-cached",) if files[0].is_cached else ())
    if not bench.traits.is_gpu or coders.codec.name not in host.FORMATS:
        return task
    codec = host.FORMATS[coders.codec.name]()
    by_host = _load_by_host(bench, coders.message, codec)
    transfers.append(by_host)  # closed with the others
    stages = _pipeline.stages_of({"host_codec": lambda: by_host.send(by_host.depth)}, total)
    notes = {**task.notes, "host codec": f"{codec.description}, {by_host.depth} threads"}
    return replace(task, stages={**task.stages, **stages}, notes=notes)


class UploadingBlocks(HostBlocks):
    """A decoder of the host whose output, in page-locked memory, is copied to the GPU."""

    def __init__(self, bench: gb.Bench, codec: host.HostCodec, message: Message, depth: int, source: Any) -> None:
        """Allocate page-locked memory for the whole message; `source` is its source in host memory (NumPy, uint8)."""
        self._message, self._source = message, source
        self._copy = partial(_pipeline.queue_copy, bench)
        super().__init__(codec, message.cut, Slots(depth, bench), bench.device.pinned(message.cut.total))

    def decode(self, block: InFlight, packed: Any) -> None:
        super().decode(block, packed)
        span = self.cut.span(block.index)
        self._copy(self._message.target[span], self._array[span])

    def reset(self) -> None:
        """Overwrite every byte that was decoded on the host with its wrong value."""
        np.invert(self._source, out=self._array)


def _load_by_host(bench: gb.Bench, message: Message, codec: host.HostCodec) -> Transfer:
    """Return the transfer that reads a message, which is written now, decodes it on the host and uploads it."""
    cut, where, source = message.cut, _files.folder_for_files(), bench.device.to_host(message.source)
    depth = min(host.cores(), cut.count)
    file = _links.ReadBack(_links.open_file(_DISK * cut.total, where), where)
    encoder = HostBlocks(codec, cut, Slots(depth), source)
    return Transfer(message, file, encoder, UploadingBlocks(bench, codec, message, depth, source), "receiver")
