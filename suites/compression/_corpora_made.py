"""Generate corpora from a random number generator: the description of each corpus, and the function that draws it.

Each corpus is one array of `nbytes` bytes. Shapes and rates are round numbers of our own, unless a source is named."""

import importlib.metadata
import platform
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Rng = np.random.Generator


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to generate a corpus: `make(rng, nbytes)` returns an array of `nbytes` bytes.

    `dtype` names the type of its elements for codecs."""

    dtype: str
    description: str
    make: Callable[[Rng, int], Any]


# Integers, as database columns contain them.


def _ids(rng: Rng, nbytes: int) -> Any:
    count = nbytes // 4
    is_next = rng.random(count) < 1 / 8
    return np.cumsum(np.where(is_next, rng.geometric(1 / 16, count), 0), dtype=np.int32)


def _runs(rng: Rng, nbytes: int) -> Any:
    count = nbytes // 4
    lengths = rng.geometric(1 / 20, count // 10)  # on average twice as many as needed
    return np.repeat(rng.integers(0, 2**16, lengths.size, np.int32), lengths)[:count]


def _categories(rng: Rng, nbytes: int) -> Any:
    return _zipf(rng, 100, nbytes // 4).astype(np.int32)


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


def _text(rng: Rng, nbytes: int) -> Any:
    """Return `nbytes` of English-like text (uint8): words from a vocabulary of 10 000 made-up words, by Zipf's law."""
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


def _logs(rng: Rng, nbytes: int) -> Any:
    """Return `nbytes` of a server's log of nine days (uint8): lines with JSON objects, in the order of their times."""
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


def _field(rng: Rng, nbytes: int) -> Any:
    """Return `nbytes` of a smooth field (float32, shape (rows, 1024)): the sum of eight products of two sine waves."""
    columns = 1024
    rows = nbytes // 4 // columns
    field = np.zeros((rows, columns))
    for _ in range(8):
        waves = [np.sin(rng.uniform(1, 20) * np.linspace(0, 1, n) + rng.uniform(0, 6)) for n in (rows, columns)]
        field += np.outer(*waves)
    return field.astype(np.float32)


def _turbulence(rng: Rng, nbytes: int) -> Any:
    """Return `nbytes` of a random field (float32, shape (rows, 1024)) of deviation 1.

    Its energy falls with the wave number k as k^(-5/3) (Kolmogorov 1941)."""
    side = 1024
    rows = nbytes // 4 // side
    along, across = np.fft.fftfreq(rows, 1 / rows)[:, None], np.fft.rfftfreq(side, 1 / side)[None]
    wave = np.hypot(along, across)
    wave[0, 0] = np.inf
    # in two dimensions a shell of radius k contains 2πk waves, so each has an amplitude of k^(-(5/3 + 1)/2)
    amplitude = wave ** (-(5 / 3 + 1) / 2)
    parts = rng.standard_normal((2, *amplitude.shape))
    field = np.fft.irfft2((parts[0] + 1j * parts[1]) * amplitude, (rows, side))
    return (field / field.std()).astype(np.float32)


def _weights(rng: Rng, nbytes: int) -> Any:
    return _bfloat16(0.02 * rng.standard_normal(nbytes // 2, np.float32))


def _bfloat16(values: Any) -> Any:
    """Return float32 values rounded to bfloat16, to the nearest and ties to even, as uint16 bit patterns."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _gradients(rng: Rng, nbytes: int) -> Any:
    """Return `nbytes` of gradients of an embedding (float16, shape (rows, 512))."""
    width = 512
    rows = nbytes // 2 // width
    scale = 1e-3 * rng.lognormal(0, 1, (rows, 1)).astype(np.float32)
    values = scale * rng.standard_normal((rows, width), np.float32)
    values[rng.random(rows) < 0.5] = 0  # rows of an embedding that no token of the batch used
    values *= rng.random((rows, width), np.float32) > 0.1  # small values that were cut off
    return values.astype(np.float16)


def _cache(rng: Rng, nbytes: int) -> Any:
    """Return `nbytes` of keys of an attention cache as E4M3 bit patterns (uint8, shape (tokens, 128))."""
    channels = 128
    tokens = nbytes // channels
    offset, scale = rng.normal(0, 1, channels), rng.lognormal(0, 0.7, channels)
    values = (offset + scale * rng.standard_normal((tokens, channels), np.float32)).astype(np.float32)
    return float8_e4m3(values)


def float8_e4m3(values: Any) -> Any:
    """Return float32 values rounded to the nearest E4M3, as uint8 bit patterns; a value beyond ±448 becomes ±448."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    steps = np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)
    middles = ((steps[1:] + steps[:-1]) / 2).astype(np.float32)
    code = np.searchsorted(middles, np.abs(values)).astype(np.uint8)
    return code | (np.signbit(values).astype(np.uint8) << 7)


# Data that need no model.


def _random(rng: Rng, nbytes: int) -> Any:
    return rng.integers(0, 256, nbytes, np.uint8)


def _zeros(rng: Rng, nbytes: int) -> Any:
    del rng
    return np.zeros(nbytes, np.uint8)


def _code(rng: Rng, nbytes: int) -> Any:
    """Return `nbytes` of machine code (uint8) from the libraries of this interpreter, repeated if they are shorter."""
    del rng
    code = b""
    for path in _libraries():
        with path.open("rb") as file:
            code += file.read(nbytes - len(code))
        if len(code) == nbytes:
            break
    return np.resize(np.frombuffer(code, np.uint8), nbytes)


def _libraries() -> Iterator[Path]:
    """Yield the paths of NumPy's libraries, sorted by name, then of Python's library and of its executable."""
    numpys = Path(np.__file__).parent
    yield from sorted(numpys.rglob("*.so"))
    yield from sorted((numpys.parent / "numpy.libs").glob("*.so*"))
    name = sysconfig.get_config_var("INSTSONAME") or ""
    yield from (path for path in (Path(sysconfig.get_config_var("LIBDIR") or "/") / name,) if path.is_file())
    yield Path(sys.executable)


def versions_of_code(data: Any) -> str:
    """Return the versions of NumPy and Python, the machine's architecture, and the CRC-32 of `data` as text."""
    numpys = importlib.metadata.version("numpy")
    where = f"numpy {numpys}, Python {platform.python_version()}, {platform.machine()}"
    return f"{where}, CRC-32 {zlib.crc32(data):08x}"


RECIPES: Mapping[str, Recipe] = {
    "ids": Recipe("int32", "a sorted column of 32-bit keys, each 8 times on average, gaps of 16 on average", _ids),
    "runs": Recipe("int32", "32-bit integers below 65 536 in runs of 20 on average", _runs),
    "categories": Recipe("int32", "32-bit codes of 100 categories by Zipf's law, in random order", _categories),
    "lineitem": Recipe("int32", "eight columns as TPC-H's LINEITEM has them, in row groups of 16 384 rows", _lineitem),
    "text": Recipe("uint8", "words drawn by Zipf's law from a vocabulary of 10 000 made-up words", _text),
    "logs": Recipe("uint8", "JSON lines: times in order, a level, a host, a route with a number, milliseconds", _logs),
    "field": Recipe("float32", "a smooth two-dimensional field: the sum of eight standing waves", _field),
    "turbulence": Recipe("float32", "a random field of rows of 1024, energy falling as k^(-5/3)", _turbulence),
    "bf16-weights": Recipe(
        "bfloat16", "normally distributed numbers of deviation 0.02, as a model's weights", _weights
    ),
    "fp16-gradients": Recipe(
        "float16",
        "gradients in rows of 512, half of the rows and a tenth of the rest zero, rows of several scales",
        _gradients,
    ),
    "fp8-cache": Recipe(
        "float8_e4m3", "keys of 128 channels, each with its own mean and scale, token by token", _cache
    ),
    "code": Recipe("uint8", "machine code of the libraries that run this program", _code),
    "random": Recipe("uint8", "uniformly random bytes: incompressible", _random),
    "zeros": Recipe("uint8", "zeros", _zeros),
}
