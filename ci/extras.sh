#!/usr/bin/env bash
# Try the device extras as a machine with nothing but a driver would: each in an empty environment.
#
#   bash ci/extras.sh [EXTRA…]      default: cuda13 cuda12 (2 to 4 GB of downloads and disk each)
#
# Needs no GPU: NVRTC compiles every kernel header that gpubench may use, and cuBLAS, NCCL, the CUDA runtime
# and nvCOMP are loaded. Each must come from the environment, not from a toolkit of this machine.

# shellcheck source-path=SCRIPTDIR source=_setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"
unset LD_LIBRARY_PATH CUDA_PATH CUDA_HOME

check() { # in the environment whose Python is $1
    "$1" - <<'PYTHON'
import ctypes
import sys
from pathlib import Path

import cupy
from cuda.pathfinder import load_nvidia_dynamic_lib
from cupy._core.core import assemble_cupy_compiler_options
from cupy.cuda import nccl
from cupy_backends.cuda.libs import nvrtc
from nvmath.bindings import cublasLt

site = Path(cupy.__file__).parents[1]
HEADERS = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda/barrier", "cooperative_groups.h")
SOURCE = "".join(f"#include <{header}>\n" for header in HEADERS) + (
    'extern "C" __global__ void twice(float* values) { values[threadIdx.x] *= 2.0f; }'
)


def loaded(name: str, path: str) -> None:
    if not Path(path).is_relative_to(site):
        sys.exit(f"{name} comes from {path}, not from the extra")
    print(f"  {name}: {Path(path).relative_to(site)}")


for library in ("cudart", "nvrtc", "cublas", "cublasLt", "nccl"):
    loaded(library, str(load_nvidia_dynamic_lib(library).abs_path))

(nvcomp,) = site.glob("nvidia/libnvcomp/lib64/libnvcomp.so.*")
ctypes.CDLL(str(nvcomp)).nvcompBatchedLZ4CompressAsync  # raises AttributeError if the function is missing
loaded("nvcomp", str(nvcomp))

program = nvrtc.createProgram(SOURCE, "twice.cu", (), ())
nvrtc.compileProgram(program, ("--gpu-architecture=sm_90a", *assemble_cupy_compiler_options(("--std=c++17",))))
print(f"  cuBLASLt's binding knows {len(list(cublasLt.MatmulTile))} tiles")
print(f"  CuPy {cupy.__version__}, NCCL {nccl.get_version()}, NVRTC {nvrtc.getVersion()}:", end=" ")
print(f"{len(nvrtc.getCUBIN(program))} bytes of sm_90a code")
PYTHON
}

[ $# -gt 0 ] || set -- cuda13 cuda12
base=$(find_python)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for extra in "$@"; do
    started=$SECONDS
    "$base" -m venv "$work/$extra"
    pip() { "$work/$extra/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
    pip --require-hashes -r "$root/locks/$extra.lock"
    pip --no-deps --no-build-isolation --editable "$root"
    say "$extra: installed in $((SECONDS - started)) s, $(du -sh "$work/$extra" | cut -f1)"
    (cd "$work" && check "$work/$extra/bin/python")
    "$work/$extra/bin/gpubench" --version
    rm -rf "${work:?}/$extra"
done
