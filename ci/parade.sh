#!/usr/bin/env bash
# Plan all suites on every card in tests/devices/cards.toml, on paper, and compile each kernel that the plans launch for
# its architecture: with NVRTC of CUDA 12 (sm_70) and CUDA 13, and with AMD's hipRTC. No GPU is needed and nothing is
# measured. It takes less than ten minutes on two cores and prints a table of cards and suites.
#
#   bash ci/parade.sh [OPTIONS of pytest]
#
# NVIDIA's compilers (120 MB) are fetched once. AMD's is the one that `bash ci/rocm.sh` fetches; without it, AMD's kernels
# are planned but not compiled.
#
#   GPUBENCH_PARADE_CACHE=DIR   where to put NVIDIA's compilers [~/.cache/gpubench/parade]
#   GPUBENCH_PARADE_TIER=TIER   the tier of the plans [quick]; `full` takes hours
#   GPUBENCH_ROCM_ROOT=DIR      AMD's unpacked packages [~/.cache/gpubench/rocm/root]

# shellcheck source-path=SCRIPTDIR source=_setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"

cache=${GPUBENCH_PARADE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpubench/parade}
export GPUBENCH_NVRTC12=$cache/cuda12 GPUBENCH_NVRTC13=$cache/cuda13
export GPUBENCH_ROCM_ROOT=${GPUBENCH_ROCM_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/gpubench/rocm/root}

fetch() { # the wheel $1 into the folder $2
    [ -d "$2" ] || {
        rm -rf "$2.new"
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$2.new" "$1" && mv "$2.new" "$2"
    } || say "skipped: $1 could not be fetched"
}

setup dev
cd "$root"
fetch nvidia-cuda-nvrtc-cu12 "$GPUBENCH_NVRTC12"
fetch nvidia-cuda-nvrtc "$GPUBENCH_NVRTC13"
[ -x "$GPUBENCH_ROCM_ROOT/usr/bin/python3" ] || say "no hipRTC in $GPUBENCH_ROCM_ROOT: run ci/rocm.sh first to compile for AMD"
GPUBENCH_PARADE_OUT=$(mktemp -d)
export GPUBENCH_PARADE_OUT
trap 'rm -rf "$GPUBENCH_PARADE_OUT"' EXIT
status=0
"$python" -m pytest -q -m "slow or not slow" -rs -n 2 tests/test_parade.py "$@" || status=$?
PYTHONPATH=tests "$python" tests/_parade.py "$GPUBENCH_PARADE_OUT"
exit "$status"
