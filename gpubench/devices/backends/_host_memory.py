"""Allocate host memory that another process can map: anonymous shared files, and files in /dev/shm."""

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.base.errors import Skip
from gpubench.plugins.backend import Handle, SharedBuffer, SharedMemory

_SHM = Path("/dev/shm")


class SharedFile:
    """A shared file that is mapped into this process as an array of uint8, shape (nbytes,)."""

    def __init__(self, descriptor: int, nbytes: int, handle: bytes) -> None:
        self.handle = handle
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, nbytes)
        self.array: Any = np.frombuffer(self._map, np.uint8)

    def close(self) -> None:
        """Unmap the file; arrays made of it must be gone."""
        self.array = None
        self._map.close()
        os.close(self.descriptor)


def anonymous_file(nbytes: int) -> int:
    """Return the descriptor of a new file of `nbytes` bytes without a name (memfd_create(2))."""
    descriptor = os.memfd_create("gpubench")
    os.ftruncate(descriptor, nbytes)
    return descriptor


def path_of(descriptor: int) -> bytes:
    """Return the path by which other processes of this user can open a file that this process has open."""
    return f"/proc/{os.getpid()}/fd/{descriptor}".encode()


class AnonymousMemory:
    """A file without a name, passed to other processes as a descriptor."""

    def allocate(self, nbytes: int) -> SharedBuffer:
        return SharedFile(anonymous_file(nbytes), nbytes, b"")

    def export(self, buffer: SharedBuffer) -> Handle:
        """Return a handle with a copy of the descriptor of the buffer's file; the caller closes the copy."""
        assert isinstance(buffer, SharedFile)
        return Handle(descriptors=(os.dup(buffer.descriptor),))

    def open(self, handle: Handle, nbytes: int) -> SharedBuffer:
        """Return the file of another process, mapped into this one, by the descriptor in `handle`, which stays open."""
        return SharedFile(os.dup(handle.descriptors[0]), nbytes, b"")


class ShmMemory:
    """A file in /dev/shm, which another process opens by a path: POSIX shared memory, shm_overview(7).

    It has no name in the folder, so that nothing is left behind however its owner ends."""

    def allocate(self, nbytes: int) -> SharedBuffer:
        """Return a new buffer in /dev/shm; raises Skip if it is missing, full or without unnamed files."""
        if not _SHM.is_dir():
            raise Skip(f"needs {_SHM}: mount a tmpfs there")
        try:
            descriptor = os.open(_SHM, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Skip(f"{_SHM} does not support unnamed files ({error.strerror}): mount a tmpfs there") from error
        try:
            os.posix_fallocate(descriptor, 0, nbytes)  # on a full tmpfs the first touch would kill the process
        except OSError as error:
            os.close(descriptor)
            raise Skip(f"{_SHM} has no room for {nbytes} B ({error.strerror}): docker run --shm-size=…") from error
        return SharedFile(descriptor, nbytes, path_of(descriptor))

    def export(self, buffer: SharedBuffer) -> Handle:
        return Handle(buffer.handle)

    def open(self, handle: Handle, nbytes: int) -> SharedBuffer:
        return SharedFile(os.open(handle.data.decode(), os.O_RDWR), nbytes, handle.data)


_KINDS: dict[str, Callable[[], SharedMemory]] = {"memfd": AnonymousMemory, "file": ShmMemory}
HOST_KINDS = tuple(_KINDS)


def host_memory(kind: str) -> SharedMemory:
    """Return the host memory of this kind. Raises Skip for a kind that only GPUs have."""
    if kind not in _KINDS:
        raise Skip(f"the host does not support {kind} memory")
    return _KINDS[kind]()
