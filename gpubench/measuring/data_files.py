"""Find the user's data files (`--data`), which cases read in place of the built-in data."""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from gpubench.base.errors import UsageError
from gpubench.model import DataFile

_MOST_DATA_FILES = 256
_HASHED_BYTES = 2**24  # enough to detect a replaced file; reading all of a huge file takes minutes


def data_files(paths: Iterable[Path]) -> tuple[DataFile, ...]:
    """Return the user's data files: the files among `paths`, and files with content in the folders among `paths`.

    Raises UsageError if a file is empty or unreadable, a folder has no file with content, two files have the same
    name, or there are more than 256 files."""
    files = [entry for path in paths for entry in _data_files_at(path)]
    if len(files) > _MOST_DATA_FILES:
        raise UsageError(f"--data names {len(files)} files; the maximum is {_MOST_DATA_FILES}: name fewer or pack them")
    labels = [entry.label for entry in files]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"--data names two files called {label}; case ids need different names")
    return tuple(files)


def _data_files_at(path: Path) -> list[DataFile]:
    try:
        if path.is_dir():
            files = sorted(inner for inner in path.rglob("*") if inner.is_file() and inner.stat().st_size)
            if not files:
                raise UsageError(f"--data {path}: the folder holds no file with content")
            return [_data_file(inner, inner.relative_to(path).as_posix()) for inner in files]
        return [_data_file(path, path.name)]
    except OSError as error:
        raise UsageError(f"--data {path}: {error.strerror}") from error


def _data_file(path: Path, label: str) -> DataFile:
    """Return the data file at a path, called `label`, with its size and the SHA-256 of its first 16 MiB."""
    if path.exists() and (not path.is_file() or not path.stat().st_size):
        problem = "the file is empty" if path.is_file() else "not a regular file"
        raise UsageError(f"--data {path}: {problem}; name a file with content")
    with path.open("rb") as file:
        first = file.read(_HASHED_BYTES)
    return DataFile(_label(label), str(path.resolve()), path.stat().st_size, hashlib.sha256(first).hexdigest())


def _label(text: str) -> str:
    return re.sub(r"[^\w.+/-]", "_", text)
