"""Provide the data to compress: corpora generated from a seed, or the user's own files.

A generated corpus is a tile of 8 MiB. Larger buffers repeat it, which no codec can use: chunks are compressed
independently and are at most as long as the tile, so that no chunk has a byte of the tile twice."""

import functools
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._corpora_made import RECIPES, versions_of_code
from ._corpora_user import read_bounded

TILE_BYTES = 8 * 2**20
DATA_PREFIX = "data:"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Bytes to compress: `data` is a read-only NumPy array (uint8), and `dtype` names the type of its elements."""

    name: str
    dtype: str
    description: str
    data: Any

    def fill(self, target: Any) -> None:
        """Write the corpus into `target`, a uint8 array of any length, repeated until the array is full."""
        for start in range(0, target.size, self.data.size):
            part = target[start : start + self.data.size]
            part[...] = self.data[: part.size]


@functools.lru_cache(maxsize=len(RECIPES))
def make_corpus(name: str, seed: int) -> Corpus:
    """Return the tile of the generated corpus `name`, a key of RECIPES; the same seed gives the same bytes.

    Only `code` depends on the machine instead of the seed."""
    recipe = RECIPES[name]
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    data = np.ascontiguousarray(recipe.make(rng, TILE_BYTES)).reshape(-1).view(np.uint8)
    data.flags.writeable = False
    description = f"{recipe.description} ({versions_of_code(data)})" if name == "code" else recipe.description
    return Corpus(name, recipe.dtype, description, data)


def names(target: gb.Target, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the user's files (`--data`), each with the prefix `data:`, or `wanted` if there are none."""
    return tuple(DATA_PREFIX + file.label for file in target.data) or wanted


def source_of(bench: gb.Bench, name: str, size_bytes: int) -> tuple[Corpus, int]:
    """Return the corpus `name` and the number of bytes to compress: `size_bytes`, or less if a user's file is shorter.

    A buffer of more bytes than the corpus repeats it."""
    if not name.startswith(DATA_PREFIX):
        return make_corpus(name, bench.seed), size_bytes
    files = {DATA_PREFIX + file.label: file for file in bench.target.data}
    part = read_bounded(files[name], size_bytes)
    return Corpus(name, part.dtype, part.description, part.data), part.data.size
