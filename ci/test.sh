#!/usr/bin/env bash
# Run everything that a change must pass: lint, types, tests, and the wheel in an empty environment.
#
#   bash ci/test.sh [--slow] [OPTIONS of pytest]
#
# --slow adds the tests marked slow and the named checks of ci/extras.sh (gigabytes of downloads).
# Three tests run at a time, because many of them wait. They judge no time, so another test can disturb samples but not
# verdicts.

# shellcheck source-path=SCRIPTDIR source=_setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"

slow=""
if [ "${1:-}" = --slow ]; then
    slow=1
    shift
    set -- -m "slow or not slow" "$@"
fi

started=$SECONDS
install_wheel() { # PYTHON LOCK WHEEL: all packages by their hashes, then the wheel that was just built
    "$1" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$root/locks/$2.lock"
    "$1" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "$3"
}
step() { say "$((SECONDS - started)) s: $*"; }

setup dev
cd "$root"

step "lint and types"
"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy gpubench suites collectors reports ci

step "tests"
"$python" -m pytest -n 3 --dist worksteal "$@"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

step "wheel"
"$python" -m build --no-isolation --outdir "$work/dist" . >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }

step "the wheel in an empty environment, from another directory"
"$python" -m venv "$work/empty"
empty=$work/empty/bin
install_wheel "$empty/python" base "$work"/dist/*.whl
cd "$work"
"$empty/gpubench" --version
"$empty/gpubench-suite" --help >help.txt
"$empty/gpubench" list >list.txt
recorded=$root/tests/recordings/sessions
"$empty/gpubench" show "$recorded/2.jsonl.gz" >show.txt
"$empty/gpubench" report "$recorded/2.jsonl.gz" -o recorded.html
"$empty/gpubench" gate "$recorded/2.jsonl.gz" --baseline "$recorded/2.jsonl.gz" >gate.txt

step "the same with the host's kernels: measure and report"
install_wheel "$empty/python" host dist/*.whl
"$empty/gpubench" run all --tier smoke --device host --out smoke.jsonl
"$empty/gpubench" report smoke.jsonl -o smoke.html
tail -n 1 smoke.jsonl | grep -q '"end"' || fail "the run file has no end record"
grep -q '</html>' smoke.html || fail "the HTML report is incomplete"

if [ -n "$slow" ]; then
    step "the limits of speed, with no test beside them"
    bash "$root/ci/study.sh" speed_limits
    step "the device extras, without a device"
    bash "$root/ci/extras.sh"
fi
step "all passed"
