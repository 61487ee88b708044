"""The board of a fleet: short messages and run files by key, which the launcher and its nodes leave for each other.

A board is a folder that all nodes share, or an actor of Ray. Nothing listens on a port of its own, and what a board
holds is bytes: each reader checks them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from pathlib import Path
from typing import Protocol

from gpubench.base.errors import FileError
from gpubench.base.files import write_whole

MOST_BYTES = 2**28  # of one value: a node's run file, packed; a day of eight devices packs to a third of this
_KEY = re.compile(r"[a-z][a-z0-9]{0,30}(\.[a-z0-9]{1,40}){0,3}")
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NOT_NOW = (errno.ENOENT, errno.ESTALE)  # not there yet; replaced on another node while it was read (NFS)
FOLDER = ".board"  # in the folder of the fleet


class BoardGone(FileError):  # noqa: N818 - an event: nobody waits for this node any more
    """The board was removed, or is not this user's own: whoever works for it ends."""


class Board(Protocol):
    """Bytes by key; a later value replaces an earlier one."""

    def put(self, key: str, value: bytes) -> None:
        """Set the value of a key; raises BoardGone once the board is removed."""

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, None if it has none yet; raises BoardGone once the board is removed."""


def check(key: str, value: bytes = b"") -> None:
    """Raise ValueError for a key that is no key, and for a value that is too large."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"not a key of a board: {key!r}")
    if len(value) > MOST_BYTES:
        raise ValueError(f"{len(value)} bytes for {key}: a board takes up to {MOST_BYTES}")


class FolderBoard:
    """A board in a folder that belongs to this user alone; a link, or another user's folder or file, is refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, key: str, value: bytes) -> None:
        """Write the value whole or not at all."""
        check(key, value)
        self._check_folder()
        try:
            write_whole(self.folder / key, value)
        except OSError as error:
            raise BoardGone(f"{self.folder}: {error.strerror}") from error

    def get(self, key: str) -> bytes | None:
        """Read the value of a key."""
        check(key)
        self._check_folder()
        try:
            with os.fdopen(os.open(self.folder / key, _READ), "rb") as file:
                found = os.fstat(file.fileno())
                if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and found.st_size <= MOST_BYTES:
                    return file.read(MOST_BYTES)
        except OSError as error:
            if error.errno in _NOT_NOW:
                return None
            raise BoardGone(f"{self.folder / key}: {error.strerror}") from error
        raise BoardGone(f"{self.folder / key}: not a file that this user's fleet wrote")

    def _check_folder(self) -> None:
        try:
            found = self.folder.lstat()
        except OSError as error:
            raise BoardGone(f"{self.folder}: {error.strerror}") from error
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise BoardGone(f"{self.folder}: not a folder that belongs to this user alone")

    def remove(self) -> None:
        """Remove the board with all that it holds: members that still work for it end."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another job's board may be beside it
            self.folder.parent.rmdir()


def private_folder(path: Path) -> Path:
    """Return a folder that belongs to this user alone, made where there is none; raises FileError for any other."""
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise FileError(f"{path}: not a folder that belongs to you alone; remove it, or choose another folder")
    return path


def new_board(folder: Path) -> FolderBoard:
    """Return an empty board below a fleet's folder, under a name that no earlier job had."""
    return FolderBoard(private_folder(private_folder(folder / FOLDER) / secrets.token_hex(16)))
