"""A GPU's UUID, as CUDA has it and nvidia-smi shows it: joins it to its counters, tells two cards apart."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

_BYTES = 16


def uuid_of(props: Mapping[str, Any], pci: str) -> str:
    """The UUID of a device of these properties at that PCI address, `GPU-…`; nothing where it is not known whole."""
    raw = props.get("uuid")
    if not isinstance(raw, bytes):
        return ""
    whole = raw[:_BYTES] if len(raw) >= _BYTES else _completed(raw, pci)
    return f"GPU-{uuid.UUID(bytes=whole)}" if whole else ""


def _completed(begun: bytes, pci: str) -> bytes:
    """All of a UUID that CuPy ends at its first zero byte (14.2): of one GPU in sixteen. NVML has it in letters.

    Nothing where NVML's is another's: a part of a split GPU has its own.
    """
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
    found = uuid.UUID(text.removeprefix("GPU-")).bytes
    return found if found.startswith(begun + b"\0") else b""
