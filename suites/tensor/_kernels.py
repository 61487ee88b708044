"""Describe the resources of a compiled kernel: registers, shared memory, spills and occupancy."""

from __future__ import annotations

from collections.abc import Mapping

from gpubench.api.suite import Bench, Kernel


def resource_notes(bench: Bench, kernel: Kernel, threads: int, shared_bytes: int = 0) -> Mapping[str, str]:
    """Return notes on a kernel that is launched with blocks of `threads` and `shared_bytes` of dynamic shared memory.

    `occupancy` is how many blocks a compute unit holds."""
    resources = kernel.resources(threads, shared_bytes)
    if resources is None:
        return {}
    warps = resources.resident_blocks * -(-threads // bench.traits.warp)
    return {
        "resources": (
            f"{resources.registers} registers, {resources.shared_bytes + shared_bytes} bytes of shared memory, "
            f"{resources.local_bytes} bytes of local memory"
        ),
        "occupancy": f"{resources.resident_blocks} × {threads} threads per compute unit: {warps} warps",
    }
