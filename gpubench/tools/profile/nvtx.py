"""Read the NVTX ranges of a program: a small library, compiled on demand, that NVTX loads into the program."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

VARIABLE = "NVTX_INJECTION64_PATH"  # the library that NVTX 2 and 3 load at the program's first call
_COMPILE_S = 20.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """Variables for the program's environment that make its ranges readable; `warnings` say why they are not."""

    variables: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def prepared(environment: Mapping[str, str], folder: Path) -> Prepared:
    """Compile the library into the folder, unless the environment already names another tool for NVTX."""
    if environment.get(VARIABLE):
        return Prepared(warnings=(f"NVTX ranges are not recorded: {VARIABLE} names another tool; unset it",))
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return Prepared(warnings=("NVTX ranges are not recorded: install a C compiler (cc) to record them",))
    source, library = folder / "nvtx.c", folder / "libgpubench-nvtx.so"
    source.write_bytes(files("gpubench.tools.profile").joinpath("nvtx.c").read_bytes())
    words = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
    try:
        done = subprocess.run(
            words, capture_output=True, encoding="utf-8", errors="replace", timeout=_COMPILE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Prepared(warnings=(f"NVTX ranges are not recorded: {compiler} failed ({error})",))
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        return Prepared(warnings=(f"NVTX ranges are not recorded: {compiler} failed ({why})",))
    return Prepared({VARIABLE: str(library)})
