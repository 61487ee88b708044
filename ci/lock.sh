#!/usr/bin/env bash
# Write new lock files: every package that an extra of pyproject.toml installs, pinned, with the hashes of its files.
#
#   bash ci/lock.sh               needs network
#
# `base` is an installation without an extra, `tools` what this script runs. A lock supports every Python from 3.11 on
# and every platform. The package index determines the versions. The hashes are those of the files, from whichever index
# they come. locks/packages.json records the date and the licence of each package. Read the difference before you commit
# it.

# shellcheck source-path=SCRIPTDIR source=_setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$(find_python)" -m venv "$work/venv"
bin=$work/venv/bin
cd "$root"
"$bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r locks/tools.lock
echo 'setuptools>=77' >"$work/build.in" # builds gpubench itself without a package index
printf '%s\n' 'pip>=26' 'uv>=0.13' >"$work/tools.in"

compile() { # LOCK SOURCE…
    say "locking $1"
    "$bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-annotate --custom-compile-command "bash ci/lock.sh" \
        "${@:2}" --output-file "locks/$1.lock"
    "$bin/uv" pip compile --quiet --universal --python-version 3.11 --no-deps --format pylock.toml \
        "locks/$1.lock" --output-file "$work/pylock.$1.toml"
    "$bin/python" -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --no-deps \
        --require-hashes --report "$work/$1.json" -r "locks/$1.lock"
}

compile tools "$work/tools.in"
compile base pyproject.toml "$work/build.in"
for extra in dev host cuda12 cuda13 rocm7; do
    compile "$extra" --extra "$extra" pyproject.toml "$work/build.in"
done
"$bin/python" ci/_packages.py "$work"
