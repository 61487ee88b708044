"""Read and write the bytes of a run file: read up to a torn end, and write so that they survive a crash.

Hold a run file's samples as numbers of eight bytes each, because a day of them is tens of millions."""

from __future__ import annotations

import contextlib
import fcntl
import io
import math
import os
import secrets
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from gpubench.base.errors import FileError, UsageError
from gpubench.base.files import name_beside, open_to_read
from gpubench.model import limits

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


_INFLATE_BYTES = 2**18
_GZIP = 16 + zlib.MAX_WBITS  # zlib: with gzip header and trailer


@contextlib.contextmanager
def as_file_errors(path: str | Path) -> Iterator[None]:
    """Turn an OSError within the `with` block into a FileError of one line, which names `path`."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error


def read_lines(path: Path, limit_bytes: int) -> Iterator[bytes]:
    """Yield the lines of a file, unpacked, with their newlines; a line longer than `limit_bytes` comes in pieces.

    Only the last line may lack its newline."""
    with open_bytes(path) as file:
        while line := file.readline(limit_bytes + 1):
            yield line


def open_bytes(path: Path) -> io.BufferedReader:
    """Return a reader of the file's bytes, which unpacks a file whose name ends in `.gz`.

    Raises OSError if the file cannot be opened."""
    file = os.fdopen(open_to_read(path), "rb")
    return io.BufferedReader(_GzipReader(file, path), _INFLATE_BYTES) if path.suffix == ".gz" else file


class _GzipReader(io.RawIOBase):
    """The unpacked bytes of a gzip file up to its end, which may be torn, unlike with the gzip module.

    It never unpacks more than was asked for."""

    def __init__(self, file: io.BufferedReader, path: Path) -> None:
        """Unpack an open file; `path` names it in errors."""
        self._file = file
        self._path = path
        self._packed_bytes = self._unpacked_bytes = 0
        self._unzip = zlib.decompressobj(_GZIP)
        self._packed = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, a writable bytes-like object, with unpacked bytes and return their number, 0 at the end."""
        data = b""
        while not data and self._read_packed():
            data = self._unzip.decompress(self._packed, len(buffer))
            self._packed = self._unzip.unused_data or self._unzip.unconsumed_tail
            if self._unzip.eof:
                self._unzip = zlib.decompressobj(_GZIP)
        buffer[: len(data)] = data
        self._check_ratio(len(data))
        return len(data)

    def _check_ratio(self, size_bytes: int) -> None:
        """Count `size_bytes` unpacked bytes."""
        self._unpacked_bytes += size_bytes
        taken_bytes = self._packed_bytes - len(self._packed)
        if self._unpacked_bytes > max(limits.PACKED_BYTES, limits.PACKED_RATIO * taken_bytes):
            raise FileError(
                f"{self._path}: it unpacks to more than {limits.PACKED_RATIO} times its size: not a run file"
            )

    def _read_packed(self) -> bool:
        """Read more packed bytes from the file if none are left, and return whether there are any."""
        if not self._packed:
            self._packed = self._file.read(_INFLATE_BYTES)
            self._packed_bytes += len(self._packed)
        return bool(self._packed)

    def close(self) -> None:
        self._file.close()
        super().close()


class DurableFile:
    """A locked file that stores bytes durably: they are on the disk when `write` returns.

    A name that ends in `.gz` makes it a gzip file."""

    def __init__(self, path: Path, file: io.FileIO) -> None:
        """Lock an open file, whose name is `path`."""
        self.path = path
        self.file = file
        self.zip = zlib.compressobj(wbits=_GZIP) if path.suffix == ".gz" else None
        with contextlib.ExitStack() as undo:
            undo.callback(file.close)
            _lock(file, path)
            undo.pop_all()

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Append the data and wait until they are on the disk; `last` ends a gzip file.

        Raises FileError and closes the file if the disk does not accept the data."""
        if self.zip:
            data = self.zip.compress(data) + self.zip.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self.file.write(rest) :]
            os.fsync(self.file.fileno())
        except OSError as error:
            self.file.close()
            raise FileError(f"{self.path}: {error.strerror}; the records written before are kept") from error

    def close(self) -> None:
        """Close the file; nothing happens if it is closed already.

        Raises FileError if its name now leads to another file or to none: the content was then copied to a new file,
        which the message names."""
        if self.file.closed:
            return
        try:
            if not self._is_named():
                self._copy_to_new_name()
        finally:
            self.file.close()

    def _is_named(self) -> bool:
        """Return whether the file's name still leads to this file; not if the file was removed or replaced."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self.file.fileno()))
        except OSError:
            return False

    def _copy_to_new_name(self) -> None:
        """Copy the content to a new file `rescued-…` in the same folder, because the file lost its name meanwhile."""
        problem = f"{self.path} was removed or replaced while it was being written"
        name = os.fsdecode(os.fsencode(self.path.name)[-200:])  # the limit of a name, 255, is in bytes
        rescued = self.path.with_name(f"rescued-{secrets.token_hex(4)}-{name}")
        try:
            with Path(f"/proc/self/fd/{self.file.fileno()}").open("rb") as source, io.FileIO(rescued, "x") as target:
                while data := source.read(_INFLATE_BYTES):
                    target.write(data)
                os.fsync(target.fileno())
        except OSError as error:
            raise FileError(f"{problem}, and what was measured is lost ({error.strerror})") from error
        raise FileError(f"{problem}; what was measured is in {rescued}")

    def cut(self, size_bytes: int) -> None:
        """Drop everything after the first `size_bytes` unpacked bytes; the next `write` continues there.

        Raises OSError or, for a gzip file, FileError if the disk does not accept the change."""
        if self.zip:
            self._rewrite(size_bytes)
        else:
            self.file.truncate(size_bytes)
            self.file.seek(size_bytes)
            os.fsync(self.file.fileno())

    def _rewrite(self, size_bytes: int) -> None:
        """Replace a gzip file by a new one with its first `size_bytes` unpacked bytes."""
        beside = name_beside(self.path, ".part.gz")
        with contextlib.ExitStack() as undo:
            new = DurableFile(beside, io.FileIO(beside, "x"))
            undo.callback(beside.unlink)
            undo.callback(new.file.close)
            with open_bytes(self.path) as source:
                while data := source.read(min(size_bytes, _INFLATE_BYTES)):
                    new.write(data)
                    size_bytes -= len(data)
            beside.replace(self.path)
            undo.pop_all()
        sync_folder(self.path)
        self.file.close()
        self.file, self.zip = new.file, new.zip


def _lock(file: io.FileIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"{path}: another process is writing it; wait for it or choose another name") from error
    except OSError:  # the file system has no locks
        return


def sync_folder(path: Path) -> None:
    """Make the name of the file at `path` itself durable, by synchronising its folder.

    Raises OSError if the folder cannot be synchronised."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


Number = TypeVar("Number", float, float | None)


class Packed(Sequence[Number]):
    """A sequence of floats that needs a quarter of a tuple's memory; a missing value is None outside and NaN inside.

    It equals any sequence of the same numbers. `numpy()` returns a view of it, and `np.asarray` makes no copy."""

    __slots__ = ("_numbers",)

    def __init__(self, values: Iterable[float | None] = ()) -> None:
        self._numbers = array("d", [math.nan if value is None else value for value in values])

    def extend(self, more: Packed[Number]) -> None:
        """Append the numbers of another sequence. Raises BufferError if a view of `numpy()` still exists."""
        self._numbers.extend(more._numbers)

    def numpy(self) -> npt.NDArray[np.float64]:
        """Return the numbers as a read-only array of shape (n,) without a copy; a missing one is NaN.

        While the array exists, `extend` raises BufferError."""
        import numpy as np

        view = np.frombuffer(self._numbers, dtype=np.float64)
        view.flags.writeable = False
        return view

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        numbers = self.numpy()
        numbers = numbers if dtype is None else numbers.astype(dtype, copy=False)
        return numbers.copy() if copy else numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Number: ...
    @overload
    def __getitem__(self, index: slice) -> Packed[Number]: ...
    def __getitem__(self, index: int | slice) -> Number | Packed[Number]:
        """Return one number (None for a missing one), or the numbers of a slice as a new packed sequence."""
        if isinstance(index, slice):
            part: Packed[Number] = Packed()
            part._numbers = self._numbers[index]
            return part
        return _none_if_nan(self._numbers[index])  # type: ignore[return-value]  # None where a Number can be None

    def __iter__(self) -> Iterator[Number]:
        return cast(Iterator[Number], map(_none_if_nan, self._numbers))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence) and not isinstance(other, str | bytes):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Packed({list(self)})"


def _none_if_nan(value: float) -> float | None:
    return None if value != value else value
