"""Read a file by cuFile (GPUDirect Storage) into the memory of a GPU, and prove whether the path was direct.

Where the driver nvidia-fs is not loaded, or the file system is not supported, cuFile reads by ordinary calls into
memory of the host and copies. Its statistics (level 3, reads by GPU) tell which path it took."""

import functools
import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from gpubench.api import suite as gb

from ._readers import Destination, ReaderThreads, spans
from ._sources import Source

_HOW = "pip install cuda-bindings nvidia-cufile"
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
