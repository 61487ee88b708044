# shellcheck shell=bash
# Sourced by the scripts beside it, after _setup.sh; `extra_for_this_machine` prints the extra that fits its GPU.

query_nvidia() { # one property of every NVIDIA GPU, a line each; prints nothing without a GPU
    PATH=$PATH:/usr/lib/wsl/lib nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | grep '^[0-9]' || true
}

nvidia_driver() { # its major version, or nothing; /proc proves nothing, because a container without GPUs shows it too
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

has_amd_gpu() { # a KFD node with a gfx version is a GPU, a node without one is a processor
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
            say "found an AMD GPU, but no ROCm 7 under /opt/rocm: install AMD's rocm package, or only the host is measured"
        echo rocm7
    else
        ! command -v nvidia-smi >/dev/null || say "nvidia-smi is installed but lists no GPU: run it to see why"
        say "no usable GPU found: measuring the host processor"
        echo host
    fi
}
