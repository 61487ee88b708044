"""Take the steps of a process that computes on the host, and check the results of the first product and the weights."""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api import suite as gb

_SIDE = 1024  # rows and columns of the first product
_TOLERANCE = 1e-4  # error of a sum of 1024 products in float32, relative to the root of their number


@dataclass(frozen=True, slots=True)
class StartOrder:
    """What a started process has to do: take `steps`, names of methods of HostStart or GpuStart, in this order.

    `pci` is the PCI address of the GPU, empty for the host, and `arch` its architecture."""

    steps: tuple[str, ...]
    pci: str
    arch: str
    seed: int
    path: str
    size_bytes: int
    crc: int
    others: tuple[str, ...] = ()


class HostStart:
    """The steps of a process that computes on the host, a method each; `check` compares their results afterwards.

    `result` is the product and `loaded` the weights in memory, each None before its step."""

    def __init__(self, order: StartOrder) -> None:
        self.order = order
        rng = np.random.default_rng(order.seed)
        self.left, self.right = (rng.standard_normal((_SIDE, _SIDE), np.float32) for _ in range(2))
        self.result: Any = None
        self.loaded: Any = None

    def product(self) -> None:
        """Multiply two float32 matrices for the first time."""
        self.result = self.left @ self.right

    def weights(self) -> None:
        """Read the file of weights into memory."""
        self.loaded = np.empty(self.order.size_bytes, np.uint8)
        read_into(self.order.path, self.loaded)

    def check(self) -> None:
        """Raise WrongAnswer if the product or the weights are wrong, as far as these steps were taken."""
        if self.result is not None:
            expect_product(self.result, self.left, self.right)
        if self.loaded is not None:
            expect_weights(self.loaded, self.order.crc)


def read_into(path: str, room: Any) -> None:
    """Fill `room`, a NumPy uint8 array, with the first bytes of the file `path` through the page cache.

    Raises WrongAnswer if the file is shorter."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - the timed code does no more than necessary
        missing = memoryview(room)
        while missing:
            count = file.readinto(missing)
            gb.expect(bool(count), f"the file of weights ends {len(missing)} bytes early")
            missing = missing[count:]


def expect_product(result: Any, left: Any, right: Any) -> None:
    """Raise WrongAnswer if an element of the first row of `result` is off by more than 1e-4 · √1024.

    It is compared with left · right in float64. All are float32 NumPy matrices of 1024 × 1024."""
    expected = left[0].astype(np.float64) @ right.astype(np.float64)
    error = float(np.abs(result[0] - expected).max()) / np.sqrt(_SIDE)
    gb.expect(error <= _TOLERANCE, f"the first product is off by {error:.3g} of the root of its number of terms")


def expect_weights(loaded: Any, crc: int) -> None:
    """Raise WrongAnswer if the CRC-32 of `loaded`, a NumPy uint8 array, is not `crc`."""
    gb.expect(zlib.crc32(loaded) == crc, "the weights in memory are not those of the file")
