"""Give a case its inputs: the open device, its parameters, its ranks, its seed and its kernels."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Protocol

import numpy as np

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.base import units
from gpubench.base.errors import Skip
from gpubench.model import Case, Device
from gpubench.plugins.backend import Backend, Kernel, OpenDevice, OpensUntimed, Traits

_PART_BYTES = 2**24  # a GPU overwrites host memory in parts of this size


class Exchange(Protocol):
    """The communication of ranks: every rank calls it with a value, and each gets the values of all in rank order.

    Raises PeerDied, once, if a rank has ended since; afterwards the value of that rank is None."""

    def __call__(self, value: Any) -> list[Any]: ...


def _exchange_alone(value: Any) -> list[Any]:
    """Return the values of all ranks of a case with a single rank."""
    return [value]


def poison(device: OpenDevice, arrays: Iterable[Any]) -> None:
    """Set every bit of `arrays`: that is NaN in a float of any format, and -1 or the largest number in an integer.

    A device fills its own arrays. On a GPU, host memory is overwritten by the processor and then by the device, so that
    the processor's caches do not hold its lines."""
    for array in arrays:
        bits = array.view(f"i{min(array.itemsize, 8)}")
        if not (device.traits.is_gpu and isinstance(array, np.ndarray) and array.flags.c_contiguous and array.size):
            bits.fill(-1)
            continue
        device.synchronize()
        bits.fill(-1)  # so that a copy which does nothing leaves nothing of an earlier one
        bits = bits.reshape(-1)
        part = device.xp.full(min(bits.size, _PART_BYTES // bits.itemsize), -1, bits.dtype)
        for first in range(0, bits.size, part.size):
            rest = bits[first : first + part.size]
            device.copy(rest, part[: rest.size])
        device.synchronize()


@dataclass(slots=True)
class Bench:
    """The inputs of a case: the open device, the target of its parameters, its ranks and its seed.

    `package` is the package whose folder holds the suite's kernels. `rank` is the number of this process among `world`
    ranks, and `exchange` passes values between them. `node_host` is the address of this node for the others, empty for
    a case on one node. `peers` has the device of every rank, and `devices` every device of the case: one rank of a case
    with two devices gets memory of the second one by `device.peer_memory(devices[1], nbytes)`."""

    open_device: OpenDevice
    case: Case
    target: Target
    package: str
    seed: int = 0
    rank: int = 0
    world: int = 1
    peers: tuple[Device, ...] = ()
    devices: tuple[Device, ...] = ()
    exchange: Exchange = _exchange_alone
    node_host: str = ""

    @classmethod
    def untimed(cls, case: Case, target: Target, package: str, seed: int = 0) -> Bench:
        """Return a Bench whose device is opened in this process, for a program that a case starts.

        `package` is the name of the package whose folder holds the suite's kernels. If the backend can open a device
        without preparing its clock, it does, and `device` cannot time. Raises UsageError or BrokenPlugin if the backend
        cannot be loaded."""
        backend: Backend = plugins.load("backends", target.device.backend)
        open_device = backend.open_untimed if isinstance(backend, OpensUntimed) else backend.open
        return cls(open_device(target.device), case, target, package, seed)

    @property
    def device(self) -> OpenDevice:
        """The open device."""
        return self.open_device

    @property
    def xp(self) -> Any:
        """The array module: numpy or cupy."""
        return self.open_device.xp

    @property
    def traits(self) -> Traits:
        """The properties and capabilities of the device."""
        return self.open_device.traits

    @property
    def rng(self) -> np.random.Generator:
        """A new random generator, seeded by the run's seed and the case's id: the data are the same every time."""
        return np.random.default_rng([self.seed, zlib.crc32(self.case.id.encode())])

    def barrier(self) -> None:
        """Wait until every rank has called this. Raises PeerDied if a rank has ended."""
        self.exchange(None)

    def copies(self, nbytes: int) -> int:
        """Return how many buffers of `nbytes` bytes must be used in turn so that none is still in the last-level cache.

        It is four times the size of the cache over `nbytes`, rounded up, plus 1: while one buffer is in use, the others
        together are at least four times as large as the cache."""
        return -(-4 * max(self.target.device.cache_bytes, 1) // nbytes) + 1

    def need(self, nbytes: float) -> None:
        """Raise Skip if the device has less than `nbytes` bytes of free memory; call it before allocating."""
        free_bytes = self.open_device.free_bytes()
        if free_bytes < nbytes:
            raise Skip(f"needs {units.round_size(nbytes)} of memory, {units.round_size(free_bytes)} are free")

    def poison(self, *arrays: Any) -> None:
        """Overwrite `arrays` as the engine overwrites the `outputs` of a stage, for a `Task.poison` that does more."""
        poison(self.open_device, arrays)

    def kernel(self, file: str, name: str, **defines: str | int) -> Kernel:
        """Return the kernel `name`, compiled from the .cu file `file` with the macros `defines` and their values.

        The text of `prelude.cuh`, if that file exists, is put in front. Both files are searched in the suite's package
        and then in the package above it, so that several suites can share them. Raises FileNotFoundError if `file` is
        in neither."""
        prelude, kernels = self._find_source("prelude.cuh"), self._find_source(file)
        parts = (prelude, kernels) if prelude.is_file() else (kernels,)
        source = "".join(part.read_text(encoding="utf-8") for part in parts)
        return self.open_device.kernel(source, name, defines)

    def compile(self, file: str, name: str, variants: Iterable[Mapping[str, str | int]]) -> None:
        """Compile the kernel `name` of `file` once for each set of macros in `variants`, in parallel threads.

        A later call of `kernel` with the same macros then returns at once. Raises the error of the first variant that
        cannot be compiled."""
        with ThreadPoolExecutor(thread_name_prefix="gpubench-compile") as threads:
            for compiled in [threads.submit(self.kernel, file, name, **defines) for defines in variants]:
                compiled.result()

    def _find_source(self, file: str) -> Traversable:
        """Return the path of `file` in the suite's package, or in the package above it if the file is only there."""
        above = self.package.rpartition(".")[0]
        own, *others = (resources.files(package) / file for package in (self.package, above) if package)
        return next((place for place in (own, *others) if place.is_file()), own)
