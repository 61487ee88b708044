"""Provide the data to compress: corpora generated from a seed, or the user's own files, read within a limit of bytes.

A generated corpus is a tile of 8 MiB of round numbers of our own, unless a source is named. Larger buffers repeat it,
which no codec can use: chunks are compressed independently, so that no chunk has a byte of the tile twice. Of a user's
file, .npy gives its elements, .parquet the values of its columns as they lie in memory, any other its bytes."""

import functools
import importlib.metadata
import platform
import stat
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._codecs import imported

TILE_BYTES = 8 * 2**20
DATA_PREFIX = "data:"
FEW = ("ids", "text", "field")  # the corpora of the quick tier: integers, text, floating point
BLOCK_BYTES = 2**20  # bytes per block of a file that is longer than the bytes that may be read
_PAGE = 4096
_ARROW_NAMES = {"float": "float32", "double": "float64", "halffloat": "float16"}
_NUMBERS = {*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32", "float64"}
Rng = np.random.Generator
# Each recipe of a corpus: the type of its elements for codecs, its description, and the function that draws its bytes.
RECIPES: dict[str, tuple[str, str, Callable[[Rng, int], Any]]] = {}


@dataclass(frozen=True, slots=True)
class Corpus:
    """Bytes to compress: a NumPy array (uint8), the type of its elements, and a description.

    A buffer of `total` bytes repeats `data`."""

    data: Any
    dtype: str
    description: str
    total: int

    def buffer(self, bench: gb.Bench) -> Any:
        """Return `total` bytes in the memory of the device of `bench` (uint8); a GPU gets `data` once."""
        if not bench.traits.is_gpu:
            return np.resize(self.data, self.total)
        buffer, tile = bench.xp.empty(self.total, bench.xp.uint8), bench.xp.asarray(self.data[: self.total])
        for start in range(0, self.total, max(tile.size, 1)):
            part = buffer[start : start + tile.size]
            bench.device.copy(part, tile[: part.size])
        return buffer


def axis(quick: tuple[str, ...], smoke: tuple[str, ...] | None = None, full: tuple[str, ...] | None = None) -> Any:
    """Return an axis of corpora by tier, or in each tier the user's files (`--data`), each with the prefix `data:`."""
    return lambda target: tuple(DATA_PREFIX + file.label for file in target.data) or gb.points(quick, smoke, full)


def corpus_of(bench: gb.Bench, name: str, size_bytes: int) -> Corpus:
    """Return the corpus `name`, whose buffers have `size_bytes`, or fewer if a user's file is shorter."""
    if name.startswith(DATA_PREFIX):
        return next(pieces(file_named(bench, name), size_bytes, is_whole=False))
    return replace(make_corpus(name, bench.seed), total=size_bytes)


@functools.lru_cache(maxsize=16)
def make_corpus(name: str, seed: int) -> Corpus:
    """Return the tile of the generated corpus `name`, a key of RECIPES; the same seed gives the same bytes.

    Only `code` depends on the machine instead of the seed."""
    dtype, description, draw = RECIPES[name]
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    data = np.ascontiguousarray(draw(rng, TILE_BYTES)).reshape(-1).view(np.uint8)
    data.flags.writeable = False
    if name == "code":
        where = f"numpy {importlib.metadata.version('numpy')}, Python {platform.python_version()}, {platform.machine()}"
        description = f"{description} ({where}, CRC-32 {zlib.crc32(data.data):08x})"
    return Corpus(data, dtype, description, data.size)


# The user's files.


def file_named(bench: gb.Bench, name: str) -> gb.DataFile:
    """Return the user's file of the corpus `name`, which begins with `data:`."""
    return next(file for file in bench.target.data if DATA_PREFIX + file.label == name)


def pieces(file: gb.DataFile, most: int, is_whole: bool = True) -> Iterator[Corpus]:
    """Yield all data of a file in order, or else a single piece from all over it: blocks of 1 MiB, or row groups.

    A piece has at most `most` bytes. Raises FileError if the file has changed since the run was planned, or is not of
    the type that its name says. Never more is held than a piece, or a row group of Parquet."""
    path = Path(file.path)
    with _opened(path) as table:
        if table:
            groups = table.num_row_groups
            bits = max(groups - 1, 1).bit_length()
            far_apart = sorted(range(groups), key=lambda group: f"{group:0{bits}b}"[::-1])
            for order in ([group] for group in range(groups)) if is_whole else (far_apart,):
                data, dtype, read = _row_groups(table, order, 2**62 if is_whole else most)
                if not data.size and not is_whole:
                    raise gb.Skip(f"{path.name}: no column has a value, there is nothing to compress")
                for part in (data[start : start + most] for start in range(0, data.size, most)):
                    content = f"{part.size} bytes of columns in Arrow's memory layout, {read} of {groups} row groups"
                    yield Corpus(part, dtype, content, part.size)
            return
        offset, size, dtype, content = _place(file, path)
        every = ([(start, min(most, size - start))] for start in range(0, size, most))
        for places in every if is_whole else (blocks(size, most),):
            parts = [np.fromfile(path, np.uint8, length, offset=offset + start) for start, length in places]
            if sum(part.size for part in parts) != sum(length for _, length in places):
                raise gb.FileError(f"{path}: shorter than the {file.bytes} bytes it had when the run was planned")
            data = np.concatenate(parts)
            spread = f", in blocks of {gb.units.round_size(BLOCK_BYTES)} evenly spaced over it" * (data.size < size)
            yield Corpus(data, dtype, f"{data.size} of {size} bytes of {content}{spread}", data.size)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Yield the open Parquet file (`pyarrow.parquet.ParquetFile`), or None for a file of another type."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise gb.FileError(f"{path}: not a regular file; --data takes regular files")
        if path.suffix.lower() != ".parquet":
            yield None
            return
        with imported("pyarrow.parquet", "parquet").ParquetFile(path) as table:
            yield table
    except ValueError as error:
        kind = "an array in NumPy's format" if path.suffix.lower() == ".npy" else "a Parquet file"
        raise gb.FileError(f"{path}: not {kind} ({error}); rename it, or give another file") from error
    except OSError as error:
        raise gb.FileError(f"{path}: {error.strerror or error}; give --data files that can be read") from error


def _place(file: gb.DataFile, path: Path) -> tuple[int, int, str, str]:
    """Return the offset and the bytes of a file's data, the type of its elements for codecs, and its content."""
    if path.suffix.lower() != ".npy":
        return 0, file.bytes, "uint8", "user data"
    array = np.lib.format.open_memmap(path, mode="r")
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


def _row_groups(table: Any, order: Iterable[int], most: int) -> tuple[Any, str, int]:
    """Return at most `most` bytes of row groups in `order`, the type of their elements, and the groups read."""
    parts: list[Any] = [np.empty(0, np.uint8)]
    dtypes, room, groups = set(), most, 0
    for group in order:
        if not room:
            break
        groups += 1
        for chunk in (chunk for column in table.read_row_group(group).columns for chunk in column.chunks):
            name = _ARROW_NAMES.get(str(chunk.type), str(chunk.type))
            for buffer in filter(None, chunk.buffers()[1:] if room else ()):  # the first has the validity bits
                parts.append(np.frombuffer(buffer, np.uint8)[:room].copy())
                room -= parts[-1].size
                dtypes.add(name if name in _NUMBERS else "uint8")
    return np.concatenate(parts), dtypes.pop() if len(dtypes) == 1 else "uint8", groups


# The recipes.


def _recipe(dtype: str, description: str) -> Callable[[Callable[[Rng, int], Any]], Callable[[Rng, int], Any]]:
    """Return a decorator that makes a corpus of a function, which returns an array of a number of bytes."""

    def add(draw: Callable[[Rng, int], Any]) -> Callable[[Rng, int], Any]:
        RECIPES[draw.__name__.strip("_").replace("_", "-")] = dtype, description, draw
        return draw

    return add


# Integers, as database columns contain them.


@_recipe("int32", "a sorted column of 32-bit keys, each 8 times on average, gaps of 16 on average")
def _ids(rng: Rng, nbytes: int) -> Any:
    count = nbytes // 4
    is_next = rng.random(count) < 1 / 8
    return np.cumsum(np.where(is_next, rng.geometric(1 / 16, count), 0), dtype=np.int32)


@_recipe("int32", "32-bit integers below 65 536 in runs of 20 on average")
def _runs(rng: Rng, nbytes: int) -> Any:
    count = nbytes // 4
    lengths = rng.geometric(1 / 20, count // 10)  # on average twice as many as needed
    return np.repeat(rng.integers(0, 2**16, lengths.size, np.int32), lengths)[:count]


@_recipe("int32", "32-bit codes of 100 categories by Zipf's law, in random order")
def _categories(rng: Rng, nbytes: int) -> Any:
    return _zipf(rng, 100, nbytes // 4).astype(np.int32)


@_recipe("int32", "eight columns as TPC-H's LINEITEM has them, in row groups of 16 384 rows")
def _lineitem(rng: Rng, nbytes: int) -> Any:
    """Return `nbytes` of TPC-H's LINEITEM (specification 3.0.1, 4.2.3): int32, shape (groups, 8, 16384)."""
    rows = nbytes // 4 // 8
    lines = np.repeat(np.arange(rows), rng.integers(1, 8, rows))[:rows]  # 1 to 7 lines per order
    part = rng.integers(1, 200_001, rows)
    quantity = rng.integers(1, 51, rows)
    price = quantity * (90_000 + part // 10 % 20_001 + 100 * (part % 1000))  # in cents
    ordered = rng.integers(0, 2406 - 151, rows)[lines]  # in days
    columns = (
        lines // 8 * 32 + lines % 8,  # order keys: 8 of every 32 are used
        part,
        rng.integers(1, 10_001, rows),  # supplier keys
        quantity,
        price,
        rng.integers(0, 11, rows),  # discount in per cent
        rng.integers(0, 9, rows),  # tax in per cent
        ordered + rng.integers(1, 122, rows),  # day of shipping
    )
    return np.stack([column.astype(np.int32).reshape(-1, 2**14) for column in columns], axis=1)


def _zipf(rng: Rng, choices: int, count: int) -> Any:
    """Return `count` indices below `choices`, drawn by Zipf's law: index k has a weight of 1/(k + 1)."""
    weights = np.cumsum(1 / np.arange(1, choices + 1))
    return np.searchsorted(weights / weights[-1], rng.random(count))


# Text.

_SHORTEST = 3  # bytes of the shortest word with its space


@_recipe("uint8", "words drawn by Zipf's law from a vocabulary of 10 000 made-up words")
def _text(rng: Rng, nbytes: int) -> Any:
    letters = np.frombuffer(b"etaoinshrdlcumwfgypbvkjxqz", np.uint8)
    lengths = rng.integers(_SHORTEST - 1, 12, 10_000)
    spelled = letters[_zipf(rng, letters.size, int(lengths.sum()))].tobytes()
    ends = np.cumsum(lengths).tolist()
    vocabulary = [spelled[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
    text = b""
    while len(text) < nbytes:
        most = (nbytes - len(text)) // _SHORTEST + 1  # upper bound of the number of words that are missing
        drawn = _zipf(rng, len(vocabulary), min(nbytes // 8, most))
        text += b" ".join(map(vocabulary.__getitem__, drawn.tolist())) + b"\n"
    return np.frombuffer(text[:nbytes], np.uint8)


_LINE = '{"time":"2026-11-%02dT%02d:%02d:%02d.%03dZ","level":"%s","host":"node-%02d","route":"/api/%s/%d","ms":%.2f}\n'
_LEVELS = ("INFO", "DEBUG", "WARN", "ERROR")
_ROUTES = ("users", "orders", "items", "search", "session", "export")


@_recipe("uint8", "JSON lines: times in order, a level, a host, a route with a number, milliseconds")
def _logs(rng: Rng, nbytes: int) -> Any:
    """Return a server's log of nine days."""
    count = nbytes // 100  # a line has slightly more than 100 bytes
    second = np.sort(rng.random(count)) * 86_400 * 9
    day, rest = np.divmod(second.astype(np.int64), 86_400)
    fields = (
        day + 1,
        rest // 3600,
        rest // 60 % 60,
        rest % 60,
        (second % 1 * 1000).astype(np.int64),
        [_LEVELS[i] for i in _zipf(rng, len(_LEVELS), count).tolist()],
        _zipf(rng, 40, count),
        [_ROUTES[i] for i in _zipf(rng, len(_ROUTES), count).tolist()],
        rng.integers(1, 10**6, count),
        rng.lognormal(2, 1, count),
    )
    plain = [values if isinstance(values, list) else values.tolist() for values in fields]
    return np.frombuffer("".join(map(_LINE.__mod__, zip(*plain, strict=True))).encode()[:nbytes], np.uint8)


# Floating-point data of simulations and models.


@_recipe("float32", "a smooth two-dimensional field: the sum of eight standing waves")
def _field(rng: Rng, nbytes: int) -> Any:
    rows, columns = nbytes // 4 // 1024, 1024
    field = np.zeros((rows, columns))
    for _ in range(8):
        waves = [np.sin(rng.uniform(1, 20) * np.linspace(0, 1, n) + rng.uniform(0, 6)) for n in (rows, columns)]
        field += np.outer(*waves)
    return field.astype(np.float32)


@_recipe("float32", "a random field of rows of 1024, energy falling as k^(-5/3)")
def _turbulence(rng: Rng, nbytes: int) -> Any:
    """Return `nbytes` of a random field (float32, shape (rows, 1024)) of deviation 1.

    Its energy falls with the wave number k as k^(-5/3) (Kolmogorov 1941)."""
    rows, side = nbytes // 4 // 1024, 1024
    along, across = np.fft.fftfreq(rows, 1 / rows)[:, None], np.fft.rfftfreq(side, 1 / side)[None]
    wave = np.hypot(along, across)
    wave[0, 0] = np.inf
    # in two dimensions a shell of radius k contains 2πk waves, so each has an amplitude of k^(-(5/3 + 1)/2)
    amplitude = wave ** (-(5 / 3 + 1) / 2)
    parts = rng.standard_normal((2, *amplitude.shape))
    field = np.fft.irfft2((parts[0] + 1j * parts[1]) * amplitude, (rows, side))
    return (field / field.std()).astype(np.float32)


@_recipe("bfloat16", "normally distributed numbers of deviation 0.02, as a model's weights")
def _bf16_weights(rng: Rng, nbytes: int) -> Any:
    bits = (0.02 * rng.standard_normal(nbytes // 2, np.float32)).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)  # to the nearest, ties to even


@_recipe("float16", "gradients in rows of 512, half of the rows and a tenth of the rest zero, rows of several scales")
def _fp16_gradients(rng: Rng, nbytes: int) -> Any:
    rows, width = nbytes // 2 // 512, 512
    scale = 1e-3 * rng.lognormal(0, 1, (rows, 1)).astype(np.float32)
    values = scale * rng.standard_normal((rows, width), np.float32)
    values[rng.random(rows) < 0.5] = 0  # rows of an embedding that no token of the batch used
    values *= rng.random((rows, width), np.float32) > 0.1  # small values that were cut off
    return values.astype(np.float16)


@_recipe("float8_e4m3", "keys of 128 channels, each with its own mean and scale, token by token")
def _fp8_cache(rng: Rng, nbytes: int) -> Any:
    """Return the keys as E4M3 bit patterns: uint8, shape (tokens, 128)."""
    channels = 128
    offset, scale = rng.normal(0, 1, channels), rng.lognormal(0, 0.7, channels)
    values = (offset + scale * rng.standard_normal((nbytes // channels, channels), np.float32)).astype(np.float32)
    codes = np.arange(127)
    normal = (1 + (codes & 7) / 8) * 2.0 ** ((codes >> 3) - 7)
    steps = np.where(codes >> 3 == 0, (codes & 7) / 8 * 2.0**-6, normal)
    middles = ((steps[1:] + steps[:-1]) / 2).astype(np.float32)  # a value beyond ±448 becomes ±448
    return np.searchsorted(middles, np.abs(values)).astype(np.uint8) | (np.signbit(values).astype(np.uint8) << 7)


# Data that need no model.


@_recipe("uint8", "machine code of the libraries that run this program")
def _code(_: Rng, nbytes: int) -> Any:
    numpys = Path(np.__file__).parent
    python = Path(sysconfig.get_config_var("LIBDIR") or "/") / (sysconfig.get_config_var("INSTSONAME") or "")
    libraries = (*sorted(numpys.rglob("*.so")), *sorted((numpys.parent / "numpy.libs").glob("*.so*")), python)
    code = b"".join(path.read_bytes() for path in (*libraries, Path(sys.executable)) if path.is_file())
    return np.resize(np.frombuffer(code[:nbytes], np.uint8), nbytes)


@_recipe("uint8", "uniformly random bytes: incompressible")
def _random(rng: Rng, nbytes: int) -> Any:
    return rng.integers(0, 256, nbytes, np.uint8)


@_recipe("uint8", "zeros")
def _zeros(_: Rng, nbytes: int) -> Any:
    return np.zeros(nbytes, np.uint8)
