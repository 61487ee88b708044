"""Find a GPU's UUID as CUDA reports it and nvidia-smi prints it: it connects a GPU with its counters."""

import uuid
from collections.abc import Mapping
from typing import Any

_BYTES = 16


def uuid_of(props: Mapping[str, Any], pci: str) -> str:
    """Return the UUID (`GPU-…`) of the device at the PCI address `pci`; empty if unknown.

    `props` is the result of CuPy's `getDeviceProperties` for the device."""
    raw = props.get("uuid")
    if not isinstance(raw, bytes):
        return ""
    whole = raw[:_BYTES] if len(raw) >= _BYTES else _complete_uuid(raw, pci)
    return f"GPU-{uuid.UUID(bytes=whole)}" if whole else ""


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
