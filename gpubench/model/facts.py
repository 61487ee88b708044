"""Define the inventory of a machine: its devices, missing backends, versions, and the user's own files."""

import re
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Literal, Self

from gpubench.base import units
from gpubench.model.limits import Count, Many, Name, Text, Word
from gpubench.model.schema import Strict

_NAMES = {
    "nvidia": re.compile(r"sm_(\d+)(\d)[af]?"),
    "amd": re.compile(r"gfx(\d+)([0-9a-f])([0-9a-f])"),
}

# In the name of an instance: its slices of SMs and its memory. "1c." in front is a part of the instance's SMs.
MIG = re.compile(r"\bMIG (?:\d+c\.)?(\d+)g\.(\d+)gb")
_VGPU = re.compile(r"-\d+[ABCQ]$")  # NVIDIA's profiles of virtual GPUs: A40-12Q
# For each feature the first architecture that has it and the next one that does not (CUDA Programming Guide, PTX ISA).
_NVIDIA: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "float64_wide": ((9, 0), (10, 0)),  # m16n8 products by mma; newer compilers make them of m8n8k4
    "async_copy": ((8, 0), (99, 0)),  # global to shared memory without registers
    "matrix": ((8, 0), (99, 0)),  # of 16-bit formats, as the suites' kernels use them
    "bulk_copy": ((9, 0), (99, 0)),  # started by one thread, completed by a barrier in shared memory
    "clusters": ((9, 0), (99, 0)),  # blocks that access each other's shared memory
    "wgmma": ((9, 0), (10, 0)),
    "tcgen05": ((10, 0), (12, 0)),
    "block_scales": ((10, 0), (99, 0)),  # products of FP8 and FP4 with a scale for 32 or 16 elements
}
# CDNA 2 to 4 (AMD's ISA documents); FP8 of CDNA 3 and of the OCP differ in their bias.
_AMD: dict[tuple[int, ...], frozenset[str]] = {
    (9, 0, 10): frozenset({"matrix", "narrow_int8"}),
    (9, 4, 2): frozenset({"matrix", "float8"}),
    (9, 5, 0): frozenset({"matrix", "float8", "ocp_float8", "wide_matrix"}),
}
_MOST_THREADS: dict[tuple[int, ...], int] = {
    (7, 5): 1024,
    (8, 6): 1536,
    (8, 7): 1536,
    (8, 9): 1536,
    (11, 0): 1536,
    (12, 0): 1536,
    (12, 1): 1536,
}


@total_ordering
@dataclass(frozen=True, slots=True)
class Architecture:
    """The architecture of a device as a value with an order, which its name has not: "sm_100" < "sm_80".

    Only architectures of one vendor have an order; to compare others raises TypeError.
    `number` is (9, 0) for sm_90 and for sm_90a, and (9, 0, 10) for gfx90a: major, minor and on AMD the stepping.
    Processors of hosts and unknown names have an empty `vendor` and no number."""

    vendor: str
    number: tuple[int, ...]
    name: str = field(compare=False)

    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the architecture that a compiler or driver calls `name`, such as sm_100, sm_90a or gfx942."""
        for vendor, pattern in _NAMES.items():
            if match := pattern.fullmatch(name):
                major, *rest = match.groups()
                return cls(vendor, (int(major), *(int(digit, 16) for digit in rest)), name)
        return cls("", (), name)

    @property
    def capability(self) -> int:
        """The compute capability of an NVIDIA GPU as one integer, as compilers take it: 90 for sm_90."""
        major, minor = self.number
        return 10 * major + minor

    @property
    def target(self) -> str:
        """The name by which a compiler emits every instruction of the architecture: sm_90a for sm_90."""
        return f"sm_{self.capability}a" if self.vendor == "nvidia" and self.number >= (9, 0) else self.name

    @property
    def features(self) -> frozenset[str]:
        """The capabilities of its kernels by name, such as `bulk_copy` or `matrix`."""
        if self.vendor == "amd":
            return _AMD.get(self.number, frozenset())
        named = {name for name, (first, end) in _NVIDIA.items() if self.vendor and first <= self.number < end}
        # Compilers make mma of FP8 on other architectures of conversions and products of halves.
        return frozenset(named | ({"float8_mma"} if self.number == (8, 9) or self.number >= (12, 0) else set()))

    @property
    def resident_threads(self) -> int:
        """The threads that one SM or CU holds at once (CUDA Programming Guide, technical specifications; CDNA ISA)."""
        return _MOST_THREADS.get(self.number, 2048) if self.vendor == "nvidia" else 2048

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Architecture):
            return NotImplemented
        if not self.vendor or self.vendor != other.vendor:
            raise TypeError(f"{self} and {other} are not two architectures of one vendor")
        return self.number < other.number

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Device(Strict):
    """One device as the inventory found it.

    `id` is the name that the user types (`cuda:0`). `uuid` and `pci` join it to counters, because NVML's index is not
    CUDA's ordinal. `details` are settings that a gate compares (power limit, ECC, MIG, …)."""

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

    @property
    def architecture(self) -> Architecture:
        """`arch` as a value with an order and a vendor."""
        return Architecture.parse(self.arch)

    @property
    def sizes(self) -> tuple[str, ...]:
        """Its compute units and memory as texts, as far as they are known: `132 SMs` and `139.8 GiB`."""
        kind = {"cuda": "SMs", "rocm": "CUs"}.get(self.id.partition(":")[0], "cores")
        count = (f"{self.units} {kind}",) if self.units else ()
        return (*count, units.round_size(self.memory_bytes)) if self.memory_bytes else count

    @property
    def kind(self) -> Literal["card", "mig", "vgpu", "integrated"]:
        """Whether it is a whole card, a MIG instance, a virtual GPU, or a GPU that shares the host's memory."""
        if MIG.search(self.name) or self.uuid.startswith("MIG-"):
            return "mig"
        return (
            "vgpu" if _VGPU.search(self.name) else "integrated" if "memory.integrated" in dict(self.details) else "card"
        )


@dataclass(frozen=True, slots=True)
class UnavailablePart(Strict):
    """A backend or counter source that cannot be used on this machine: its name, the reason, and how to get it."""

    what: Name
    reason: Text
    how: Text


@dataclass(frozen=True, slots=True)
class Facts(Strict):
    """The frozen inventory of a machine, taken once in a child process.

    `host` are facts about the host, and `versions` the versions of drivers and libraries, both as pairs of a name and a
    text. `absent` are the backends and counter sources that cannot be used."""

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
class DataFile(Strict):
    """One of the user's own files (`--data`): its label in case ids, its path, size and a hash of its first 16 MiB."""

    label: Name
    path: Name
    bytes: Count
    sha256: Name = ""
