"""Write files whole and open files safely in folders where other users may have put obstacles."""

import contextlib
import os
import secrets
import stat
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC
_STREAMS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")  # a pipe that the caller has opened: `show <(zcat …)`


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to the file `path` completely or not at all: to a random name in its folder, which is then renamed.

    If `path` is a device or a pipe, such as /dev/null, the data are written into it, and it is not replaced."""
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
    """Return the descriptor of the file `path`, opened for reading; the caller closes it.

    `path` is a regular file, a folder, or a stream that the user's shell opened (`/dev/fd/63`)."""
    if str(path).startswith(_STREAMS):
        return os.open(path, _READ)
    descriptor = os.open(path, _READ | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # reading a folder has its own error message
        return descriptor
    os.close(descriptor)
    raise OSError(0, "it is not a regular file but a pipe, a socket or a device; write its content to a file first")
