"""Provide the file that is read: one made for the case or one of the user's, and the bytes that it must give."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._files import IN_MEMORY, FileState, file_system, folder_for_files, make_file, read_all

MADE = "made"


class Source:
    """An open file, the bytes that a read must return (`expected`, NumPy uint8), and its state when it was opened.

    The first `size` bytes of `descriptor` are read, which is also the size of `expected`."""

    def __init__(self, descriptor: int, expected: Any, name: str, where: Path, path: str = "") -> None:
        self.descriptor, self.expected, self.name = descriptor, expected, name
        self.size = int(expected.size)
        self._path = path
        self._state = FileState.of(descriptor)
        kind = file_system(where)
        self.notes: Mapping[str, str] = {"file system": kind or "unknown", "file": name}

    def expect_unchanged(self) -> None:
        """Raise Untrustworthy if the file was written to, removed or replaced since it was opened."""
        self._state.expect_same(self.descriptor, self.name)
        if self._path:
            self._state.expect_same(self._path, self.name)

    def reopened(self, flags: int) -> int:
        """Return another descriptor of the file for reading, with `flags` of open(2).

        Raises OSError if the file system refuses the flags."""
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC | flags)

    def close(self) -> None:
        """Close the file; a file that was made for the case is deleted with it."""
        os.close(self.descriptor)


def source_of(bench: gb.Bench, label: str, size_bytes: int) -> Source:
    """Return the first `size_bytes` of the user's file of that label, or a file of random bytes that is made now.

    Raises Skip if there is too little free memory or the file lies in memory, and Untrustworthy if the user's file
    changed."""
    files = {file.label: file for file in bench.target.data}
    if label in files:
        return _of_user(bench, files[label], size_bytes)
    where = folder_for_files()
    _expect_on_disk(where, "set TMPDIR to a folder on a disk")
    bench.need(3 * size_bytes)
    data = np.frombuffer(bench.rng.bytes(size_bytes), np.uint8)
    return Source(make_file(data, where), data, MADE, where)


def _of_user(bench: gb.Bench, file: gb.DataFile, size_bytes: int) -> Source:
    """Return at most the first `size_bytes` of the user's file, which this function opens and reads."""
    _expect_on_disk(Path(file.path), "give --data a file on a disk")
    size = min(file.bytes, size_bytes)
    bench.need(3 * size)
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise gb.Untrustworthy("changed", f"{file.label} cannot be read: {error.strerror}") from error
    with contextlib.ExitStack() as on_error:
        on_error.callback(os.close, descriptor)
        if os.fstat(descriptor).st_size != file.bytes:
            raise gb.Untrustworthy(
                "changed", f"{file.label} no longer has the {file.bytes} bytes that were planned for"
            )
        expected = np.empty(size, np.uint8)
        read_all(descriptor, expected, 0)
        on_error.pop_all()
    return Source(descriptor, expected, file.label, Path(file.path), file.path)


def _expect_on_disk(where: Path, remedy: str) -> None:
    """Raise Skip, with `remedy` in the message, if the folder or file `where` lies in memory instead of on a disk."""
    kind = file_system(where)
    if kind in IN_MEMORY:
        raise gb.Skip(f"{where} is on {kind}, in memory, so no disk would be read; {remedy}")
