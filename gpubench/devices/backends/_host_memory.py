"""Kinds of host memory that another process can map: anonymous shared files and named ones."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.base.errors import Skip
from gpubench.plugins.backend import Handle, SharedBuffer, SharedMemory

_SHM = Path("/dev/shm")


class Mapped:
    """A shared file, mapped into this process; an anonymous one ends with the last process that maps it."""

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
    """Return the descriptor of a new file of that size without a name, memfd_create(2)."""
    descriptor = os.memfd_create("gpubench")
    os.ftruncate(descriptor, nbytes)
    return descriptor


class Anonymous:
    """A file without a name, handed over as a descriptor."""

    def allocate(self, nbytes: int) -> SharedBuffer:
        return Mapped(anonymous_file(nbytes), nbytes, b"")

    def export(self, buffer: SharedBuffer) -> Handle:
        assert isinstance(buffer, Mapped)
        return Handle(descriptors=(os.dup(buffer.descriptor),))

    def open(self, handle: Handle, nbytes: int) -> SharedBuffer:
        return Mapped(os.dup(handle.descriptors[0]), nbytes, b"")


class Named:
    """A file in /dev/shm, which another process opens by its name: POSIX shared memory, shm_overview(7)."""

    def allocate(self, nbytes: int) -> SharedBuffer:
        if not _SHM.is_dir():
            raise Skip(f"needs {_SHM}: mount a tmpfs there")
        descriptor, name = tempfile.mkstemp(prefix="gpubench-", dir=_SHM)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)  # on a full tmpfs the first touch would kill the process
        except OSError as error:
            os.close(descriptor)
            Path(name).unlink()
            raise Skip(f"{_SHM} has no room for {nbytes} B ({error.strerror}): docker run --shm-size=…") from error
        return _NamedMapping(descriptor, nbytes, name)

    def export(self, buffer: SharedBuffer) -> Handle:
        assert isinstance(buffer, _NamedMapping)
        return Handle(buffer.name.encode())

    def open(self, handle: Handle, nbytes: int) -> SharedBuffer:
        return Mapped(os.open(handle.data.decode(), os.O_RDWR), nbytes, handle.data)


class _NamedMapping(Mapped):
    def __init__(self, descriptor: int, nbytes: int, name: str) -> None:
        super().__init__(descriptor, nbytes, name.encode())
        self.name = name

    def close(self) -> None:
        """Unmap and remove the name."""
        super().close()
        Path(self.name).unlink(missing_ok=True)


_KINDS: dict[str, Callable[[], SharedMemory]] = {"memfd": Anonymous, "file": Named}
HOST_KINDS = tuple(_KINDS)


def host_memory(kind: str) -> SharedMemory:
    """Return the host memory of one kind; raises Skip for a kind that only GPUs have."""
    if kind not in _KINDS:
        raise Skip(f"the host has no memory of the kind {kind}")
    return _KINDS[kind]()
