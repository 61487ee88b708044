"""What is here: devices, what is missing, versions, and the user's own files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gpubench.model.limits import Count, Many, Name, Text, Word
from gpubench.model.schema import STRICT


@dataclass(frozen=True, slots=True)
class Device:
    """One device as the inventory saw it.

    `id` is what the user types (`cuda:0`), `uuid` and `pci` join it to counters (NVML's index is
    not CUDA's ordinal), `details` are settings a gate compares (power limit, ECC, MIG, …).
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    id: Word
    backend: Word
    name: Name
    arch: Word
    uuid: Name = ""
    pci: Name = ""
    memory_bytes: Count = 0
    cache_bytes: Count = 0  # the last-level cache
    units: Count = 0  # multiprocessors, compute units or processor cores
    dtypes: Many[Word] = ()
    peers: Many[Word] = ()  # ids of devices whose memory this one can reach
    details: Many[tuple[Word, Text]] = ()


@dataclass(frozen=True, slots=True)
class Absent:
    """A backend or counter source that is not usable here, and how to get it."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    what: Name
    reason: Text
    how: Text


@dataclass(frozen=True, slots=True)
class Facts:
    """The frozen inventory of a machine, taken once in a child process."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    devices: Many[Device]
    host: Many[tuple[Word, Text]] = ()
    versions: Many[tuple[Word, Text]] = ()
    absent: Many[Absent] = ()

    def device(self, device_id: str) -> Device:
        """The device of that id; KeyError where there is none."""
        for device in self.devices:
            if device.id == device_id:
                return device
        raise KeyError(device_id)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the user's own (`--data`): its label in case ids, its path, size and a hash of its first 16 MiB."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    label: Name
    path: Name
    bytes: Count
    sha256: Name = ""
