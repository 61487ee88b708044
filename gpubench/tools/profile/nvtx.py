"""A program's NVTX ranges as marks: a small library that NVTX loads into it, compiled when it is needed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

VARIABLE = "NVTX_INJECTION64_PATH"  # the library that NVTX 2 and 3 load at a program's first call of them
_COMPILE_S = 20.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the program's environment needs for its ranges to be read; `warnings` say why they are not."""

    variables: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def prepared(environment: Mapping[str, str], folder: Path) -> Prepared:
    """Compile the library into the folder. Another tool that is there already stays, and the ranges are its own."""
    if environment.get(VARIABLE):
        return Prepared(warnings=(f"NVTX ranges are not read: {VARIABLE} names another tool",))
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return Prepared(warnings=("NVTX ranges, if there are any, are not read: there is no C compiler (cc)",))
    source, library = folder / "nvtx.c", folder / "libgpubench-nvtx.so"
    source.write_bytes(files("gpubench.tools.profile").joinpath("nvtx.c").read_bytes())
    words = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
    try:
        done = subprocess.run(
            words, capture_output=True, encoding="utf-8", errors="replace", timeout=_COMPILE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Prepared(warnings=(f"NVTX ranges are not read: {compiler} failed ({error})",))
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        return Prepared(warnings=(f"NVTX ranges are not read: {compiler} failed ({why})",))
    return Prepared({VARIABLE: str(library)})
