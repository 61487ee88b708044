#!/usr/bin/env bash
# Measure everything this machine has and write a run file and an HTML report.
#
#   bash ci/bench.sh [OPTIONS of `gpubench run`]      e.g. --tier smoke, --filter 'bandwidth/*', --out FILE.jsonl
#
#   GPUBENCH_EXTRA=cuda12     install this extra (host, cuda12, cuda13, rocm7) instead of the one that fits the GPU
#   PYTHON, GPUBENCH_SYSTEM_SITE: see _setup.sh
#
# Its exit status is that of `gpubench run`, or else of the report. Its own messages go to stderr.

# shellcheck source-path=SCRIPTDIR source=_setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"

query_nvidia() { # one property of every NVIDIA GPU, a line each; nothing where there is none
    PATH=$PATH:/usr/lib/wsl/lib nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | grep '^[0-9]' || true
}

nvidia_driver() { # its major version, or nothing; /proc alone is no proof, a container without GPUs shows it too
    local version
    version=$(query_nvidia driver_version)
    if [ -z "$version" ] && [ -e /dev/nvidiactl ]; then
        version=$(sed -n 's/^NVRM version:.* \([0-9]\{3,\}\)\.[0-9.]* .*/\1/p' /proc/driver/nvidia/version 2>/dev/null || true)
    fi
    printf '%s' "${version%%.*}"
}

is_before_turing() { # CUDA 13 has no code for compute capabilities below 7.5
    query_nvidia compute_cap | awk '$1 < 7.5 { old = 1 } END { exit !old }'
}

has_amd_gpu() { # a KFD node with a gfx version is a GPU, one without is a processor
    [ -e /dev/kfd ] &&
        grep -qs '^gfx_target_version [1-9]' /sys/class/kfd/kfd/topology/nodes/*/properties
}

# Drivers: 580 is the first with CUDA 13, 525 the first with CUDA 12 (CUDA toolkit release notes, table 3).
extra_for_this_machine() {
    local driver
    driver=$(nvidia_driver)
    if [ -n "$driver" ]; then
        if [ "$driver" -ge 580 ] && ! is_before_turing; then
            echo cuda13
        elif [ "$driver" -ge 525 ]; then
            echo cuda12
        else
            say "the NVIDIA driver $driver is too old: CUDA 12 needs 525 or newer. Measuring the host processor"
            echo host
        fi
    elif has_amd_gpu; then
        compgen -G '/opt/rocm*/lib/libamdhip64.so.7' >/dev/null ||
            say "an AMD GPU, but no ROCm 7 under /opt/rocm: install AMD's rocm package, else only the host is measured"
        echo rocm7
    else
        ! command -v nvidia-smi >/dev/null || say "nvidia-smi is here but names no GPU: run it to see why"
        say "no usable GPU found: measuring the host processor"
        echo host
    fi
}

out=""
previous=""
for argument in "$@"; do
    case $previous,$argument in
        --out,* | -o,*) out=$argument ;;
        *,--out=*) out=${argument#--out=} ;;
    esac
    previous=$argument
done

setup "${GPUBENCH_EXTRA:-$(extra_for_this_machine)}"

if [ -z "$out" ]; then
    out=gpubench-runs/$(date -u +%Y%m%dT%H%M%SZ)-$(uname -n | cut -d. -f1).jsonl
    mkdir -p gpubench-runs
    set -- --out "$out" "$@"
fi

# In the background, so that a TERM to this script reaches the run; an INT of the terminal reaches both anyway.
"$venv/bin/gpubench" run all "$@" &
run=$!
trap 'kill -TERM "$run" 2>/dev/null || true' TERM
trap : INT
status=0
wait "$run" || status=$?
while kill -0 "$run" 2>/dev/null; do
    status=0
    wait "$run" || status=$?
done
trap - TERM INT

if [ -s "$out" ] && [ "$status" -ne 2 ]; then
    report=${out%.gz}
    report=${report%.jsonl}.html
    reported=0
    "$venv/bin/gpubench" report "$out" -o "$report" --force >&2 || reported=$?
    [ "$status" -ne 0 ] || status=$reported
    say "run file: $out"
    [ "$reported" -ne 0 ] || say "report:   $report"
fi
exit "$status"
