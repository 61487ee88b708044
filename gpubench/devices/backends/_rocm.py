"""What CuPy tells of an AMD GPU, and what its ROCm build cannot do: pure functions of what the runtime answers.

Nothing here was run on an AMD GPU; docs/amd.md says what was checked instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KILO = 1000
# The name that the tests' stand-in for HIP's runtime gives its devices, whose memory and processor are the host's.
STAND_IN = "GPU on paper"
# The matrix instructions that suites use, of 16 × 16 × 16 halves and bfloat16 (AMD's ISA documents of CDNA 2 to 4).
_MATRIX = frozenset({"gfx90a", "gfx942", "gfx950"})
# The Infinity Cache stands before the memory of the MI300 and MI350, and HIP's l2CacheSize is that of one die's L2
# (AMD CDNA 3 white paper, "Memory"; CDNA 4 white paper).
_INFINITY_CACHE_BYTES = {"gfx942": 256 * 2**20, "gfx950": 256 * 2**20}
# hipDeviceProp_t's names for what CUDA has attributes of; clocks in kHz
_DETAILS = {"clock.sm_hz": "clockRate", "clock.memory_hz": "memoryClockRate", "memory.bus_bits": "memoryBusWidth"}


def arch(props: Mapping[str, Any]) -> str:
    """The compiler's name of the architecture, `gfx942`, without the features behind it (`:sramecc+:xnack-`).

    HIP's major and minor numbers are another scale than CUDA's: they never choose a path.
    """
    name = props.get("gcnArchName", b"")
    return (name.decode() if isinstance(name, bytes) else str(name)).split(":")[0]


def is_dry_run(props: Mapping[str, Any]) -> bool:
    """Return whether the device is of the tests' stand-in for HIP's runtime: cases run on it, and measure nothing."""
    name = props["name"]
    return (name.decode() if isinstance(name, bytes) else str(name)) == STAND_IN


def last_level_bytes(props: Mapping[str, Any]) -> int:
    """The cache before the memory, bytes: the Infinity Cache where the architecture has one, else the L2."""
    return _INFINITY_CACHE_BYTES.get(arch(props), int(props["l2CacheSize"]))


def features(props: Mapping[str, Any]) -> frozenset[str]:
    """What `Traits.features` names: the matrix instructions; of the driver's own CuPy on ROCm binds none."""
    return frozenset({"matrix"} if arch(props) in _MATRIX else ())


def max_shared_bytes(props: Mapping[str, Any]) -> int:
    """Shared memory (LDS) of a block: CuPy's call that asks for more than the default always fails on ROCm."""
    return int(props["sharedMemPerBlock"])


def dtypes(props: Mapping[str, Any], with_hipblaslt: bool) -> tuple[str, ...]:
    """The formats of products: bfloat16 and FP8 through CuPy's hipBLAS would end the process.

    hipBLASLt has them, of FP8 OCP's formats on the MI350 alone: those of the MI300 are others (`FNUZ`).
    """
    found = ("float64", "float32", "float16")
    if not with_hipblaslt or arch(props) not in _MATRIX:
        return found
    return (*found, "bfloat16", *(("float8_e4m3", "float8_e5m2") if arch(props) == "gfx950" else ()))


def details(props: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Clocks in Hz and the width of the memory's bus, as far as the runtime tells."""
    found = {name: int(props.get(key) or 0) * (_KILO if name.endswith("_hz") else 1) for name, key in _DETAILS.items()}
    return tuple((name, str(value)) for name, value in found.items() if value)


def version(number: int) -> str:
    """HIP's integer versions in words: 70051831 → 7.0.51831 (hip_version.h: major · 10⁷ + minor · 10⁵ + patch)."""
    return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"
