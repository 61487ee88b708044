"""Read the user's data files, within a limit of bytes and by their type.

A .npy file gives its elements, a .parquet file the values of its columns as they lie in memory, any other file its
bytes. Never more is held than was asked for; of a Parquet file, one more row group."""

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
_HOW = "pip install 'gpubench-suite[parquet]'"
_ARROW_NAMES = {"float": "float32", "double": "float64", "halffloat": "float16"}
_NUMBERS = {*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32", "float64"}


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
    with _readable(path):
        if path.suffix.lower() == ".parquet":
            return _columns(path, most)
        offset, size, dtype, content = _place(file, path)
        data = np.concatenate([_block(file, offset + start, length) for start, length in blocks(size, most)])
    spread = "" if data.size == size else f", in blocks of {gb.units.round_size(BLOCK_BYTES)} evenly spaced over it"
    return FileData(data, dtype, f"{data.size} of {size} bytes of {content}{spread}")


def pieces(file: gb.DataFile, most: int) -> Iterator[FileData]:
    """Yield all data of a file in order, at most `most` bytes at a time; raises as `read_bounded` does."""
    path = Path(file.path)
    with _readable(path):
        if path.suffix.lower() == ".parquet":
            with _table(path) as table:
                for group in range(table.num_row_groups):
                    data, dtype, _ = _row_groups(table, [group])
                    for start in range(0, data.size, most):
                        yield FileData(data[start : start + most], dtype, "columns in Arrow's memory layout")
            return
        offset, size, dtype, content = _place(file, path)
        for start in range(0, size, most):
            yield FileData(_block(file, offset + start, min(most, size - start)), dtype, content)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise FileError for the errors of reading the file `path`, and if it is not a regular file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise gb.FileError(f"{path}: not a regular file; --data takes regular files")
        yield
    except OSError as error:
        raise gb.FileError(f"{path}: {error.strerror or error}; give --data files that can be read") from error


def _place(file: gb.DataFile, path: Path) -> tuple[int, int, str, str]:
    """Return the offset and the bytes of a file's data, the type of its elements for codecs, and its content."""
    if path.suffix.lower() != ".npy":
        return 0, file.bytes, "uint8", "user data"
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except ValueError as error:
        problem = f"{path}: not an array in NumPy's format ({error}); rename it, or give another file"
        raise gb.FileError(problem) from error
    if not array.nbytes:
        raise gb.Skip(f"{path.name}: the array is empty, there is nothing to compress")
    dtype = array.dtype.name if array.dtype.kind in "iuf" and array.dtype.itemsize <= 8 else "uint8"
    return file.bytes - array.nbytes, array.nbytes, dtype, f"the user's {array.dtype.name} array"


def blocks(size: int, most: int) -> list[tuple[int, int]]:
    """Return (offset, length) of disjoint blocks, evenly spaced over `size` bytes, with at most `most` bytes together.

    A block has 1 MiB or `most` bytes, and begins at a multiple of 4096. If all bytes fit, they are one block."""
    if size <= most:
        return [(0, size)]
    length = min(BLOCK_BYTES, most)
    count = most // length
    step = (size - length) / max(count - 1, 1)
    return [(int(index * step) // _PAGE * _PAGE, length) for index in range(count)]


def _block(file: gb.DataFile, offset: int, length: int) -> Any:
    """Return `length` bytes of the file from `offset` on (NumPy, uint8)."""
    block = np.fromfile(file.path, np.uint8, length, offset=offset)
    if block.size != length:
        raise gb.FileError(f"{file.path}: shorter than the {file.bytes} bytes it had when the run was planned")
    return block


@contextmanager
def _table(path: Path) -> Iterator[Any]:
    """Yield the open Parquet file (`pyarrow.parquet.ParquetFile`), and close it on leaving the context."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise gb.Skip(f"reading {path.name} needs pyarrow ({error}): {_HOW}") from error
    try:
        with parquet.ParquetFile(path) as table:
            yield table
    except arrow.ArrowException as error:
        raise gb.FileError(f"{path}: not a Parquet file ({error}); rename it, or give another file") from error


def _columns(path: Path, most: int) -> FileData:
    """Return at most `most` bytes of column values, as Arrow holds them, of row groups that lie far apart first."""
    with _table(path) as table:
        count = table.num_row_groups
        bits = max(count - 1, 1).bit_length()
        far_apart = sorted(range(count), key=lambda group: f"{group:0{bits}b}"[::-1])
        data, dtype, groups = _row_groups(table, far_apart, most)
    if not data.size:
        raise gb.Skip(f"{path.name}: no column has a value, there is nothing to compress")
    content = f"{data.size} bytes of columns in Arrow's memory layout, {groups} of {count} row groups"
    return FileData(data, dtype, content)


def _row_groups(table: Any, order: Iterable[int], most: int = 2**62) -> tuple[Any, str, int]:
    """Return at most `most` bytes of row groups in `order`, the type of their elements, and the groups read."""
    parts: list[Any] = [np.empty(0, np.uint8)]
    dtypes, room, groups = set(), most, 0
    for group in order:
        if not room:
            break
        groups += 1
        chunks = (chunk for column in table.read_row_group(group).columns for chunk in column.chunks)
        for chunk in chunks:
            name = _ARROW_NAMES.get(str(chunk.type), str(chunk.type))
            for buffer in chunk.buffers()[1:]:  # the first has the validity bits
                if buffer is not None and buffer.size and room:
                    parts.append(np.frombuffer(buffer, np.uint8)[:room].copy())
                    room -= parts[-1].size
                    dtypes.add(name if name in _NUMBERS else "uint8")
    return np.concatenate(parts), dtypes.pop() if len(dtypes) == 1 else "uint8", groups
