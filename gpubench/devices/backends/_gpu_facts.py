"""Read the facts that CuPy reports about a GPU: its properties, data types, traits and versions, for CUDA and ROCm."""

import uuid
from collections.abc import Mapping
from typing import Any

from gpubench.devices.native import driver, hipblaslt
from gpubench.model import Device
from gpubench.model.facts import MIG
from gpubench.plugins.backend import Traits

from . import _rocm

_BYTES = 16


def uuid_of(props: Mapping[str, Any], pci: str) -> str:
    """Return the UUID of the device at the PCI address `pci` as nvidia-smi prints it; empty if unknown.

    It begins with `GPU-`, and with `MIG-` for a MIG instance, which NVML finds by no other name."""
    raw = props.get("uuid")
    if not isinstance(raw, bytes):
        return ""
    whole = raw[:_BYTES] if len(raw) >= _BYTES else _complete_uuid(raw, pci)
    kind = "MIG" if MIG.search(_text(props.get("name", ""))) else "GPU"
    return f"{kind}-{uuid.UUID(bytes=whole)}" if whole else ""


def _text(name: object) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _complete_uuid(prefix: bytes, pci: str) -> bytes:
    """Return the UUID (16 bytes) of the GPU at the PCI address `pci`, which begins with `prefix` and a zero byte."""
    try:
        import pynvml
    except ImportError:
        return b""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return b""
    try:
        text = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByPciBusId(pci))
    except pynvml.NVMLError:
        return b""
    finally:
        pynvml.nvmlShutdown()
    whole = uuid.UUID(text.removeprefix("GPU-")).bytes
    return whole if whole.startswith(prefix + b"\0") else b""


# cudaDeviceAttr: CUDA Runtime API, "Data types used by CUDA Runtime"; HIP keeps other numbers.
_ATTRIBUTES = {
    "clock.sm_hz": 13,
    "clock.memory_hz": 36,
    "memory.bus_bits": 37,
    "shared.unit_bytes": 81,
    "memory.integrated": 18,  # 1 if host and GPU share one memory, as on Jetson and GB10
    "memory.host_page_tables": 100,  # 1 if kernels access any memory of the host by its page tables, as on GH200
}
_KILO = 1000


def driver_versions(runtime: Any) -> dict[str, str]:
    """Return the versions of the driver and the runtime by name (`cuda.driver`); HIP has one number for both."""
    if runtime.is_hip:
        return {"hip.runtime": _rocm.version(runtime.runtimeGetVersion())}
    return {
        "cuda.driver": _dotted(runtime.driverGetVersion()),
        "cuda.runtime": _dotted(runtime.runtimeGetVersion()),
    }


def _dotted(number: int) -> str:
    """Return CUDA's integer version as text: 13000 → 13.0."""
    return f"{number // _KILO}.{number % _KILO // 10}"


def device_facts(runtime: Any, index: int, count: int) -> Device:
    """Return the Device with `index` among `count` devices, with its facts and the peers whose memory it can access."""
    props = runtime.getDeviceProperties(index)
    family = "rocm" if runtime.is_hip else "cuda"
    pci = pci_address(runtime, index)
    peers = [peer for peer in range(count) if peer != index and runtime.deviceCanAccessPeer(index, peer)]
    return Device(
        id=f"{family}:{index}",
        backend="cupy",
        name=_text(props["name"]),
        arch=_rocm.arch(props) if runtime.is_hip else f"sm_{props['major']}{props['minor']}",
        uuid=uuid_of(props, pci),
        pci=pci,
        memory_bytes=int(props["totalGlobalMem"]),
        cache_bytes=_rocm.last_level_bytes(props) if runtime.is_hip else int(props["l2CacheSize"]),
        units=int(props["multiProcessorCount"]),
        dtypes=_dtypes(runtime, props),
        peers=tuple(f"{family}:{peer}" for peer in peers),
        details=_rocm.details(props) if runtime.is_hip else _details(runtime, index),
    )


def pci_address(runtime: Any, index: int) -> str:
    """Return the PCI address of a device (domain, bus, device and function) in lower case."""
    return str(runtime.deviceGetPCIBusId(index)).lower()


def _dtypes(runtime: Any, props: Mapping[str, Any]) -> tuple[str, ...]:
    if runtime.is_hip:
        return _rocm.dtypes(props, hipblaslt.is_on())
    capability = (props["major"], props["minor"])
    ampere, ada = capability >= (8, 0), capability >= (8, 9)
    dtypes = ["float64", "float32", *(["tf32"] if ampere else []), "float16", *(["bfloat16"] if ampere else [])]
    return (*dtypes, *(["float8_e4m3", "float8_e5m2"] if ada else []), *(["int8"] if capability >= (7, 5) else []))


def _details(runtime: Any, index: int) -> tuple[tuple[str, str], ...]:
    """Return the name and the number (as text) of each attribute in `_ATTRIBUTES` that the driver knows."""
    # A virtual GPU reports a clock of 0.
    numbers = {name: int(runtime.deviceGetAttribute(code, index)) for name, code in _ATTRIBUTES.items()}
    scaled = ((name, value * (_KILO if name.endswith("_hz") else 1)) for name, value in numbers.items())
    return tuple((name, str(value)) for name, value in scaled if value > 0)


def traits_of(runtime: Any, device: Device) -> Traits:
    """Return the traits of `device`, which must be the current one; `runtime` is the module `cupy.cuda.runtime`."""
    props = runtime.getDeviceProperties(runtime.getDevice())
    return Traits(
        vendor="amd" if runtime.is_hip else "nvidia",
        arch=device.arch,
        kernels="hip" if runtime.is_hip else "cuda",
        modes=("hot", "each", "cold", "graph"),
        clock="hip events" if runtime.is_hip else "cuda events",
        warp=int(props["warpSize"]),
        is_gpu=True,
        max_shared_bytes=_rocm.max_shared_bytes(props)
        if runtime.is_hip
        else int(props.get("sharedMemPerBlockOptin") or props["sharedMemPerBlock"]),
        features=device.architecture.features | (frozenset() if runtime.is_hip else _features(device)),
        is_dry_run=runtime.is_hip and _rocm.is_dry_run(props),
    )


def _features(device: Device) -> frozenset[str]:
    """Return the features that CUDA's driver and CuPy add to an architecture."""
    has_early_launch = "clusters" in device.architecture.features and driver.has_bindings()  # both since sm_90
    return frozenset({"register", "event_handles", "pool", *(["early_launch"] if has_early_launch else [])})


def target_options(cupy: Any, device: Device) -> tuple[str, ...]:
    """Return NVRTC's option that allows every instruction of the architecture, if CuPy would not pass it.

    An NVRTC that is older than the GPU compiles to PTX, as CuPy asks it to, without the option."""
    architecture = device.architecture
    if architecture.target == architecture.name or architecture.capability not in cupy.cuda.nvrtc.getSupportedArchs():
        return ()
    return (f"--gpu-architecture={architecture.target}",)
