"""Read a file through the page cache, past it (O_DIRECT), and by cuFile, into the memory of the device."""

import contextlib
import functools
import importlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpubench.api import suite as gb

from .._files import drop_from_page_cache, read_into_page_cache, resident_pages
from ._readers import Destination, Reader, ReaderThreads, SystemReader, spans
from ._sources import MADE, Source, source_of

_HOW = gb.installation.packages("cuda-bindings nvidia-cufile")
_VERBOSE = 3  # the level of statistics that counts reads by their path
_NO_FLAGS = 0
_UDEV = "/run/udev"
_COMPATIBLE, _UNPROVEN = "cufile-compatibility", "cufile-unproven"
_KINDS = {"n_nvfs_reads": "reads by nvidia-fs", "n_p2p_reads": "reads by PCIe P2P", "n_posix_reads": "reads by POSIX"}


class CufileReader:
    """A reader of `source` in blocks of `block_bytes` by cuFileRead, `depth` blocks at a time, into the GPU's memory.

    `is_direct` opens the file with O_DIRECT. Creating it reads the file once."""

    def __init__(self, bench: gb.Bench, source: Source, block_bytes: int, depth: int, *, is_direct: bool) -> None:
        if bench.traits.vendor != "nvidia" or not bench.traits.is_gpu:
            raise gb.Skip(f"cuFile reads into the memory of NVIDIA GPUs, not of {bench.device.device.id}")
        self._bench, self._file = bench, _library()
        self._gpu = bench.xp.cuda.Device()
        self._to = Destination(bench, source)
        self._address = int(self._to.array.data.ptr)
        self._spans = spans(source.size, block_bytes)
        self._descriptor = source.reopened(os.O_DIRECT if is_direct else 0)
        self._handle = self._registered()
        self._threads = ReaderThreads(depth)
        self.read()
        reads = self._reads_by_path()
        self.labels: tuple[str, ...] = labels_of(reads)
        self.notes: Mapping[str, str] = {"through": path_taken(reads)}

    def _registered(self) -> Any:
        """Register the file and the GPU's memory with cuFile; return the handle of the file."""
        library = self._file
        description = library.Descr()
        description.type = library.FileHandleType.OPAQUE_FD
        description.handle.fd = self._descriptor
        try:
            handle = library.handle_register(description.ptr)
        except library.cuFileError as error:
            os.close(self._descriptor)
            raise gb.Skip(f"cuFile does not read from this file system: {error}{_udev_hint()}") from error
        library.buf_register(self._address, self._to.array.nbytes, _NO_FLAGS)
        return handle

    def poison(self) -> None:
        self._to.poison()
        self._bench.device.synchronize()

    def read(self) -> int:
        return sum(future.result() for future in self._threads.start(self._read_blocks, len(self._spans)))

    def _read_blocks(self, blocks: Sequence[int]) -> int:
        """Read the blocks of these indices into the GPU's memory by the calling thread."""
        self._gpu.use()  # selects the device for this thread
        total = 0
        for index in blocks:
            start, end = self._spans[index]
            total += int(self._file.read(self._handle, self._address, end - start, start, start))
        return total

    def compare(self) -> None:
        self._to.compare()

    def _reads_by_path(self) -> dict[str, int]:
        """Return the number of reads of this process by path, over all GPUs; _KINDS has the same keys."""
        statistics = self._file.StatsLevel3()
        self._file.get_stats_l3(statistics.ptr)
        return {name: sum(int(count) for count in getattr(statistics.per_gpu_stats, name)) for name in _KINDS}

    def observed(self) -> gb.Observation:
        return {label: gb.Observed(self._reads_by_path()[name], "reads", "more") for name, label in _KINDS.items()}

    def close(self) -> None:
        self._threads.close()
        self._file.buf_deregister(self._address)
        self._file.handle_deregister(self._handle)
        os.close(self._descriptor)


def _udev_hint() -> str:
    """Return what to do about an unreadable database of udev, as the rest of a sentence; empty if it can be read."""
    if os.access(_UDEV, os.R_OK):
        return ""
    return f"; cuFile finds the disk of a file in {_UDEV}, which cannot be read here: a container has to mount it"


def is_really_direct(reads: Mapping[str, int]) -> bool:
    """Return whether every read was direct: none by POSIX calls, and at least one by another path.

    `reads` is what `CufileReader._reads_by_path` returns."""
    return not reads["n_posix_reads"] and any(reads.values())


def labels_of(reads: Mapping[str, int]) -> tuple[str, ...]:
    """Return the label of reads that were not all direct, or that cuFile did not count; direct reads have no label.

    `reads` is what `CufileReader._reads_by_path` returns."""
    if is_really_direct(reads):
        return ()
    return (_COMPATIBLE if any(reads.values()) else _UNPROVEN,)


def path_taken(reads: Mapping[str, int]) -> str:
    """Return the text of the note that says by which path cuFile read.

    `reads` is what `CufileReader._reads_by_path` returns."""
    counts = ", ".join(f"{count} {_KINDS[name]}" for name, count in reads.items())
    if is_really_direct(reads):
        return f"cuFile, directly into the memory of the GPU ({counts})"
    if not any(reads.values()):
        return "cuFile, whose statistics count no read: whether it was direct is unknown"
    return f"cuFile in its compatibility mode: through memory of the host ({counts})"


@functools.cache
def _library() -> Any:
    """Return the module cuda.bindings.cufile with its driver open and its statistics on, once per process."""
    # cuFile would otherwise write its log into the current folder.
    os.environ.setdefault("CUFILE_LOGFILE_PATH", os.devnull)
    try:
        library = importlib.import_module("cuda.bindings.cufile")
        library.set_stats_level(_VERBOSE)
        library.driver_open()
        library.stats_start()
    except (ImportError, RuntimeError) as error:
        raise gb.Unavailable(f"cuFile is not usable here ({error})", _HOW) from error
    return library


_PATHS = ("buffered", "direct")
_USUAL_BLOCK, _USUAL_DEPTH = 2**20, 8

topic = gb.Topic(
    views=[
        gb.View("bars", "Read bandwidth of files by path", ("read",), by=("path", "file", "cache"), series="self"),
        gb.View(
            "curve",
            "Read bandwidth of files over block size",
            ("read",),
            x="block_bytes",
            by=("path", "cache", "depth"),
            series="self",
            log_x=True,
        ),
    ],
)


def _paths(target: gb.Target) -> Any:
    return gb.points(_PATHS if target.is_host else _PATHS[1:], full=_PATHS if target.is_host else (*_PATHS, "cufile"))


def _files(target: gb.Target) -> Any:
    return tuple(file.label for file in target.data) or (MADE,)


def _sizes(target: gb.Target) -> Any:
    return gb.points(smoke=(2**22,), quick=(2**25 if target.is_host else 2**26,), full=(2**28,))


def _is_wanted(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether the point `params` is measured."""
    if params["cache"] == "warm" and params["path"] != "buffered":
        return False
    is_usual = params["block_bytes"] == _USUAL_BLOCK, params["depth"] == _USUAL_DEPTH
    return target.tier != "full" or (any(is_usual) if params["cache"] == "cold" else all(is_usual))


@topic.case(
    where=_is_wanted,
    headline={"path": "direct", "depth": _USUAL_DEPTH, "block_bytes": _USUAL_BLOCK},
    path=_paths,
    file=_files,
    cache=gb.points(("cold",), full=("cold", "warm")),
    size_bytes=_sizes,
    block_bytes=gb.points((_USUAL_BLOCK,), full=(2**16, 2**18, _USUAL_BLOCK, 2**23)),
    depth=gb.points((_USUAL_DEPTH,), full=(1, 4, _USUAL_DEPTH, 32)),
)
def read(bench: gb.Bench, path: str, file: str, cache: str, size_bytes: int, block_bytes: int, depth: int) -> gb.Task:
    """Bandwidth of reading the first `size_bytes` of a file, or all of a shorter one, once in blocks: payload.

    `depth` threads read blocks of `block_bytes` at a time. `path` is `buffered` (through the page cache), `direct`
    (past it) or `cufile`; `cache` says whether the page cache holds the file before."""
    source = source_of(bench, file, size_bytes)
    with contextlib.ExitStack() as on_error:
        on_error.callback(source.close)
        kind = CufileReader if path == "cufile" else SystemReader
        reader = kind(bench, source, block_bytes, depth, is_direct=path != "buffered")
        on_error.pop_all()
    return _Reading(bench, source, reader, path, cache).task()


class _Reading:
    """Reads of the whole `source` by `reader`, one in each sample.

    Before each read the file's pages are read into the page cache if `cache` is `warm`, else dropped from it."""

    def __init__(self, bench: gb.Bench, source: Source, reader: Reader, path: str, cache: str) -> None:
        self._bench, self._source, self._reader, self._path, self._cache = bench, source, reader, path, cache

    def task(self) -> gb.Task:
        """Return the task; each call of its stage times itself and compares every byte."""
        stage = gb.Stage(
            self._call,
            gb.Work(payload=self._source.size),
            "payload",
            limit="link.h2d" if self._bench.traits.is_gpu else "",
            clock="self",
            effort=gb.POINT,
            checked=True,
        )
        notes = {**self._source.notes, **self._reader.notes}
        return gb.Task.of(stage, check=self._observed, close=self._close, notes=notes, labels=self._reader.labels)

    def _call(self) -> float:
        """Put the file's pages into the state of the case, read the file, compare it, and return the read's seconds."""
        source, reader = self._source, self._reader
        source.expect_unchanged()
        (read_into_page_cache if self._cache == "warm" else drop_from_page_cache)(source.descriptor, source.size)
        reader.poison()
        begun = time.perf_counter()
        count = reader.read()
        seconds = time.perf_counter() - begun
        source.expect_unchanged()
        gb.expect(count == source.size, f"{source.name}: {count} of {source.size} bytes could be read")
        if self._path != "buffered":
            self._expect_past_cache()
        reader.compare()
        return seconds

    def _expect_past_cache(self) -> None:
        """Raise Untrustworthy if the page cache holds a page of the file after a read past it."""
        resident, pages = resident_pages(self._source.descriptor, self._source.size)
        if resident:
            evidence = f"after a read past the page cache {resident} of {pages} pages of the file are in it"
            raise gb.Untrustworthy("not-direct", f"{evidence}: this file system does not really support O_DIRECT")

    def _observed(self) -> gb.Observation:
        resident, _ = resident_pages(self._source.descriptor, self._source.size)
        return {"cached pages": gb.Observed(resident), **self._reader.observed()}

    def _close(self) -> None:
        self._reader.close()
        self._source.close()
