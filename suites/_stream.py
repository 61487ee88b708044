"""Create the arrays and kernels of STREAM, with one interface for GPUs and the host.

The data are a function of (seed, index), uniform in [-1, 1), so a check needs no copy of them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from ._checks import expect_no_mistakes

NEEDS_NUMBA = f"needs numba: {gb.installation.with_extra('host')}"
_SPARE_BYTES = 2**26
# Threads per block, at most THREADS in stream.cu. These are the best values on an H200, where the rate of copy differs
# by 5 % between 128 and 1024.
_THREADS = {"write": 256, "copy": 128, "scale": 128, "add": 1024, "triad": 1024}
_OTHER_THREADS = 512
# vectors per thread in kernels that end in a reduction over the block; kernels in _THREADS have one per thread
_VECTORS = 8
_REALS = {"float32": "float", "float64": "double"}
_HOST_PARTS = 1024

Call = Callable[[], None]


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """The bytes that a GPU's thread moves at once, and the number of threads that run a kernel.

    With 0 threads each kernel has the grid that serves it best, and the host uses all threads."""

    width_bytes: int = 16
    threads: int = 0


BEST_SHAPE = LaunchShape()


@dataclass(slots=True)
class Drawn:
    """An array of random data of the device's array module, and the seed from which the data can be computed again.

    `Stream.redraw` changes both."""

    array: Any
    seed: np.uint64


def need_gpu(bench: gb.Bench) -> None:
    """Raise Skip if the device is not a GPU."""
    if not bench.traits.is_gpu:
        raise gb.Skip("needs a GPU")


def need_numba(bench: gb.Bench) -> None:
    """Raise Skip if the host has no compiled kernels (numba)."""
    if bench.traits.kernels != "numba":
        raise gb.Skip(NEEDS_NUMBA)


class Stream(ABC):
    """Arrays of `size_bytes` each in one dtype, and the kernels that work on them.

    `count` is the number of elements in the type that the kernels take."""

    def __init__(self, bench: gb.Bench, size_bytes: int, dtype: str, arrays: int, shape: LaunchShape) -> None:
        self.bench = bench
        self.size_bytes = size_bytes
        self._shape = shape
        self._rng = bench.rng
        self._dtype = np.dtype(dtype)
        self._elements = size_bytes // self._dtype.itemsize
        self._kernels: dict[str, gb.Kernel] = {}
        bench.need(arrays * size_bytes + _SPARE_BYTES)

    @property
    @abstractmethod
    def count(self) -> Any: ...
    @property
    @abstractmethod
    def parts(self) -> int: ...
    @property
    @abstractmethod
    def terms(self) -> int: ...
    @property
    @abstractmethod
    def notes(self) -> Mapping[str, str]:
        """The notes on how the kernels ran, by name."""

    @abstractmethod
    def call(self, name: str, *args: Any) -> Call:
        """Return a function that launches the kernel `name` with `args`; compile the kernel first if it is new."""

    @abstractmethod
    def expected_xor(self, b: Drawn) -> npt.NDArray[np.uint64]:
        """Return the partial results of `read` for `b`, computed in another way: uint64, shape (parts,)."""

    @abstractmethod
    def expected_dot(self, b: Drawn, c: Drawn) -> npt.NDArray[np.float64]:
        """Return the partial sums of `dot` for `b` and `c`, computed in another way: float64, shape (parts,)."""

    def real(self, value: float) -> Any:
        """Return the value as a scalar of the arrays' dtype."""
        return self._dtype.type(value)

    def empty(self) -> Any:
        """Return an array of `size_bytes` full of NaN, first touched by the threads that will work on it."""
        array = self.bench.xp.empty(self._elements, self._dtype)
        self.call("write", array, self.count, self.real(math.nan))()
        return array

    def drawn(self) -> Drawn:
        """Return an array of random data; each call draws another seed."""
        filled = Drawn(self.bench.xp.empty(self._elements, self._dtype), self._seed())
        self.call("fill", filled.array, self.count, filled.seed)()
        return filled

    def redraw(self, *arrays: Drawn) -> None:
        """Fill the arrays with the data of a new seed, so that no kernel can have kept their answer."""
        for drawn in arrays:
            drawn.seed = np.uint64((int(drawn.seed) + 1) % 2**64)
            self.call("fill", drawn.array, self.count, drawn.seed)()

    def partial(self, dtype: type[np.uint64] | type[np.float64]) -> Any:
        """Return a zeroed array for the partial results of `read` (uint64) or of `dot` and checks (float64)."""
        return self.bench.xp.zeros(self.parts, dtype)

    def bound(self) -> float:
        """Return the absolute error bound of a partial result of `dot`: 64 · eps · √`terms`.

        Each of `terms` products, at most 1 each, adds roundings of random sign, which grow as a random walk."""
        return 64 * float(np.finfo(self._dtype).eps) * math.sqrt(self.terms)

    def verifier(self, a: Any, inputs: tuple[Drawn, ...], factors: tuple[float, float, float]) -> Call:
        """Return a check that raises WrongAnswer unless every element of `a` equals k + kb·b + kc·c exactly.

        `inputs` are b and c, only b, or none; `factors` are (k, kb, kc). kb and kc are powers of two or zero:
        nothing is then rounded more than once, in any order."""
        mistakes = self.partial(np.float64)
        self.call("mistakes")  # compiles it before anything is timed

        def check() -> None:
            seeds = [*(drawn.seed for drawn in inputs), np.uint64(0), np.uint64(0)][:2]
            count = self.call("mistakes", a, self.count, *seeds, *(self.real(factor) for factor in factors), mistakes)
            expect_no_mistakes(self.bench, count, mistakes, self._elements, "elements")

        return check

    def _seed(self) -> np.uint64:
        return np.uint64(self._rng.integers(2**64, dtype=np.uint64))


class GpuStream(Stream):
    """The kernels of stream.cu."""

    @property
    def count(self) -> np.uint64:
        return np.uint64(self._elements)

    @property
    def parts(self) -> int:
        return self._layout("read")[0]

    @property
    def terms(self) -> int:
        blocks, threads = self._layout("dot")
        lanes = self._shape.width_bytes // self._dtype.itemsize
        return lanes * threads * math.ceil(self._vectors() / (threads * blocks))

    @property
    def notes(self) -> Mapping[str, str]:
        return {}

    def _vectors(self) -> int:
        return self._elements * self._dtype.itemsize // self._shape.width_bytes

    def _layout(self, name: str) -> tuple[int, int]:
        """Return the number of blocks of a launch of the kernel `name`, and the number of threads in each block."""
        if self._shape.threads:
            threads = min(self._shape.threads, _OTHER_THREADS)
            return max(1, self.bench.target.device.units) * (self._shape.threads // threads), threads
        threads = _THREADS.get(name, _OTHER_THREADS)
        if self.bench.target.device.architecture.resident_threads % threads:  # 1024 of 1536 leave a third idle
            threads = _OTHER_THREADS
        return math.ceil(self._vectors() / (threads * (1 if name in _THREADS else _VECTORS))), threads

    def call(self, name: str, *args: Any) -> Call:
        """Return a function that launches the kernel `name` of stream.cu; compile the kernel first if it is new."""
        if name not in self._kernels:
            real, width = _REALS[self._dtype.name], self._shape.width_bytes
            self._kernels[name] = self.bench.kernel("stream.cu", name, REAL=real, WIDTH=width)
        kernel, (blocks, threads) = self._kernels[name], self._layout(name)
        return lambda: kernel((blocks,), (threads,), args)

    def expected_xor(self, b: Drawn) -> npt.NDArray[np.uint64]:
        return self._folded("read_expected", np.uint64, b.seed)

    def expected_dot(self, b: Drawn, c: Drawn) -> npt.NDArray[np.float64]:
        return self._folded("dot_expected", np.float64, b.seed, c.seed)

    def _folded(self, name: str, dtype: Any, *seeds: np.uint64) -> npt.NDArray[Any]:
        """Return the results, shape (parts,), that the kernel `name` computes from the seeds of the data."""
        parts = self.partial(dtype)
        self.call(name, *seeds, self.count, parts)()
        return np.asarray(self.bench.device.to_host(parts))


class HostStream(Stream):
    """The kernels of `_host`, over all threads of this process."""

    @property
    def count(self) -> int:
        return self._elements

    @property
    def parts(self) -> int:
        return _HOST_PARTS

    @property
    def terms(self) -> int:
        return self._elements // _HOST_PARTS

    @property
    def notes(self) -> Mapping[str, str]:
        from . import _host

        return {"threads": _host.threads()}

    def call(self, name: str, *args: Any) -> Call:
        from . import _host

        kernel = _host.on_threads(_host.KERNELS[name], self._shape.threads)
        return lambda: kernel(*args)

    def expected_xor(self, b: Drawn) -> npt.NDArray[np.uint64]:
        rows = b.array.view(np.uint64).reshape(self.parts, -1)
        return np.asarray(np.bitwise_xor.reduce(rows, axis=1))

    def expected_dot(self, b: Drawn, c: Drawn) -> npt.NDArray[np.float64]:
        rows = zip(b.array.reshape(self.parts, -1), c.array.reshape(self.parts, -1), strict=True)
        return np.array([np.sum(x.astype(np.float64) * y) for x, y in rows])


def open_stream(bench: gb.Bench, size_bytes: int, dtype: str, arrays: int, shape: LaunchShape = BEST_SHAPE) -> Stream:
    """Return the arrays and kernels of STREAM for the device of `bench`.

    The caller will create `arrays` arrays of `size_bytes` bytes and `dtype` (float32 or float64)."""
    if bench.traits.is_gpu:
        return GpuStream(bench, size_bytes, dtype, arrays, shape)
    need_numba(bench)
    return HostStream(bench, size_bytes, dtype, arrays, shape)
