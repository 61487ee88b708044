"""Make files on a disk for suites that read them, and control which of their pages are in the system's cache.

The pages of a file leave the cache only by `drop_from_page_cache`, for that file alone (posix_fadvise(2)). The
kernel is asked whether they left (mincore(2)), because dirty pages and pages that a program has mapped stay."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gpubench.api import suite as gb

IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_MOUNTS = Path("/proc/self/mounts")
_HOW = "set TMPDIR to another folder"
_ATTEMPTS, _PAUSE_S = 10, 0.02
_RESIDENT = 1  # the lowest bit of an entry of mincore(2)
T = TypeVar("T")


def folder_for_files() -> Path:
    """Return the folder for new files: the system's folder for temporary files, unless it is in memory.

    It is then /var/tmp, if /var/tmp exists."""
    first = Path(tempfile.gettempdir())
    on_disk = Path("/var/tmp")
    return on_disk if file_system(first) in IN_MEMORY and on_disk.is_dir() else first


def file_system(path: Path) -> str:
    """Return the type of the file system that `path` is on, such as ext4; empty if the kernel does not say."""
    if not _MOUNTS.is_file():
        return ""
    mounts = [line.split()[1:3] for line in _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()]
    real = path.resolve()
    mounted = [(len(place), kind) for place, kind in mounts if real.is_relative_to(place)]
    return max(mounted)[1] if mounted else ""


def unwritable(where: Path | str, error: OSError) -> gb.Skip:
    """Return the Skip that says why no file can be written, and how to change that."""
    return gb.Skip(f"cannot write a file in {where}: {error.strerror or error}; {_HOW}")


def need_space(nbytes: int, where: Path) -> None:
    """Raise Skip if the folder `where` has less than `nbytes` of free space, and OSError if the query fails."""
    space = os.statvfs(where)
    free = space.f_bavail * space.f_frsize
    if free < nbytes:
        raise gb.Skip(f"needs {gb.units.round_size(nbytes)} in {where}, {gb.units.round_size(free)} are free; {_HOW}")


def write_all(descriptor: int, block: Any, place: int) -> None:
    """Write the whole array `block` at offset `place` (bytes) of the open file; raises OSError on failure."""
    missing = memoryview(block)
    while missing:
        count = os.pwrite(descriptor, missing, place)
        missing, place = missing[count:], place + count


def read_all(descriptor: int, target: Any, place: int) -> None:
    """Fill the array `target` from the offset `place` (bytes) of the open file `descriptor`.

    Raises WrongAnswer if the file ends before the array is full."""
    missing = memoryview(target)
    while missing:
        count = os.preadv(descriptor, [missing], place)
        if not count:
            raise gb.WrongAnswer(f"the file ends {len(missing)} bytes before its block does")
        missing, place = missing[count:], place + count


def make_file(data: Any, where: Path) -> int:
    """Write the array `data` to a new file without a name in the folder `where`, and flush it to the disk.

    Returns a descriptor for reading and writing, which the caller closes."""
    try:
        need_space(data.nbytes, where)
        with tempfile.TemporaryFile(dir=where) as file:
            write_all(file.fileno(), data, 0)
            os.fsync(file.fileno())
            return os.dup(file.fileno())
    except OSError as error:
        raise unwritable(where, error) from error


@functools.cache
def _mincore() -> Callable[..., int]:
    """Return mincore(2) of the C library: it takes an address, a size in bytes, and the result's address."""
    call = ctypes.CDLL(None, use_errno=True).mincore
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return call


def resident_pages(descriptor: int, nbytes: int) -> tuple[int, int]:
    """Return the pages of the first `nbytes` of a file that are in the system's cache, and all pages, as two numbers.

    `descriptor` is the open file."""
    with mmap.mmap(descriptor, nbytes, prot=mmap.PROT_READ) as mapping:
        pages = np.zeros(-(-nbytes // mmap.PAGESIZE), np.uint8)
        view = np.frombuffer(mapping, np.uint8)
        address = view.ctypes.data
        del view  # a remaining view would keep the mapping from closing
        if _mincore()(address, nbytes, pages.ctypes.data):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return int(np.count_nonzero(pages & _RESIDENT)), pages.size


def drop_from_page_cache(descriptor: int, nbytes: int) -> None:
    """Drop the pages of the open file `descriptor` from the system's page cache, and no page of another file.

    Raises Untrustworthy if a page stays."""
    for attempt in range(_ATTEMPTS):
        time.sleep(_PAUSE_S if attempt else 0)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        resident, pages = resident_pages(descriptor, nbytes)
        if not resident:
            return
    problem = f"{resident} of {pages} pages of the file stay in the page cache, so it cannot be read cold"
    raise gb.Untrustworthy("page-cache", f"{problem}: another program uses it, or it is not yours")


def read_into_page_cache(descriptor: int, nbytes: int) -> None:
    """Read the first `nbytes` of the open file `descriptor` into the system's page cache.

    Raises Untrustworthy if a page is not in the cache afterwards."""
    place, room = 0, bytearray(2**20)
    while place < nbytes and (count := os.preadv(descriptor, [room], place)):
        place += count
    resident, pages = resident_pages(descriptor, nbytes)
    if resident != pages:
        raise gb.Untrustworthy("page-cache", f"only {resident} of {pages} pages of the file stay in the page cache")


@dataclass(frozen=True, slots=True)
class FileState:
    """The identity, size and modification time of a file, which show whether it was written to or replaced."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, file: int | str) -> FileState:
        """Return the state of a file, given as a descriptor or a path; raises FileNotFoundError if it is missing."""
        status = os.fstat(file) if isinstance(file, int) else Path(file).stat()
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def expect_same(self, file: int | str, name: str) -> None:
        """Raise Untrustworthy if a file was removed, replaced or written to since this state was recorded.

        `file` is a descriptor or a path, and `name` names the file in the message."""
        try:
            now = FileState.of(file)
        except FileNotFoundError:
            raise gb.Untrustworthy("changed", f"{name} was removed while it was read") from None
        if (now.device, now.inode) != (self.device, self.inode):
            raise gb.Untrustworthy("changed", f"{name} was replaced by another file while it was read")
        if now.size != self.size:
            raise gb.Untrustworthy(
                "changed", f"{name} had {self.size} bytes and has {now.size}: it changes while it is read"
            )
        if now.modified_ns != self.modified_ns:
            raise gb.Untrustworthy("changed", f"{name} was written to while it was read")
