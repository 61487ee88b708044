#!/usr/bin/env bash
# Write new lock files: every package that an extra of pyproject.toml installs, pinned, with the hashes of its files.
#
#   bash ci/lock.sh [EXTRA…]      default: dev host cuda12 cuda13 rocm7
#
# A lock supports every Python from 3.11 on and every platform. The package index determines the versions. The hashes
# are those of the files, from whichever index they come. Read the difference before you commit it.

# shellcheck source-path=SCRIPTDIR source=_setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"

[ $# -gt 0 ] || set -- dev host cuda12 cuda13 rocm7
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$(find_python)" -m venv "$work/uv"
"$work/uv/bin/python" -m pip install --quiet --disable-pip-version-check 'uv>=0.5'
cd "$root"
echo 'setuptools>=77' >"$work/build.in" # builds gpubench itself without a package index
for extra in "$@"; do
    say "locking $extra"
    "$work/uv/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-annotate --custom-compile-command "bash ci/lock.sh" \
        --extra "$extra" pyproject.toml "$work/build.in" --output-file "locks/$extra.lock"
done
