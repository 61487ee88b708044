"""Write files whole and open files safely in folders where other users may have put obstacles."""

import contextlib
import errno
import os
import re
import secrets
import stat
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
# what the caller has opened, a pipe perhaps: `show <(zcat …)`, `report -o /dev/stdout`
_STREAM = re.compile(r"/dev/(?P<name>std(in|out|err))|/(dev|proc/self)/fd/(?P<number>\d{1,9})")
_STANDARD = ("stdin", "stdout", "stderr")
_SPECIAL = "it is not a regular file but a pipe, a socket or a device"
_OF_A_PATH = (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP)


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to the file `path` completely or not at all: to a random name in its folder, which is then renamed.

    A link at `path` is replaced and not followed. Only a stream that the caller opened, such as /dev/stdout or
    /dev/fd/3, is written to directly. Raises OSError if `path` is a pipe, a socket or a device."""
    if (stream := _stream(path)) is not None:
        _write(stream, data)
        return
    with contextlib.suppress(FileNotFoundError):
        _refuse_special(path.lstat().st_mode)
    beside = name_beside(path, ".part")
    descriptor = os.open(beside, _NEW, 0o666)  # the umask restricts it, as for any file
    try:
        _write(descriptor, data)
        beside.replace(path)
    except BaseException:  # after any interruption, remove the unfinished file and raise again
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def name_beside(path: Path, suffix: str) -> Path:
    """Return a path beside `path` that nobody can guess; its name begins like the name of `path` and has `suffix`."""
    begin = os.fsdecode(os.fsencode(path.name)[:100])  # the limit of a name, 255, is in bytes
    return path.with_name(f".{begin}.{secrets.token_hex(8)}{suffix}")


def append(path: Path, data: bytes) -> None:
    """Add `data` to the end of the file `path`, which is made if it does not exist; a link to a file is followed.

    Raises OSError if `path` leads to a pipe, a socket or a device that is no stream of the caller."""
    stream = _stream(path)
    _write(open_regular(path, _APPEND) if stream is None else stream, data)


def open_to_read(path: Path) -> int:
    """Return the descriptor of the file `path`, opened for reading; the caller closes it.

    `path` is a regular file, a folder, or a stream that the user's shell opened (`/dev/fd/63`)."""
    if _STREAM.fullmatch(str(path)):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return open_regular(path, os.O_RDONLY, "; write its content to a file first")


def open_regular(path: Path, flags: int, remedy: str = "") -> int:
    """Return the descriptor of a regular file or a folder, opened with `flags` of open(2); the caller closes it.

    Raises OSError for another kind of file, with `remedy` at the end of the message."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        _refuse_special(os.fstat(descriptor).st_mode, remedy)  # reading a folder has its own error message
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def refuse_special(path: Path) -> None:
    """Raise OSError if `path` leads to a pipe, a socket or a device, and if that cannot be found out."""
    with contextlib.suppress(FileNotFoundError):
        _refuse_special(path.stat().st_mode)


def path_problem(error: Exception) -> str:
    """Return what is wrong with the path that `error` names, and the path; empty for any other error.

    `Path.exists` and its like raise for a long name and in a locked folder, and `Path.resolve` for a loop of links."""
    if isinstance(error, OSError) and error.errno in _OF_A_PATH and error.filename:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error) if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop") else ""


def _stream(path: Path) -> int | None:
    """Return another descriptor of the stream that `path` names, at the same position; None if it names none."""
    if not (match := _STREAM.fullmatch(str(path))):
        return None
    return os.dup(int(match["number"]) if match["number"] else _STANDARD.index(match["name"]))


def _write(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _refuse_special(mode: int, remedy: str = "") -> None:
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
        raise OSError(0, _SPECIAL + remedy)
