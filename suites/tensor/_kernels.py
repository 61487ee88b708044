"""Describe the resources of a compiled kernel: registers, shared memory, spills and occupancy."""

from collections.abc import Mapping

from gpubench.api import suite as gb


def resource_notes(bench: gb.Bench, kernel: gb.Kernel, threads: int, shared_bytes: int = 0) -> Mapping[str, str]:
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
