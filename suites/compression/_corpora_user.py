"""Read the user's data files, within a limit of bytes and by their type.

A .npy file gives its elements, a .parquet file the values of its columns as they lie in memory, any other file its
bytes. Never more is held than was asked for; of a Parquet file, one more row group."""

import io
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api import suite as gb

BLOCK_BYTES = 2**20  # bytes per block of a file that is longer than the bytes that may be read
_PAGE = 4096
_UNBOUNDED = 2**62  # bytes; a row group is read completely
_HOW = "pip install 'gpubench-suite[parquet]'"


@dataclass(frozen=True, slots=True)
class FileData:
    """Data read from a file: a NumPy array of dtype uint8, the type of the elements in it, and a description."""

    data: Any
    dtype: str
    description: str


def read_bounded(file: gb.DataFile, most: int) -> FileData:
    """Return at most `most` bytes of a file: all of its data, or blocks of 1 MiB (row groups of Parquet) evenly spaced.

    Raises FileError if the file has changed since the run was planned, or is not of the type that its name says."""
    path = Path(file.path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise gb.FileError(f"{path}: not a regular file; --data takes regular files")
        readers = {".npy": _npy, ".parquet": _parquet}
        return readers.get(path.suffix.lower(), _bytes)(file, path, most)
    except OSError as error:
        raise gb.FileError(f"{path}: {error.strerror or error}; give --data files that can be read") from error


def pieces(file: gb.DataFile, most: int) -> Iterator[FileData]:
    """Yield all data of a file in order, at most `most` bytes at a time; raises as `read_bounded` does."""
    path = Path(file.path)
    try:
        if path.suffix.lower() == ".parquet":
            yield from _parquet_pieces(path, most)
            return
        plain = path.suffix.lower() != ".npy"
        place = _Place(0, file.bytes, "uint8", "bytes") if plain else _elements(file, path)
        with path.open("rb") as stream:
            for start in range(0, place.size, most):
                data = _block(stream, file, place.offset + start, min(most, place.size - start))
                yield FileData(data, place.dtype, place.description)
    except OSError as error:
        raise gb.FileError(f"{path}: {error.strerror or error}; give --data files that can be read") from error


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the data lie in a file (`offset` and `size` in bytes), and the type of their elements.

    `dtype` is the type for a codec, `uint8` if it knows no such type, and `description` the type in the file."""

    offset: int
    size: int
    dtype: str
    description: str


def _bytes(file: gb.DataFile, path: Path, most: int) -> FileData:
    """Return at most `most` bytes of a file of any format, in blocks of 1 MiB evenly spaced over it."""
    data = _read_evenly(file, path, 0, file.bytes, most)
    return FileData(data, "uint8", _describe(data.size, file.bytes, "user data"))


def _describe(taken: int, whole: int, content: str) -> str:
    """Return the note that `taken` of `whole` bytes of `content` are used, and how they are chosen."""
    spread = "" if taken == whole else f", in blocks of {gb.units.round_size(BLOCK_BYTES)} evenly spaced over it"
    return f"{taken} of {whole} bytes of {content}{spread}"


def _npy(file: gb.DataFile, path: Path, most: int) -> FileData:
    """Return at most `most` bytes of the elements of a .npy file, without its header."""
    place = _elements(file, path)
    data = _read_evenly(file, path, place.offset, place.size, most)
    return FileData(data, place.dtype, _describe(data.size, place.size, f"the user's {place.description} array"))


def _elements(file: gb.DataFile, path: Path) -> _Place:
    """Return where the elements of a .npy file lie, and their type."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except ValueError as error:
        raise gb.FileError(
            f"{path}: not an array in NumPy's format ({error}); rename it, or give another file"
        ) from error
    if not array.nbytes:
        raise gb.Skip(f"{path.name}: the array is empty, there is nothing to compress")
    kind = array.dtype.name if array.dtype.kind in "iuf" and array.dtype.itemsize <= 8 else "uint8"
    return _Place(file.bytes - array.nbytes, array.nbytes, kind, array.dtype.name)


def _read_evenly(file: gb.DataFile, path: Path, offset: int, size: int, most: int) -> Any:
    """Return at most `most` of the `size` bytes from `offset` on, in blocks evenly spaced over them: NumPy, uint8."""
    with path.open("rb") as stream:
        return np.concatenate([_block(stream, file, offset + start, length) for start, length in blocks(size, most)])


def blocks(size: int, most: int) -> list[tuple[int, int]]:
    """Return (offset, length) of disjoint blocks, evenly spaced over `size` bytes, with at most `most` bytes together.

    A block has 1 MiB or `most` bytes, and begins at a multiple of 4096. If all bytes fit, they are one block."""
    if size <= most:
        return [(0, size)]
    length = min(BLOCK_BYTES, most)
    count = most // length
    step = (size - length) / max(count - 1, 1)
    return [(int(index * step) // _PAGE * _PAGE, length) for index in range(count)]


def _block(stream: io.BufferedReader, file: gb.DataFile, offset: int, length: int) -> Any:
    """Return `length` bytes of the file from `offset` on (NumPy, uint8)."""
    block = np.empty(length, np.uint8)
    stream.seek(offset)
    if stream.readinto(block.data) != length:
        raise gb.FileError(f"{file.path}: shorter than the {file.bytes} bytes it had when the run was planned")
    return block


def _parquet(file: gb.DataFile, path: Path, most: int) -> FileData:
    """Return at most `most` bytes of column values, as Arrow holds them."""
    del file
    with _table(path) as opened:
        data, kinds, groups = _row_groups(opened, _far_apart(opened.num_row_groups), most)
        count = opened.num_row_groups
    if not data.size:
        raise gb.Skip(f"{path.name}: no column has a value, there is nothing to compress")
    description = f"{data.size} bytes of columns in Arrow's memory layout, {groups} of {count} row groups"
    return FileData(data, _common(kinds), description)


def _parquet_pieces(path: Path, most: int) -> Iterator[FileData]:
    """Yield the column values of a Parquet file, row group by row group, in pieces of at most `most` bytes."""
    with _table(path) as opened:
        for group in range(opened.num_row_groups):
            data, kinds, _ = _row_groups(opened, [group], _UNBOUNDED)
            for start in range(0, data.size, most):
                yield FileData(data[start : start + most], _common(kinds), "columns in Arrow's memory layout")


def _common(kinds: set[str]) -> str:
    """Return the type that all columns share; `uint8` if they differ."""
    return next(iter(kinds)) if len(kinds) == 1 else "uint8"


@contextmanager
def _table(path: Path) -> Iterator[Any]:
    """Yield the open Parquet file (`pyarrow.parquet.ParquetFile`), and close it on leaving the context."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise gb.Skip(f"reading {path.name} needs pyarrow ({error}): {_HOW}") from error
    try:
        with parquet.ParquetFile(path) as opened:
            yield opened
    except arrow.ArrowException as error:
        raise gb.FileError(f"{path}: not a Parquet file ({error}); rename it, or give another file") from error


def _row_groups(opened: Any, order: Iterable[int], most: int) -> tuple[Any, set[str], int]:
    """Return at most `most` bytes of row groups, in the order `order`, the types of their elements, and a count."""
    parts: list[Any] = []
    kinds: set[str] = set()
    room, groups = most, 0
    for group in order:
        if not room:
            break
        groups += 1
        for column in opened.read_row_group(group).columns:
            for chunk in column.chunks:
                for buffer, kind in _buffers(chunk):
                    part = np.frombuffer(buffer, np.uint8)[:room].copy()
                    parts.append(part)
                    room -= part.size
                    kinds |= {kind} if part.size else set()
    return (np.concatenate(parts) if parts else np.empty(0, np.uint8)), kinds, groups


def _far_apart(count: int) -> Iterator[int]:
    """Yield each number from 0 to count - 1 once, in an order in which the first numbers lie far apart."""
    step, visited = max(1, 2 ** (count - 1).bit_length()), set()
    while step:
        for index in range(0, count, step):
            if index not in visited:
                visited.add(index)
                yield index
        step //= 2


def _buffers(chunk: Any) -> Iterator[tuple[Any, str]]:
    """Yield the buffers of `chunk`, a `pyarrow.Array`, except its validity bits, each with the type of its elements."""
    name = str(chunk.type)
    kind = {"float": "float32", "double": "float64", "halffloat": "float16"}.get(name, name)
    numeric = kind in _NUMBERS
    for buffer in chunk.buffers()[1:]:
        if buffer is not None and buffer.size:
            yield buffer, kind if numeric else "uint8"


_NUMBERS = {*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32", "float64"}
