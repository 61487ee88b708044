"""What the compiler made of a kernel: registers, shared memory, spills and occupancy."""

from __future__ import annotations

from collections.abc import Mapping

from gpubench.api.suite import Bench, Kernel


def resource_notes(bench: Bench, kernel: Kernel, threads: int, shared_bytes: int = 0) -> Mapping[str, str]:
    """Return notes on a kernel that is launched with blocks of `threads` and `shared_bytes` of dynamic shared memory.

    `resources` has the registers of a thread, the shared memory of a block with its dynamic part, and the bytes of
    local memory of a thread, which hold spilled registers and arrays. `occupancy` is how many blocks a compute unit
    holds. There are none where the backend does not report them.
    """
    found = kernel.resources(threads, shared_bytes)
    if found is None:
        return {}
    warps = found.resident_blocks * -(-threads // bench.traits.warp)
    return {
        "resources": (
            f"{found.registers} registers, {found.shared_bytes + shared_bytes} bytes of shared memory, "
            f"{found.local_bytes} bytes of local memory"
        ),
        "occupancy": f"{found.resident_blocks} × {threads} threads per compute unit: {warps} warps",
    }
