"""Describe the resources of a compiled kernel: registers, shared memory, spills and occupancy."""

from collections.abc import Callable, Mapping

from gpubench.api import suite as gb

NEVER_RUN = {"tested": "compile-checked for sm_100a and sm_103a; this project has run it on no GPU"}


def loadable(bench: gb.Bench, build: Callable[[], gb.Kernel]) -> gb.Kernel:
    """Return the kernel that `build` builds; raises Skip with the error of a compiler or driver that is too old."""
    errors = (bench.xp.cuda.compiler.CompileException, bench.xp.cuda.driver.CUDADriverError)
    try:
        return build()
    except errors as error:
        raise gb.Skip(f"the compiler or the driver has no tcgen05 for {bench.traits.arch}: {error}") from error


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
