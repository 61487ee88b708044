"""Save a message in a file until fsync(2) has returned, and load it past the page cache, as checkpoints do.

The file has no name and is gone with the process. On a GPU blocks go through page-locked memory, and the codec is
one of the GPU."""

import os
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gpubench.api import suite as gb

from .._files import file_system, folder_for_files, need_space, read_all, unwritable, write_all
from . import _codecs_host
from ._axes import DEPTHS, Params, fills_pipeline, is_wanted, mebibytes, message_codecs, message_corpora
from ._coders import HostDecoder, HostEncoder
from ._links import CopyEngine, Link
from ._message import Message, codec_of, message_of
from ._pipeline import InFlight, Slots, slots_of
from ._transfer import Coders, Halves, Receiver, Sender, Transfer, stage_of, task_of

topic = gb.Topic()

_ROOM = 3  # disk space as a multiple of the message: raw, compressed in the worst case, and a reserve
T = TypeVar("T")


def _sizes(on_gpu: int) -> Callable[[gb.Target], Any]:
    """Return a function from a target to its axis of file sizes; `on_gpu` is the size of a GPU's quick tier in MiB."""

    def sizes(target: gb.Target) -> Any:
        return mebibytes(1, 16, 128) if target.is_host else mebibytes(16, on_gpu, 1024)

    return sizes


def _blocks(on_gpu: int) -> Callable[[gb.Target], Any]:
    """Return a function from a target to its axis of block sizes; in the quick tier a GPU has `on_gpu` bytes."""

    def blocks(target: gb.Target) -> Any:
        smoke, quick = (2**18, 2**20) if target.is_host else (2**22, on_gpu)
        return gb.points(smoke=(smoke,), quick=(quick,))

    return blocks


def _usual_depth(target: gb.Target) -> int:
    """Return the usual number of blocks in flight: 2 on the host, and 8 on a GPU."""
    return 2 if target.is_host else 8


def _suits_file(target: gb.Target, params: Params) -> bool:
    return fills_pipeline(params) and is_wanted(target, params, params["flight"] == _usual_depth(target))


def _codecs(target: gb.Target) -> Any:
    return gb.points((), smoke=("lz4",), full=message_codecs(target))


def _depths(target: gb.Target) -> Any:
    return gb.points(smoke=(2,), quick=(_usual_depth(target),), full=DEPTHS)


def open_file(nbytes: int, where: Path) -> int:
    """Return the descriptor of a new file without a name in the folder `where`.

    Raises Skip if the folder has less than `nbytes` of free space, or if no file can be written there."""
    try:
        need_space(nbytes, where)
        with tempfile.TemporaryFile(dir=where) as file:
            return os.dup(file.fileno())
    except OSError as error:
        raise unwritable(where, error) from error


class FileLink(Link):
    """A link that writes blocks into one file in any order; the message is complete when fsync has returned."""

    def __init__(self, descriptor: int, count: int, where: Path | str) -> None:
        """Keep the file with the descriptor `descriptor` for `count` blocks; `where` is its folder, for messages."""
        self._file, self._where = descriptor, where
        self._lock = threading.Lock()
        self._end = 0
        self._places: list[tuple[int, int]] = [(0, 0)] * count  # offset and size in bytes of each block

    def begin(self) -> None:
        os.ftruncate(self._file, 0)
        self._end = 0

    def send(self, block: InFlight, packed: Any) -> None:
        """Write the block behind all blocks that were written before, and let Linux begin to write it to the disk.

        Raises Skip if it cannot be written."""
        with self._lock:
            place, self._end = self._end, self._end + packed.size
        self._places[block.index] = (place, packed.size)
        self._run_or_skip(lambda: write_all(self._file, packed, place))
        # starts writing to the disk now; otherwise Linux would start in fsync
        self._run_or_skip(lambda: os.posix_fadvise(self._file, place, packed.size, os.POSIX_FADV_DONTNEED))

    def receive(self, block: InFlight, room: Any) -> None:
        place, size = self._places[block.index]
        self._run_or_skip(lambda: read_all(self._file, room[:size], place))

    def copy_in(self, block: InFlight, room: Any) -> Any:
        return room[: self._places[block.index][1]]

    def _run_or_skip(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, a file operation; raises Skip, with a remedy, if it raises OSError."""
        try:
            return call()
        except OSError as error:
            raise unwritable(self._where, error) from error

    def finish(self) -> None:
        self._run_or_skip(lambda: os.fsync(self._file))

    def close(self) -> None:
        os.close(self._file)


class ReadBack(FileLink):
    """A file that is written once; each message is then read from the disk, not from the page cache."""

    def begin(self) -> None:
        """Write the file back to the disk and drop it from the page cache, as posix_fadvise(2) describes."""
        self._run_or_skip(lambda: os.fsync(self._file))
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def finish(self) -> None:
        """Do nothing: reading leaves nothing to write back."""

    @property
    def is_cached(self) -> bool:
        """Whether the first page can be read without the disk after it was dropped (preadv2(2), RWF_NOWAIT)."""
        self.begin()
        try:
            return os.preadv(self._file, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except OSError:  # EAGAIN: the data are not in the cache; EOPNOTSUPP: the kernel does not know the flag
            return False


@topic.case(
    when=gb.beyond_quick,
    where=_suits_file,
    corpus=message_corpora,
    codec=_codecs,
    size_bytes=_sizes(on_gpu=256),  # large enough that waiting for the first block takes little of the time
    block_bytes=_blocks(on_gpu=2**24),
    flight=_depths,
)
def save(bench: gb.Bench, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> gb.Task:
    """Save arrays in a file until fsync(2) has returned, compressed and raw: uncompressed bytes per second.

    The corpus is repeated to `size_bytes`, in blocks of `block_bytes`, of which `flight` are in flight. Raises Skip if
    the codec is unavailable, or if no file can be written."""
    message = message_of(bench, corpus, size_bytes, block_bytes)
    return saving(Coders(bench, message, codec_of(bench, codec, message), flight))


def saving(coders: Coders) -> gb.Task:
    """Return the task of writing a message to a file; raises Skip if no file can be written or space is short."""
    where, count = folder_for_files(), coders.message.cut.count
    coded, raw = (FileLink(open_file(_ROOM * coders.message.cut.total, where), count, where) for _ in range(2))
    transfer = coders.over(coders.over_host({"coded": coded, "raw": raw}), "sender")
    return task_of(coders, transfer, f"a file {_file_system_note(where)}, fsync included")


@topic.case(
    when=gb.beyond_quick,
    where=_suits_file,
    corpus=message_corpora,
    codec=_codecs,
    size_bytes=_sizes(on_gpu=128),
    block_bytes=_blocks(on_gpu=2**23),
    flight=_depths,
)
def load(bench: gb.Bench, corpus: str, codec: str, size_bytes: int, block_bytes: int, flight: int) -> gb.Task:
    """Load arrays from a file past the page cache, compressed and raw: uncompressed bytes per second.

    The corpus is repeated to `size_bytes`, in blocks of `block_bytes`, of which `flight` are in flight. On a GPU the
    stage `host_codec` decodes the same data on the host and copies them to the device. Raises Skip if the codec is
    unavailable, or if no file can be written."""
    message = message_of(bench, corpus, size_bytes, block_bytes)
    return loading(bench, Coders(bench, message, codec_of(bench, codec, message), flight))


def loading(bench: gb.Bench, coders: Coders) -> gb.Task:
    """Return the task of reading a message back from a file; raises Skip if no file can be written or space is short.

    On a GPU it has the stage `host_codec` if the host has a codec of the same format."""
    where, total = folder_for_files(), coders.message.cut.total
    coded, raw = (ReadBack(open_file(_ROOM * total, where), coders.message.cut.count, where) for _ in range(2))
    transfer = coders.over(coders.over_host({"coded": coded, "raw": raw}), "receiver")
    task = task_of(coders, transfer, f"a file {_file_system_note(where)}, read without the page cache")
    task = replace(task, labels=("page-cached",) if coded.is_cached else ())
    if not bench.traits.is_gpu or coders.codec.name not in _codecs_host.FORMATS:
        return task
    codec = _codecs_host.open_format(coders.codec.name)
    by_host = load_by_host(bench, coders.message, codec)
    notes = {**task.notes, "host codec": f"{codec.description}, {by_host.depth} threads"}
    stages = {**task.stages, "host_codec": stage_of(partial(by_host.message, "coded", by_host.depth), total)}

    def close() -> None:
        task.close()
        by_host.close()

    return replace(task, stages=stages, close=close, notes=notes)


def _file_system_note(where: Path) -> str:
    """Return the clause that names the file system of a folder: `on ext4`."""
    kind = file_system(where)
    return f"on {kind}" if kind else "on an unknown file system"


class UploadingDecoder(HostDecoder):
    """A decoder of the host whose output, in page-locked memory, is copied to the GPU."""

    def __init__(
        self, bench: gb.Bench, codec: _codecs_host.HostCodec, message: Message, depth: int, source: Any
    ) -> None:
        """Allocate page-locked memory for the whole message; `source` is its source in host memory (NumPy, uint8)."""
        self._message, self._source = message, source
        self._decoded, self._copies = bench.device.pinned(message.cut.total), CopyEngine(bench)
        super().__init__(codec, message.cut, depth, self._decoded)

    def decode(self, block: InFlight, packed: Any) -> None:
        """Restore the block on the host, and queue its copy to the GPU.

        Raises WrongAnswer if the block is not valid."""
        super().decode(block, packed)
        span = self._message.cut.span(block.index)
        self._copies.to_device(self._message.target[span], self._decoded[span])

    def reset(self) -> None:
        """Overwrite every byte that was decoded on the host with its wrong value."""
        np.invert(self._source, out=self._decoded)


def load_by_host(bench: gb.Bench, message: Message, codec: _codecs_host.HostCodec) -> Transfer:
    """Return the transfer that reads the data of a message, decodes them on the host and copies them to the GPU.

    The data are compressed by `codec` and written to a file now."""
    cut, where, source = message.cut, folder_for_files(), bench.device.to_host(message.source)
    depth = min(_codecs_host.cores(), cut.count)
    file = ReadBack(open_file(_ROOM * cut.total, where), cut.count, where)
    decoder = UploadingDecoder(bench, codec, message, depth, source)
    sender = Sender(Slots(depth), cut.count, file, HostEncoder(codec, cut, depth, source))
    receiver = Receiver(slots_of(bench, depth), cut.count, file, decoder, message)
    return Transfer({"coded": Halves(sender, receiver)}, depth, (), "receiver")
