"""Define the inventory of a machine: its devices, missing backends, versions, and the user's own files."""

from dataclasses import dataclass
from typing import Any, ClassVar

from gpubench.model.limits import Count, Many, Name, Text, Word
from gpubench.model.schema import STRICT


@dataclass(frozen=True, slots=True)
class Device:
    """One device as the inventory found it.

    `id` is the name that the user types (`cuda:0`). `uuid` and `pci` join it to counters, because NVML's index is not
    CUDA's ordinal. `details` are settings that a gate compares (power limit, ECC, MIG, …)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    id: Word
    backend: Word
    name: Name
    arch: Word
    uuid: Name = ""
    pci: Name = ""
    memory_bytes: Count = 0
    cache_bytes: Count = 0  # the last-level cache
    units: Count = 0  # the number of SMs (NVIDIA), CUs (AMD) or processor cores
    dtypes: Many[Word] = ()
    peers: Many[Word] = ()  # ids of the devices whose memory this device can access
    details: Many[tuple[Word, Text]] = ()


@dataclass(frozen=True, slots=True)
class UnavailablePart:
    """A backend or counter source that cannot be used on this machine: its name, the reason, and how to get it."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    what: Name
    reason: Text
    how: Text


@dataclass(frozen=True, slots=True)
class Facts:
    """The frozen inventory of a machine, taken once in a child process.

    `host` are facts about the host, and `versions` those of drivers and libraries, both as pairs of a name and a text.
    `absent` are the backends and counter sources that cannot be used."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    devices: Many[Device]
    host: Many[tuple[Word, Text]] = ()
    versions: Many[tuple[Word, Text]] = ()
    absent: Many[UnavailablePart] = ()

    def device(self, device_id: str) -> Device:
        """Return the device with this id (`cuda:0`). Raises KeyError if there is none."""
        for device in self.devices:
            if device.id == device_id:
                return device
        raise KeyError(device_id)


@dataclass(frozen=True, slots=True)
class DataFile:
    """One of the user's own files (`--data`): its label in case ids, its path, size and a hash of its first 16 MiB."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    label: Name
    path: Name
    bytes: Count
    sha256: Name = ""
