"""Checkpoints: a message into a file until fsync(2) has returned, and out of it again past the page cache.

The file has no name and is gone with the process. On a GPU blocks go by page-locked memory, the codec is the GPU's;
for loading a codec of the host stands beside it: read, decoded by the processor, copied up.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gpubench.api.suite import Bench, Skip, Stage, Task, WrongAnswer, units

from . import _codecs_host
from ._codecs_bytes import DeviceBytes
from ._ends import HostDecoder, HostEncoder
from ._lanes import Crew, Lanes, Side, lanes_of
from ._send import Codec, Crossing, Data, stage_of, task_of
from ._ways import Shore, Still, shore_of

_TO_DEVICE = 1  # cudaMemcpyHostToDevice; HIP's is the same
_MOUNTS = Path("/proc/self/mounts")
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_ROOM = 3  # times the message: raw, compressed at its worst, and some that stays free
_HOW = "TMPDIR names another folder"
T = TypeVar("T")


def folder() -> Path:
    """Where files are made: the folder for temporary ones, or /var/tmp where that is only memory."""
    first = Path(tempfile.gettempdir())
    kept = Path("/var/tmp")
    return kept if file_system(first) in _IN_MEMORY and kept.is_dir() else first


def file_system(path: Path) -> str:
    """The type of the file system that a folder is on: ext4; nothing where the kernel does not tell."""
    if not _MOUNTS.is_file():
        return ""
    mounts = [line.split()[1:3] for line in _MOUNTS.read_text().splitlines()]
    real = path.resolve()
    over = [(len(place), kind) for place, kind in mounts if real.is_relative_to(place)]
    return max(over)[1] if over else ""


def open_file(nbytes: int, where: Path) -> int:
    """The descriptor of a new file without a name; Skip where no file of so many bytes can be made there."""
    try:
        room = os.statvfs(where)
        free = room.f_bavail * room.f_frsize
        if free < nbytes:
            need = f"needs {units.round_size(nbytes)} in {where}, {units.round_size(free)} are free"
            raise Skip(f"{need}; {_HOW}")
        with tempfile.TemporaryFile(dir=where) as file:
            return os.dup(file.fileno())
    except OSError as error:
        raise unusable(where, error) from error


def unusable(where: Path | str, error: OSError) -> Skip:
    """The disk is full, not writable or broken: why, and what helps."""
    return Skip(f"no file can be written in {where}: {error.strerror or error}; {_HOW}")


class FileWay(Still):
    """Blocks into one file as they come, in whatever order; they count once fsync has returned."""

    def __init__(self, shore: Shore, descriptor: int, count: int, where: Path | str) -> None:
        self._shore, self._file, self._where = shore, descriptor, where
        self._lock = threading.Lock()
        self._end = 0
        self.places: list[tuple[int, int]] = [(0, 0)] * count

    def begin(self) -> None:
        os.ftruncate(self._file, 0)
        self._end = 0

    def take(self, lane: int, index: int, packed: Any) -> None:
        del index
        self._shore.take(lane, packed)

    def deliver(self, lane: int, index: int, packed: Any) -> None:
        block = self._shore.out(lane, packed)
        with self._lock:
            place, self._end = self._end, self._end + block.size
        self.places[index] = (place, block.size)
        self._tried(lambda: write_all(self._file, block, place))
        # Linux begins to write it to the disk, which it would else do in fsync
        self._tried(lambda: os.posix_fadvise(self._file, place, block.size, os.POSIX_FADV_DONTNEED))

    def meet(self, lane: int, index: int, room: Any) -> None:
        place, size = self.places[index]
        landing = self._shore.landing(lane, room, size)
        self._tried(lambda: read_all(self._file, landing, place))

    def fetch(self, lane: int, index: int, room: Any) -> Any:
        return self._shore.inward(lane, room, self.places[index][1])

    def _tried(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except OSError as error:
            raise unusable(self._where, error) from error

    def finish(self) -> None:
        self._tried(lambda: os.fsync(self._file))

    def close(self) -> None:
        os.close(self._file)


class ReadBack(FileWay):
    """A file that was written once; each message is read from the disk, not from the page cache."""

    def begin(self) -> None:
        """Drop what the page cache holds of it: that goes for pages that are written back (posix_fadvise(2))."""
        self._tried(lambda: os.fsync(self._file))
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def finish(self) -> None:
        pass

    @property
    def is_cached(self) -> bool:
        """Whether a page that was dropped can still be read without the disk (preadv2(2), RWF_NOWAIT)."""
        self.begin()
        try:
            return os.preadv(self._file, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except OSError:  # EAGAIN: it would have to be read; EOPNOTSUPP: nobody knows
            return False


def write_all(descriptor: int, block: Any, place: int) -> None:
    """All of the array at that offset of the file."""
    missing = memoryview(block)
    while missing:
        done = os.pwrite(descriptor, missing, place)
        missing, place = missing[done:], place + done


def read_all(descriptor: int, target: Any, place: int) -> None:
    """Fill the array from that offset; raises WrongAnswer where the file ends before."""
    missing = memoryview(target)
    while missing:
        done = os.preadv(descriptor, [missing], place)
        if not done:
            raise WrongAnswer(f"the file ends {len(missing)} bytes before its block does")
        missing, place = missing[done:], place + done


def save(bench: Bench, data: Data, codec: Codec, flight: int) -> Task:
    """Arrays of the device into a file, until it is durable."""
    where = folder()
    crossing = Crossing(bench, "write", data, codec, flight)
    shore = shore_of(bench, crossing.outgoing, crossing.incoming, max(codec.most_packed, data.cut.block))
    crossing.over(*(FileWay(shore, open_file(_ROOM * data.cut.total, where), data.cut.count, where) for _ in range(2)))
    return task_of(crossing, "write", data, {"codec": codec.words, "link": f"a file {_words(where)}, fsync included"})


def load(bench: Bench, data: Data, codec: Codec, flight: int) -> Task:
    """A file back into arrays of the device; on a GPU also by a codec of the host and a copy."""
    where = folder()
    crossing = Crossing(bench, "read", data, codec, flight)
    shore = shore_of(bench, crossing.outgoing, crossing.incoming, max(codec.most_packed, data.cut.block))
    ways = [ReadBack(shore, open_file(_ROOM * data.cut.total, where), data.cut.count, where) for _ in range(2)]
    crossing.over(*ways)
    notes = {"codec": codec.words, "link": f"a file {_words(where)}, read past the page cache"}
    has_twin = bench.traits.is_gpu and codec.name in _codecs_host.FORMATS
    beside = ByHost(bench, data, codec.name) if has_twin else None
    task = task_of(crossing, "read", data, notes | ({"host codec": beside.words} if beside else {}))
    labels = ("page-cached",) if ways[0].is_cached else ()
    stages: dict[str, Stage] = dict(task.stages)
    if beside is None:
        return Task(stages, task.check, close=task.close, notes=task.notes, labels=labels)
    stages["host_codec"] = stage_of(beside.message, data.cut.total)

    def close() -> None:
        task.close()
        beside.close()

    return Task(stages, task.check, close=close, notes=task.notes, labels=labels)


def _words(where: Path) -> str:
    kind = file_system(where)
    return f"on {kind}" if kind else "of an unknown file system"


class ByHost:
    """The same data packed by a codec of the host: read, decoded by its cores into page-locked memory, copied up."""

    def __init__(self, bench: Bench, data: Data, name: str) -> None:
        self._codec = _codecs_host.open_format(name)
        self._device, self._data, self._bytes = bench.device, data, DeviceBytes(bench)
        self._cuda, self._flight = bench.xp.cuda, min(_codecs_host.cores(), data.cut.count)
        self.words = f"{self._codec.description}, {self._flight} threads"
        self._source = bench.device.to_host(data.source)
        self._decoded = bench.device.pinned(data.cut.total)
        lanes = Lanes(self._flight)
        self._lanes = lanes_of(bench, self._flight)
        self._crew = Crew(1, self._flight)
        where = folder()
        self._way = ReadBack(Shore(), open_file(_ROOM * data.cut.total, where), data.cut.count, where)
        self._decoder = HostDecoder(self._codec, data.cut, self._source, self._decoded, lanes)
        encoder = HostEncoder(self._codec, data.cut, self._source, lanes)

        def write(lane: int, index: int) -> None:
            self._way.deliver(lane, index, encoder.encode(lane, index))  # on the host nothing has to be taken

        self._crew.run(data.cut.count, self._flight, Side(lanes, write))

    def message(self) -> float:
        """Seconds from the first block's read to the last one's copy; the whole is compared on the device."""
        self._way.begin()
        self._bytes.invert(self._data.source, self._data.target)
        self._decoder.poison()
        self._device.synchronize()
        seconds = self._crew.run(self._data.cut.count, self._flight, Side(self._lanes, self._step))
        self._bytes.expect_same(self._data.target, self._data.source)
        return seconds

    def _step(self, lane: int, index: int) -> None:
        span, room = self._data.cut.span(index), self._decoder.room(lane, index)
        self._way.meet(lane, index, room)
        self._decoder.decode(lane, index, self._way.fetch(lane, index, room))
        decoded, stream = self._decoded[span], self._cuda.get_current_stream().ptr
        target = self._data.target[span].data.ptr
        self._cuda.runtime.memcpyAsync(target, decoded.ctypes.data, decoded.size, _TO_DEVICE, stream)

    def close(self) -> None:
        """Let go of file and threads."""
        self._crew.close()
        self._way.close()
