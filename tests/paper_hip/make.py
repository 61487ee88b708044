"""Builds a HIP runtime on paper: stand-ins for the shared libraries that a CuPy wheel for ROCm loads.

    python tests/paper_hip/make.py WHEEL_FOLDER HEADERS FOLDER

WHEEL_FOLDER has the unpacked, unmodified wheel; HEADERS is the folder with AMD's `hip/hip_runtime_api.h`. The
libraries are written to FOLDER, from where `LD_LIBRARY_PATH` finds them, and a `hipcc` that names its headers to
FOLDER/bin. What a library has to have is read from the wheel: each symbol that it takes from elsewhere, with version.
What runtime.cpp, blas.cpp and rtc.cpp do not have is there too, and says that it is not supported.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
TESTS, ROOT = HERE.parent, HERE.parents[1]
RUNTIME = "libamdhip64.so.7"
# Prefix of symbols (the first match counts), file of the library, its source, and the value of a missing function.
LIBRARIES = (
    ("hipblas", "libhipblas.so.3", "blas.cpp", 7),
    ("hipfft", "libhipfft.so.0", "", 16),
    ("hiprand", "libhiprand.so.1", "", 999),
    ("hipsparse", "libhipsparse.so.4", "", 10),
    ("rocblas", "librocblas.so.5", "", 2),
    ("rocsolver", "librocsolver.so.0", "", 2),
    ("rocfft", "librocfft.so.0", "", 1),
    ("nccl", "librccl.so.1", "rccl.cpp", 5),
    ("roctracer", "libroctracer64.so.4", "", 0),
    ("roctx", "libroctx64.so.4", "", 0),
    ("hip", RUNTIME, "runtime.cpp", 801),
    ("__hip", RUNTIME, "runtime.cpp", 0),
)
# CuPy asks hipcc for its header folders.
_HIPCC = """#!/bin/sh
printf '#include <...> search starts here:\\n {headers}\\nEnd of search list.\\n' >&2
"""
_SYMBOL = re.compile(r"\*UND\*\s+[0-9a-f]+\s+(?:\((\S+)\)\s+)?(\w+)$")
_OPTIONS = ("-std=c++17", "-O3", "-ffast-math", "-march=native", "-w", "-shared", "-fPIC", "-D__HIP_PLATFORM_AMD__")


def wanted(wheel: Path) -> dict[str, dict[str, str]]:
    """Return the symbols of each library that the wheel loads, each with its version, empty where it has none."""
    names: dict[str, dict[str, str]] = {file: {} for _, file, _, _ in LIBRARIES}
    for library in wheel.rglob("*.so"):
        listed = subprocess.run(["objdump", "-T", str(library)], capture_output=True, text=True, check=True).stdout
        for line in listed.splitlines():
            symbol = _SYMBOL.search(line)
            file = symbol and next((file for begin, file, _, _ in LIBRARIES if symbol[2].startswith(begin)), None)
            if symbol and file:
                names[file][symbol[2]] = symbol[1] or ""
    return names


def built(source: Path | None, symbols: dict[str, str], missing: int, file: Path, options: list[str]) -> None:
    """Build one library: its source, and a function that returns `missing` for each symbol that the source lacks."""
    text = source.read_text(encoding="utf-8") if source else ""
    defined = set(re.findall(r"^EXPORT\s+[\w ]+?[\s*]+(\w+)\(", text, re.MULTILINE))
    defined |= {
        name + more for name in re.findall(r"^PLAIN\((\w+)", text, re.MULTILINE) for more in ("", "StridedBatched")
    }
    stubs = "".join(
        f'extern "C" __attribute__((visibility("default"))) {_answer(name, missing)}\n'
        for name in sorted(set(symbols) - defined)
    )
    made = file.with_suffix(".cpp")
    made.write_text(stubs, encoding="utf-8")
    versions: dict[str, list[str]] = defaultdict(list)
    for name, version in symbols.items():
        versions[version].append(name)
    versions[next(iter(sorted(filter(None, versions))), "")] += sorted(defined - set(symbols))
    script = file.with_suffix(".map")
    script.write_text(_script(versions), encoding="utf-8")
    sources = [str(made), *([str(source)] if source else [])]
    named = [f"-Wl,--version-script={script}"] if any(versions) else []
    subprocess.run(
        ["g++", *_OPTIONS, *sources, *options, *named, f"-Wl,-soname,{file.name}", "-o", str(file)], check=True
    )


def _answer(name: str, missing: int) -> str:
    """Return the source of a function that returns the error "unsupported" of its library."""
    if "String" in name:
        return f'const char* {name}() {{ return "not there on paper"; }}'
    return f"int {name}() {{ return {missing}; }}"


def _script(versions: dict[str, list[str]]) -> str:
    """Return the linker's script that gives the symbols their versions."""
    before, lines = "", []
    for version in sorted(filter(None, versions)):
        lines.append(f"{version} {{ global: {' '.join(f'{name};' for name in versions[version])} }}{before};")
        before = f" {version}"
    return "\n".join(lines) + "\n"


def _blas_of_numpy() -> Path:
    """Return the OpenBLAS of NumPy's wheel, which multiplies fifty times as fast as a loop."""
    return next((Path(np.__file__).parents[1] / "numpy.libs").glob("libscipy_openblas64_*.so"))


def main(wheel: Path, headers: Path, folder: Path) -> None:
    """Build all libraries into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    symbols, include = wanted(wheel), [f"-I{headers}", "-pthread", "-ldl"]
    returned = {file: (source, status) for _, file, source, status in reversed(LIBRARIES)}
    for file in sorted(symbols, key=lambda file: file != RUNTIME):  # the other libraries are linked against this one
        source, status = returned[file]
        options = include if file == RUNTIME else [*include, f"-L{folder}", f"-l:{RUNTIME}"]
        if source == "blas.cpp":
            options += [str(_blas_of_numpy()), f"-Wl,-rpath,{_blas_of_numpy().parent}"]
        built(HERE / source if source else None, symbols[file], status, folder / file, options)
    paths = {"GRID_HEADER": TESTS / "_grid.h", "PRELUDE": ROOT / "suites" / "prelude.cuh", "STUBS": HERE / "headers"}
    defines = [f'-D{name}="{path}"' for name, path in paths.items()]
    built(HERE / "rtc.cpp", {}, 0, folder / "libhiprtc.so.7", [*include, *defines])
    compiler = folder / "bin" / "hipcc"
    compiler.parent.mkdir(exist_ok=True)
    compiler.write_text(_HIPCC.format(headers=HERE / "headers"), encoding="utf-8")
    compiler.chmod(0o755)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
