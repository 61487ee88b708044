#!/usr/bin/env bash
# Check the support for AMD GPUs without an AMD GPU: compile the kernels with AMD's hipRTC and look at their
# instructions; read counters with AMD's libraries from a simulated /sys. Nothing runs on a GPU, and nothing is measured.
#
#   bash ci/rocm.sh [all] [OPTIONS of pytest]
#
# With `all`, it takes about half an hour. It also runs the smoke tier of all suites in one command on a simulated HIP
# runtime, including the long cases, and checks that mistakes planted in gpubench's use of HIP are found.
#
# Debian's newest ROCm packages are fetched (250 MB, once) and unpacked into a folder. This needs no root and installs
# nothing. If they cannot be fetched, the checks that need them are skipped with a message, because an unavailable
# mirror is no failure of gpubench. AMD's libraries read /sys itself, so one part replaces it in a mount namespace. That
# needs root, or a kernel with user namespaces.
#
#   GPUBENCH_ROCM_ROOT=DIR       use these unpacked packages and fetch nothing
#   GPUBENCH_ROCM_CACHE=DIR      where to unpack them [~/.cache/gpubench/rocm]
#   GPUBENCH_DEBIAN_MIRROR=URL   fetch from this mirror [that of apt's configuration, else deb.debian.org]
#   GPUBENCH_DEBIAN_SUITE=NAME   fetch from this suite [sid]

# shellcheck source-path=SCRIPTDIR source=_setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"

is_all=
if [ "${1:-}" = all ]; then
    is_all=1
    shift
fi
started=$SECONDS
step() { say "$((SECONDS - started)) s: $*"; }
cache=${GPUBENCH_ROCM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpubench/rocm}
debian=${GPUBENCH_DEBIAN_SUITE:-sid}

mirror_of_apt() {
    # shellcheck disable=SC2016 # apt-get fills these in
    apt-get indextargets --format '$(SITE) $(COMPONENT)' 'Origin: Debian' 2>/dev/null |
        awk '$2 == "main" && $1 !~ /security/ { print $1; exit }'
}

configure_apt() { # a separate apt below $1, which does not know this machine's packages
    mkdir -p "$1"/state/lists/partial "$1"/cache/archives/partial "$1"/etc/preferences.d "$1"/etc/apt.conf.d
    : >"$1/status"
    local mirror=${GPUBENCH_DEBIAN_MIRROR:-$(mirror_of_apt)}
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:-http://deb.debian.org/debian} $debian main" \
        >"$1/etc/sources.list"
    cat >"$1/apt.conf" <<CONF
Dir "$1";
Dir::State "state";
Dir::State::status "$1/status";
Dir::Cache "cache";
Dir::Etc "etc";
Dir::Etc::sourcelist "sources.list";
Dir::Etc::sourceparts "none";
APT::Architecture "amd64";
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::Check-Valid-Until "false";
APT::Update::Error-Mode "any";
CONF
}

newest() { # the newest of the packages whose name is $1 and a number
    apt-cache pkgnames "$1" | grep -E "^$1[0-9]+$" | sort -V | tail -n 1
}

# shellcheck disable=SC2030
fetch() ( # into $cache/root; each step is checked, because `set -e` has no effect within a condition
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    configure_apt "$work"
    export APT_CONFIG=$work/apt.conf
    timeout 120 apt-get -qq update || exit 1
    packages=(python3 amd-smi rocm-smi)
    for stem in libhiprtc libhiprtc-builtins libamdhip64- libamd-smi librocm-smi64-; do
        name=$(newest "$stem")
        [ -n "$name" ] || { echo "$debian has no package $stem" >&2; exit 1; }
        packages+=("$name")
    done
    timeout 180 apt-get -qq -y --download-only install "${packages[@]}" >/dev/null || exit 1
    rm -rf "$cache/root.new"
    mkdir -p "$cache/root.new"/usr/{bin,lib,lib64,sbin}
    for folder in bin lib lib64 sbin; do ln -s "usr/$folder" "$cache/root.new/$folder"; done
    for archive in "$work"/cache/archives/*.deb; do dpkg -x "$archive" "$cache/root.new" || exit 1; done
    rm -rf "$cache/root"
    mv "$cache/root.new" "$cache/root"
)

# shellcheck disable=SC2030,SC2031 # each fetch has an environment of its own
fetch_hipblaslt() ( # into $1: its library and headers, but not its kernels (600 MB)
    [ ! -e "$1/usr/include/hipblaslt/hipblaslt.h" ] || exit 0
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    configure_apt "$work"
    export APT_CONFIG=$work/apt.conf
    timeout 60 apt-get -qq update || exit 1
    cd "$work/cache" || exit 1
    timeout 150 apt-get -qq download "$(newest libhipblaslt)" libamdhip64-dev libhipblas-common-dev libhipblaslt-dev ||
        exit 1
    dpkg --fsys-tarfile libhipblaslt[0-9]*.deb | tar -x -C "$1" --wildcards './usr/lib/*/libhipblaslt.so.*' || exit 1
    for archive in *-dev_*.deb; do dpkg --fsys-tarfile "$archive" | tar -x -C "$1" ./usr/include || exit 1; done
)

fetch_pyrsmi() { # pure Python, beside the packages; links AMD's library under the name that pyrsmi loads
    [ -d "$1/opt/pyrsmi" ] || {
        "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$1/opt/wheel" pyrsmi==1.1.0 &&
            "$python" -m zipfile -e "$1"/opt/wheel/pyrsmi-*.whl "$1/opt/pyrsmi"
    }
    mkdir -p "$1/opt/rocm/lib"
    ln -sf "$(compgen -G "$1/usr/lib/x86_64-linux-gnu/libamd_smi.so.*" | head -n 1)" "$1/opt/rocm/lib/libamd_smi.so"
}

fetch_cupy() { # CuPy's wheel for ROCm (74 MB), unpacked and unchanged
    [ -d "$1/opt/cupy" ] || {
        rm -rf "$1/opt/wheel-cupy" "$1/opt/cupy.new"
        "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
            --dest "$1/opt/wheel-cupy" cupy-rocm-7-0 &&
            "$python" -m zipfile -e "$1"/opt/wheel-cupy/*.whl "$1/opt/cupy.new" && mv "$1/opt/cupy.new" "$1/opt/cupy"
    }
}

setup dev
cd "$root"

if [ -z "${GPUBENCH_ROCM_ROOT:-}" ]; then
    export GPUBENCH_ROCM_ROOT=$cache/root
    if [ ! -x "$GPUBENCH_ROCM_ROOT/usr/bin/python3" ]; then
        step "fetching Debian's ROCm packages ($debian) into $cache"
        mkdir -p "$cache"
        if [ "$(uname -m)" != x86_64 ] || ! command -v dpkg >/dev/null; then
            say "skipped: Debian's packages are for x86-64 and need dpkg to unpack"
        elif ! fetch 2>"$cache/log"; then
            say "skipped: Debian's packages could not be fetched: $(tail -n 1 "$cache/log")"
        fi
    fi
fi
results=$(mktemp -d)
kernels=
trap '[ -z "$kernels" ] || kill "$kernels" 2>/dev/null; rm -rf "$results"' EXIT
status=0
step "kernels: compiled for gfx90a, gfx942 and gfx950, and their instructions; meanwhile the rest is fetched and run"
"$python" -m pytest -q -m slow -rs --junitxml "$results/kernels.xml" tests/test_amd_kernels.py "$@" >"$results/kernels" 2>&1 &
kernels=$!

if [ -x "$GPUBENCH_ROCM_ROOT/usr/bin/python3" ]; then
    if [ "$GPUBENCH_ROCM_ROOT" = "$cache/root" ]; then
        fetch_hipblaslt "$cache/root" 2>"$cache/log" || say "skipped: hipBLASLt could not be fetched: $(tail -n 1 "$cache/log")"
        fetch_pyrsmi "$cache/root" 2>"$cache/log" || say "skipped: pyrsmi could not be fetched: $(tail -n 1 "$cache/log")"
        fetch_cupy "$cache/root" 2>"$cache/log" || say "skipped: CuPy's wheel could not be fetched: $(tail -n 1 "$cache/log")"
    fi
    find "$GPUBENCH_ROCM_ROOT/usr/lib/x86_64-linux-gnu" -type f \
        -regex '.*/lib\(hiprtc\|amd_smi\|rocm_smi64\|hipblaslt\)\.so\.[0-9.]+' -printf '  %f\n' >&2
fi
unshare -m true 2>/dev/null || unshare -rm true 2>/dev/null ||
    say "skipped: AMD's libraries on a simulated /sys need root, or user namespaces (sysctl kernel.unprivileged_userns_clone=1)"

step "the backend, the collector and doctor on simulated machines, and AMD's libraries on them"
"$python" -m pytest -q -m "slow or not slow" -rs tests/test_rocm_backend.py tests/test_amd_collector.py \
    tests/test_amd_libraries.py tests/test_amd_watch.py tests/test_amd_bound.py tests/test_amd_machine.py \
    tests/test_amd_doctor.py tests/test_bundle.py tests/test_hipblaslt.py "$@" || status=$?
step "the suites through CuPy's wheel for ROCm, on a stand-in for HIP's runtime: a dry run"
"$python" -m pytest -q -m slow -rs tests/test_paper_hip.py tests/test_amd_whole.py "$@" || status=$?
if [ -n "$is_all" ]; then
    step "the smoke tier of all suites in one command, and planted mistakes: a dry run"
    "$python" -m pytest -q -m slow -rs tests/test_paper_all.py "$@" || status=$?
    bash "$root/ci/study.sh" paper_mutations || status=$?
fi
step "the kernels, which were compiled meanwhile"
wait "$kernels" || status=$?
kernels=
cat "$results/kernels"
step "suite × architecture"
"$python" tests/studies/amd_table.py "$results/kernels.xml" || true
step "done"
exit "$status"
