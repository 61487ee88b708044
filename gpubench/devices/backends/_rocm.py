"""Derive from device properties what an AMD GPU has, and what CuPy's ROCm build cannot do with it.

Nothing here was run on an AMD GPU; docs/amd.md says what was checked instead."""

from collections.abc import Mapping
from typing import Any

from gpubench.model import Architecture

_KILO = 1000
# The name that the tests' stand-in for HIP's runtime gives its devices, whose memory and processor are the host's.
STAND_IN = "GPU on paper"
# The Infinity Cache stands before the memory of the MI300 and MI350, and HIP's l2CacheSize is the size of one die's L2
# (AMD CDNA 3 white paper, "Memory"; CDNA 4 white paper).
_INFINITY_CACHE_BYTES = {"gfx942": 256 * 2**20, "gfx950": 256 * 2**20}
# hipDeviceProp_t's fields where CUDA has attributes; clocks in kHz
_DETAILS = {
    "clock.sm_hz": "clockRate",
    "clock.memory_hz": "memoryClockRate",
    "memory.bus_bits": "memoryBusWidth",
    "memory.integrated": "integrated",  # 1 of an APU, whose processor and GPU share one memory
}


def arch(props: Mapping[str, Any]) -> str:
    """Return the compiler's name of the architecture (`gfx942`) without its features (`:sramecc+:xnack-`)."""
    name = props.get("gcnArchName", b"")
    return (name.decode() if isinstance(name, bytes) else str(name)).split(":")[0]


def is_dry_run(props: Mapping[str, Any]) -> bool:
    """Return whether the device is the tests' stand-in for a GPU: cases run on it and measure nothing."""
    name = props["name"]
    return (name.decode() if isinstance(name, bytes) else str(name)) == STAND_IN


def last_level_bytes(props: Mapping[str, Any]) -> int:
    """Return the bytes of the last-level cache: the Infinity Cache if the architecture has one, else the L2."""
    return _INFINITY_CACHE_BYTES.get(arch(props), int(props["l2CacheSize"]))


def max_shared_bytes(props: Mapping[str, Any]) -> int:
    """Return the bytes of shared memory (LDS) per block: CuPy cannot request more than the default on ROCm."""
    return int(props["sharedMemPerBlock"])


def dtypes(props: Mapping[str, Any], with_hipblaslt: bool) -> tuple[str, ...]:
    """Return the data types of matrix products; through CuPy's hipBLAS, the others would end the process."""
    native = ("float64", "float32", "float16")
    features = Architecture.parse(arch(props)).features
    if not with_hipblaslt or "matrix" not in features:
        return native
    return (*native, "bfloat16", *(("float8_e4m3", "float8_e5m2") if "float8" in features else ()), "int8")


def details(props: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the clocks in Hz and the width of the memory bus in bits, as pairs of name and number as text."""
    numbers = {
        name: int(props.get(key) or 0) * (_KILO if name.endswith("_hz") else 1) for name, key in _DETAILS.items()
    }
    return tuple((name, str(value)) for name, value in numbers.items() if value)


def version(number: int) -> str:
    """Return HIP's number major · 10⁷ + minor · 10⁵ + patch (hip_version.h) as text: 70051831 → 7.0.51831."""
    return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"
