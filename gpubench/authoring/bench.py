"""What a case is built with: the open device, the case, its ranks, its seed, its kernels."""

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


class Exchange(Protocol):
    """How ranks talk: every rank calls it, each gets all values in rank order.

    Raises PeerDied, once, where a rank has ended since; from then on its value is None.
    """

    def __call__(self, value: Any) -> list[Any]: ...


def _alone(value: Any) -> list[Any]:
    return [value]


@dataclass(slots=True)
class Bench:
    """What a case is built with: the open device, its parameters' target, its ranks, its seed.

    `peers` is the device of every rank, `devices` every device of the case: one rank of a case of two
    devices has the second one's memory by `device.peer_memory(devices[1], nbytes)`.
    """

    open_device: OpenDevice
    case: Case
    target: Target
    package: str
    seed: int = 0
    rank: int = 0
    world: int = 1
    peers: tuple[Device, ...] = ()
    devices: tuple[Device, ...] = ()
    exchange: Exchange = _alone
    node_host: str = ""

    @classmethod
    def untimed(cls, case: Case, target: Target, package: str, seed: int = 0) -> Bench:
        """Open the target's device in this process, for a program that a case starts; its `device` times nothing."""
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
        """What the device is and can do."""
        return self.open_device.traits

    @property
    def rng(self) -> np.random.Generator:
        """A fresh generator, seeded by the run's seed and the case's id: the same data every time."""
        return np.random.default_rng([self.seed, zlib.crc32(self.case.id.encode())])

    def barrier(self) -> None:
        """Wait until every rank is here; raises PeerDied."""
        self.exchange(None)

    def copies(self, nbytes: int) -> int:
        """How many sets of buffers of `nbytes` a rotation needs to outgrow the last-level cache fourfold."""
        return -(-4 * max(self.target.device.cache_bytes, 1) // nbytes) + 1

    def need(self, nbytes: float) -> None:
        """Raise Skip where the device has less than `nbytes` of free memory; call it before anything is allocated."""
        free_bytes = self.open_device.free_bytes()
        if free_bytes < nbytes:
            raise Skip(f"needs {units.round_size(nbytes)} of memory, {units.round_size(free_bytes)} are free")

    def kernel(self, file: str, name: str, **defines: str | int) -> Kernel:
        """Compile `name` from a .cu file beside the suite, behind the `prelude.cuh` beside it if there is one.

        Both are looked for in the package above too: a suite that is a folder shares them with its neighbours.
        """
        prelude, kernels = self._beside("prelude.cuh"), self._beside(file)
        parts = (prelude, kernels) if prelude.is_file() else (kernels,)
        source = "".join(part.read_text(encoding="utf-8") for part in parts)
        return self.open_device.kernel(source, name, defines)

    def compile(self, file: str, name: str, variants: Iterable[Mapping[str, str | int]]) -> None:
        """Compile `name` with each of these defines, several at the same time; `kernel` then returns them at once."""
        with ThreadPoolExecutor(thread_name_prefix="gpubench-compile") as threads:
            for compiled in [threads.submit(self.kernel, file, name, **defines) for defines in variants]:
                compiled.result()

    def _beside(self, file: str) -> Traversable:
        above = self.package.rpartition(".")[0]
        own, *others = (resources.files(package) / file for package in (self.package, above) if package)
        return next((place for place in (own, *others) if place.is_file()), own)
