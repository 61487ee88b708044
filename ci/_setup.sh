# shellcheck shell=bash
# Sourced by the scripts beside it; `setup EXTRA` makes .venv in the repository root, installs gpubench
# there. The second time it is quick, because a stamp in .venv records what the environment was made from.
#
#   PYTHON=/path/to/python3   use this interpreter instead of searching
#   GPUBENCH_SYSTEM_SITE=1    for a machine without network: use that interpreter's packages, install only gpubench
#   GPUBENCH_UNLOCKED=1       install the newest packages, not those that locks/EXTRA.lock pins by their hashes

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
python=$venv/bin/python

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
fail() { say "$*"; exit 2; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if command -v "$name" >/dev/null && is_new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    fail "no Python 3.11 or newer (tried ${PYTHON:-python3, python3.11 to python3.14})." \
        "Debian 12, Ubuntu 24.04 and newer: sudo apt-get install python3 python3-venv." \
        "Elsewhere set PYTHON=/path/to/python3"
}

make_venv() {
    local found version
    found=$(find_python)
    version=$("$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$found" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "Python $version cannot make an environment. Debian and Ubuntu: sudo apt-get install python$version-venv"
    say "making .venv with Python $version"
    "$found" -m venv --clear ${GPUBENCH_SYSTEM_SITE:+--without-pip} "$venv" >&2
    # A .pth file, because --system-site-packages ignores the packages of an outer virtual environment.
    [ -z "${GPUBENCH_SYSTEM_SITE:-}" ] ||
        "$found" -c 'import sys; print(*(p for p in sys.path if p.endswith("-packages")), sep="\n")' \
            >"$venv/lib/python$version/site-packages/system.pth"
}

is_usable() { # whether .venv exists and is of the requested kind
    is_new_enough "$python" &&
        { [ -z "${GPUBENCH_SYSTEM_SITE:-}" ] || compgen -G "$venv/lib/python*/site-packages/system.pth" >/dev/null; }
}

stamp_of() { # a hash of everything on which an installed .venv depends
    {
        printf '%s\n' "$1" "$root" "${GPUBENCH_SYSTEM_SITE:-}"
        "$python" --version
        cat "$root/pyproject.toml" "$root/locks/$1.lock" 2>/dev/null
        printf '%s\n' "${GPUBENCH_UNLOCKED:-}"
    } | sha256sum
}

# A lock pins the versions of its date, for which a newer Python may find no wheels. A Python that the lock supports
# always installs from it: whoever withholds its files from us must not make us install others.
is_locked() {
    [ -z "${GPUBENCH_UNLOCKED:-}" ] && [ -f "$root/locks/$1.lock" ] && [ "$(uname -s)" = Linux ] &&
        "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'
}

install() {
    if [ -n "${GPUBENCH_SYSTEM_SITE:-}" ]; then
        "$python" -m pip install --quiet --no-deps --no-build-isolation --editable "$root" >&2
    elif is_locked "$1"; then
        "$python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$root/locks/$1.lock" >&2 &&
            "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable "$root" >&2
    else
        say "installing the newest packages: no lock supports this Python and this system, or GPUBENCH_UNLOCKED is set"
        "$python" -m pip install --quiet --disable-pip-version-check --editable "${root}[$1]" >&2
    fi
}

setup() {
    local extra=$1 stamp=$venv/.gpubench-$1 lock
    exec {lock}<"$root"
    flock "$lock" # of two scripts that start at once, the second waits and finds a complete .venv
    is_usable || make_venv
    if [ "$(cat "$stamp" 2>/dev/null)" != "$(stamp_of "$extra")" ]; then
        say "installing gpubench-suite[$extra] into .venv (once)"
        install "$extra" || fail "pip could not install gpubench-suite[$extra]: its message is above"
        stamp_of "$extra" >"$stamp"
    fi
    exec {lock}<&-
}
