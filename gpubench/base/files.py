"""Files in places where others may have put obstacles: they are written whole, under a name that nobody can guess."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC
_STREAMS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")  # a pipe that the caller has opened: `show <(zcat …)`


def write_whole(path: Path, data: bytes) -> None:
    """Write a file completely or not at all: first under a random name in its folder, then under its own name.

    A device or a pipe, such as /dev/null, is written to and never replaced by a file. Raises OSError if that fails.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(data)
        return
    beside = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
    descriptor = os.open(beside, _NEW, 0o666)  # the umask restricts it, as for any file
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        beside.replace(path)
    except BaseException:  # after any interruption, remove the unfinished file and raise again
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def open_to_read(path: Path) -> int:
    """Return the descriptor of a regular file, a folder, or a stream that the caller opened (`/dev/fd/63`).

    Opening a named pipe would wait until another program writes into it, perhaps forever. Raises OSError for any other
    file.
    """
    if str(path).startswith(_STREAMS):
        return os.open(path, _READ)
    descriptor = os.open(path, _READ | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # reading a folder has its own error message
        return descriptor
    os.close(descriptor)
    raise OSError(0, "it is not a regular file but a pipe, a socket or a device; write its content to a file first")
