"""Files that are read as they lie on a disk: where they are made, and which of their pages the system's cache holds.

The pages of a file leave the cache only by `drop`, for that file alone (posix_fadvise(2)). Whether they did is read
from the kernel (mincore(2)) and never assumed: dirty pages, and those that a program has mapped, stay.
"""

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

from gpubench.api.suite import Skip, Untrustworthy, WrongAnswer, units

IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_MOUNTS = Path("/proc/self/mounts")
_HOW = "set TMPDIR to another folder"
_ATTEMPTS, _PAUSE_S = 10, 0.02
_RESIDENT = 1  # the lowest bit of an entry of mincore(2)
T = TypeVar("T")


def folder() -> Path:
    """Return where files are made: the folder for temporary files, or /var/tmp where that folder is in memory."""
    first = Path(tempfile.gettempdir())
    kept = Path("/var/tmp")
    return kept if file_system(first) in IN_MEMORY and kept.is_dir() else first


def file_system(path: Path) -> str:
    """Return the type of the file system that a path is on, such as ext4; empty where the kernel does not say."""
    if not _MOUNTS.is_file():
        return ""
    mounts = [line.split()[1:3] for line in _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()]
    real = path.resolve()
    mounted = [(len(place), kind) for place, kind in mounts if real.is_relative_to(place)]
    return max(mounted)[1] if mounted else ""


def unusable(where: Path | str, error: OSError) -> Skip:
    """Return why the disk takes no file, and what helps."""
    return Skip(f"cannot write a file in {where}: {error.strerror or error}; {_HOW}")


def need_space(nbytes: int, where: Path) -> None:
    """Raise Skip where a folder has less than `nbytes` of free space; OSError where it cannot be asked."""
    space = os.statvfs(where)
    free = space.f_bavail * space.f_frsize
    if free < nbytes:
        raise Skip(f"needs {units.round_size(nbytes)} in {where}, {units.round_size(free)} are free; {_HOW}")


def write_all(descriptor: int, block: Any, place: int) -> None:
    """Write all of the array at that offset of the file."""
    missing = memoryview(block)
    while missing:
        count = os.pwrite(descriptor, missing, place)
        missing, place = missing[count:], place + count


def read_all(descriptor: int, target: Any, place: int) -> None:
    """Fill the array from that offset; raises WrongAnswer where the file ends before that."""
    missing = memoryview(target)
    while missing:
        count = os.preadv(descriptor, [missing], place)
        if not count:
            raise WrongAnswer(f"the file ends {len(missing)} bytes before its block does")
        missing, place = missing[count:], place + count


def made(data: Any, where: Path) -> int:
    """Return the descriptor of a new file without a name that holds these bytes, durably; raises Skip without space."""
    try:
        need_space(data.nbytes, where)
        with tempfile.TemporaryFile(dir=where) as file:
            write_all(file.fileno(), data, 0)
            os.fsync(file.fileno())
            return os.dup(file.fileno())
    except OSError as error:
        raise unusable(where, error) from error


@functools.cache
def _mincore() -> Callable[..., int]:
    call = ctypes.CDLL(None, use_errno=True).mincore
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return call


def resident_pages(descriptor: int, nbytes: int) -> tuple[int, int]:
    """Return how many of the pages of the first `nbytes` of a file are in the system's cache, and how many there are.

    Of a file that this user can neither write nor owns the kernel calls every page resident.
    """
    with mmap.mmap(descriptor, nbytes, prot=mmap.PROT_READ) as mapping:
        pages = np.zeros(-(-nbytes // mmap.PAGESIZE), np.uint8)
        view = np.frombuffer(mapping, np.uint8)
        address = view.ctypes.data
        del view  # or the mapping could not be closed
        if _mincore()(address, nbytes, pages.ctypes.data):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return int(np.count_nonzero(pages & _RESIDENT)), pages.size


def drop(descriptor: int, nbytes: int) -> None:
    """Drop the pages of this file alone from the system's cache; raises Untrustworthy where one is still there.

    Pages that were just written may be held for a moment by the journal of the file system.
    """
    for attempt in range(_ATTEMPTS):
        time.sleep(_PAUSE_S if attempt else 0)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        resident, pages = resident_pages(descriptor, nbytes)
        if not resident:
            return
    words = f"{resident} of {pages} pages of the file stay in the page cache, so it cannot be read cold"
    raise Untrustworthy("page-cache", f"{words}: another program uses it, or it is not yours")


def warm(descriptor: int, nbytes: int) -> None:
    """Read the file into the system's cache; raises Untrustworthy where a page is not there afterwards."""
    place, room = 0, bytearray(2**20)
    while place < nbytes and (count := os.preadv(descriptor, [room], place)):
        place += count
    resident, pages = resident_pages(descriptor, nbytes)
    if resident != pages:
        raise Untrustworthy("page-cache", f"only {resident} of {pages} pages of the file stay in the page cache")


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells that a file was written to or replaced: its place, its size and the time of its last change."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, file: int | str) -> FileState:
        """Return the state of an open file, or of the file of that path."""
        found = os.fstat(file) if isinstance(file, int) else Path(file).stat()
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def expect_same(self, file: int | str, name: str) -> None:
        """Raise Untrustworthy where the file is no longer in this state."""
        try:
            now = FileState.of(file)
        except FileNotFoundError:
            raise Untrustworthy("changed", f"{name} was removed while it was read") from None
        if (now.device, now.inode) != (self.device, self.inode):
            raise Untrustworthy("changed", f"{name} was replaced by another file while it was read")
        if now.size != self.size:
            raise Untrustworthy(
                "changed", f"{name} had {self.size} bytes and has {now.size}: it changes while it is read"
            )
        if now.modified_ns != self.modified_ns:
            raise Untrustworthy("changed", f"{name} was written to while it was read")
