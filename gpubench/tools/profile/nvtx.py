"""Read the NVTX ranges of a program with a small library that is compiled on demand and that NVTX loads."""

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

VARIABLE = "NVTX_INJECTION64_PATH"  # the library that NVTX 2 and 3 load at the program's first call
_COMPILE_S = 20.0


@dataclass(frozen=True, slots=True)
class NvtxSetup:
    """The environment variables (name to value) with which a program records its NVTX ranges.

    Without variables, the ranges are not recorded, and `warnings` say why."""

    variables: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def prepare(environment: Mapping[str, str], folder: Path) -> NvtxSetup:
    """Compile the recording library into `folder` and return the variables that make NVTX load it.

    `environment` is the program's."""
    if environment.get(VARIABLE):
        return NvtxSetup(warnings=(f"NVTX ranges are not recorded: {VARIABLE} names another tool; unset it",))
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return NvtxSetup(warnings=("NVTX ranges are not recorded: install a C compiler (cc) to record them",))
    source, library = folder / "nvtx.c", folder / "libgpubench-nvtx.so"
    source.write_bytes(files("gpubench.tools.profile").joinpath("nvtx.c").read_bytes())
    arguments = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
    try:
        compilation = subprocess.run(
            arguments, capture_output=True, encoding="utf-8", errors="replace", timeout=_COMPILE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return NvtxSetup(warnings=(f"NVTX ranges are not recorded: {compiler} failed ({error})",))
    if compilation.returncode:
        reason = (compilation.stderr.strip().splitlines() or [f"status {compilation.returncode}"])[-1]
        return NvtxSetup(warnings=(f"NVTX ranges are not recorded: {compiler} failed ({reason})",))
    return NvtxSetup({VARIABLE: str(library)})
