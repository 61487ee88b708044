"""Compile on the host for GPUs that need not be here, and measure the time and the size of the code."""

import dataclasses
import importlib
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpubench.api import suite as gb

from .. import _triton as triton_here
from . import _providers as providers
from . import _triton_kernels as kernels
from ._fresh import Caches
from ._offline import OfflineDevice, hiprtc, nvrtc
from ._operators import Problem

_NVIDIA, _AMD = ("sm_80", "sm_90", "sm_100"), ("gfx942", "gfx950")
ARCHS = {"nvrtc": _NVIDIA, "hiprtc": _AMD, "triton": (*_NVIDIA, *_AMD), "cutile": _NVIDIA}
_ROWS, _COLS, _DTYPE = 64, 4096, "float16"  # the code depends on the columns alone
_WARPS = 8  # of a program in Triton with 4096 elements, as on a GPU
_SAMPLES = 3
_MACHINES = {"nvidia": 190, "amd": 224}  # e_machine of an ELF file: EM_CUDA, EM_AMDGPU (llvm/BinaryFormat/ELF.h)

topic = gb.Topic(
    views=[gb.View("bars", "Time to compile for another GPU by provider", ("cross",), by=("op", "by", "arch"))]
)


def _in_full(target: gb.Target) -> bool:
    return gb.on_host(target) and target.tier == "full"


def _has_target(_target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether the compiler `by` can compile for the architecture `arch`."""
    return params["arch"] in ARCHS[params["by"]]


@topic.case(
    op=("softmax",),
    by=tuple(ARCHS),
    arch=(*_NVIDIA, *_AMD),
    when=_in_full,
    where=_has_target,
    runtime=lambda params: str(params["by"]),
)
def cross(bench: gb.Bench, op: str, by: str, arch: str) -> gb.Task:
    """Seconds to compile the operator `op` for an architecture on the host, in a process that has compiled it before.

    `by` names the compiler. The size of the code is observed too."""
    compiled, notes = {"triton": _by_triton, "cutile": _by_cutile}.get(by, _by_runtime)(bench, op, by, arch)
    code: list[bytes] = []

    def call() -> float:
        """Compile the operator, keep its machine code for the check, and return the seconds."""
        seconds, machine_code = compiled()
        code[:] = [machine_code]
        return seconds

    def check() -> gb.Observation:
        (machine_code,) = code
        expect_code(machine_code, arch)
        return {"code": gb.Observed(len(machine_code), "B")}

    stage = gb.Stage(call, clock="self", effort=gb.Effort.exactly(_SAMPLES))
    notes["shape"] = f"rows of {_COLS} elements of {_DTYPE}"
    return gb.Task.of(stage, check=check, poison=code.clear, notes=notes)


def expect_code(code: bytes, arch: str) -> None:
    """Raise WrongAnswer if `code` is not an ELF file for GPUs of the vendor of `arch` (sm_… or gfx…)."""
    machine = struct.unpack_from("<H", code, 18)[0] if code[:4] == b"\x7fELF" and len(code) >= 20 else None
    gb.expect(
        machine == _MACHINES[gb.Architecture.parse(arch).vendor],
        f"the {len(code)} bytes are no code for {arch}: machine {machine}",
    )


_Compile = Callable[[], tuple[float, bytes]]


def _by_runtime(bench: gb.Bench, op: str, by: str, arch: str) -> tuple[_Compile, dict[str, str]]:
    """Return a function that compiles our kernel by NVRTC or hipRTC (`by`), and the notes of the case."""
    compiler = nvrtc() if by == "nvrtc" else hiprtc()

    def compiled() -> tuple[float, bytes]:
        device = OfflineDevice(bench, arch, compiler)
        offline = dataclasses.replace(bench, open_device=device)
        providers.build(offline, Problem(offline, op, _ROWS, _COLS, _DTYPE), "nvrtc")
        return device.seconds, device.code

    return compiled, {"library": compiler.version}


def _by_triton(_bench: gb.Bench, op: str, _by: str, arch: str) -> tuple[_Compile, dict[str, str]]:
    """Return a function that compiles Triton's kernel of `op` ahead of time, and the notes of the case."""
    triton = triton_here.imported()
    kernels.load(triton.language)
    target_of = importlib.import_module("triton.backends.compiler").GPUTarget
    architecture = gb.Architecture.parse(arch)
    amd = architecture.vendor == "amd"
    target = target_of("hip", arch, 64) if amd else target_of("cuda", architecture.capability, 32)
    types = {"x": "*fp16", "out": "*fp16", "cols": "i32", "block": "constexpr"}
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(3)}
    source = triton.compiler.ASTSource(triton.jit(kernels.ROWS[op]), types, {"block": _COLS}, aligned)

    def compiled() -> tuple[float, bytes]:
        """Compile with an empty cache, and return the seconds and the machine code."""
        with Caches() as caches, triton.knobs.cache.scope():
            triton.knobs.cache.dir = caches.environment["TRITON_CACHE_DIR"]
            begun = time.perf_counter()
            binary = triton.compile(source, target=target, options={"num_warps": _WARPS, "enable_fp_fusion": True})
            return time.perf_counter() - begun, bytes(binary.asm["hsaco" if amd else "cubin"])

    return compiled, {"library": f"Triton {triton.__version__}"}


def constraint(compilation: Any, dtype: Any, index_dtype: Any, dimensions: int) -> Any:
    """Return cuTile's ArrayConstraint for a vector or a matrix without gaps whose rows are aligned to 16 bytes.

    It lets the compiler assume rows of a multiple of 16 elements."""
    aligned = 8 * 16 // dtype.bitwidth
    return compilation.ArrayConstraint(
        dtype,
        dimensions,
        index_dtype=index_dtype,
        stride_lower_bound_incl=0,
        alias_groups=(),
        may_alias_internally=False,
        stride_constant=(None, 1)[-dimensions:],
        stride_divisible_by=(aligned, 1)[-dimensions:],
        shape_divisible_by=(1, 16)[-dimensions:],
        base_addr_divisible_by=16,
    )


def _by_cutile(_bench: gb.Bench, op: str, _by: str, arch: str) -> tuple[_Compile, dict[str, str]]:
    """Return a function that compiles cuTile's kernel of `op` ahead of time, and the notes of the case."""
    cutile = importlib.import_module("._by_cutile", __package__)
    tile, config = cutile.loaded(), cutile.settings()
    compilation = importlib.import_module("cuda.tile.compilation")
    matrix = constraint(compilation, tile.float16, tile.int32, 2)
    launch = cutile.configured(tile, op, _ROWS, _COLS)
    convention = compilation.CallingConvention.cutile_python_v1()
    signature = compilation.KernelSignature([matrix, matrix, *launch.constants], convention)

    def compiled() -> tuple[float, bytes]:
        """Compile without the cache on disk, and return the seconds and the machine code."""
        folder, config.cache_dir = config.cache_dir, None
        try:
            begun = time.perf_counter()
            code = cutile.compiled_code(launch.kernel, signature, arch)
            return time.perf_counter() - begun, code
        finally:
            config.cache_dir = folder

    compiled()
    return compiled, {"library": f"cuTile {tile.__version__}"}
