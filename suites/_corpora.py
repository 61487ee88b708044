"""What is compressed: corpora made from a seed, and the user's own files read within bounds.

A made corpus is a tile of 8 MiB. Larger buffers repeat it, which no codec can use: chunks are
compressed independently and are at most as long as the tile, so none holds a byte twice over.
The seed is the run's and the corpus's name: every codec, on every device, gets the same bytes.
"""

from __future__ import annotations

import functools
import io
import stat
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api import Bench, DataFile, FileError

TILE_BYTES = 8 * 2**20
BLOCK_BYTES = 2**20  # of a user's file that is longer than what may be read of it
DATA_PREFIX = "data:"
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Corpus:
    """Bytes to compress: `data` is uint8, read-only; `dtype` is what its elements are."""

    name: str
    dtype: str
    description: str
    data: Any

    def fill(self, target: Any) -> None:
        """Write the corpus, repeated as often as it takes, into a uint8 array of any length."""
        for start in range(0, target.size, self.data.size):
            part = target[start : start + self.data.size]
            part[...] = self.data[: part.size]


@dataclass(frozen=True, slots=True)
class _Recipe:
    dtype: str
    description: str
    make: Callable[[np.random.Generator, int], Any]


def _ids(rng: np.random.Generator, nbytes: int) -> Any:
    count = nbytes // 4
    is_next = rng.random(count) < 1 / 8
    return np.cumsum(np.where(is_next, rng.geometric(1 / 16, count), 0), dtype=np.int32)


def _text(rng: np.random.Generator, nbytes: int) -> Any:
    letters = np.frombuffer(b"etaoinshrdlcumwfgypbvkjxqz", np.uint8)
    lengths = rng.integers(2, 12, 10_000)
    spelled = letters[_zipf(rng, letters.size, int(lengths.sum()))].tobytes()
    ends = np.cumsum(lengths).tolist()
    words = [spelled[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
    text = b""
    while len(text) < nbytes:
        drawn = _zipf(rng, len(words), nbytes // 8)
        text += b" ".join(map(words.__getitem__, drawn.tolist())) + b"\n"
    return np.frombuffer(text[:nbytes], np.uint8)


def _zipf(rng: np.random.Generator, choices: int, count: int) -> Any:
    """Indices drawn by Zipf's law: the k-th choice has weight 1/k."""
    weights = np.cumsum(1 / np.arange(1, choices + 1))
    return np.searchsorted(weights / weights[-1], rng.random(count))


def _field(rng: np.random.Generator, nbytes: int) -> Any:
    columns = 1024
    rows = nbytes // 4 // columns
    field = np.zeros((rows, columns))
    for _ in range(8):
        waves = [np.sin(rng.uniform(1, 20) * np.linspace(0, 1, n) + rng.uniform(0, 6)) for n in (rows, columns)]
        field += np.outer(*waves)
    return field.astype(np.float32)


def _weights(rng: np.random.Generator, nbytes: int) -> Any:
    return (0.02 * rng.standard_normal(nbytes // 2, np.float32)).astype(np.float16)


def _random(rng: np.random.Generator, nbytes: int) -> Any:
    return rng.integers(0, 256, nbytes, np.uint8)


def _zeros(rng: np.random.Generator, nbytes: int) -> Any:
    del rng
    return np.zeros(nbytes, np.uint8)


RECIPES: Mapping[str, _Recipe] = {
    "ids": _Recipe("int32", "a sorted column of 32-bit keys, each 8 times on average, gaps of 16 on average", _ids),
    "text": _Recipe("uint8", "words drawn by Zipf's law from a vocabulary of 10 000 made-up words", _text),
    "field": _Recipe("float32", "a smooth two-dimensional field: the sum of eight standing waves", _field),
    "weights": _Recipe("float16", "normally distributed numbers of deviation 0.02, as a model's weights", _weights),
    "random": _Recipe("uint8", "uniformly random bytes: incompressible", _random),
    "zeros": _Recipe("uint8", "zeros", _zeros),
}


@functools.lru_cache(maxsize=len(RECIPES))
def made(name: str, seed: int) -> Corpus:
    """The tile of a made corpus; the same bytes for the same seed."""
    recipe = RECIPES[name]
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    data = np.ascontiguousarray(recipe.make(rng, TILE_BYTES)).reshape(-1).view(np.uint8)
    data.flags.writeable = False
    return Corpus(name, recipe.dtype, recipe.description, data)


def source_of(bench: Bench, name: str, size_bytes: int) -> tuple[Corpus, int]:
    """A corpus and how many bytes of it to use: `size_bytes`, or less of a user's shorter file."""
    if not name.startswith(DATA_PREFIX):
        return made(name, bench.seed), size_bytes
    files = {DATA_PREFIX + file.label: file for file in bench.target.data}
    data = read_bounded(files[name], size_bytes)
    return Corpus(name, "uint8", f"{data.size} bytes of the user's {files[name].bytes}", data), data.size


def read_bounded(file: DataFile, most: int) -> Any:
    """At most `most` bytes of a file, as uint8: all of it, or blocks of 1 MiB evenly spaced over it.

    Blocks start at multiples of 4096 bytes. Raises FileError where the file is no longer what it
    was when the run was planned.
    """
    path = Path(file.path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise FileError(f"{path}: not a regular file; --data takes regular files")
        with path.open("rb") as stream:
            return np.concatenate([_block(stream, file, *place) for place in blocks(file.bytes, most)])
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}; give --data files that can be read") from error


def blocks(size: int, most: int) -> list[tuple[int, int]]:
    """Where to read a file of `size` bytes within `most`: (offset, length), none overlapping."""
    if size <= most:
        return [(0, size)]
    length = min(BLOCK_BYTES, most)
    count = most // length
    step = (size - length) / max(count - 1, 1)
    return [(int(index * step) // _PAGE * _PAGE, length) for index in range(count)]


def _block(stream: io.BufferedReader, file: DataFile, offset: int, length: int) -> Any:
    found = np.empty(length, np.uint8)
    stream.seek(offset)
    if stream.readinto(found.data) != length:
        raise FileError(f"{file.path}: shorter than the {file.bytes} bytes it had when the run was planned")
    return found
