"""Send messages over the links of this machine, and save and load them in files: compressed and raw.

The cases come first, then the task of a message by where its receiver is, and then the links in the order of _LINKS."""

import contextlib
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpubench.api import suite as gb

from .. import _between, _files, _mpi
from .._checks import in_turn
from . import _codecs, _corpora, _message
from ._message import Chain, InFlight, Link, Message, Ring, Schedule, Timed, Transfers
from ._roundtrip import MIB
from ._shared import WORDS_BYTES, SharedMemory, StreamWords, hang_up, hear, receive_into, tell

topic = gb.Topic()

_SENT_CORPORA = ("ids", "logs", "turbulence", "bf16-weights", "fp8-cache", "random")  # one corpus of every kind
_COMPARED = {True: ("lz4", "zstd-1"), False: ("lz4", "cascaded")}  # True: codecs on the host
_SPARE_BYTES = 2**16  # reserve per packed block, because codecs need not produce the same number of bytes twice
_DISK = 3  # disk space as a multiple of the message: raw, compressed in the worst case, and a reserve
# limit of a wait for the other rank's part of a message, which it may first have to compress completely
_PATIENCE_S = 20.0
_ENDS = {"sender": "write", "receiver": "read", "both": "shared"}
_LOOK_S = 1e-3
_LIMIT_S = 60.0  # for one message, or for the start of both processes and their first compression
_END_S = 10.0  # time limit for the processes to end by themselves

_PAGE_BYTES = 4096
_TAGS = 2**15 - 1  # the largest message tag; MPI guarantees no more (MPI 4.1, §3.2.3)


class _Sent(NamedTuple):
    """The message for a link: MiB of the message and of a block, blocks in flight, and the codecs of the quick tier.

    `full_size` is the size of the full tier if it differs."""

    size: int
    block: float
    depth: int
    codecs: tuple[str, ...] = ()
    full_size: int = 0


class _Row(NamedTuple):
    """A link: its description, and its messages from a GPU and from the host."""

    description: str
    gpu: _Sent | None = None
    host: _Sent | None = None


# Messages and blocks are long enough that handing over takes little of the time. More blocks are in flight if the GPU
# both copies and computes. For a peer the quick tier has a codec that is faster than NVLink; such codecs take a shorter
# message within a few milliseconds. Two processes on one GPU are too slow for the quick tier, because a GPU takes a
# moment to switch processes.
_LINKS = {
    "copy": _Row("one copy in host memory", host=_Sent(16, 1, 2, ("lz4", "zstd-1"))),
    "d2h": _Row("pinned host memory, written by the GPU's copy engines", _Sent(512, 32, 8, ("cascaded",))),
    "h2d": _Row("pinned host memory, read by the GPU's copy engines", _Sent(1024, 64, 8, ("cascaded",))),
    "socket": _Row("TCP over the loopback interface, both ends in one process", _Sent(512, 32, 4), _Sent(8, 1, 2)),
    "mpi": _Row("MPI_Send and MPI_Recv between two processes on this machine", host=_Sent(16, 1, 2)),
    "peer": _Row(
        "another process on a peer GPU, which copies the data out of this GPU's memory",
        _Sent(1024, 64, 4, ("ans",), 4096),
    ),
    "process": _Row(
        "memory shared with another process on the same device, which copies the data out",
        _Sent(1024, 256, 4),
        _Sent(16, 1, 2, ("lz4",)),
    ),
    "peer-words": _Row("as `peer`, handed over by words that streams write and await", _Sent(4096, 64, 4)),
    "process-words": _Row("as `process`, handed over by words that streams write and await", _Sent(1024, 256, 4)),
    "save": _Row("a file on {}, fsync included", _Sent(1024, 16, 8), _Sent(128, 1, 2)),
    "load": _Row("a file on {}, read without the page cache", _Sent(1024, 8, 8), _Sent(128, 1, 2)),
}


def _sent(target: gb.Target, file: str) -> dict[str, _Sent]:
    """Return the messages in the tier of `target`, by link, or the one of the case `file`."""
    rows = {name: row for name, row in _LINKS.items() if (name == file if file else name not in ("save", "load"))}
    sent = {name: one for name, row in rows.items() if (one := row.host if target.is_host else row.gpu)}
    if target.tier == "smoke":
        return dict.fromkeys(sent, _Sent(1, 1 / 4, 2, ("lz4",)) if target.is_host else _Sent(16, 4, 2, ("lz4",)))
    is_full = target.tier == "full"
    return {name: one._replace(size=one.full_size) if is_full and one.full_size else one for name, one in sent.items()}


def _axes(file: str = "") -> dict[str, Any]:
    """Return the axes of the case `file`, or of `send`, and the function that chooses its points."""

    def values(target: gb.Target, field: str, unit: int = 1) -> tuple[int, ...]:
        return tuple(sorted({int(getattr(sent, field) * unit) for sent in _sent(target, file).values()}))

    def codecs(target: gb.Target) -> tuple[str, ...]:
        if target.tier == "full":
            return ("lz4", "zstd-1", "zstd-3", "zlib-1") if target.is_host else _codecs.ON_GPU
        return tuple(dict.fromkeys(codec for sent in _sent(target, file).values() for codec in sent.codecs))

    def blocks(target: gb.Target) -> tuple[int, ...]:
        others = () if file or target.tier != "full" else (2**18, 2**22) if target.is_host else (2**22,)
        return tuple(sorted({*values(target, "block", MIB), *others}))

    def is_wanted(target: gb.Target, params: Mapping[str, Any]) -> bool:
        """Return whether each slot has a block, and the tier measures the point: full has few that are not usual."""
        sent = _sent(target, file)[str(params.get("link", file))]
        size, block, flight = (int(params[name]) for name in ("size_bytes", "block_bytes", "flight"))
        if params.get("link") == "d2h" and target.tier == "quick" and target.device.peers:
            return False  # `h2d` and `peer` tell as much
        if size != sent.size * MIB or size < block * flight or (params.get("link") == "mpi" and target.tier != "full"):
            return False
        is_usual = (block, flight) == (sent.block * MIB, sent.depth)
        if target.tier != "full":
            return is_usual and params["codec"] in sent.codecs
        if str(params.get("link")).endswith("words"):
            return is_usual and params["corpus"] == _SENT_CORPORA[0]
        is_compared = params["corpus"] == _SENT_CORPORA[0] and params["codec"] in _COMPARED[target.is_host]
        return is_usual or is_compared

    return {
        "where": is_wanted,
        "corpus": _corpora.axis(_SENT_CORPORA[:1], full=_SENT_CORPORA),
        "codec": codecs,
        "size_bytes": lambda target: values(target, "size", MIB),
        "block_bytes": blocks,
        "flight": lambda target: (1, 2, 4, 8) if target.tier == "full" else values(target, "depth"),
    }


@topic.case(
    ranks=lambda params: 2 if str(params["link"]).startswith(("process", "peer")) else 1,
    devices=lambda params: 2 if str(params["link"]).startswith("peer") else 1,
    link=lambda target: tuple(_sent(target, "")),
    **_axes(),
)
def send(
    bench: gb.Bench, link: str, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int
) -> gb.Task:
    """Send a message over a link, compressed and raw: uncompressed bytes per second.

    The stage `overlapped` keeps `flight` blocks of `block_bytes` in flight, `staged` one at a time, and `raw` sends the
    uncompressed bytes. `compress` and `decompress` are the two halves alone. A half that works before or after the
    timed transfer is not measured. Raises Skip if the codec or the link is unavailable."""
    build = {"mpi": over_mpi}.get(link, between_processes if link.startswith(("process", "peer")) else in_this_process)
    return build(bench, link, Message.drawn(bench, corpus, codec, size_bytes, block_bytes), codec, flight)


@topic.case(when=gb.beyond_quick, **_axes("save"))
def save(bench: gb.Bench, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> gb.Task:
    """Save arrays in a file until fsync(2) has returned, compressed and raw: uncompressed bytes per second.

    The corpus is repeated to `size_bytes`, in blocks of `block_bytes`, of which `flight` are in flight. The file has no
    name and is gone with the process. Raises Skip if the codec is unavailable, or if no file can be written."""
    return in_this_process(bench, "save", Message.drawn(bench, corpus, codec, size_bytes, block_bytes), codec, flight)


@topic.case(when=gb.beyond_quick, **_axes("load"))
def load(bench: gb.Bench, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> gb.Task:
    """Load arrays from a file past the page cache, compressed and raw: uncompressed bytes per second.

    Blocks of `block_bytes` are taken, of which `flight` are in flight. On a GPU the stage `host_codec` decodes the same
    data on the host and copies them to the device. Raises Skip if the codec or the file is unavailable."""
    return in_this_process(bench, "load", Message.drawn(bench, corpus, codec, size_bytes, block_bytes), codec, flight)


def host_payers(depth: int) -> str:
    """Return `apart` if each slot of both sides has a core for itself, else `shared`."""
    return "apart" if 2 * depth <= _codecs.cores() else "shared"


def _task(message: Message, send: Callable[[str], float], names: list[str], sent_bytes: float, **more: Any) -> gb.Task:
    """Return the task of a message, which `send` sends as a stage does; the tables of blocks are among `sent_bytes`."""
    total = message.source.size
    stage = partial(gb.Stage, work=gb.Work(payload=total), quantity="payload", clock="self", effort=gb.POINT)
    stages = {name: stage(partial(send, name), checked=name != "compress") for name in names}
    notes = {"codec": message.codec.description, "corpus": message.description, **more.pop("notes")}
    return gb.Task(stages, lambda: {"ratio": gb.Observed(total / sent_bytes, "", "more")}, notes=notes, **more)


def in_this_process(bench: gb.Bench, link: str, message: Message, codec: str, depth: int) -> gb.Task:
    """Return the task of a message over a link within this process, with `depth` blocks in flight.

    Over `d2h` and `save` only the sender is timed, and over `h2d` and `load` only the receiver."""
    is_gpu, total, where = bench.traits.is_gpu, message.source.size, _files.folder_for_files()
    timed: Timed = "sender" if link in ("d2h", "save") else "receiver" if link in ("h2d", "load") else "both"
    transfers, links = Transfers(message, depth), list[Link]()
    for blocks, is_packed in ((transfers.packed, True), (transfers.raw, False)):
        if link == "copy":
            links.append(HostCopy())
        elif link in ("d2h", "h2d"):
            most_bytes = max(block.size for block in blocks)
            room_bytes = most_bytes + is_packed * (most_bytes // 4 + _SPARE_BYTES)
            links.append(PinnedMemory(bench, len(blocks), room_bytes, timed))
        else:
            links.append(Loopback() if link == "socket" else FileLink(_DISK * total, where, timed))
            staged_bytes = max(message.max_packed_bytes, message.block_bytes)
            links[-1].staging = _message.Staging(bench, depth, staged_bytes) if is_gpu else None
    transfers.over(*links)
    system = _files.file_system(where) or "an unknown file system"
    ends = host_payers(depth) if link == "socket" and not is_gpu else _ENDS[timed]
    notes = {"link": _LINKS[link].description.format(system), "ends": ends}
    if link == "load" and is_gpu and codec in _codecs.FORMATS:  # reads, decodes by the host's cores, and uploads
        by_host = replace(message, source=bench.device.to_host(message.source), codec=_codecs.FORMATS[codec]())
        threads = min(_codecs.cores(), len(message.spans))
        decoder = _message.HostBlocks(by_host, _message.Slots(threads, bench), bench.device.pinned(total))
        targets = [message.target[span] for span in message.spans]
        decoder.upload = lambda block, restored: _message.queue_copy(bench, targets[block.index], restored)
        encoder = _message.HostBlocks(by_host, _message.Slots(threads), by_host.source)
        transfers.add("host_codec", FileLink(_DISK * total, where, timed), encoder, decoder, threads)
        notes["host codec"] = f"{by_host.codec.description}, {threads} threads"
    links[0].begin()  # a file is dropped from the page cache now
    labels = ("page-cached",) if links[0].is_cached else ()
    options = {"close": transfers.close, "labels": labels, "notes": notes}
    return _task(message, transfers.send, list(transfers.ways), transfers.sent_bytes, **options)


def between_processes(bench: gb.Bench, link: str, message: Message, _: str, depth: int) -> gb.Task:
    """Return this rank's part of the task of a message to another process, through memory that rank 0 shares.

    Rank 0 encodes, and rank 1 copies out and decodes. A `link` that begins with `peer` has two devices."""
    _between.need_shared_gpu(bench)
    total, step = message.source.size, _codecs.aligned(message.max_packed_bytes)
    words_bytes = WORDS_BYTES if link.endswith("words") else 0
    first = _codecs.aligned(total)
    sizes = first + depth * step + words_bytes, words_bytes
    own = bench.device.share(sizes[bench.rank]) if sizes[bench.rank] else None
    if own and words_bytes:
        own.array[-words_bytes:].fill(0)
        bench.device.synchronize()
    handle = bench.exchange(own.handle if own else b"")[1 - bench.rank]
    other = _between.open_shared(bench, handle, sizes[1 - bench.rank]) if handle else None
    memories = (own, other) if bench.rank == 0 else (other, own)
    memory = memories[0].array  # type: ignore[union-attr]
    rooms = memory[first : first + depth * step].reshape(depth, step)
    (wire,) = bench.sockets()
    wire.settimeout(_PATIENCE_S)
    if bench.rank == 0:
        bench.device.copy(memory[:total], message.source)
        bench.device.synchronize()
        message = replace(message, source=memory[:total], rooms=list(rooms))

    transfers = Transfers(message, depth, bench.rank)
    coded, raw = (SharedMemory(bench, wire, memory, depth, is_reused) for is_reused in (True, False))
    if words_bytes:
        free, ready = (_codecs.address(end.array[-words_bytes:]) for end in memories if end)
        coded = StreamWords(bench, wire, rooms, ready, free)
    transfers.over(coded, raw)

    def send(name: str) -> float:
        """Return the seconds at rank 0 for the encoder alone, else at rank 1."""
        return float(bench.exchange(transfers.send(name))[name != "compress"])

    def close() -> None:
        transfers.close()
        hang_up(wire)
        wire.close()
        if other:
            # a failed thread may still use the memory; it is unmapped when the process ends
            with contextlib.suppress(BufferError):
                other.close()

    path = "peer" if link.startswith("peer") else "same"
    ends = "apart" if path == "peer" else "shared" if bench.traits.is_gpu else host_payers(depth)
    notes = {**_between.notes(bench, path), "link": _LINKS[link].description, "ends": ends}
    task = _task(message, send, list(transfers.ways), transfers.sent_bytes, notes=notes, close=close)
    task = replace(task, labels=_between.labels(bench, path), release=own.close if own else lambda: None)
    return task if bench.rank else replace(task, check=dict)  # rank 1 has compared each message when it was timed


def over_mpi(bench: gb.Bench, link: str, message: Message, codec: str, depth: int) -> gb.Task:
    """Return the task of a message between two processes of MPI, which mpirun starts once and which read its source.

    Raises Skip without mpi4py or mpirun."""
    helper = _mpi.pair(bench, MessageRank)
    ask = partial(helper.ask, _LIMIT_S, "answer")
    with tempfile.NamedTemporaryFile() as file:
        message.source.tofile(file)
        sent_bytes = ask("open", file.name, codec, message.block_bytes, message.chunk_bytes, depth)

    close = in_turn(partial(helper.tell, "answer", "end"), partial(helper.end, _END_S))
    notes = {"link": _LINKS[link].description, "ends": host_payers(depth)}
    names = ["overlapped", "staged", "raw", "compress", "decompress"]
    return _task(message, ask, names, sent_bytes, notes=notes, close=close)


class HostCopy(Link):
    """A link that is one copy in host memory, from the encoder's to the decoder's, by the thread that encoded."""

    def chains(self, encoder: Any, decoder: Any) -> list[Chain]:
        """Return one chain, in which both sides of the link take part."""

        def copying(block: InFlight, _: Ring) -> Iterator[None]:
            packed, room = encoder.encode(block), decoder.room(block)
            room[: packed.size] = packed
            decoder.decode(block, room[: packed.size])
            yield

        return [Chain(encoder, copying, 1, "a thread per slot")]


class PinnedMemory(Link):
    """Page-locked host memory with a place of `nbytes` for each block, which a GPU's copy engines write and read."""

    def __init__(self, bench: gb.Bench, count: int, nbytes: int, timed: Timed) -> None:
        self.timed, step = timed, -(-nbytes // _PAGE_BYTES) * _PAGE_BYTES
        self._places = bench.device.pinned(max(count * step, 1)).reshape(count, step)
        self._copy, self._sent = partial(_message.queue_copy, bench), dict[int, Any]()

    def send(self, block: InFlight, packed: Any) -> None:
        """Queue the copy of the block to its place; raises WrongAnswer if the block is longer than its place."""
        self._sent[block.index] = self._copy(self._places[block.index], packed)

    def receive(self, block: InFlight, room: Any) -> Any:
        return self._copy(room, self._sent[block.index])


class Loopback(Link):
    """A TCP connection of this machine with itself (127.0.0.1): blocks go in order, each preceded by its length."""

    schedule: Schedule = "a thread per part"

    def __init__(self) -> None:
        """Open both ends of the connection on a free port."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._sending = socket.create_connection(listener.getsockname())
            self._receiving, _ = listener.accept()
        self._sending.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, block: InFlight, packed: Any) -> None:
        tell(self._sending, block.index, 0, packed.size)
        self._sending.sendall(packed)

    def receive(self, _: InFlight, room: Any) -> Any:
        *_, size = hear(self._receiving)
        gb.expect(size <= room.size, f"a block declares {size} bytes; the maximum is {room.size}")
        return receive_into(self._receiving, room[:size])

    def stop(self) -> None:
        """End the connection, which releases the threads that wait for bytes."""
        hang_up(self._sending)

    def close(self) -> None:
        self._sending.close()
        self._receiving.close()


class FileLink(Link):
    """A link that writes blocks into one file in any order; the message is complete when fsync has returned.

    If the receiver is timed, the file is written once, and each message is read from the disk, not the page cache."""

    schedule: Schedule = "a thread per slot"

    def __init__(self, nbytes: int, where: Path, timed: Timed) -> None:
        """Create a file without a name; raises Skip if `where` has less than `nbytes` free, or cannot be written."""
        self._where, self.timed, self._lock = where, timed, threading.Lock()
        self._end, self._places = 0, dict[int, tuple[int, int]]()  # offset and size in bytes by the block's index
        self._or_skip(lambda: _files.need_space(nbytes, where))
        self.descriptor = _files.make_file(np.empty(0, np.uint8), where)

    def begin(self) -> None:
        """Empty the file, or drop it from the page cache when it is on the disk, as posix_fadvise(2) describes."""
        if self.timed == "receiver":
            self._or_skip(lambda: os.fsync(self.descriptor))
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            self.is_cached = self._end > 0 and _files.resident_pages(self.descriptor, 1)[0] > 0
        else:
            os.ftruncate(self.descriptor, 0)
            self._end = 0

    def send(self, block: InFlight, packed: Any) -> None:
        """Write the block behind all blocks that were written before, and let Linux begin to write it to the disk."""
        with self._lock:
            place, self._end = self._end, self._end + packed.size
        self._places[block.index] = (place, packed.size)
        self._or_skip(lambda: _files.write_all(self.descriptor, packed, place))
        # starts writing to the disk now; otherwise Linux would start in fsync
        self._or_skip(lambda: os.posix_fadvise(self.descriptor, place, packed.size, os.POSIX_FADV_DONTNEED))

    def receive(self, block: InFlight, room: Any) -> Any:
        place, size = self._places[block.index]
        self._or_skip(lambda: _files.read_all(self.descriptor, room[:size], place))
        return room[:size]

    def _or_skip(self, call: Callable[[], object]) -> None:
        """Call `call`, a file operation; raises Skip, with a remedy, if it raises OSError."""
        try:
            call()
        except OSError as error:
            raise _files.unwritable(self._where, error) from error

    def finish(self) -> None:
        if self.timed == "sender":  # reading leaves nothing to write back
            self._or_skip(lambda: os.fsync(self.descriptor))

    def close(self) -> None:
        os.close(self.descriptor)


class MessageRank(_mpi.MpiRank):
    """One of the two processes of a message."""

    def _open(self, source_file: str, codec: str, block_bytes: int, chunk_bytes: int, depth: int) -> float:
        """Prepare this rank's side of the message, and return its bytes as it travels compressed."""
        source = np.fromfile(source_file, np.uint8)
        message = Message(source, np.empty_like(source), _codecs.ON_HOST[codec](), block_bytes, chunk_bytes)
        self._transfers = Transfers(message, depth, self.world.rank)
        self._transfers.over(MpiLink(self.mpi), MpiLink(self.mpi))
        return self._transfers.sent_bytes

    def done(self, work: str, *args: Any) -> Any:
        """Return the bytes of a message for `open`; else the seconds of a stage, which rank 0 times for `compress`."""
        try:
            result: Any = self._open(*args) if work == "open" else self._transfers.send(work)
        except gb.WrongAnswer as error:
            result = str(error)
        meeting = self.world.Ibarrier()
        while not meeting.Test():  # MPI waits by spinning, which would take a core from the rank that works
            time.sleep(_LOOK_S)
        results = self.world.allgather(result)
        if self.world.rank == 0 and (errors := [error for error in results if isinstance(error, str)]):
            raise gb.WrongAnswer(errors[0])
        return results[work != "compress"]


class MpiLink(Link):
    """A link of MPI from rank 0 to rank 1, over which blocks go in order."""

    schedule: Schedule = "a thread per part"

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi

    def meet(self) -> float:
        self._mpi.COMM_WORLD.Barrier()
        return time.perf_counter()

    def send(self, block: InFlight, packed: Any) -> None:
        self._mpi.COMM_WORLD.Send([packed, self._mpi.BYTE], 1, block.index % _TAGS)

    def receive(self, block: InFlight, room: Any) -> Any:
        status = self._mpi.Status()
        self._mpi.COMM_WORLD.Recv([room, self._mpi.BYTE], 0, block.index % _TAGS, status)
        return room[: status.Get_count(self._mpi.BYTE)]
