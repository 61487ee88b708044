"""Exchange short messages and run files between a launcher and its nodes through a board that stores bytes by key.

A board is a folder that all nodes share, or a Ray actor. gpubench opens no port for it. A board holds bytes, and each
reader checks them."""

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

MOST_BYTES = 2**28  # largest value: a node's compressed run file; a day of eight devices takes a third of this
_KEY = re.compile(r"[a-z][a-z0-9]{0,30}(\.[a-z0-9]{1,40}){0,3}")
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NOT_NOW = (errno.ENOENT, errno.ESTALE)  # missing so far; replaced by another node during the read (NFS)
FOLDER = ".board"  # the board's folder in the folder of the fleet


class BoardGone(FileError):  # noqa: N818 - an event: the launcher does not wait for this node any more
    """The board was removed, or does not belong to this user alone; a member that uses it ends."""


class BadValue(FileError):  # noqa: N818 - an event: the node that should have written the value is refused
    """A value of a board is not one that a fleet of this user wrote: a link, a pipe, a folder, or too large."""


class Board(Protocol):
    """A store of bytes by key that the launcher and its nodes share; a later value of a key replaces an earlier one."""

    def put(self, key: str, value: bytes) -> None:
        """Set the value of a key. Raises BoardGone once the board is removed, and BadValue if the key is blocked."""

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, None if it has none yet; raises as `put`, and BadValue if no fleet wrote it."""


def check_entry(key: str, value: bytes = b"") -> None:
    """Raise ValueError if `key` is malformed, or if `value` is larger than MOST_BYTES."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"not a key of a board: {key!r}")
    if len(value) > MOST_BYTES:
        raise ValueError(f"{len(value)} bytes for {key}: a board takes up to {MOST_BYTES}")


class FolderBoard:
    """A board in a folder that belongs to this user alone; links and other users' folders and files are refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, key: str, value: bytes) -> None:
        """Write the value of a key atomically; raises BadValue if something other than a file has its name."""
        check_entry(key, value)
        self._check_folder()
        path = self.folder / key
        try:
            if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
                raise BadValue(f"{key} on the board is not a file")  # writing into a pipe would wait for a reader
            write_whole(path, value)
        except OSError as error:
            raise BoardGone(f"{self.folder}: {error.strerror}") from error

    def get(self, key: str) -> bytes | None:
        """Return the value of a key; raises BadValue if it is not a file of this user, unreadable or too large."""
        check_entry(key)
        self._check_folder()
        try:
            with os.fdopen(os.open(self.folder / key, _READ), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
                    raise BadValue(f"{key} on the board is not a file of this user")
                if status.st_size > MOST_BYTES:
                    raise BadValue(f"{key} on the board has {status.st_size} bytes, more than {MOST_BYTES >> 20} MiB")
                return file.read(MOST_BYTES)
        except OSError as error:
            if error.errno in _NOT_NOW:
                return None
            raise BadValue(f"{key} on the board cannot be read: {error.strerror}") from error

    def _check_folder(self) -> None:
        try:
            is_private = _is_private(self.folder)
        except OSError as error:
            raise BoardGone(f"{self.folder}: {error.strerror}") from error
        if not is_private:
            raise BoardGone(f"{self.folder}: not a folder that belongs to this user alone")

    def remove(self) -> None:
        """Remove the board and its content; members that still use it end."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another job's board may be beside it
            self.folder.parent.rmdir()


def private_folder(path: Path) -> Path:
    """Make the folder `path` in an existing folder if there is none, and return it."""
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        is_private = _is_private(path)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    if not is_private:
        raise FileError(f"{path}: not a folder that belongs to you alone; remove it, or choose another folder")
    return path


def _is_private(folder: Path) -> bool:
    """Return whether `folder` is a folder that this user owns and no other user may write to. Raises OSError."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def new_board(folder: Path) -> FolderBoard:
    """Make an empty board in the folder of a fleet, under a random name in FOLDER, and return it."""
    return FolderBoard(private_folder(private_folder(folder / FOLDER) / secrets.token_hex(16)))
